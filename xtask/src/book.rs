//! `cargo xtask book`: builds the book in `docs` with mdBook into `target/book`, and checks the links of what was built. Without mdBook in
//! the path, it installs the version below into `target/tools` first, once, which takes some minutes.
//!
//! Pages are written to be read on a code host as well, so they link to source files by relative paths. The book has no
//! such files: it is built from a copy in which those links lead to the repository on the web.

use crate::tidy::links;
use crate::tree::root;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version that the book is built and looked at with.
const MDBOOK: &str = "0.5.4";

/// Runs `cargo xtask book`.
pub fn run(args: &[String]) -> Result<(), String> {
    if !args.is_empty() {
        return Err("usage: cargo xtask book".to_owned());
    }
    let root = root();
    let (staged, built) = (root.join("target/book-source"), root.join("target/book"));
    let repository = repository(&root)?;
    for dir in [&staged, &built] {
        remove(dir)?;
    }
    copy(&root.join("docs"), "docs", &staged, &root, &repository)?;
    build(&staged, &built)?;
    let problems = broken_links(&built)?;
    if !problems.is_empty() {
        return Err(format!("{}\nbook: {} broken links", problems.join("\n"), problems.len()));
    }
    println!("{}", built.join("index.html").display());
    Ok(())
}

/// Where the repository is on the web, as the workspace's manifest says.
fn repository(root: &Path) -> Result<String, String> {
    let manifest = read(&root.join("Cargo.toml"))?;
    let line = manifest.lines().find(|l| l.starts_with("repository = "));
    let url = line.and_then(|l| l.split('"').nth(1)).ok_or("Cargo.toml names no repository")?;
    Ok(url.trim_end_matches('/').to_owned())
}

fn build(source: &Path, into: &Path) -> Result<(), String> {
    let run = |program: &Path| Command::new(program).arg("build").arg(source).arg("--dest-dir").arg(into).status();
    let status = match run(Path::new("mdbook")) {
        Err(e) if e.kind() == ErrorKind::NotFound => run(&installed()?),
        found => found,
    };
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("mdbook build failed: {status}")),
        Err(e) => Err(format!("cannot run mdbook: {e}")),
    }
}

/// The path of mdBook below `target/tools`, where it is installed unless that version is there.
fn installed() -> Result<PathBuf, String> {
    let tools = root().join("target/tools");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // Not optimised: that would take longer than the book does ten times over. Nor with what watches files and serves pages, which
    // is half of it.
    let args = ["install", "mdbook", "--locked", "--debug", "--no-default-features", "--features", "search"];
    let args = [&args[..], &["--version", MDBOOK, "--root"]].concat();
    let status = Command::new(cargo).args(args).arg(&tools).status();
    match status.map_err(|e| format!("cargo could not be started: {e}"))? {
        done if done.success() => Ok(tools.join("bin/mdbook")),
        failed => Err(format!("mdbook {MDBOOK} could not be installed: {failed}")),
    }
}

/// Copies `from`, which is `path` in the repository, with links that lead out of `docs` rewritten.
fn copy(from: &Path, path: &str, to: &Path, root: &Path, repository: &str) -> Result<(), String> {
    std::fs::create_dir_all(to).map_err(|e| format!("cannot create {}: {e}", to.display()))?;
    for entry in list(from)? {
        let Some(name) = entry.file_name().and_then(|n| n.to_str()).map(str::to_owned) else { continue };
        let (path, to) = (format!("{path}/{name}"), to.join(&name));
        if entry.is_dir() {
            copy(&entry, &path, &to, root, repository)?;
        } else if name.ends_with(".md") {
            let page = rewritten(&path, &read(&entry)?, &|p| url(root, repository, p));
            std::fs::write(&to, page).map_err(|e| format!("cannot write {}: {e}", to.display()))?;
        } else {
            std::fs::copy(&entry, &to).map_err(|e| format!("cannot copy {}: {e}", entry.display()))?;
        }
    }
    Ok(())
}

/// The page on the web for a path of the repository.
fn url(root: &Path, repository: &str, path: &str) -> String {
    let kind = if root.join(path).is_dir() { "tree" } else { "blob" };
    format!("{repository}/{kind}/main/{path}")
}

