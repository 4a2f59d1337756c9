//! `cargo xtask graph [--tree DIR] [--arrows] [crate]`: which file of a crate uses which other, the cycles among them, and uses that go up
//! against the floors that ARCHITECTURE.md declares.
//!
//! What counts as an arrow from one file to another:
//!
//! * a `use` of `crate::`, `super::` or `self::`, and such a path within the code. A re-export counts for the file that
//!   defines the item, and for the one that re-exports it, unless that lies in its own folder or in `lib.rs`;
//! * a call of a method that stands in an `impl` block away from its type: the caller uses that file, although no
//!   import says so. Where the receiver's type is not plain from the text, only methods whose name is the crate's only
//!   one of its kind count.
//!
//! Tests do not count. `--tree DIR` reads another work tree, such as one of an earlier commit that `git worktree add` made.

mod parse;

use crate::source::Source;
use crate::tree;
use parse::{File, parse};
use std::collections::{BTreeMap, BTreeSet};

/// An arrow's cause.
#[derive(Debug, Clone)]
pub struct Cause {
    /// Counted from 0.
    pub line: usize,
    /// What is used.
    pub what: String,
}

/// The files of one crate and the arrows between them.
pub struct Graph {
    /// For each file its path in the repository.
    pub paths: Vec<String>,
    /// For each file its name: its module with `/`.
    pub names: Vec<String>,
    /// From one file to another, with the first cause.
    pub arrows: BTreeMap<(usize, usize), Cause>,
}

/// Prints the graph of the crates that `args` name, or of all.
pub fn run(args: &[String]) -> Result<(), String> {
    let (mut root, mut arrows, mut wanted) = (tree::root(), false, Vec::new());
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--tree" => root = rest.next().ok_or("--tree needs a directory")?.into(),
            "--arrows" => arrows = true,
            name if !name.starts_with('-') => wanted.push(name),
            _ => return Err("usage: cargo xtask graph [--tree DIR] [--arrows] [crate]...".to_owned()),
        }
    }
    let texts = tree::texts(&root)?;
    let architecture = texts.iter().find(|t| t.0 == "ARCHITECTURE.md").map_or("", |t| t.1.as_str());
    let sources = Source::all(&texts);
    for name in crate_names(&sources) {
        if !wanted.is_empty() && !wanted.contains(&name.as_str()) {
            continue;
        }
        let folder = source_root(&name);
        let graph = Graph::of(&folder, &sources);
        let cycles = graph.cycles();
        println!("{folder}: {} files, {} arrows", graph.names.len(), graph.arrows.len());
        println!("  cycles: {}", cycles.len());
        for c in &cycles {
            let names: Vec<&str> = c.iter().map(|f| graph.names[*f].as_str()).collect();
            println!("    {} files: {}", c.len(), names.join(" "));
        }
        if arrows {
            for ((from, to), cause) in &graph.arrows {
                println!("    {} -> {} {} {}", graph.names[*from], graph.names[*to], cause.line + 1, cause.what);
            }
        }
        if let Some(floors) = Floors::parse(architecture, &name) {
            let up = floors.upward(&graph);
            floors.unknown(&graph).for_each(|m| println!("  no such module: {m}"));
            println!("  upward arrows: {}", up.len());
            for (from, to, cause) in up {
                let (a, b) = (&graph.names[from], &graph.names[to]);
                println!("    {a} -> {b} ({}:{} {})", graph.paths[from], cause.line + 1, cause.what);
            }
        }
    }
    Ok(())
}

/// The crates: those below `crates` by their folder there, and those beside it, such as `xtask`.
pub fn crate_names(sources: &[Source]) -> BTreeSet<String> {
    let name = |s: &Source| {
        let inside = s.path.strip_prefix("crates/").unwrap_or(&s.path);
        let (name, rest) = inside.split_once('/')?;
        rest.starts_with("src/").then(|| name.to_owned())
    };
    sources.iter().filter_map(name).collect()
}

/// Where the sources of a crate are.
pub fn source_root(name: &str) -> String {
    match name {
        "keybench" | "mariadb" | "python" | "xtask" => format!("{name}/src"),
        _ => format!("crates/{name}/src"),
    }
}

