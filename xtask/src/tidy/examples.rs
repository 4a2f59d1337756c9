//! Public methods of the engine without a tested example: a doctest, a Rust block of README.md or the book, a program of
//! `crates/kingtide/examples` or `crates/programs`. An example of a method calls a method of its name; which type's it is, a look at
//! text cannot tell, so a name that two types share counts for both.

use std::collections::BTreeSet;

use super::{Counts, Source};

const CRATE: &str = "crates/kingtide/src/";
/// The rule's name in the ratchet.
pub const RULE: &str = "no-example";

/// Counts methods of exported types whose name no example calls.
pub fn check(texts: &[(String, String)], sources: &[Source], counts: &mut Counts) {
    let examples = examples(texts);
    let Some(lib) = sources.iter().find(|s| s.path == format!("{CRATE}lib.rs")) else { return };
    let exported = exported(lib);
    for source in sources.iter().filter(|s| s.path.starts_with(CRATE)) {
        for (line, owner, name) in methods(source) {
            if exported.contains(&owner) && !is_called(&examples, &name) {
                counts.add(RULE, &format!("{}::{owner}::{name}", source.path), 1, line);
            }
        }
    }
}

/// Names of types and traits that `lib.rs` exports.
fn exported(lib: &Source) -> BTreeSet<String> {
    let code: String = lib.lines.iter().map(|l| format!("{}\n", l.code)).collect();
    let shown = code.split(';').filter(|item| !item.contains("doc(hidden)"));
    let uses = shown.filter_map(|item| item.split_once("pub use ").map(|(_, what)| what));
    let words = uses.flat_map(|what| what.split(|c: char| !c.is_alphanumeric() && c != '_'));
    words.filter(|w| w.starts_with(char::is_uppercase)).map(str::to_owned).collect()
}

/// Public methods with their line and type, and methods of public traits.
fn methods(source: &Source) -> Vec<(usize, String, String)> {
    let mut found = Vec::new();
    let (mut owner, mut is_trait, mut hidden) = (String::new(), false, false);
    for (n, line) in source.lines.iter().enumerate().filter(|(_, l)| !l.test) {
        let code = line.code.as_str();
        if let Some(of) = code.strip_prefix("impl").filter(|rest| rest.starts_with(['<', ' '])) {
            (owner, is_trait) = (if code.contains(" for ") { String::new() } else { word(after_generics(of)) }, false);
        } else if let Some(rest) = code.strip_prefix("pub trait ") {
            (owner, is_trait) = (word(rest), true);
        }
        let item = code.strip_prefix("    ").filter(|c| !c.starts_with(' ')).unwrap_or_default();
        if item.starts_with("#[") {
            hidden |= item.contains("doc(hidden)");
            continue;
        }
        let public = item.strip_prefix("pub ").or_else(|| is_trait.then_some(item)).unwrap_or_default();
        let function = ["const ", "async ", "unsafe "].iter().fold(public, |f, w| f.strip_prefix(w).unwrap_or(f));
        if let Some(name) = function.strip_prefix("fn ").filter(|_| !hidden && !owner.is_empty()) {
            found.push((n, owner.clone(), word(name)));
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
        } else if path.starts_with(CRATE) && path.ends_with(".rs") {
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

/// Whether `.name(`, `.name::<` or `::name` is there.
fn is_called(examples: &str, name: &str) -> bool {
    examples.match_indices(name).any(|(at, _)| {
        let (before, after) = (&examples[..at], &examples[at + name.len()..]);
        let ends = !after.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let called = after.starts_with('(') || after.starts_with("::<");
        (before.ends_with('.') && called) || (before.ends_with("::") && ends)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_without_an_example_are_found() {
        let lib = "pub use api::{Db, Read};\npub use other::Hidden as _Other;\n";
        let db = "impl<T: Into<u8>> Db<T> {\n    /// ```\n    /// db.shown()\n    /// ```\n    pub fn shown(&self) {}\n    \
                  pub async fn told(&self) {}\n    pub fn missing(&self) {}\n    #[doc(hidden)]\n    pub fn secret() {}\n    \
                  fn private() {}\n}\nimpl Internal {\n    pub fn free() {}\n}\npub trait Read {\n    fn all(&self);\n    \
                  fn some(&self);\n}\n";
        let readme =
            "```rust\ndb.told();\nlet f = Read::all;\ndb.missing_more();\n```\n```rust,ignore\ndb.some()\n```\n";
        let texts = [(format!("{CRATE}lib.rs"), lib), (format!("{CRATE}db.rs"), db), ("README.md".into(), readme)];
        let texts: Vec<_> = texts.into_iter().map(|(path, body)| (path, body.to_owned())).collect();
        let sources: Vec<_> = texts[..2].iter().map(|(path, body)| Source::parse(path, body)).collect();
        let mut counts = Counts::default();
        check(&texts, &sources, &mut counts);
        for (method, expected) in [
            ("Db::shown", None),
            ("Db::told", None),
            ("Db::missing", Some(1)),
            ("Db::secret", None),
            ("Read::all", None),
            ("Read::some", Some(1)),
        ] {
            assert_eq!(counts.get(RULE, &format!("{CRATE}db.rs::{method}")), expected, "{method}");
        }
    }
}
