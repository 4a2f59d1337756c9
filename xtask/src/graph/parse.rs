//! What a Rust file says about other files: its items, its `use` trees, the paths in its code, its `impl` blocks, and the
//! methods that it calls. A scan over tokens; tests are left out.

use crate::source::Source;
use std::collections::BTreeSet;

/// One token of the code.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Token {
    text: String,
    line: usize,
}

impl Token {
    fn is_word(&self) -> bool {
        self.text.starts_with(|c: char| c.is_alphabetic() || c == '_')
    }
}

/// One leaf of a `use` tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// The path as written.
    pub path: Vec<String>,
    /// The name that it gets in this module; `*` for a glob.
    pub name: String,
    /// Whether it is visible outside of this module.
    pub public: bool,
    /// Counted from 0.
    pub line: usize,
}

/// A path in the code, such as `crate::names::table` or `Tag::new`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    pub path: Vec<String>,
    /// The type whose `impl` block it stands in.
    pub within: Option<Vec<String>>,
    pub line: usize,
}

/// A call of a method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub name: String,
    /// The type, if the receiver is `self`.
    pub on: Option<Vec<String>>,
    pub line: usize,
}

/// An `impl` block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Impl {
    /// The type as written, without its parameters.
    pub of: Vec<String>,
    /// Whether it implements a trait.
    pub is_trait: bool,
    pub methods: Vec<String>,
}

/// A file.
#[derive(Debug, Default)]
pub struct File {
    /// Path from the root of the repository.
    pub path: String,
    /// Its module below the crate's root.
    pub module: Vec<String>,
    pub items: BTreeSet<String>,
    pub uses: Vec<Use>,
    pub paths: Vec<Path>,
    pub impls: Vec<Impl>,
    pub calls: Vec<Call>,
    /// Methods that traits of this file declare.
    pub trait_methods: Vec<String>,
}

/// Reads a file of a crate whose sources are in `root`; none if it holds nothing but tests.
pub fn parse(root: &str, source: &Source) -> Option<File> {
    let inside = source.path.strip_prefix(root)?.strip_prefix('/')?.strip_suffix(".rs")?;
    if source.lines.iter().all(|l| l.test || l.code.trim().is_empty()) {
        return None;
    }
    let mut module: Vec<String> = inside.split('/').map(str::to_owned).collect();
    if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        module.pop();
    }
    let tokens = tokens(source);
    let mut scan = Scan { tokens, at: 0, blocks: Vec::new(), file: File::default() };
    scan.file.path = source.path.clone();
    scan.file.module = module;
    while scan.at < scan.tokens.len() {
        scan.step();
    }
    Some(scan.file)
}

fn tokens(source: &Source) -> Vec<Token> {
    let mut out: Vec<Token> = Vec::new();
    for (line, l) in source.lines.iter().enumerate().filter(|(_, l)| !l.test) {
        let chars: Vec<char> = l.code.chars().collect();
        let word = |i: usize| chars.get(i).is_some_and(|c: &char| c.is_alphanumeric() || *c == '_');
        let mut i = 0;
        while i < chars.len() {
            let end = match chars[i] {
                c if c.is_whitespace() => {
                    i += 1;
                    continue;
                }
                _ if word(i) => (i..chars.len()).find(|j| !word(*j)).unwrap_or(chars.len()),
                '\'' if word(i + 1) && chars.get(i + 2) != Some(&'\'') => {
                    (i + 1..chars.len()).find(|j| !word(*j)).unwrap_or(chars.len())
                }
                ':' if chars.get(i + 1) == Some(&':') => i + 2,
                '-' | '=' if chars.get(i + 1) == Some(&'>') => i + 2,
                _ => i + 1,
            };
            out.push(Token { text: chars[i..end].iter().collect(), line });
            i = end;
        }
    }
    out
}

struct Scan {
    tokens: Vec<Token>,
    at: usize,
    /// Open braces: for that of an `impl` block its place in the file's list, for that of a trait `None` and true.
    blocks: Vec<Block>,
    file: File,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Impl(usize),
    Trait,
    Other,
}

impl Scan {
    fn text(&self, i: usize) -> &str {
        self.tokens.get(i).map_or("", |t| t.text.as_str())
    }

    fn is_word(&self, i: usize) -> bool {
        self.tokens.get(i).is_some_and(Token::is_word)
    }

