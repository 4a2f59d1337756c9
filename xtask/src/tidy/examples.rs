//! Public methods and functions of the engine without a tested example: a doctest, a Rust block of README.md or the book, a program of
//! `crates/kingtide/examples` or `crates/programs`. What is public is what `lib.rs` exports, whichever crate defines it, and what is
//! public in its public modules; builder methods of options, which a macro writes, are those of the rows of its tables.
//!
//! An example of a method calls a method of its name. Where several types have one of that name, the example stands above the method
//! or its type, or names the type, or calls the method of a variable that is named after the type, as in `batch.put(..)`.

use std::collections::{BTreeMap, BTreeSet};

use super::ratchet::Counts;
use crate::source::Source;

const CRATE: &str = "crates/kingtide/src/";
/// Crates that define what it exports.
const CRATES: [&str; 3] = [CRATE, "crates/base/src/", "crates/locks/src/"];
/// The rule's name in the ratchet.
const RULE: &str = "no-example";

/// Counts methods of exported types, and exported functions, whose name no example calls.
pub fn check(texts: &[(String, String)], sources: &[Source], counts: &mut Counts) {
    let blocks = examples(texts);
    let examples: String = blocks.concat();
    let Some(lib) = sources.iter().find(|s| s.path == format!("{CRATE}lib.rs")) else { return };
    let (exported, modules) = exported(lib);
    let mut all = Vec::new();
    for source in sources.iter().filter(|s| is_of_crates(&s.path)) {
        let module = CRATES.iter().find_map(|c| source.path.strip_prefix(c)).unwrap_or_default();
        let module = module.trim_end_matches(".rs").trim_end_matches("/mod");
        let public_module = modules.contains(module);
        let methods = methods(source).into_iter().chain(options(source));
        all.extend(methods.map(|m| (source, m)).filter(|(_, (_, owner, name, _))| {
            let item = if owner.is_empty() { name } else { owner };
            exported.contains(item) || public_module
        }));
    }
    let mut owners: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (_, (_, owner, name, _)) in &all {
        owners.entry(name).or_default().insert(owner);
    }
    let of_types = of_types(texts, sources);
    for (source, (line, owner, name, may_be_written)) in &all {
        let shared = owners[name.as_str()].len() > 1 && !owner.is_empty() && !may_be_written;
        let shown = match shared {
            false => is_shown(&examples, name, *may_be_written),
            true => {
                is_shown(&above(texts, &source.path, *line), name, false)
                    || of_types.get(owner).is_some_and(|examples| is_shown(examples, name, false))
                    || blocks.iter().any(|b| is_shown_of(b, owner, name))
            }
        };
        if !shown {
            let separator = if owner.is_empty() { "" } else { "::" };
            let place = format!("{}::{owner}{separator}{name}", source.path);
            let message = format!("no doctest, page or example program calls `{place}`; write one that does");
            counts.add(RULE, &place, 1, *line, &message);
        }
    }
}

/// The builder methods of the options of the tables in a file, each of the table's type and of `Options`.
fn options(source: &Source) -> Vec<(usize, String, String, bool)> {
    let mut found = Vec::new();
    let mut table = String::new();
    let mut inside = false;
    for (n, line) in source.lines.iter().enumerate() {
        let code = line.code.as_str();
        inside = (inside || code.starts_with("option_table! {")) && code != "}";
        if !inside {
            table.clear();
        } else if let Some((name, _)) = code.trim().split_once(" of \"") {
            table = word(name);
        } else if let Some(row) = code.strip_prefix("        ").filter(|_| !table.is_empty()) {
            let name = word(row);
            if !name.is_empty() && row.contains(" = ") {
                found.extend([table.clone(), "Options".to_owned()].map(|owner| (n, owner, name.clone(), false)));
            }
        }
    }
    found
}

/// The examples in the comments above types.
fn of_types(texts: &[(String, String)], sources: &[Source]) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for source in sources.iter().filter(|s| is_of_crates(&s.path)) {
        for (n, line) in source.lines.iter().enumerate() {
            let name = ["struct ", "enum "].iter().find_map(|kind| line.code.strip_prefix("pub ")?.strip_prefix(kind));
            if let Some(name) = name {
                all.insert(word(name), above(texts, &source.path, n));
            }
        }
    }
    all
}

/// The examples in the comment above a line.
fn above(texts: &[(String, String)], path: &str, line: usize) -> String {
    let Some((_, body)) = texts.iter().find(|(p, _)| p == path) else { return String::new() };
    let lines: Vec<&str> = body.lines().map(str::trim).collect();
    let belongs = |l: &&str| l.starts_with("///") || l.starts_with("#[");
    let first = line - lines[..line].iter().rev().take_while(|l| belongs(l)).count();
    let mut out = Vec::new();
    blocks(lines[first..line].iter().map(|l| l.strip_prefix("///").unwrap_or_default()), true, &mut out);
    out.concat()
}

