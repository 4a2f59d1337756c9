//! `cargo xtask touched [--tree DIR]`: the files of the engine that each operation runs through. They are those of the
//! functions that are reached from the operation's first one by calls that the text makes plain.
//!
//! Followed are calls by a path (`Type::new`, `module::function`, `Self::x`), by the name of a function that the file
//! defines or imports, of methods on `self`, and of methods whose name only one function of the crate has. Not followed are
//! calls of methods whose name several functions have, traits' methods with several implementations among them, and
//! everything in other crates. So the numbers are too low where a name is common, and too high where a branch is rare: a
//! put counts the files that it reaches when a memtable is full. How many calls were not followed is printed beside them.

use crate::graph::parse::{File, parse};
use crate::graph::{Links, OF_STD, source_root};
use crate::tidy::Source;
use std::collections::{BTreeMap, BTreeSet};

/// Operations with the functions that begin them; of several the first that the tree has.
const OPERATIONS: [(&str, &[(&str, &str)]); 6] = [
    ("put", &[("Db", "put")]),
    ("get", &[("Db", "get")]),
    ("next", &[("Cursor", "next"), ("DbIterator", "next")]),
    ("flush", &[("DbInner", "flush_one")]),
    ("compaction", &[("DbInner", "merge_one")]),
    ("recovery", &[("Db", "open")]),
];

/// A function: the place of its file, and its own within the file.
type Place = (usize, usize);