impl Graph {
    /// The graph of the crate whose sources are in `root`.
    pub fn of(root: &str, sources: &[Source]) -> Graph {
        let files: Vec<File> = sources.iter().filter_map(|s| parse(root, s)).collect();
        let links = Links::new(&files);
        let mut arrows = BTreeMap::new();
        for from in 0..files.len() {
            links.arrows_of(from, &mut arrows);
        }
        let name = |f: &File| if f.module.is_empty() { "lib".to_owned() } else { f.module.join("/") };
        Graph { paths: files.iter().map(|f| f.path.clone()).collect(), names: files.iter().map(name).collect(), arrows }
    }

    /// The sets of files each of which uses all others of its set, over however many steps; largest first.
    pub fn cycles(&self) -> Vec<Vec<usize>> {
        let reach: Vec<BTreeSet<usize>> = (0..self.names.len()).map(|f| self.reachable(f)).collect();
        let mut seen = BTreeSet::new();
        let mut cycles = Vec::new();
        for f in 0..self.names.len() {
            let cycle: Vec<usize> = reach[f].iter().copied().filter(|g| reach[*g].contains(&f)).collect();
            if cycle.len() > 1 && seen.insert(cycle.clone()) {
                cycles.push(cycle);
            }
        }
        cycles.sort_by_key(|c| std::cmp::Reverse(c.len()));
        cycles
    }

    fn reachable(&self, from: usize) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        let mut todo = vec![from];
        while let Some(f) = todo.pop() {
            for ((_, to), _) in self.arrows.range((f, 0)..(f + 1, 0)) {
                if found.insert(*to) {
                    todo.push(*to);
                }
            }
        }
        found
    }
}

/// What names mean, over all files of a crate.
struct Links<'f> {
    files: &'f [File],
    modules: BTreeMap<&'f [String], usize>,
    /// Methods that stand away from their type: by the type's file and name and the method's name.
    away: BTreeMap<(usize, String, String), usize>,
    /// The only file with a method of this name, if it stands away from its type.
    unique: BTreeMap<String, usize>,
}

/// Methods of the standard library's types: a call of one says nothing about the crate, even if that has one of the name.
const OF_STD: [&str; 14] = [
    "clear",
    "count",
    "extend",
    "fetch_update",
    "get",
    "insert",
    "is_empty",
    "iter",
    "len",
    "next",
    "push",
    "range",
    "read",
    "write",
];

/// A file, and the item of it that a path names, if it names one.
type Target = (usize, Option<String>);

