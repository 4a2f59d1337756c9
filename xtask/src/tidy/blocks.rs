//! Rules for the fenced blocks of Markdown files: each is run, or checked, by a program of this repository, or stands in a list of those
//! that are not, with the reason. Each line of a block of shell commands is classified in the same way.

use std::collections::BTreeMap;

use crate::report::Report;

/// What runs the blocks of a language.
struct Runner {
    language: &'static str,
    /// Pages, or directories that end with `/`: their pages, without those of directories below them.
    pages: &'static [&'static str],
    /// The program, which must name the language's fence, so that a runner that is removed is missed.
    by: &'static str,
    /// What that program has that shows it.
    sign: &'static str,
}

const RUNNERS: &[Runner] = &[
    runner(
        "rust",
        &["README.md", "crates/kingtide/README.md", "docs/", "docs/format/"],
        "crates/book/build.rs",
        "rust",
    ),
    runner("transcript rust", &["docs/first-minutes.md"], "packaging/first-minutes", "```transcript"),
    runner("transcript python", &["docs/first-minutes.md"], "packaging/first-minutes", "```transcript"),
    runner("transcript c", &["docs/first-minutes.md"], "packaging/first-minutes", "```transcript"),
    runner("transcript cpp", &["docs/first-minutes.md"], "packaging/first-minutes", "```transcript"),
    runner("toml", &["README.md", "docs/"], "packaging/first-program", "```toml"),
    runner("sql", &["README.md", "docs/mariadb.md", "docs/scaling.md"], "mariadb/test", "sql\\$"),
    runner("c", &["docs/c-api.md"], "crates/capi/tests/programs/mod.rs", "```c"),
    runner("cpp", &["docs/cpp.md"], "cpp/test", "```cpp"),
    runner("cmake", &["docs/cpp.md"], "cpp/test", "```cmake"),
    runner("go", &["docs/go.md"], "go/test", "```go"),
    runner("python", &["docs/python.md", "python/README.md"], "python/tests/test_docs.py", "```python"),
    runner("lua", &["docs/benchmarking.md"], "keybench/tests/runs/page.rs", "```lua"),
    runner("json", &["docs/kt.md"], "crates/kt/tests/commands/book.rs", "```json"),
    runner("yaml", &["dashboards/README.md"], "crates/kt/tests/commands/dashboards.rs", "```yaml"),
    runner("diff", &["planted/"], "xtask/src/planted/bugs.rs", "```diff"),
    runner("floors kingtide", &["ARCHITECTURE.md"], "xtask/src/graph.rs", "```floors"),
];

const fn runner(
    language: &'static str,
    pages: &'static [&'static str],
    by: &'static str,
    sign: &'static str,
) -> Runner {
    Runner { language, pages, by, sign }
}

/// What runs or checks a command in a block of `sh`, or behind `$ ` in one of `console`.
struct Command {
    /// What it begins with.
    start: &'static str,
    pages: &'static [&'static str],
    check: Check,
}