    fn within(&self) -> Option<Vec<String>> {
        self.blocks.iter().rev().find_map(|b| match b {
            Block::Impl(i) => Some(self.file.impls[*i].of.clone()),
            _ => None,
        })
    }

    fn step(&mut self) {
        let at = self.at;
        self.at += 1;
        match self.text(at) {
            "{" => self.blocks.push(Block::Other),
            "}" => _ = self.blocks.pop(),
            "use" if self.text(at + 1) != "<" => self.use_tree(at),
            "impl" if self.blocks.is_empty() && self.is_item(at) => self.impl_block(at),
            "trait" if self.blocks.is_empty() => {
                self.file.items.insert(self.text(at + 1).to_owned());
                self.at = (at..self.tokens.len()).find(|i| self.text(*i) == "{").unwrap_or(self.tokens.len());
                self.blocks.push(Block::Trait);
                self.at += 1;
            }
            "fn" => self.function(at),
            "struct" | "enum" | "union" | "type" | "const" | "static" if self.blocks.is_empty() => {
                let name = if self.text(at + 1) == "mut" { at + 2 } else { at + 1 };
                if self.is_word(name) && self.text(name) != "fn" {
                    self.file.items.insert(self.text(name).to_owned());
                }
            }
            "macro_rules" => _ = self.file.items.insert(self.text(at + 2).to_owned()),
            "." if self.is_word(at + 1) => {
                let is_call = self.text(at + 2) == "(" || self.text(at + 2) == "::";
                if is_call {
                    let is_self = self.text(at.wrapping_sub(1)) == "self" && self.text(at.wrapping_sub(2)) != ".";
                    let on = if is_self { self.within() } else { None };
                    let (name, line) = (self.text(at + 1).to_owned(), self.tokens[at].line);
                    self.file.calls.push(Call { name, on, line });
                }
                self.at = at + 2;
            }
            _ if self.is_word(at) && self.text(at + 1) == "::" => self.path(at),
            _ => {}
        }
    }

    /// Whether an item begins with the `impl` at `at`. Others stand for a type, in the signature of a function.
    fn is_item(&self, at: usize) -> bool {
        at == 0 || matches!(self.text(at - 1), ";" | "}" | "]" | "unsafe")
    }

    fn function(&mut self, at: usize) {
        if !self.is_word(at + 1) {
            return;
        }
        let name = self.text(at + 1).to_owned();
        match self.blocks.last() {
            None => _ = self.file.items.insert(name),
            Some(Block::Impl(i)) => self.file.impls[*i].methods.push(name),
            Some(Block::Trait) => self.file.trait_methods.push(name),
            Some(Block::Other) => {}
        }
    }

    fn path(&mut self, at: usize) {
        let mut path = vec![self.text(at).to_owned()];
        let mut i = at + 1;
        while self.text(i) == "::" && self.is_word(i + 1) {
            path.push(self.text(i + 1).to_owned());
            i += 2;
        }
        let (within, line) = (self.within(), self.tokens[at].line);
        self.file.paths.push(Path { path, within, line });
        self.at = i;
    }

    fn impl_block(&mut self, at: usize) {
        let mut i = at + 1;
        let mut depth = 0;
        let mut is_trait = false;
        let mut of: Vec<String> = Vec::new();
        let mut closed = false;
        while i < self.tokens.len() && !(depth == 0 && matches!(self.text(i), "{" | "where")) {
            match self.text(i) {
                "<" | "(" | "[" => depth += 1,
                ">" | ")" | "]" => depth -= 1,
                "for" if depth == 0 => {
                    (is_trait, closed) = (true, false);
                    of.clear();
                }
                "::" | "&" | "mut" | "dyn" => {}
                _ if depth == 0 && self.is_word(i) && !closed => {
                    of.push(self.text(i).to_owned());
                    closed = self.text(i + 1) != "::";
                }
                _ => {}
            }
            if self.is_word(i) && self.text(i + 1) == "::" {
                let line = self.tokens[i].line;
                let mut path = vec![self.text(i).to_owned()];
                let mut j = i + 1;
                while self.text(j) == "::" && self.is_word(j + 1) {
                    path.push(self.text(j + 1).to_owned());
                    j += 2;
                }
                self.file.paths.push(Path { path, within: None, line });
            }
            i += 1;
        }
        while i < self.tokens.len() && self.text(i) != "{" {
            i += 1;
        }
        self.file.impls.push(Impl { of, is_trait, methods: Vec::new() });
        self.blocks.push(Block::Impl(self.file.impls.len() - 1));
        self.at = i + 1;
    }

