//! Rules for Rust files.

use super::ratchet::Counts;
use super::shape;
use crate::report::Report;
use crate::source::Source;

/// Longest file, in lines.
const FILE_LINES: usize = 1000;

/// The rooms in which `unsafe` may be written, and why. A new one is a decision, not an accident.
const UNSAFE_ROOMS: &[(&str, &str)] = &[
    ("crates/mem/", "the unsafe room: arena, memtable index, block cache"),
    ("crates/base/src/tick.rs", "the time-stamp counter: histograms read it twice an operation"),
    ("crates/vfs/src/posix/mapped.rs", "the mapped window of a log segment"),
    ("crates/vfs/src/windows/sys.rs", "calls of Windows that the standard library does not wrap"),
    ("crates/vfs/src/fork.rs", "the page of memory by which a forked child is told from its parent"),
    ("crates/kingtide/tests/process/posix/fork.rs", "the call of fork(2) that the tests of forked children make"),
    ("crates/table/src/lz4.rs", "the C LZ4 functions"),
    ("crates/table/src/lz4_long.rs", "the LZ4 decoder for long sequences: checked indices take 1.5 times as long"),
    ("crates/table/src/prefetch.rs", "the prefetch instruction"),
    ("crates/capi/src/", "the C API: pointers that C passes"),
    ("python/src/value.rs", "Python's buffer protocol: values that Python reads without a copy"),
    ("crates/kt/src/memory.rs", "the allocator that ends the tool with an error when there is no memory"),
    ("crates/fuzz/src/capi.rs", "what the C API's callers do with its pointers"),
    ("crates/fuzz/tests/allocation/mod.rs", "the allocator that remembers the largest request"),
    ("keybench/src/engine/", "C interfaces of the engines that it compares with"),
    ("keybench/src/clock.rs", "the time-stamp counter: two readings an operation must not outweigh the operation"),
];

/// The engine: code that runs on other people's data, and must not panic on it.
fn is_engine(path: &str) -> bool {
    path.starts_with("crates/") && path.contains("/src/")
}

/// Checks one file; `counts` gathers what the ratchet compares.
pub fn check(source: &Source, report: &mut Report, counts: &mut Counts) {
    if source.lines.len() > FILE_LINES + 1 {
        let lines = source.lines.len() - 1;
        counts.add("file-lines", &source.path, lines, 0, &format!("{lines} lines, over {FILE_LINES}; split the file"));
    }
    shape::check(source, counts);
    unsafe_code(source, report);
    words(source, report, counts);
}

/// `unsafe` stays in its rooms, and says why it is sound.
fn unsafe_code(source: &Source, report: &mut Report) {
    let allowed = UNSAFE_ROOMS.iter().any(|(room, _)| source.path.starts_with(room));
    for (n, line) in source.lines.iter().enumerate() {
        let Some(at) = find_word(&line.code, "unsafe") else { continue };
        if !allowed {
            report.add(
                &source.path,
                n,
                "`unsafe` outside its rooms; write it safely, or move it to crates/mem, or argue for a new room in \
                 UNSAFE_ROOMS (xtask/src/tidy/rust.rs)",
            );
            continue;
        }
        let rest = line.code[at + "unsafe".len()..].trim_start();
        if rest.starts_with("(no_mangle)") {
            continue; // the names of the C API begin with its own; the room is the reason
        }
        let above = source.lines[n.saturating_sub(12)..=n].iter().rev();
        let said = |what: &str| {
            // Up through the statement's own lines to the comment above it.
            let mut seen = above.clone().scan(false, |in_comment, l| {
                let comment_only = l.code.trim().is_empty() && !l.comment.is_empty();
                let left = *in_comment && !comment_only && !l.code.trim().starts_with('#');
                *in_comment |= comment_only;
                (!left).then_some(l)
            });
            seen.any(|l| l.comment.contains(what))
        };
        if rest.starts_with("fn") || rest.starts_with("extern") || rest.starts_with("trait") {
            let is_declaration = rest.starts_with("fn ") && !rest.starts_with("fn(");
            if is_declaration && !said("# Safety") && !said("SAFETY:") {
                report.add(
                    &source.path,
                    n,
                    "an unsafe function without a `# Safety` section; say what callers must keep",
                );
            }
        } else if !said("SAFETY:") {
            report.add(&source.path, n, "`unsafe` without a `// SAFETY:` comment right above; say why it is sound");
        }
    }
}