enum Check {
    /// This program runs it.
    RunBy(&'static str),
    /// This program checks its arguments; CI runs the command, but with other arguments.
    ParsedBy(&'static str),
    /// [`task`] compares it with the usage of the task.
    Task,
    /// It is a script of the repository, and mentions the arguments.
    Script,
    /// The package behind it has a program.
    Package,
    /// It has no arguments that could be wrong.
    Plain,
}

const COMMANDS: &[Command] = &[
    command("kt ", &["README.md", "crates/kt/README.md", "docs/"], Check::RunBy("crates/kt/tests/commands/book.rs")),
    command("keybench ", &["docs/"], Check::ParsedBy("keybench/src/pages.rs")),
    command("target/release/keybench ", &["docs/"], Check::ParsedBy("keybench/src/pages.rs")),
    command("cargo run --release -p keybench -- ", &["README.md", "docs/"], Check::ParsedBy("keybench/src/pages.rs")),
    command("cc ", &["docs/c-api.md"], Check::RunBy("cpp/test")),
    command("g++ ", &["docs/cpp.md"], Check::RunBy("cpp/test")),
    command("cargo xtask ", &["README.md", "docs/"], Check::Task),
    command("cargo install --path ", &["README.md", "docs/"], Check::Package),
    command("cargo build --release -p keybench", &["docs/"], Check::Plain),
    command("./test.sh", &["README.md"], Check::Script),
    command("packaging/targets", &["docs/platforms.md"], Check::Script),
    command("mariadb/setup", &["docs/mariadb.md", "mariadb/bench/"], Check::Script),
    command("mariadb/bench/", &["mariadb/bench/"], Check::Script),
    command("mariadb/torture/", &["mariadb/torture/"], Check::Script),
    command("mariadb/run-server", &["docs/mariadb.md"], Check::Script),
];

const fn command(start: &'static str, pages: &'static [&'static str], check: Check) -> Command {
    Command { start, pages, check }
}

/// Blocks that are no programs and have `text` behind the fence, and commands that no test can run and that have `no_run` there: where
/// they stand, what their first line begins with, and why.
const NOT_RUN: &[(&str, &str, &str)] = &[
    ("ARCHITECTURE.md", "base, testkit  <-", "a diagram, which tidy compares with the manifests"),
    ("docs/format/export.md", "00000001.sorted", "a layout of files"),
    ("docs/format/klog.md", "data block 0", "a layout of a file"),
    ("docs/format/vlog.md", "header (24 bytes)", "a layout of a file"),
    ("docs/observability.md", "2026-03-01T", "a line of LOG"),
    (
        "docs/getting-started.md",
        "packaging/deb/build",
        "installs a package as root; packaging/test does it in a Debian of its own",
    ),
    (
        "docs/python.md",
        "pip install",
        "builds for the caller's own Python; python/test builds and installs the same package",
    ),
    (
        "docs/mariadb.md",
        "mariadb/setup install",
        "changes the system's server as root; packaging/test does it in a Debian of its own",
    ),
    (
        "docs/mariadb.md",
        "mariadb -e",
        "needs Debian's mariadb-backup; mariadb/torture/dba does it where that is installed",
    ),
    (
        "docs/scaling.md",
        "CREATE SERVER",
        "needs the engine Spider and two more servers; mariadb/torture/scaling does it",
    ),
    ("mariadb/README.md", "export KINGTIDE_DEBUG_SOURCE", "needs a debug build of the server"),
];

/// A fenced block.
#[derive(Debug)]
struct Block<'a> {
    /// Line of its fence, counted from 0.
    line: usize,
    info: &'a str,
    body: Vec<&'a str>,
}

/// Each block of every page has a runner or a reason.
pub fn check(texts: &[(String, String)], report: &mut Report) {
    let mut listed: BTreeMap<(&str, &str), usize> =
        NOT_RUN.iter().map(|(page, start, _)| ((*page, *start), 0)).collect();
    // What programs wrote to `results` is no page.
    let is_page = |path: &str| path.ends_with(".md") && (!path.starts_with("results/") || path.ends_with("README.md"));
    for (page, text) in texts.iter().filter(|(path, _)| is_page(path)) {
        let mut problems = Vec::new();
        let all = blocks(text, &mut problems);
        if page.starts_with("planted/") {
            problems.clear(); // it shows in indented text what a fence looks like
        }
        for block in all {
            check_block(page, &block, texts, &mut listed, &mut problems);
        }
        inline_tasks(text, texts, &mut problems);
        problems.iter().for_each(|(line, problem)| report.add(page, *line, problem));
    }
    for ((page, start), times) in listed {
        if times != 1 {
            let what =
                format!("{times} blocks begin with `{start}` and are not run; the list in tidy/blocks.rs has one");
            report.add(page, 0, &what);
        }
    }
    for Runner { by, sign, language, .. } in RUNNERS {
        if !texts.iter().any(|(path, text)| path == by && text.contains(sign)) {
            report.add(
                by,
                0,
                &format!("tidy/blocks.rs says that this runs the blocks of `{language}`; it does not mention them"),
            );
        }
    }
    for by in COMMANDS
        .iter()
        .filter_map(|c| if let Check::RunBy(by) | Check::ParsedBy(by) = c.check { Some(by) } else { None })
    {
        if !texts.iter().any(|(path, _)| path == by) {
            report.add(by, 0, "tidy/blocks.rs says that this runs commands; it does not exist");
        }
    }
}

fn blocks<'a>(text: &'a str, problems: &mut Vec<(usize, String)>) -> Vec<Block<'a>> {
    let mut all = Vec::new();
    let mut lines = text.lines().enumerate();
    let (mut in_list, mut after_blank) = (false, true);
    while let Some((line, fence)) = lines.next() {
        if fence.starts_with("    ") && after_blank && !in_list {
            problems
                .push((line, "a block that is indented, which no runner sees; put it between ``` and ```".to_owned()));
        }
        after_blank = fence.trim().is_empty();
        let begins_item = fence.trim_start().starts_with(['*', '-', '+', '1', '2', '3', '4', '5', '6', '7', '8', '9']);
        in_list = begins_item || in_list && (after_blank || fence.starts_with(' '));
        let trimmed = fence.trim_start();
        if trimmed.starts_with("~~~") || trimmed.starts_with("<pre") || (trimmed.starts_with("```") && trimmed != fence)
        {
            problems.push((line, "a block that no runner sees; use ``` at the beginning of the line".to_owned()));
        }
        let Some(info) = fence.strip_prefix("```") else { continue };
        if info.starts_with('`') || info.trim() != info {
            problems.push((line, "a fence that no runner sees; write three backticks and the language".to_owned()));
        }
        let body: Vec<&str> = lines.by_ref().map(|(_, l)| l).take_while(|l| *l != "```").collect();
        all.push(Block { line, info, body });
    }
    all
}