/// Functions by what calls name them with.
struct Functions<'f> {
    files: &'f [File],
    links: Links<'f>,
    /// By the file of the type, the type's name and the method's.
    methods: BTreeMap<(usize, String, &'f str), Vec<Place>>,
    by_name: BTreeMap<&'f str, Vec<Place>>,
    free: BTreeMap<(usize, &'f str), Place>,
}

/// What was reached.
#[derive(Default)]
struct Reached {
    functions: BTreeSet<Place>,
    /// Calls of methods that several types have.
    not_followed: usize,
}

/// Prints the files of each operation, of this work tree or of the one in `--tree`.
pub fn run(args: &[String]) -> Result<(), String> {
    let tree = match args {
        [] => crate::tidy::root(),
        [flag, dir] if flag == "--tree" => dir.into(),
        _ => return Err("usage: cargo xtask touched [--tree DIR]".to_owned()),
    };
    let (sources, _) = crate::tidy::tree(&tree)?;
    let root = source_root("kingtide");
    let root = root.as_str();
    let files: Vec<File> = sources.iter().filter_map(|s| parse(root, s)).collect();
    let functions = Functions::new(&files);
    println!("{root}");
    for (operation, begins) in OPERATIONS {
        let Some(first) = begins.iter().find_map(|(of, name)| functions.find(of, name)) else {
            println!("  {operation}: no such function");
            continue;
        };
        let reached = functions.reach(first);
        let touched: BTreeSet<&str> = reached.functions.iter().map(|(file, _)| files[*file].path.as_str()).collect();
        let (count, blind) = (reached.functions.len(), reached.not_followed);
        println!("  {operation}: {} files, {count} functions, {blind} calls not followed", touched.len());
        let short = touched.iter().map(|p| p.strip_prefix(root).unwrap_or(p).trim_start_matches('/'));
        println!("    {}", short.collect::<Vec<_>>().join(" "));
    }
    Ok(())
}

impl<'f> Functions<'f> {
    fn new(files: &'f [File]) -> Functions<'f> {
        let links = Links::new(files);
        let (mut methods, mut by_name, mut free) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for (at, file) in files.iter().enumerate() {
            for (n, function) in file.functions.iter().enumerate() {
                let (place, name) = ((at, n), function.name.as_str());
                let Some(of) = &function.of else {
                    free.insert((at, name), place);
                    continue;
                };
                by_name.entry(name).or_insert_with(Vec::new).push(place);
                if let Some((home, Some(of))) = links.resolve(at, of) {
                    methods.entry((home, of, name)).or_insert_with(Vec::new).push(place);
                }
            }
        }
        Functions { files, links, methods, by_name, free }
    }

    fn find(&self, of: &str, name: &str) -> Option<Place> {
        let mut named = self.methods.iter().filter(|((_, t, m), _)| t == of && *m == name);
        named.next().and_then(|(_, places)| places.first().copied())
    }

    fn reach(&self, first: Place) -> Reached {
        let mut reached = Reached::default();
        let mut todo = vec![first];
        while let Some(place) = todo.pop() {
            if reached.functions.insert(place) {
                self.calls_of(place, &mut todo, &mut reached.not_followed);
            }
        }
        reached
    }

    /// The functions that a function calls.
    fn calls_of(&self, (at, n): Place, found: &mut Vec<Place>, not_followed: &mut usize) {
        let file = &self.files[at];
        let (begin, end) = file.functions[n].lines;
        let inside = |line: usize| (begin..=end).contains(&line);
        for path in file.paths.iter().filter(|p| inside(p.line)) {
            let whole = match &path.within {
                Some(of) if path.path[0] == "Self" => [&of[..], &path.path[1..]].concat(),
                _ => path.path.clone(),
            };
            found.extend(self.named(at, &whole));
        }
        for (name, _) in file.plain_calls.iter().filter(|(_, line)| inside(*line)) {
            found.extend(self.named(at, std::slice::from_ref(name)));
        }
        for call in file.calls.iter().filter(|c| inside(c.line)) {
            let own = call.on.as_ref().and_then(|of| self.links.resolve(at, of));
            if let Some((home, Some(of))) = own
                && let Some(places) = self.methods.get(&(home, of, call.name.as_str()))
            {
                found.extend(places);
                continue;
            }
            match self.by_name.get(call.name.as_str()).map(Vec::as_slice) {
                None => {}
                Some([only]) if !OF_STD.contains(&call.name.as_str()) => found.push(*only),
                Some(_) => *not_followed += 1,
            }
        }
    }

    /// The functions that a path names.
    fn named(&self, at: usize, path: &[String]) -> Vec<Place> {
        let Some((home, Some(item))) = self.links.resolve(at, path) else { return Vec::new() };
        let Some(last) = path.last() else { return Vec::new() };
        match self.methods.get(&(home, item.clone(), last.as_str())) {
            Some(places) => places.clone(),
            None => self.free.get(&(home, item.as_str())).into_iter().copied().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_calls_are_followed_and_ambiguous_ones_counted() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            (
                "a.rs",
                "use crate::b::{B, free};\npub struct Db;\nimpl Db {\n  pub fn put(&self) {\n    self.own();\n    B::new().only();\n    x.both();\n  }\n  fn own(&self) { free() }\n}\n",
            ),
            (
                "b.rs",
                "pub struct B;\nimpl B {\n  pub fn new() -> B { B }\n  pub fn both(&self) {}\n}\npub fn free() {}\nfn unused() { crate::d::far() }\n",
            ),
            (
                "c.rs",
                "use crate::b::B;\nimpl B {\n  pub fn only(&self) {}\n}\nstruct C;\nimpl C {\n  fn both(&self) {}\n}\n",
            ),
            ("d.rs", "pub fn far() {}\n"),
        ];
        let sources: Vec<Source> = files.iter().map(|(p, t)| Source::parse(&format!("x/src/{p}"), t)).collect();
        let files: Vec<File> = sources.iter().filter_map(|s| parse("x/src", s)).collect();
        let functions = Functions::new(&files);
        let reached = functions.reach(functions.find("Db", "put").unwrap());
        let names: Vec<&str> = reached.functions.iter().map(|(f, n)| files[*f].functions[*n].name.as_str()).collect();
        assert_eq!(names, ["put", "own", "new", "free", "only"]);
        assert_eq!(reached.not_followed, 1);
    }
}