/// Words that do not belong into finished code.
fn words(source: &Source, report: &mut Report, counts: &mut Counts) {
    let mut panics = 0;
    let mut first_panic = 0;
    for (n, line) in source.lines.iter().enumerate() {
        for name in ["todo!", "unimplemented!", "dbg!"] {
            if find_word(&line.code, name).is_some() {
                report.add(
                    &source.path,
                    n,
                    &format!("`{name}`; finish it, or return an error that says what is missing"),
                );
            }
        }
        for mark in [concat!("FIX", "ME"), concat!("XX", "X")] {
            if find_word(&line.comment, mark).is_some() {
                report.add(&source.path, n, &format!("{mark} in a comment; fix it, or state the limitation as a fact"));
            }
        }
        if is_engine(&source.path) && !line.test {
            let here = line.code.matches(".unwrap()").count() + line.code.matches(".expect(").count();
            if here > 0 && panics == 0 {
                first_panic = n;
            }
            panics += here;
        }
    }
    if panics > 0 {
        let message =
            format!("{panics} `.unwrap()` or `.expect(` in engine code; return an error, or match with `let .. else`");
        counts.add("unwraps", &source.path, panics, first_panic, &message);
    }
}

/// Where `word` stands in `text` with nothing of a word around it.
fn find_word(text: &str, word: &str) -> Option<usize> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).map(|m| m.0).find(|at| {
        let open_end = !word.ends_with(is_word) || !text[at + word.len()..].starts_with(is_word);
        !text[..*at].ends_with(is_word) && open_end
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(path: &str, text: &str) -> (Vec<String>, Counts) {
        let (mut report, mut counts) = (Report::default(), Counts::default());
        check(&Source::parse(path, text), &mut report, &mut counts);
        (report.problems, counts)
    }

    #[test]
    fn unsafe_needs_a_room_and_a_reason() {
        let bad = "fn a() {\n    unsafe { b() }\n}\n";
        let good = "fn a() {\n    // SAFETY: b is harmless.\n    let x =\n        unsafe { b() };\n}\n";
        assert!(problems("crates/table/src/a.rs", good).0[0].starts_with("crates/table/src/a.rs:4: `unsafe` outside"));
        assert!(problems("crates/mem/src/a.rs", bad).0[0].contains(":2: `unsafe` without"));
        assert!(problems("crates/mem/src/a.rs", good).0.is_empty());
        assert_eq!(problems("crates/mem/src/a.rs", "/// Does.\nunsafe fn a() {}\n").0.len(), 1);
        let said = "/// Does.\n///\n/// # Safety\n/// Be nice.\n#[inline]\npub unsafe fn a() {}\n";
        assert!(problems("crates/mem/src/a.rs", said).0.is_empty());
        assert!(problems("crates/table/src/a.rs", "// unsafe\nlet a = \"unsafe\";").0.is_empty());
        let named = "#[unsafe(no_mangle)]\npub extern \"C\" fn a() {}\n";
        assert!(problems("crates/capi/src/a.rs", named).0.is_empty());
        assert_eq!(problems("crates/table/src/a.rs", named).0.len(), 1);
    }

    #[test]
    fn unfinished_work_and_panics_are_found() {
        let text = "fn a() {\n    todo!()\n}\nfn b() {\n    c().unwrap(); d().expect(\"e\");\n}\n#[test]\nfn t() { c().unwrap() }\n";
        let (problems, counts) = problems("crates/base/src/a.rs", text);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].starts_with("crates/base/src/a.rs:2: `todo!`"));
        assert_eq!(counts.get("unwraps", "crates/base/src/a.rs"), Some(2));
    }

    #[test]
    fn long_files_are_counted() {
        let (_, counts) = problems("crates/base/src/a.rs", &"//\n".repeat(1001));
        assert_eq!(counts.get("file-lines", "crates/base/src/a.rs"), Some(1001));
        assert!(problems("crates/base/src/a.rs", &"//\n".repeat(1000)).1.is_empty());
    }
}