fn check_block(
    page: &str,
    block: &Block,
    texts: &[(String, String)],
    listed: &mut BTreeMap<(&'static str, &'static str), usize>,
    problems: &mut Vec<(usize, String)>,
) {
    let (language, no_run) = block.info.strip_suffix(",no_run").map_or((block.info, false), |l| (l, true));
    if no_run || language == "text" {
        let first = block.body.first().map_or("", |l| l.strip_prefix("$ ").unwrap_or(l));
        match listed.iter_mut().find(|((p, start), _)| *p == page && first.starts_with(start)) {
            Some((_, times)) => *times += 1,
            None => problems.push((
                block.line,
                "a block that is not run; run it, or add it to the list in tidy/blocks.rs".to_owned(),
            )),
        }
    } else if matches!(language, "sh" | "console") {
        let commands = block.body.iter().zip(block.line + 1..);
        let commands = commands
            .filter_map(|(l, n)| if language == "sh" { Some((*l, n)) } else { Some((l.strip_prefix("$ ")?, n)) });
        for (line, n) in commands.filter(|(l, _)| !l.trim().is_empty() && !l.starts_with('#')) {
            for command in line.split_once("  #").map_or(line, |(l, _)| l).split(" && ").map(str::trim) {
                if let Err(problem) = check_command(page, command, texts) {
                    problems.push((n, problem));
                }
            }
        }
    } else if !RUNNERS.iter().any(|r| r.language == language && contains(r.pages, page)) {
        let what = format!("no program runs blocks of `{language}` in this page; see tidy/blocks.rs");
        problems.push((block.line, what));
    }
}

/// Whether a page is one of `pages`, or lies in one of the directories among them.
fn contains(pages: &[&str], page: &str) -> bool {
    pages
        .iter()
        .any(|p| *p == page || (p.ends_with('/') && page.strip_prefix(p).is_some_and(|name| !name.contains('/'))))
}

