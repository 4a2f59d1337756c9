//! Test programs are few: each links what it tests once more, and while the last test of one runs, cores idle.

use crate::report::Report;

/// As many as there may be, beside [`ALONE`]: the unit tests of the crates below the engine, which link in a second each and use what is
/// private there, those of the engine and of xtask, and the engine's tests.
const MOST: usize = 10;

/// Those that need a process of their own, or start what Cargo builds only for the tests of one package; and why.
const ALONE: &[(&str, &str)] = &[
    ("crates/kingtide/tests/process/main.rs", "signals, limits, permissions and forks"),
    ("crates/fuzz/tests/replay.rs", "its allocator"),
    ("crates/book/tests/pages/main.rs", "its working directory"),
    ("crates/kt/tests/kt.rs", "starts kt"),
    ("keybench/tests/keybench.rs", "starts keybench"),
    ("crates/capi/src/lib.rs", "links programs in C with the library"),
];

/// Counts the test programs of the workspace.
pub fn check(texts: &[(String, String)], report: &mut Report) {
    let all = programs(texts);
    for (path, why) in ALONE.iter().filter(|(path, _)| !all.iter().any(|p| p == path)) {
        report.add(
            path,
            0,
            &format!("is no test program, but is listed as one that needs a process or a package of its own: {why}"),
        );
    }
    let others: Vec<&str> =
        all.iter().map(String::as_str).filter(|p| !ALONE.iter().any(|(path, _)| path == p)).collect();
    if others.len() > MOST {
        let text =
            format!("{} test programs, more than {MOST}; make one a module: {}", others.len(), others.join(", "));
        report.add("Cargo.toml", 0, &text);
    }
}

/// The root files of all test programs.
fn programs(texts: &[(String, String)]) -> Vec<String> {
    let there = |path: &String| texts.iter().any(|t| t.0 == *path);
    let mut all = Vec::new();
    for (path, manifest) in texts.iter().filter(|t| t.0.ends_with("/Cargo.toml") && !t.0.starts_with("fuzz/")) {
        let folder = path.trim_end_matches("Cargo.toml");
        let units = [("[lib]", "lib.rs"), ("[[bin]]", "main.rs")];
        let tested = units.iter().filter(|(section, _)| !says_no(manifest, section));
        all.extend(tested.map(|(_, file)| format!("{folder}src/{file}")).filter(there));
        let tests = format!("{folder}tests/");
        let is_root = |rest: &str| match rest.split_once('/') {
            None => rest.ends_with(".rs"),
            Some((_, file)) => file == "main.rs",
        };
        let roots = texts.iter().map(|t| &t.0).filter(|p| p.strip_prefix(&tests).is_some_and(is_root));
        all.extend(roots.cloned());
    }
    all
}

/// Whether a section of a manifest has `test = false`.
fn says_no(manifest: &str, section: &str) -> bool {
    let rest = manifest.lines().skip_while(|l| l.trim() != section).skip(1);
    rest.take_while(|l| !l.starts_with('[')).any(|l| l.starts_with("test = false"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_units_and_files_of_tests() {
        let texts = [
            ("crates/a/Cargo.toml", "[package]\n[lib]\ndoctest = false\n"),
            ("crates/a/src/lib.rs", ""),
            ("crates/a/tests/one.rs", ""),
            ("crates/a/tests/two/main.rs", ""),
            ("crates/a/tests/help/mod.rs", ""),
            ("crates/a/tests/two/deeper/main.rs", ""),
            ("b/Cargo.toml", "[[bin]]\nname = \"b\"\ntest = false # why\n[dependencies]\n"),
            ("b/src/main.rs", ""),
            ("fuzz/Cargo.toml", ""),
            ("fuzz/src/main.rs", ""),
        ];
        let texts = texts.map(|(path, text)| (path.to_owned(), text.to_owned()));
        assert_eq!(programs(&texts), ["crates/a/src/lib.rs", "crates/a/tests/one.rs", "crates/a/tests/two/main.rs"]);
    }

    #[test]
    fn an_eleventh_program_is_one_too_many() {
        let complaints = |n: usize| {
            let mut texts = vec![("t/Cargo.toml".to_owned(), String::new())];
            texts.extend((0..n).map(|i| (format!("t/tests/{i}.rs"), String::new())));
            let mut report = Report::default();
            check(&texts, &mut report);
            report.problems.iter().filter(|p| p.to_string().contains("more than 10")).count()
        };
        assert_eq!([complaints(10), complaints(11)], [0, 1]);
    }
}
