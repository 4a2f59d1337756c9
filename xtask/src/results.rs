//! `cargo xtask results`: the tables of results in the pages, made anew from the committed result files.
//!
//! A table stands between a comment that holds the command which prints it, and one that ends it:
//!
//! ```text
//! <!-- keybench suite --table results/core.csv -->
//! | test | ...
//! <!-- end -->
//! ```
//!
//! With `--check` nothing is written, and a page that its files do not make is an error. `--keybench PATH` names a keybench that
//! is built already.

use crate::tree::root;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The pages that show results.
const PAGES: &[&str] = &["README.md", "results/README.md", "docs/benchmarking.md"];

const BEGIN: &str = "<!-- keybench ";
const END: &str = "<!-- end -->";

/// Runs `cargo xtask results [--check] [--keybench PATH]`.
pub fn run(args: &[String]) -> Result<(), String> {
    let (mut check, mut built) = (false, None);
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--check" => check = true,
            "--keybench" => built = Some(PathBuf::from(rest.next().ok_or("--keybench needs a path")?)),
            _ => return Err("usage: cargo xtask results [--check] [--keybench PATH]".to_owned()),
        }
    }
    let built = built.map(std::path::absolute).transpose().map_err(|e| format!("--keybench: {e}"))?;
    let root = root();
    let mut stale = Vec::new();
    for page in PAGES.iter().filter(|p| root.join(p).exists()) {
        let path = root.join(page);
        let old = std::fs::read_to_string(&path).map_err(|e| format!("cannot read {page}: {e}"))?;
        let new = rewritten(page, &old, &|arguments| keybench(&root, built.as_deref(), arguments))?;
        match (new == old, check) {
            (true, _) => {}
            (false, true) => stale.push(*page),
            (false, false) => {
                std::fs::write(&path, new).map_err(|e| format!("cannot write {page}: {e}"))?;
                println!("{page}: tables made anew");
            }
        }
    }
    if stale.is_empty() {
        return Ok(());
    }
    Err(format!("{}: not what the result files say; run `cargo xtask results`", stale.join(", ")))
}

/// What keybench prints.
fn keybench(root: &Path, built: Option<&Path>, arguments: &str) -> Result<String, String> {
    let mut command = match built {
        Some(program) => Command::new(program),
        None => {
            let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            cargo.args(["run", "-q", "-p", "keybench", "--"]);
            cargo
        }
    };
    command.args(arguments.split_whitespace()).current_dir(root);
    let done = command.output().map_err(|e| format!("cannot run keybench: {e}"))?;
    if !done.status.success() {
        return Err(format!("keybench {arguments}: {}", String::from_utf8_lossy(&done.stderr).trim()));
    }
    String::from_utf8(done.stdout).map_err(|_| format!("keybench {arguments}: printed no text"))
}

/// A page with what `print` says of each command between its comments.
fn rewritten(page: &str, text: &str, print: &dyn Fn(&str) -> Result<String, String>) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        out.push_str(line);
        out.push('\n');
        let Some(rest) = line.strip_prefix(BEGIN) else { continue };
        let whole = || format!("{page}:{}", at + 1);
        let arguments = rest.strip_suffix("-->").ok_or_else(|| format!("{}: the comment does not end", whole()))?;
        out.push_str(print(arguments.trim()).map_err(|e| format!("{}: {e}", whole()))?.trim_end());
        if !lines.any(|(_, l)| l == END) {
            return Err(format!("{}: no '{END}' behind it", whole()));
        }
        out.push('\n');
        out.push_str(END);
        out.push('\n');
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_between_the_comments_is_replaced() {
        let page = "above\n<!-- keybench suite --table a.csv -->\nold\nold\n<!-- end -->\nbelow\n";
        let print = |arguments: &str| Ok(format!("| {arguments} |\n"));
        let once = rewritten("p.md", page, &print).unwrap();
        let wanted = "above\n<!-- keybench suite --table a.csv -->\n| suite --table a.csv |\n<!-- end -->\nbelow\n";
        assert_eq!(once, wanted);
        assert_eq!(rewritten("p.md", &once, &print).unwrap(), once, "it stays as it is");
    }

    #[test]
    fn mistakes_name_page_and_line() {
        let print = |_: &str| Err("no such file".to_owned());
        let e = rewritten("p.md", "\n<!-- keybench x -->\n<!-- end -->\n", &print).unwrap_err();
        assert_eq!(e, "p.md:2: no such file");
        let print = |_: &str| Ok(String::new());
        assert!(rewritten("p.md", "<!-- keybench x -->\nno end\n", &print).unwrap_err().contains("p.md:1"));
        assert!(rewritten("p.md", "<!-- keybench x\n", &print).unwrap_err().contains("does not end"));
    }
}
