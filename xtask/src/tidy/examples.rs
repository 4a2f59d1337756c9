//! Public methods and functions of the engine without a tested example: a doctest, a Rust block of README.md or the book, a program of
//! `crates/kingtide/examples` or `crates/programs`. What is public is what `lib.rs` exports, whichever crate defines it, and what is
//! public in its public modules. Builder methods of options, which a macro writes, are not seen.
//!
//! An example of a method calls a method of its name; which type's it is, a look at text cannot tell, so a name that two types share
//! counts for both.

use std::collections::BTreeSet;

use super::{Counts, Source};

const CRATE: &str = "crates/kingtide/src/";
/// Crates that define what it exports.
const CRATES: [&str; 2] = [CRATE, "crates/base/src/"];
/// The rule's name in the ratchet.
pub const RULE: &str = "no-example";

/// Counts methods of exported types, and exported functions, whose name no example calls.
pub fn check(texts: &[(String, String)], sources: &[Source], counts: &mut Counts) {
    let examples = examples(texts);
    let Some(lib) = sources.iter().find(|s| s.path == format!("{CRATE}lib.rs")) else { return };
    let (exported, modules) = exported(lib);
    for source in sources.iter().filter(|s| is_of_crates(&s.path)) {
        let module = CRATES.iter().find_map(|c| source.path.strip_prefix(c)).unwrap_or_default();
        let module = module.trim_end_matches(".rs").trim_end_matches("/mod");
        let public_module = modules.contains(module);
        for (line, owner, name, may_be_written) in methods(source) {
            let item = if owner.is_empty() { &name } else { &owner };
            if (exported.contains(item) || public_module) && !is_shown(&examples, &name, may_be_written) {
                let separator = if owner.is_empty() { "" } else { "::" };
                counts.add(RULE, &format!("{}::{owner}{separator}{name}", source.path), 1, line);
            }
        }
    }
}

fn is_of_crates(path: &str) -> bool {
    CRATES.iter().any(|c| path.starts_with(c))
}

/// Names of types, traits and functions that `lib.rs` exports, and of modules that are public.
fn exported(lib: &Source) -> (BTreeSet<String>, BTreeSet<String>) {
    let code: String = lib.lines.iter().map(|l| format!("{}\n", l.code)).collect();
    let shown = || code.split(';').filter(|item| !item.contains("doc(hidden)"));
    let (mut names, mut modules) = (BTreeSet::new(), BTreeSet::new());
    for what in shown().filter_map(|item| item.split_once("pub use ").map(|(_, what)| what)) {
        // What stands before the braces, or before the last `::`, is the path.
        let (path, list) = what.split_once('{').unwrap_or_else(|| what.rsplit_once("::").unwrap_or(("", what)));
        names.extend(list.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned));
        if path == "kingtide_base" {
            modules.insert(list.trim().to_owned()); // a module of that crate, such as `perf`
        }
    }
    modules.extend(shown().filter_map(|item| item.split_once("pub mod ").map(|(_, name)| word(name))));
    (names, modules)
}

/// Public methods with their line and type, methods of public traits, and, without a type, public functions; and whether to call it is
/// not the only way to show it: see [`is_shown`].
fn methods(source: &Source) -> Vec<(usize, String, String, bool)> {
    let mut found = Vec::new();
    let (mut owner, mut is_trait, mut hidden) = (String::new(), false, false);
    for (n, line) in source.lines.iter().enumerate().filter(|(_, l)| !l.test) {
        let code = line.code.as_str();
        if let Some(of) = code.strip_prefix("impl").filter(|rest| rest.starts_with(['<', ' '])) {
            (owner, is_trait) = (if code.contains(" for ") { String::new() } else { word(after_generics(of)) }, false);
        } else if let Some(rest) = code.strip_prefix("pub trait ") {
            (owner, is_trait) = (word(rest), true);
        }
        let function = code.strip_prefix("pub fn ").or_else(|| code.strip_prefix("pub const fn "));
        if let Some(name) = function.filter(|_| !hidden) {
            found.push((n, String::new(), word(name), true));
        }
        let item = code.strip_prefix("    ").filter(|c| !c.starts_with(' ')).unwrap_or(code);
        if item.starts_with("#[") {
            hidden |= item.contains("doc(hidden)");
            continue;
        }
        let inside = code.starts_with("    ");
        let public =
            item.strip_prefix("pub ").or_else(|| is_trait.then_some(item)).filter(|_| inside).unwrap_or_default();
        let function = ["const ", "async ", "unsafe "].iter().fold(public, |f, w| f.strip_prefix(w).unwrap_or(f));
        if let Some(name) = function.strip_prefix("fn ").filter(|_| !hidden && !owner.is_empty()) {
            found.push((n, owner.clone(), word(name), is_trait));
        }
        hidden &= item.is_empty(); // a comment between attribute and function
    }
    found
}

/// What follows `<...>` and blanks.
fn after_generics(text: &str) -> &str {
    let mut depth = 0;
    for (i, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' => depth -= 1,
            ' ' => {}
            _ if depth == 0 => return &text[i..],
            _ => {}
        }
    }
    ""
}