fn check_command(page: &str, command: &str, texts: &[(String, String)]) -> Result<(), String> {
    let known = COMMANDS.iter().find(|c| {
        let rest = command.strip_prefix(c.start);
        rest.is_some_and(|r| c.start.ends_with([' ', '/']) || r.is_empty() || r.starts_with(' '))
            && contains(c.pages, page)
    });
    let known = known.ok_or_else(|| format!("no program runs `{command}` in this page; see tidy/blocks.rs"))?;
    let rest = command[known.start.len()..].trim();
    let find = |path: &str| texts.iter().find(|(p, _)| p == path).map(|(_, text)| text);
    match known.check {
        Check::RunBy(_) | Check::ParsedBy(_) => Ok(()),
        Check::Plain if rest.is_empty() => Ok(()),
        Check::Plain => Err(format!("`{}` takes no arguments here", known.start)),
        Check::Task => task(rest, texts),
        Check::Package if find(&format!("{rest}/src/main.rs")).is_some() => Ok(()),
        Check::Package => Err(format!("`{rest}` has no program that could be installed")),
        Check::Script => script(command, &find),
    }
}

/// A command `SCRIPT ARGUMENTS`: there is such a script, which has all flags, and says in its comment what the other words are.
fn script<'a>(command: &str, find: &impl Fn(&str) -> Option<&'a String>) -> Result<(), String> {
    // What is quoted is one word, the value of a flag.
    let unquoted: Vec<&str> = command.split('"').step_by(2).collect();
    let command = unquoted.join("value");
    let mut words = command.split_whitespace();
    let name = words.next().unwrap_or_default().trim_start_matches("./");
    let text = find(name).ok_or_else(|| format!("there is no `{name}`"))?;
    let mut after_flag = false;
    for word in words {
        let is_flag = word.starts_with('-');
        let known = if is_flag { text.contains(word) } else { after_flag || text.contains(&format!("{name} {word}")) };
        if !known {
            return Err(format!("`{name}` does not say what `{word}` is"));
        }
        after_flag = is_flag;
    }
    Ok(())
}

/// A command `cargo xtask TASK ARGUMENTS`: the task has a usage text, which has all of its flags, and words only where it takes some.
fn task(command: &str, texts: &[(String, String)]) -> Result<(), String> {
    let mut words = command.split_whitespace();
    let name = words.next().unwrap_or_default();
    let start = format!("usage: cargo xtask {name}");
    let usages = texts.iter().filter(|(path, _)| path.starts_with("xtask/src/") && !path.ends_with("/blocks.rs"));
    let usage = usages.flat_map(|(_, text)| text.split(start.as_str()).skip(1)).find_map(|rest| {
        let usage = rest.split('"').next().unwrap_or_default();
        (usage.is_empty() || usage.starts_with(' ')).then_some(usage)
    });
    let usage =
        usage.ok_or_else(|| format!("`cargo xtask {name}`: no source of xtask has a usage text of this task"))?;
    let known: Vec<&str> =
        usage.split(|c: char| c.is_whitespace() || "[]<>|.".contains(c)).filter(|w| !w.is_empty()).collect();
    // A word in capitals or in lower case between brackets stands for any word.
    let takes_words =
        usage.split_whitespace().any(|w| !w.trim_matches(['[', ']', '<', '>', '.', '|']).starts_with("--"));
    for word in words {
        let is_flag = word.starts_with('-');
        if is_flag && !known.contains(&word) {
            return Err(format!("`cargo xtask {name}` has no flag `{word}`; its usage: {}", usage.trim()));
        }
        if !is_flag && !takes_words {
            return Err(format!("`cargo xtask {name}` takes no `{word}`; its usage: {}", usage.trim()));
        }
    }
    Ok(())
}

