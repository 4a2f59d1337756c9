//! Shape of functions: how long they are, how many parameters they take, how deep their blocks are nested.

use super::ratchet::Counts;
use crate::source::{Source, item_at, skip_block};

/// Longest function, in lines.
const LINES: usize = 100;
/// Most parameters, `self` aside.
const PARAMETERS: usize = 6;
/// Deepest nesting of branches, loops and closures with a block.
const DEPTH: usize = 5;

type Code<'a> = &'a [(char, usize)];

/// Counts what is over a limit. Parameters and depth count in the sources of all crates, outside of tests; functions that C or Python
/// calls take what these pass.
pub fn check(source: &Source, counts: &mut Counts) {
    let code = source.code();
    let from_python = source.path.starts_with("python/");
    let in_src = source.path.contains("/src/") || source.path.starts_with("src/");
    let mut i = 0;
    while i + 2 < code.len() {
        let is_fn = code[i].0 == 'f' && code[i + 1].0 == 'n' && code[i + 2].0 == ' ' && (i == 0 || !word(&code, i - 1));
        if !is_fn || !word(&code, i + 3) {
            i += 1;
            continue;
        }
        let name: String = (i + 3..).take_while(|j| word(&code, *j)).map(|j| code[j].0).collect();
        let (first, end) = (code[i].1, item_at(&code, i + 3));
        let place = format!("{}::{name}", source.path);
        let lines = code[end - 1].1 - first + 1;
        let mut over = |rule: &str, size: usize, most: usize, message: &str| {
            if size > most {
                counts.add(rule, &place, size, first, message);
            }
        };
        over("fn-lines", lines, LINES, &format!("a function of {lines} lines, over {LINES}; split it"));
        if in_src && !source.lines[first].test {
            let open = parameters_at(&code, i + 3 + name.chars().count());
            if !from_python && !is_called_by_c(&code, i) {
                let parameters = parameters(&code, open);
                let message =
                    format!("{parameters} parameters, over {PARAMETERS}; make a struct of those that belong together");
                over("fn-params", parameters, PARAMETERS, &message);
            }
            let body = skip_block(&code, open);
            let depth = depth(&code[body..end.max(body)]);
            over(
                "fn-depth",
                depth,
                DEPTH,
                &format!("blocks nested {depth} deep, over {DEPTH}; move the inner ones to a function"),
            );
        }
        i += 3;
    }
}

/// Whether the `fn` at `i` has `extern` before it: strings are blanked, so what ABI it names is not there to be seen.
fn is_called_by_c(code: Code<'_>, i: usize) -> bool {
    let line: String = code[..i].iter().rev().take_while(|c| c.1 == code[i].1).map(|c| c.0).collect();
    line.chars().rev().collect::<String>().contains("extern ")
}

fn word(code: Code<'_>, i: usize) -> bool {
    code.get(i).is_some_and(|c| c.0.is_alphanumeric() || c.0 == '_')
}

/// Where the list of parameters opens, behind generic ones.
fn parameters_at(code: Code<'_>, from: usize) -> usize {
    let mut angles = 0usize;
    for i in from..code.len() {
        match code[i].0 {
            '<' => angles += 1,
            '>' if code[i - 1].0 != '-' => angles = angles.saturating_sub(1),
            '(' if angles == 0 => return i,
            _ => {}
        }
    }
    code.len()
}

