//! Uses between the files of a crate: none in a cycle, and none up the floors that ARCHITECTURE.md declares.

use crate::graph::{self, Floors, Graph};
use crate::report::Report;
use crate::source::Source;

/// Reports the cycles of all crates, and for crates with floors what has none and what goes up.
pub fn check(sources: &[Source], architecture: &str, report: &mut Report) {
    for name in graph::crate_names(sources) {
        let graph = Graph::of(&graph::source_root(&name), sources);
        cycles(&name, &graph, report);
        if let Some(declared) = Floors::parse(architecture, &name) {
            floors(&name, &graph, &declared, report);
        }
    }
}

fn cycles(name: &str, graph: &Graph, report: &mut Report) {
    for cycle in graph.cycles() {
        let names: Vec<&str> = cycle.iter().map(|f| graph.names[*f].as_str()).collect();
        let inside = |(from, to): &(usize, usize)| cycle.contains(from) && cycle.contains(to);
        let Some(((from, _), cause)) = graph.arrows.iter().find(|(arrow, _)| inside(arrow)) else { continue };
        let text = format!(
            "`{}`: {} use each other (`cargo xtask graph --arrows {name}` shows how); move what they share below them",
            cause.what,
            names.join(", ")
        );
        report.add(&graph.paths[*from], cause.line, &text);
    }
}

fn floors(name: &str, graph: &Graph, floors: &Floors, report: &mut Report) {
    for module in floors.unknown(graph) {
        report.add("ARCHITECTURE.md", 0, &format!("the floors of {name} name `{module}`, which is no module"));
    }
    for (file, path) in graph.names.iter().zip(&graph.paths) {
        if file != "lib" && floors.of(file).is_none() {
            report.add(path, 0, "this module has no floor; add it to the list in ARCHITECTURE.md");
        }
    }
    for (from, to, cause) in floors.upward(graph) {
        let (higher, what) = (&graph.names[to], &cause.what);
        let text = format!("`{what}` of {higher}, which is on a higher floor (ARCHITECTURE.md); move one of the two");
        report.add(&graph.paths[from], cause.line, &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(files: &[(&str, &str)], architecture: &str) -> Vec<String> {
        let sources: Vec<Source> = files.iter().map(|(path, text)| Source::parse(path, text)).collect();
        let mut report = Report::default();
        check(&sources, architecture, &mut report);
        report.problems
    }

    #[test]
    fn a_cycle_is_refused_in_every_crate() {
        for root in ["crates/mem/src", "keybench/src", "xtask/src", "python/src"] {
            let [a, b, c, lib] = ["a", "b", "c/mod", "lib"].map(|name| format!("{root}/{name}.rs"));
            let found = |of_c: &str| {
                let files = [
                    (lib.as_str(), "mod a; mod b; mod c;\n"),
                    (&a, "pub struct A;\nuse crate::b::B;\n"),
                    (&b, "pub struct B;\nuse crate::c::C;\n"),
                    (&c, of_c),
                ];
                problems(&files, "")
            };
            assert_eq!(found("pub struct C;\n"), Vec::<String>::new());
            let cycle = found("pub struct C;\nfn f() -> crate::a::A {}\n");
            assert_eq!(cycle.len(), 1, "{cycle:?}");
            assert!(cycle[0].starts_with(&format!("{a}:2: `crate::b::B`: a, b, c use each other")), "{cycle:?}");
        }
    }

    #[test]
    fn floors_hold_what_stands_on_them() {
        let files = [
            ("crates/x/src/lib.rs", "mod a; mod b;\n"),
            ("crates/x/src/a.rs", "use crate::b::B;\npub fn f() {}\n"),
            ("crates/x/src/b.rs", "pub struct B;\n"),
        ];
        let found = |floors: &str| problems(&files, &format!("```floors x\n{floors}```\n"));
        assert_eq!(found("low: b\nhigh: a\n"), Vec::<String>::new());
        assert!(
            found("low: a\nhigh: b\n")[0].starts_with("crates/x/src/a.rs:1: `crate::b::B` of b, which is on a higher")
        );
        assert!(found("low: b\n")[0].starts_with("crates/x/src/a.rs:1: this module has no floor"));
        assert!(found("low: b\nhigh: a, gone\n")[0].contains("name `gone`, which is no module"));
    }
}