    fn use_tree(&mut self, at: usize) {
        let before = |n: usize| at.checked_sub(n).map_or("", |i| self.text(i));
        let public = before(1) == "pub" || (before(1) == ")" && (1..8).any(|n| before(n) == "pub"));
        let mut i = at + 1;
        self.use_branch(&mut i, &[], public);
        self.at = (i..self.tokens.len()).find(|i| self.text(*i) == ";").map_or(self.tokens.len(), |i| i + 1);
    }

    fn use_branch(&mut self, i: &mut usize, prefix: &[String], public: bool) {
        let mut path = prefix.to_vec();
        let line = self.tokens.get(*i).map_or(0, |t| t.line);
        loop {
            match self.text(*i) {
                "::" => *i += 1,
                "{" => {
                    *i += 1;
                    while *i < self.tokens.len() && self.text(*i) != "}" {
                        self.use_branch(i, &path, public);
                        if self.text(*i) == "," {
                            *i += 1;
                        }
                    }
                    *i += 1;
                    return;
                }
                "as" => {
                    let name = self.text(*i + 1).to_owned();
                    *i += 2;
                    self.file.uses.push(Use { path, name, public, line });
                    return;
                }
                word if self.is_word(*i) || word == "*" => {
                    if word != "self" || path.is_empty() {
                        path.push(word.to_owned());
                    }
                    *i += 1;
                }
                _ => {
                    let name = path.last().cloned().unwrap_or_default();
                    if name == "*" {
                        path.pop();
                    }
                    self.file.uses.push(Use { path, name, public, line });
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read() {
        let text = "use crate::a::{self, b::C, d as e};\npub(crate) use super::f::*;\n\
                    impl<T: Fn() -> u8> C<T> {\n  fn go(&self) { self.run(); other.stop(); crate::g::h(); Self::x() }\n}\n\
                    impl Clone for crate::k::K {}\npub const fn top() {}\ntrait L { fn l(); }\n\
                    #[cfg(test)]\nmod tests { use crate::never; }\n";
        let f = parse("x/src", &Source::parse("x/src/m/mod.rs", text)).unwrap();
        assert_eq!(f.module, ["m"]);
        let uses: Vec<_> = f.uses.iter().map(|u| (u.path.join("::"), u.name.as_str(), u.public)).collect();
        let expected = [
            ("crate::a", "a", false),
            ("crate::a::b::C", "C", false),
            ("crate::a::d", "e", false),
            ("super::f", "*", true),
        ];
        assert_eq!(uses, expected.map(|(p, n, v)| (p.to_owned(), n, v)));
        assert_eq!((f.impls[0].of.join("::"), &f.impls[0].methods[..]), ("C".to_owned(), &["go".to_owned()][..]));
        assert!(f.impls[1].is_trait && f.impls[1].of == ["crate", "k", "K"]);
        let calls: Vec<_> = f.calls.iter().map(|c| (c.name.as_str(), c.on.is_some())).collect();
        assert_eq!(calls, [("run", true), ("stop", false)]);
        assert!(f.paths.iter().any(|p| p.path == ["crate", "g", "h"]));
        assert!(f.items.contains("top") && f.items.contains("L") && f.trait_methods == ["l"]);
    }

    #[test]
    fn an_impl_in_a_signature_is_no_block() {
        let text = "fn a(of: impl Iterator<Item = u8>) -> Option<u8> { None }\nfn b() -> impl Fn() { c }\n\
                    pub struct D;\n#[allow(x)]\nunsafe impl Send for D {}\nimpl D { fn e(f: &impl Fn()) {} }\n";
        let f = parse("x/src", &Source::parse("x/src/m.rs", text)).unwrap();
        assert_eq!(f.items, ["D", "a", "b"].map(str::to_owned).into());
        let impls: Vec<_> = f.impls.iter().map(|i| (i.of.join("::"), i.is_trait, i.methods.concat())).collect();
        assert_eq!(impls, [("D".to_owned(), true, String::new()), ("D".to_owned(), false, "e".to_owned())]);
    }
}
