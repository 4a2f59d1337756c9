//! The header: made from the source, and read back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The crate's directory.
pub fn here() -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    dir.parent().filter(|_| dir.ends_with("rlib")).unwrap_or(dir).to_owned()
}

fn path() -> PathBuf {
    here().join("include/kingtide.h")
}

/// A function of the header.
pub struct Function {
    pub name: String,
    pub returns: String,
    pub arguments: usize,
}

/// All functions of the committed header.
pub fn functions() -> Vec<Function> {
    let text = std::fs::read_to_string(path()).unwrap();
    let code: String = text.lines().filter(|l| !l.starts_with('#') && !l.trim_start().starts_with("//")).collect();
    let declarations = code.split([';', '{', '}']).filter(|d| d.contains('(') && !d.contains("(*"));
    declarations.filter_map(function).collect()
}

fn function(declaration: &str) -> Option<Function> {
    let (before, rest) = declaration.split_once('(')?;
    let start = before.rfind(|c: char| !c.is_alphanumeric() && c != '_')? + 1;
    let (returns, name) = before.split_at(start);
    let list = rest.strip_suffix(')')?;
    let arguments = if list.trim() == "void" { 0 } else { list.split(',').count() };
    Some(Function { name: name.to_owned(), returns: returns.trim().to_owned(), arguments })
}

/// The header of the crate in a directory.
fn made(dir: &Path) -> String {
    let mut text = Vec::new();
    let config = cbindgen::Config::from_file(here().join("cbindgen.toml")).unwrap();
    let builder = cbindgen::Builder::new().with_src(dir.join("src/lib.rs")).with_config(config);
    builder.generate().unwrap().write(&mut text);
    String::from_utf8(text).unwrap()
}

/// The declarations of a header, and how often each occurs: functions, typedefs, and the members of structs and enums.
fn declarations(header: &str) -> BTreeMap<String, usize> {
    let lines = header.lines().map(str::trim).filter(|l| !l.starts_with('#') && !l.starts_with("//"));
    let code = lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ");
    let mut counts = BTreeMap::new();
    for part in code.split([';', '{', '}']) {
        // The members of an enum; the arguments of a function stay together.
        for declaration in if part.contains('(') { vec![part] } else { part.split(',').collect() } {
            *counts.entry(declaration.trim().to_owned()).or_default() += 1;
        }
    }
    counts
}

/// The declarations that another header no longer has: each of them may break a program.
fn gone(before: &str, after: &str) -> Vec<String> {
    let after = declarations(after);
    let is_gone = |(d, count): &(String, usize)| after.get(d).is_none_or(|left| left < count);
    declarations(before).into_iter().filter(is_gone).map(|(d, _)| d).collect()
}

/// `KINGTIDE_BLESS=1` writes the header instead of comparing it.
#[test]
fn the_header_is_up_to_date() {
    let made = made(&here());
    if std::env::var_os("KINGTIDE_BLESS").is_some() {
        std::fs::write(path(), made).unwrap();
        return;
    }
    let committed = std::fs::read_to_string(path()).unwrap();
    let how = "run KINGTIDE_BLESS=1 cargo test -p kingtide-capi --lib header";
    let gone = gone(&committed, &made);
    assert!(
        gone.is_empty(),
        "gone or changed, which programs notice: {gone:#?}\nif that is meant: {how}; after a release, raise ABI in xtask/src/capi.rs too"
    );
    assert!(committed == made, "include/kingtide.h is out of date: {how}");
}

/// The test above with changes of the source that programs in C would notice: each is reported, and nothing else is.
#[test]
fn what_is_removed_or_changed_is_reported() {
    type Edit = (&'static str, &'static str, &'static str, &'static str);
    const EDITS: [Edit; 4] = [
        // A function is gone.
        (
            "snapshot.rs",
            "pub extern \"C\" fn kingtide_snapshot_sequence(",
            "extern \"C\" fn gone(",
            "uint64_t kingtide_snapshot_sequence(const kingtide_snapshot *snapshot)",
        ),
        // A function returns another type.
        (
            "db.rs",
            "fn kingtide_db_latest_sequence(db: Option<&kingtide_db>) -> u64",
            "fn kingtide_db_latest_sequence(db: Option<&kingtide_db>) -> u32",
            "uint64_t kingtide_db_latest_sequence(const kingtide_db *db)",
        ),
        // A status has another number.
        ("error.rs", "KINGTIDE_PANIC = 23", "KINGTIDE_PANIC = 25", "KINGTIDE_PANIC = 23"),
        // A struct lost a member.
        ("copies.rs", "pub linked_files: u64,", "", "uint64_t linked_files"),
    ];
    let committed = std::fs::read_to_string(path()).unwrap();
    for (file, from, to, reported) in EDITS {
        let dir = super::Scratch::new(&format!("api-{}", file.trim_end_matches(".rs")));
        let src = dir.0.join("src");
        std::fs::create_dir(&src).unwrap();
        for entry in std::fs::read_dir(here().join("src")).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), src.join(entry.file_name())).unwrap();
        }
        let text = std::fs::read_to_string(src.join(file)).unwrap();
        assert!(text.contains(from), "{file} has no {from}");
        std::fs::write(src.join(file), text.replacen(from, to, 1)).unwrap();
        assert_eq!(gone(&committed, &made(&dir.0)), [reported], "{file}: {to}");
    }
}

/// What is not `unsafe` can be called by safe Rust, which may pass any pointer.
#[test]
fn functions_that_take_pointers_are_unsafe() {
    let mut seen = [0; 2];
    for entry in std::fs::read_dir(here().join("src")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for (at, _) in text.match_indices("#[unsafe(no_mangle)]") {
            let head = text[at..].split_once(" {").unwrap().0;
            let arguments = head.split_once(" fn ").unwrap().1.split(" -> ").next().unwrap();
            let takes_pointers = ["*const", "*mut", "_fn,", "_fn)"].iter().any(|p| arguments.contains(p));
            let is_unsafe = head.contains("pub unsafe extern \"C\" fn");
            assert!(is_unsafe || !takes_pointers, "{}: {arguments}", path.display());
            seen[usize::from(is_unsafe)] += 1;
        }
        // Helpers that a glob exports, or that dereference what they are given.
        let crate_wide = text.split("#[cfg(test)]").next().unwrap();
        for (at, _) in crate_wide.match_indices("pub fn ") {
            let arguments = crate_wide[at..].split_once('{').unwrap().0.split(" -> ").next().unwrap();
            assert!(!arguments.contains("*const") && !arguments.contains("*mut"), "{}: {arguments}", path.display());
        }
    }
    assert!(seen[0] > 50 && seen[1] > 100, "{seen:?}");
}