/// The identifier that `text` begins with.
fn word(text: &str) -> String {
    text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// The text of all examples.
fn examples(texts: &[(String, String)]) -> String {
    let mut all = String::new();
    for (path, body) in texts {
        if path.starts_with("crates/kingtide/examples/") || path.starts_with("crates/programs/src/with_kingtide/") {
            all += body;
        } else if is_of_crates(path) && path.ends_with(".rs") {
            let comments = body.lines().map(str::trim).map(|l| l.strip_prefix("///").or_else(|| l.strip_prefix("//!")));
            blocks(comments.map(Option::unwrap_or_default), true, &mut all);
        } else if path == "README.md" || (path.starts_with("docs/") && path.ends_with(".md")) {
            blocks(body.lines(), false, &mut all);
        }
    }
    all
}

/// Adds the blocks of Rust; in comments, those are the ones that do not say otherwise.
fn blocks<'a>(mut lines: impl Iterator<Item = &'a str>, in_comments: bool, out: &mut String) {
    while let Some(line) = lines.next() {
        let Some(info) = line.trim().strip_prefix("```") else { continue };
        let runs = (info.is_empty() && in_comments) || (info.starts_with("rust") && !info.contains("ignore"));
        for line in lines.by_ref().take_while(|l| l.trim() != "```") {
            if runs {
                *out += line;
                *out += "\n";
            }
        }
    }
}

/// Whether `.name(`, `.name::<` or `::name` is there; of a function, or of a method that programs write, also `name(` after anything
/// else, such as `fn name(`.
fn is_shown(examples: &str, name: &str, may_be_written: bool) -> bool {
    examples.match_indices(name).any(|(at, _)| {
        let (before, after) = (&examples[..at], &examples[at + name.len()..]);
        let ends = !after.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let called = after.starts_with('(') || after.starts_with("::<");
        let begins = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        (before.ends_with('.') && called) || (before.ends_with("::") && ends) || (may_be_written && begins && called)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_without_an_example_are_found() {
        let lib = "pub use api::{Db, Read, open};\npub use other::Hidden as _Other;\npub mod tools;\npub use kingtide_base::Kind;\n";
        let db = "impl<T: Into<u8>> Db<T> {\n    /// ```\n    /// db.shown()\n    /// ```\n    pub fn shown(&self) {}\n    \
                  pub async fn told(&self) {}\n    pub fn missing(&self) {}\n    #[doc(hidden)]\n    pub fn secret() {}\n    \
                  fn private() {}\n}\nimpl Internal {\n    pub fn free() {}\n}\npub trait Read {\n    fn all(&self);\n    \
                  fn some(&self);\n    fn written(&self);\n}\npub fn open() {}\npub fn inner() {}\n";
        let tools = "pub fn tool() {}\nimpl Tool {\n    pub fn used(&self) {}\n    pub fn unused(&self) {}\n}\n";
        let base = "impl Kind {\n    pub fn group(&self) {}\n}\nimpl Other {\n    pub fn other(&self) {}\n}\n";
        let readme = "```rust\ndb.told();\nlet f = Read::all;\ndb.missing_more();\ntool();\nfn written(&self) {}\nt.used();\n```\n```rust,ignore\ndb.some()\n```\n";
        let ours = ["lib", "db", "tools", "tools/inner"].map(|name| format!("{CRATE}{name}.rs"));
        let codes = [lib, db, tools, "pub fn inner_tool() {}\n"];
        let mut texts: Vec<_> = ours.into_iter().zip(codes).collect();
        texts.extend([(format!("{}kind.rs", CRATES[1]), base), ("README.md".into(), readme)]);
        let texts: Vec<_> = texts.into_iter().map(|(path, body)| (path, body.to_owned())).collect();
        let sources: Vec<_> = texts[..5].iter().map(|(path, body)| Source::parse(path, body)).collect();
        let mut counts = Counts::default();
        check(&texts, &sources, &mut counts);
        for (method, expected) in [
            ("Read::written", None),
            ("open", Some(1)),
            ("inner", None),
            ("Db::shown", None),
            ("Db::told", None),
            ("Db::missing", Some(1)),
            ("Db::secret", None),
            ("Read::all", None),
            ("Read::some", Some(1)),
        ] {
            assert_eq!(counts.get(RULE, &format!("{CRATE}db.rs::{method}")), expected, "{method}");
        }
        for (place, expected) in [
            ("kingtide/src/tools.rs::tool", None),
            ("kingtide/src/tools.rs::Tool::used", None),
            ("kingtide/src/tools.rs::Tool::unused", Some(1)),
            ("kingtide/src/tools/inner.rs::inner_tool", None),
            ("base/src/kind.rs::Kind::group", Some(1)),
            ("base/src/kind.rs::Other::other", None),
        ] {
            assert_eq!(counts.get(RULE, &format!("crates/{place}")), expected, "{place}");
        }
    }
}