impl<'f> Links<'f> {
    fn new(files: &'f [File]) -> Links<'f> {
        let modules = files.iter().enumerate().map(|(i, f)| (f.module.as_slice(), i)).collect();
        let mut links = Links { files, modules, away: BTreeMap::new(), unique: BTreeMap::new() };
        let mut homes: BTreeMap<&str, BTreeSet<Option<usize>>> = BTreeMap::new();
        for (at, f) in files.iter().enumerate() {
            f.trait_methods.iter().for_each(|m| _ = homes.entry(m).or_default().insert(None));
            for i in &f.impls {
                let home = links.resolve(at, &i.of);
                for m in &i.methods {
                    match &home {
                        Some((of, Some(name))) if *of != at && !i.is_trait => {
                            links.away.insert((*of, name.clone(), m.clone()), at);
                            homes.entry(m).or_default().insert(Some(at));
                        }
                        _ => _ = homes.entry(m).or_default().insert(None),
                    }
                }
            }
        }
        let only = homes.into_iter().filter(|(m, at)| at.len() == 1 && !OF_STD.contains(m));
        links.unique = only.filter_map(|(m, at)| Some((m.to_owned(), (*at.first()?)?))).collect();
        links
    }

    /// What a path means in a file. None for what is not of this crate.
    fn resolve(&self, file: usize, path: &[String]) -> Option<Target> {
        self.resolve_within(file, path, 0)
    }

    fn resolve_within(&self, file: usize, path: &[String], depth: usize) -> Option<Target> {
        let module = &self.files[file].module;
        match path.first()?.as_str() {
            "crate" => self.find(*self.modules.get(&[][..])?, &path[1..], depth),
            "self" => self.find(file, &path[1..], depth),
            "super" => {
                let ups = path.iter().take_while(|s| *s == "super").count();
                let above = &module[..module.len().checked_sub(ups)?];
                self.find(*self.modules.get(above)?, &path[ups..], depth)
            }
            _ => self.find(file, path, depth),
        }
    }

    fn find(&self, module: usize, path: &[String], depth: usize) -> Option<Target> {
        let Some(first) = path.first() else { return Some((module, None)) };
        if depth > 16 {
            return None;
        }
        let f = &self.files[module];
        if f.items.contains(first) {
            return Some((module, Some(first.clone())));
        }
        let child: Vec<String> = f.module.iter().chain([first]).cloned().collect();
        if let Some(child) = self.modules.get(child.as_slice()) {
            return self.find(*child, &path[1..], depth + 1);
        }
        if let Some(u) = f.uses.iter().find(|u| u.name == *first) {
            if u.path.first() == Some(first) && u.path.len() == 1 {
                return None; // a crate's name
            }
            let whole: Vec<String> = u.path.iter().chain(&path[1..]).cloned().collect();
            return self.resolve_within(module, &whole, depth + 1);
        }
        let globs = f.uses.iter().filter(|u| u.name == "*");
        globs.filter_map(|u| self.resolve_within(module, &[&u.path[..], path].concat(), depth + 1)).next()
    }

    fn arrows_of(&self, from: usize, arrows: &mut BTreeMap<(usize, usize), Cause>) {
        let f = &self.files[from];
        let mut add = |to: usize, line: usize, what: String| {
            if to != from {
                arrows.entry((from, to)).or_insert(Cause { line, what });
            }
        };
        for u in &f.uses {
            let Some((to, item)) = self.resolve(from, &u.path) else { continue };
            let is_own = self.files[to].module.starts_with(&f.module);
            // A module by itself is no use: what is taken from it is.
            if item.is_some() && !(u.public && is_own) {
                add(to, u.line, u.path.join("::"));
            }
        }
        for p in &f.paths {
            let (path, base) = match &p.within {
                Some(of) if p.path[0] == "Self" => ([&of[..], &p.path[1..]].concat(), of.len()),
                _ => (p.path.clone(), 0),
            };
            let Some((to, item)) = self.resolve(from, &path) else { continue };
            if base == 0 && item.is_some() {
                add(to, p.line, p.path.join("::"));
            }
            if let (Some(item), Some(last)) = (item, path.last())
                && let Some(at) = self.away.get(&(to, item, last.clone()))
            {
                add(*at, p.line, p.path.join("::"));
            }
        }
        for c in &f.calls {
            let known = c.on.as_ref().and_then(|of| self.resolve(from, of));
            let at = match known {
                Some((to, Some(item))) => self.away.get(&(to, item, c.name.clone())),
                _ => self.unique.get(&c.name),
            };
            if let Some(at) = at {
                add(*at, c.line, format!(".{}()", c.name));
            }
        }
    }
}

/// The floors of one crate, lowest first, as ARCHITECTURE.md declares them.
pub struct Floors {
    /// Modules with their floor.
    rooms: BTreeMap<String, usize>,
}

impl Floors {
    /// Reads the block that begins with ```` ```floors name ````: one floor a line, `name: module, module/file, ...`, the
    /// lowest first. What stands behind a `#` is for readers.
    pub fn parse(architecture: &str, name: &str) -> Option<Floors> {
        let begin = format!("```floors {name}");
        let lines = architecture.lines().skip_while(|l| l.trim() != begin).skip(1);
        let mut rooms = BTreeMap::new();
        let mut any = false;
        for (floor, line) in lines.take_while(|l| !l.starts_with("```")).enumerate() {
            let line = line.split('#').next().unwrap_or(line);
            let modules = line.split_once(':').map_or(line, |(_, modules)| modules);
            modules.split(',').map(str::trim).filter(|m| !m.is_empty()).for_each(|m| {
                any = true;
                rooms.insert(m.to_owned(), floor);
            });
        }
        any.then_some(Floors { rooms })
    }