/// Whether a block calls a method of a type: one of that name, in a block that names the type, or of a variable named after it.
fn is_shown_of(block: &str, owner: &str, name: &str) -> bool {
    if !is_shown(block, name, false) {
        return false;
    }
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let names_it = block
        .match_indices(owner)
        .any(|(at, _)| !block[..at].ends_with(is_word) && !block[at + owner.len()..].starts_with(is_word));
    if names_it || owner.starts_with("Async") {
        return names_it;
    }
    let last = owner.rfind(char::is_uppercase).map_or(owner, |at| &owner[at..]).to_lowercase();
    let variables = [last.as_str(), if owner == "Transaction" { "txn" } else { "" }];
    let call = format!(".{name}");
    block.match_indices(&call).any(|(at, _)| {
        let before = &block[..at];
        let start = before.rfind(|c| !is_word(c)).map_or(0, |i| i + 1);
        !block[at + call.len()..].starts_with(is_word) && variables.contains(&&before[start..]) && start < at
    }) && !block.contains("Async")
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

/// All examples: programs, and blocks of pages and comments.
fn examples(texts: &[(String, String)]) -> Vec<String> {
    let mut all = Vec::new();
    for (path, body) in texts {
        if path.starts_with("crates/kingtide/examples/") || path.starts_with("crates/programs/src/with_kingtide/") {
            all.push(body.clone());
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
fn blocks<'a>(mut lines: impl Iterator<Item = &'a str>, in_comments: bool, out: &mut Vec<String>) {
    while let Some(line) = lines.next() {
        let Some(info) = line.trim().strip_prefix("```") else { continue };
        let runs = (info.is_empty() && in_comments) || (info.starts_with("rust") && !info.contains("ignore"));
        let block: String = lines.by_ref().take_while(|l| l.trim() != "```").map(|l| format!("{l}\n")).collect();
        out.extend(runs.then_some(block));
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

    /// What has no example, of a crate with this source and this page.
    fn missing(path: &str, code: &str, page: &str) -> Vec<String> {
        let lib = "pub use api::{Db, Family, AsyncDb, Options};\npub use kingtide_base::Table;\n";
        let texts = [(format!("{CRATE}lib.rs"), lib), (path.to_owned(), code), ("docs/p.md".to_owned(), page)];
        let texts: Vec<_> = texts.into_iter().map(|(path, body)| (path, body.to_owned())).collect();
        let sources: Vec<_> = texts[..2].iter().map(|(path, body)| Source::parse(path, body)).collect();
        let mut counts = Counts::default();
        check(&texts, &sources, &mut counts);
        let places =
            ["Db::put", "Family::put", "AsyncDb::put", "Db::alone", "Table::size", "Options::size", "Table::name"];
        let found = |place: &&str| counts.get(RULE, &format!("{path}::{place}")).is_some();
        places.into_iter().filter(found).map(str::to_owned).collect()
    }

    #[test]
    fn a_name_that_types_share_is_shown_for_one_of_them() {
        let types = "pub struct Db;\nimpl Db {\n    pub fn put(&self) {}\n    pub fn alone(&self) {}\n}\nimpl Family {\n    \
                     /// DOC\n    pub fn put(&self) {}\n}\nimpl AsyncDb {\n    pub fn put(&self) {}\n}\n";
        let path = format!("{CRATE}api.rs");
        let of = |page: &str| missing(&path, types, &format!("```rust\n{page}\n```\n"));
        assert_eq!(of(""), ["Db::put", "Family::put", "AsyncDb::put", "Db::alone"]);
        assert_eq!(of("x.put();\nx.alone();"), ["Db::put", "Family::put", "AsyncDb::put"]);
        assert_eq!(of("db.put();\ndb.alone();"), ["Family::put", "AsyncDb::put"]);
        assert_eq!(of("my_db.put();\nx.alone();"), ["Db::put", "Family::put", "AsyncDb::put"]);
        assert_eq!(of("let x: Family = open();\nx.put();\nx.alone();"), ["Db::put", "AsyncDb::put"]);
        assert_eq!(of("let db = AsyncDb::open();\ndb.put();\nx.alone();"), ["Db::put", "Family::put"]);
        let above = types.replace("/// DOC", "/// ```\n    /// x.put();\n    /// ```");
        assert_eq!(missing(&path, &above, "```rust\ndb.put();\ndb.alone();\n```\n"), ["AsyncDb::put"]);
        let of_type = types.replace("pub struct Db;", "/// ```\n/// x.put();\n/// ```\npub struct Db;");
        assert_eq!(missing(&path, &of_type, "```rust\nx.alone();\n```\n"), ["Family::put", "AsyncDb::put"]);
    }

    #[test]
    fn builder_methods_that_a_macro_writes_are_seen() {
        let table = "option_table! {\n    $ each;\n    /// Options.\n    Table of \"a table\" {\n        /// Its size.\n        \
                     size: u64 = 1, in 1 ..= 2;\n        name [\"n\" as N]: u64 = 1;\n    }\n}\n";
        let path = format!("{}options.rs", CRATES[1]);
        let of = |page: &str| missing(&path, table, &format!("```rust\n{page}\n```\n"));
        assert_eq!(of(""), ["Table::size", "Options::size", "Table::name"]);
        assert_eq!(of("Table::new().size(1).name(2)"), ["Options::size"]);
        assert!(of("Table::new().size(1).name(2);\nOptions::new().size(1).name(2)").is_empty());
    }
}
