//! `cargo xtask instructions --files`: which source files an operation executes, as callgrind saw it.
//!
//! The count is what a reader has to know to follow the operation from its call to its return: files of the crate `kingtide`, of the
//! crates that are parts of the engine, and of those below. Code that the compiler put inside of another function counts for the file in
//! which it is written. Instructions without a line, which the compiler made of several lines or of none, count nowhere: the file that
//! they are in then is that of any of these.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Operations that are done once, beside those that are counted.
const ONCE: [&str; 3] = ["flush", "compaction", "recovery"];

/// The engine's crate, and what it consists of beside that: the log, the lock manager, the version set.
const ENGINE: &[&str] = &["crates/kingtide/"];
const PARTS: &[&str] = &["crates/wal/", "crates/locks/", "crates/versions/"];

/// Prints how many source files each of the `operations` executes, which `program` does `count` times.
pub fn report(program: &Path, operations: &[&str], count: u64) -> Result<(), String> {
    let mut lists = String::new();
    println!(
        "{:20} {:>8} {:>6} {:>6} {:>11} {:>6} {:>6}",
        "operation", "kingtide", "parts", "below", "kingtide", "parts", "below"
    );
    println!("{:20} {:>22} {:>25}", "", "each time", "now and then");
    for operation in operations.iter().copied().chain(ONCE) {
        let instructions = executed(program, operation)?;
        let each_time = if ONCE.contains(&operation) { 1 } else { count };
        let (always, rarely): (Vec<_>, Vec<_>) = instructions.iter().partition(|(_, n)| **n >= each_time);
        let ([a, b, c], [d, e, f]) = (by_place(&always), by_place(&rarely));
        println!("{operation:20} {a:>8} {b:>6} {c:>6} {d:>11} {e:>6} {f:>6}");
        lists += &format!("\n{operation}, each time:\n{}", by_crate(always.iter().map(|(file, _)| file.as_str())));
    }
    print!("{lists}");
    Ok(())
}

/// How many of these files are of the engine's crate, of its parts, and of others.
fn by_place(files: &[(&String, &u64)]) -> [usize; 3] {
    let of = |crates: &[&str]| files.iter().filter(|(file, _)| crates.iter().any(|c| file.starts_with(c))).count();
    let (engine, parts) = (of(ENGINE), of(PARTS));
    [engine, parts, files.len() - engine - parts]
}

/// A line for each crate with the names of its files.
fn by_crate<'a>(files: impl Iterator<Item = &'a str>) -> String {
    let mut crates: BTreeMap<&str, String> = BTreeMap::new();
    for (name, file) in files.filter_map(|file| file.strip_prefix("crates/")?.split_once("/src/")) {
        *crates.entry(name).or_default() += &format!(" {}", file.trim_end_matches(".rs").trim_end_matches("/mod"));
    }
    crates.iter().map(|(name, files)| format!("  {name}:{files}\n")).collect()
}

/// Instructions that the operation spent in each source file of the project.
fn executed(program: &Path, operation: &str) -> Result<BTreeMap<String, u64>, String> {
    let out = std::env::temp_dir().join(format!("kingtide-callgrind-{}", std::process::id()));
    let said = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=*measured*", &format!("--callgrind-out-file={}", out.display())])
        .arg(program)
        .arg(operation)
        .output()
        .map_err(|e| format!("valgrind could not be started: {e}"))?;
    let profile = std::fs::read_to_string(&out);
    let _ = std::fs::remove_file(&out);
    if !said.status.success() {
        return Err(format!("{operation}: {}\n{}", said.status, String::from_utf8_lossy(&said.stderr)));
    }
    let files = sum(&profile.map_err(|e| format!("{}: {e}", out.display()))?);
    if files.is_empty() {
        return Err(format!("{operation}: no source file of the project was executed; is there debug information?"));
    }
    Ok(files)
}

/// The line that a position of a profile stands for: a number, or what is added to the `last` one.
fn line_at(position: &str, last: u64) -> Option<u64> {
    match position.split_at_checked(1)? {
        ("*", _) => Some(last),
        ("+", by) => last.checked_add(by.parse().ok()?),
        ("-", by) => last.checked_sub(by.parse().ok()?),
        _ => position.parse().ok(),
    }
}

/// Sums a profile of callgrind by source file: of the project's crates only.
fn sum(profile: &str) -> BTreeMap<String, u64> {
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    let mut files = BTreeMap::new();
    let (mut file, mut at_line) = ("", 0);
    let mut is_call = false;
    for line in profile.lines() {
        if line.starts_with("calls=") {
            is_call = true; // the next line has what the called function cost, which its own lines have
        } else if let Some((key, name)) = line.split_once('=') {
            // A name is written out once, as "(12) name", and is "(12)" from then on.
            let (id, text) = name.split_once(' ').unwrap_or((name, ""));
            let is_file = matches!(key, "fl" | "fi" | "fe" | "cfi" | "cfl");
            if is_file && !text.is_empty() {
                names.insert(id, text);
            }
            if matches!(key, "fl" | "fi" | "fe") {
                file = names.get(id).copied().unwrap_or("");
            }
        } else if let Some((position, cost)) = line.split_once(' ')
            && let Some(n) = line_at(position, at_line)
        {
            at_line = n;
            if !std::mem::take(&mut is_call)
                && n > 0
                && let Some(at) = file.find("crates/").filter(|_| !file.contains("/library/"))
                && let Ok(cost) = cost.trim().parse::<u64>()
            {
                *files.entry(file[at..].to_owned()).or_insert(0) += cost;
            }
        }
    }
    files.retain(|file: &String, _| file.contains("/src/"));
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_summed_by_the_file_that_has_the_code() {
        let profile = "fl=(1) /tree/crates/kingtide/src/db.rs\nfn=(1) put\n10 5\n+2 7\nfi=(2) /tree/crates/base/src/lib.rs\n0 50\n+3 4\nfe=(1)\n12 1\n\
                       cfi=(3) /rustc/library/stdarch/crates/core_arch/src/x86.rs\ncfn=(2) swap\ncalls=9 7\n12 900\n* 2\n-12 99\nfl=(3)\nfn=(2)\n7 900\n\
                       fl=(4) /tree/crates/kingtide/benches/instructions.rs\nfn=(3) main\n1 1\n";
        let want = [("crates/base/src/lib.rs", 4), ("crates/kingtide/src/db.rs", 15)];
        assert_eq!(sum(profile), want.into_iter().map(|(f, n)| (f.to_owned(), n)).collect());
    }

    #[test]
    fn files_are_counted_by_where_they_are() {
        let files = [
            "kingtide/src/db.rs",
            "wal/src/writer.rs",
            "base/src/key.rs",
            "kingtide/src/read/get.rs",
            "versions/src/edit.rs",
        ];
        let files = files.map(|file| (format!("crates/{file}"), 1));
        assert_eq!(by_place(&files.each_ref().map(|(file, n)| (file, n))), [2, 2, 1]);
        let list = by_crate(files.iter().map(|(file, _)| file.as_str()));
        assert_eq!(list, "  base: key\n  kingtide: db read/get\n  versions: edit\n  wal: writer\n");
    }
}