/// The page `path` with links that lead out of `docs` replaced by what `url` says of them.
fn rewritten(path: &str, text: &str, url: &dyn Fn(&str) -> String) -> String {
    let folder = path.rsplit_once('/').map_or("", |p| p.0);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    // From the end, so that what comes before in a line stays where it is.
    for link in links::links(text).into_iter().rev() {
        let (file, anchor) = link.target.split_once('#').unwrap_or((link.target, ""));
        let full = links::resolve(folder, file);
        if file.is_empty() || file.contains("://") || file.starts_with("mailto:") || full.starts_with("docs/") {
            continue;
        }
        let hash = if anchor.is_empty() { "" } else { "#" };
        let target = format!("{}{hash}{anchor}", url(&full));
        lines[link.line].replace_range(link.at..link.at + link.target.len(), &target);
    }
    lines.join("\n") + "\n"
}

/// Links of the built pages that lead to no file or no anchor of the book.
fn broken_links(built: &Path) -> Result<Vec<String>, String> {
    let mut pages = BTreeMap::new();
    let mut files = BTreeSet::new();
    let mut folders = vec![built.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in list(&folder)? {
            let name = entry.strip_prefix(built).unwrap_or(&entry).to_string_lossy().replace('\\', "/");
            if entry.is_dir() {
                folders.push(entry);
                continue;
            }
            // What all pages say again: `print.html` on one page, `404.html` for any path.
            if name.ends_with(".html") && !["print.html", "404.html", "toc.html"].contains(&name.as_str()) {
                pages.insert(name.clone(), read(&entry)?);
            }
            files.insert(name);
        }
    }
    let ids: BTreeMap<&str, BTreeSet<&str>> =
        pages.iter().map(|(n, t)| (n.as_str(), attributes(t, "id").collect())).collect();
    let mut problems = Vec::new();
    for (name, text) in &pages {
        let folder = name.rsplit_once('/').map_or("", |p| p.0);
        for target in attributes(text, "href").chain(attributes(text, "src")) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = file.split('?').next().unwrap_or("");
            if file.contains(':') || file.starts_with("//") {
                continue;
            }
            let full = if file.is_empty() { name.clone() } else { links::resolve(folder, file) };
            let known = ids.get(full.as_str());
            if !file.is_empty() && !files.contains(&full) {
                problems.push(format!("{name}: link to `{target}`: there is no such file"));
            } else if known.is_some_and(|ids| !anchor.is_empty() && !ids.contains(anchor)) {
                problems.push(format!("{name}: link to `{target}`: there is no such anchor"));
            }
        }
    }
    Ok(problems)
}

/// The values of an attribute in HTML as mdBook writes it.
fn attributes<'a>(html: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let start = format!(" {name}=\"");
    let places: Vec<usize> = html.match_indices(&start).map(|(at, _)| at + start.len()).collect();
    places.into_iter().filter_map(|at| html[at..].split('"').next())
}

fn list(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(dir).map_err(|e| format!("cannot list {}: {e}", dir.display()))?;
    entries.map(|e| e.map(|e| e.path()).map_err(|e| format!("cannot list {}: {e}", dir.display()))).collect()
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

fn remove(dir: &Path) -> Result<(), String> {
    match std::fs::remove_dir_all(dir) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(format!("cannot remove {}: {e}", dir.display())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_the_book_lead_to_the_repository() {
        let url = |p: &str| format!("https://x.y/{p}");
        let page = "[a](../README.md#top) and [b](kt.md#c), [c](../../elsewhere), [d](#e)\n```\n[f](../../g)\n```\n";
        let wanted =
            "[a](../README.md#top) and [b](kt.md#c), [c](https://x.y/elsewhere), [d](#e)\n```\n[f](../../g)\n```\n";
        assert_eq!(rewritten("docs/format/p.md", page, &url), wanted);
        assert_eq!(
            rewritten("docs/p.md", "[r](../README.md#top) [s](../a)\n", &url),
            "[r](https://x.y/README.md#top) [s](https://x.y/a)\n"
        );
    }

    #[test]
    fn attributes_are_found() {
        let html = "<a href=\"x.html#y\">x</a><h2 id=\"z\"><a class=\"h\" href=\"#z\">";
        assert_eq!(attributes(html, "href").collect::<Vec<_>>(), ["x.html#y", "#z"]);
        assert_eq!(attributes(html, "id").collect::<Vec<_>>(), ["z"]);
    }
}