/// How many parameters the list that opens at `open` has, `self` aside.
fn parameters(code: Code<'_>, open: usize) -> usize {
    let end = skip_block(code, open).saturating_sub(1);
    let (mut list, mut one) = (Vec::new(), String::new());
    let (mut depth, mut i) = (0usize, open + 1);
    while i < end {
        match code[i].0 {
            ',' if depth == 0 => list.push(std::mem::take(&mut one)),
            c => {
                match c {
                    '(' | '[' | '{' | '<' => depth += 1,
                    '>' if code[i - 1].0 == '-' => {}
                    ')' | ']' | '}' | '>' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                one.push(c);
            }
        }
        i += 1;
    }
    list.push(one);
    let is_self = |p: &str| p.split(':').next().is_some_and(|name| name.trim().ends_with("self"));
    list.iter().filter(|p| !p.trim().is_empty() && !is_self(p)).count()
}

/// The deepest nesting in a function's body.
fn depth(body: Code<'_>) -> usize {
    let (mut blocks, mut branches, mut deepest) = (Vec::new(), false, 0);
    let mut i = 0;
    while i < body.len() {
        if word(body, i) {
            let text: String = (i..).take_while(|j| word(body, *j)).map(|j| body[j].0).collect();
            i += text.chars().count();
            let is_bound = body.get(i).is_some_and(|c| c.0 == '<');
            branches |=
                matches!(text.as_str(), "if" | "else" | "match" | "while" | "loop") || text == "for" && !is_bound;
            continue;
        }
        match body[i].0 {
            '{' => {
                let before = body[..i].iter().rev().find(|c| !c.0.is_whitespace());
                blocks.push(std::mem::take(&mut branches) || before.is_some_and(|c| c.0 == '|'));
                deepest = deepest.max(blocks.iter().filter(|counts| **counts).count());
            }
            '}' => {
                blocks.pop();
                branches = false;
            }
            ';' | '>' if body[i].0 == ';' || i > 0 && body[i - 1].0 == '=' => branches = false,
            _ => {}
        }
        i += 1;
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(text: &str) -> Counts {
        let mut counts = Counts::default();
        check(&Source::parse("crates/base/src/a.rs", text), &mut counts);
        counts
    }

    #[test]
    fn parameters_are_counted_without_self() {
        let many = "fn f<T: Fn(u8, u8) -> u8>(&mut self, a: (u8, u8), b: [u8; 2], c: M<u8, u8>, d: T, e: impl Fn(u8, u8) -> u8, g: u8, h: u8,) {}";
        assert_eq!(counts(many).get("fn-params", "crates/base/src/a.rs::f"), Some(7));
        assert!(counts(&many.replace(", h: u8", "")).is_empty());
        assert!(counts("fn f(self: &Arc<Self>, a: u8, b: u8, c: u8, d: u8, e: u8, f: u8);").is_empty());
    }

    #[test]
    fn functions_that_other_languages_call_take_what_these_pass() {
        let parsed = |path: &str, text: &str| {
            let mut counts = Counts::default();
            check(&Source::parse(path, text), &mut counts);
            counts.get("fn-params", &format!("{path}::f"))
        };
        let many = "fn f(a: u8, b: u8, c: u8, d: u8, e: u8, g: u8, h: u8) {}";
        assert_eq!(parsed("mariadb/codec/src/a.rs", &format!("pub {many}")), Some(7));
        assert_eq!(parsed("keybench/src/a.rs", many), Some(7));
        assert_eq!(parsed("crates/capi/src/a.rs", &format!("pub unsafe extern \"C\" {many}")), None);
        assert_eq!(parsed("python/src/a.rs", many), None);
        assert_eq!(parsed("keybench/tests/a.rs", many), None);
    }

    #[test]
    fn depth_is_that_of_branches_loops_and_closures() {
        let deep = |inner: &str| {
            format!(
                "fn f() {{ if a {{ for b in c {{ while d {{ match e {{ x => {{ y(|z| {{ {inner} }}) }} }} }} }} }} }}"
            )
        };
        assert!(counts(&deep("S { a: 1 }; unsafe { u() }")).is_empty());
        assert_eq!(counts(&deep("loop { w() }")).get("fn-depth", "crates/base/src/a.rs::f"), Some(6));
    }

    #[test]
    fn long_functions_are_counted() {
        let text = format!("fn long(x: fn(u8)) {{\n{}}}\nfn short();\n", "    x();\n".repeat(100));
        assert_eq!(counts(&text).get("fn-lines", "crates/base/src/a.rs::long"), Some(102));
    }
}
