//! The header: made from the source, and read back.

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

/// `KINGTIDE_BLESS=1` writes the header instead of comparing it.
#[test]
fn the_header_is_up_to_date() {
    let mut made = Vec::new();
    let config = cbindgen::Config::from_file(here().join("cbindgen.toml")).unwrap();
    cbindgen::Builder::new().with_crate(here()).with_config(config).generate().unwrap().write(&mut made);
    let made = String::from_utf8(made).unwrap();
    if std::env::var_os("KINGTIDE_BLESS").is_some() {
        std::fs::write(path(), made).unwrap();
        return;
    }
    let committed = std::fs::read_to_string(path()).unwrap();
    let how = "run KINGTIDE_BLESS=1 cargo test -p kingtide-capi --lib header";
    assert!(committed == made, "include/kingtide.h is out of date: {how}");
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