    /// The floor of a file: that of the longest module that holds it.
    pub fn of(&self, name: &str) -> Option<usize> {
        let mut at = name;
        loop {
            if let Some(floor) = self.rooms.get(at) {
                return Some(*floor);
            }
            at = at.rsplit_once('/')?.0;
        }
    }

    /// The modules that are named and have no file.
    pub fn unknown<'s>(&'s self, graph: &'s Graph) -> impl Iterator<Item = &'s String> {
        let known = |m: &str| graph.names.iter().any(|n| n == m || n.starts_with(&format!("{m}/")));
        self.rooms.keys().filter(move |m| !known(m))
    }

    /// The arrows from a floor to a higher one. `lib.rs` stands above all.
    pub fn upward<'g>(&self, graph: &'g Graph) -> Vec<(usize, usize, &'g Cause)> {
        let floor = |f: usize| self.of(&graph.names[f]).unwrap_or(usize::MAX);
        let up = graph.arrows.iter().filter(|((from, to), _)| floor(*from) < floor(*to));
        up.map(|((from, to), cause)| (*from, *to, cause)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(files: &[(&str, &str)]) -> Graph {
        let sources: Vec<Source> = files.iter().map(|(p, t)| Source::parse(&format!("x/src/{p}"), t)).collect();
        Graph::of("x/src", &sources)
    }

    fn arrows(g: &Graph) -> Vec<String> {
        g.arrows.keys().map(|(a, b)| format!("{} {}", g.names[*a], g.names[*b])).collect()
    }

    #[test]
    fn re_exports_super_and_methods_away_from_their_type_are_arrows() {
        let g = graph(&[
            ("lib.rs", "mod a; mod b; pub use b::B;"),
            (
                "a/mod.rs",
                "mod deep; pub use deep::D; use crate::B; pub struct A; impl A { fn go(&self) { self.verb() } }",
            ),
            ("a/deep.rs", "pub struct D; fn f() { super::super::c::free() }"),
            ("b.rs", "pub struct B; use crate::a; fn g(d: a::D) {}"),
            ("c.rs", "use crate::a::A; impl A { pub fn verb(&self) {} } pub fn free() {}"),
        ]);
        assert_eq!(arrows(&g), ["a b", "a c", "a/deep c", "b a/deep", "c a"]);
        let names = |c: &Vec<usize>| c.iter().map(|f| g.names[*f].clone()).collect::<Vec<_>>().join(" ");
        assert_eq!(g.cycles().iter().map(names).collect::<Vec<_>>(), ["a a/deep b c"]);
    }

    #[test]
    fn a_method_that_std_has_too_is_no_arrow() {
        let of = |name: &str| {
            let at_home = "pub struct T; fn f(x: U) { x.NAME(); }".replace("NAME", name);
            let away = "use crate::t::T; impl T { pub fn NAME(&self) {} }".replace("NAME", name);
            arrows(&graph(&[("lib.rs", "mod t; mod v;"), ("t.rs", &at_home), ("v.rs", &away)]))
        };
        assert_eq!(of("verb"), ["t v", "v t"]);
        assert_eq!(of("iter"), ["v t"]);
    }

    #[test]
    fn an_arrow_to_a_higher_floor_is_found() {
        let g = graph(&[
            ("a.rs", "use crate::b::B; pub fn f() {}"),
            ("b.rs", "pub struct B; fn g() { crate::a::f() }"),
            ("lib.rs", "mod a; mod b;"),
        ]);
        let floors = Floors::parse("text\n```floors x\nlow: a # why\nhigh: b, gone\n```\n", "x").unwrap();
        let up = floors.upward(&g);
        assert_eq!(up.len(), 1);
        assert_eq!((g.names[up[0].0].as_str(), g.names[up[0].1].as_str()), ("a", "b"));
        assert_eq!(floors.unknown(&g).collect::<Vec<_>>(), ["gone"]);
        assert_eq!((floors.of("b/c/d"), floors.of("z")), (Some(1), None));
        assert!(Floors::parse("no list", "x").is_none());
    }
}