/// Commands of tasks in the text between backticks.
fn inline_tasks(text: &str, texts: &[(String, String)], problems: &mut Vec<(usize, String)>) {
    for (n, line) in text.lines().enumerate() {
        for code in line.split('`').skip(1).step_by(2) {
            let command = code.split_once("cargo xtask ").map(|(_, command)| command);
            let named = command.filter(|c| c.starts_with(|c: char| c.is_ascii_lowercase()));
            if let Some(Err(problem)) =
                named.map(|command| task(command.split(" && ").next().unwrap_or(command), texts))
            {
                problems.push((n, problem));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree;
    use std::sync::LazyLock;

    static TEXTS: LazyLock<Vec<(String, String)>> = LazyLock::new(|| tree::texts(&tree::root()).unwrap());

    /// What tidy says of a page's text.
    fn problems(page: &str, text: &str) -> Vec<String> {
        let mut texts = TEXTS.clone();
        texts.retain(|(path, _)| path != page);
        texts.push((page.to_owned(), text.to_owned()));
        let mut report = Report::default();
        check(&texts, &mut report);
        let of_page = format!("{page}:");
        report.problems.retain(|p| p.starts_with(&of_page) && !p.contains("the list in tidy/blocks.rs has one"));
        report.problems
    }

    #[test]
    fn a_block_that_nothing_runs_is_found_in_every_page() {
        let of = |page: &str, info: &str, line: &str| problems(page, &format!("# A\n\n```{info}\n{line}\n```\n")).len();
        for page in ["README.md", "docs/faq.md", "crates/kt/README.md", "CONTRIBUTING.md", "docs/format/wal.md"] {
            for language in [
                "",
                "python",
                "cpp",
                "c",
                "cmake",
                "lua",
                "yaml",
                "json",
                "text",
                "sh,no_run",
                "rust,no_run",
                "rust,ignore",
            ] {
                assert_eq!(of(page, language, "a"), 1, "{page} {language}");
            }
        }
        assert_eq!(of("docs/faq.md", "sql", "SELECT 1;"), 1);
        assert_eq!(of("crates/kt/README.md", "toml", "a = 1"), 1);
        for (page, language) in
            [("docs/faq.md", "rust"), ("README.md", "sql"), ("docs/cpp.md", "cpp"), ("docs/faq.md", "toml")]
        {
            assert_eq!(of(page, language, "a"), 0, "{page} {language}: its runner sees it");
        }
        for block in [
            "~~~rust\na\n~~~\n",
            "a\n\n    let a = 1;\n",
            "  ```rust\n  a\n  ```\n",
            "````rust\na\n````\n",
            "<pre>a</pre>\n",
        ] {
            assert!(!problems("docs/faq.md", block).is_empty(), "{block}");
        }
    }

    #[test]
    fn commands_are_checked() {
        let of = |page: &str, command: &str| problems(page, &format!("```sh\n{command}\n```\n")).len();
        for fine in [
            "kt get a b",
            "cargo xtask tidy",
            "cargo xtask capi --prefix a  # b",
            "cargo xtask peers && cargo xtask book",
            "cargo install --path crates/kt",
            "# nothing",
        ] {
            assert_eq!(of("README.md", fine), 0, "{fine}");
        }
        for wrong in [
            "kr get a b",
            "cargo xtask tide",
            "cargo xtask capi --prefx a",
            "cargo xtask book now",
            "cargo xtask peers && rm a",
            "cargo install --path crates/tk",
            "./tset.sh",
            "cargo xtask",
            "cargo build --release --fast",
        ] {
            assert_eq!(of("README.md", wrong), 1, "{wrong}");
        }
        assert_eq!(of("docs/platforms.md", "packaging/targets run"), 0);
        assert_eq!(of("docs/platforms.md", "packaging/targets walk"), 1);
        assert_eq!(of("CONTRIBUTING.md", "kt get a b"), 1, "nothing runs the commands of this page");
        assert_eq!(problems("docs/faq.md", "```console\n$ kr a\nkr\n```\nand `cargo xtask tide` too\n").len(), 2);
    }

    #[test]
    fn a_runner_that_is_gone_is_missed() {
        let mut texts = TEXTS.clone();
        texts.retain(|(path, _)| path != "cpp/test");
        let mut report = Report::default();
        check(&texts, &mut report);
        assert!(report.problems.iter().any(|p| p.starts_with("cpp/test")), "{:?}", report.problems);
    }
}
