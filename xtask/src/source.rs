//! A Rust file split into code and comments, with the parts that are tests marked. A lexer of a page instead of a parser:
//! the rules need to know what is not code, and no more.

/// One line.
#[derive(Debug, Default, Clone)]
pub struct Line {
    /// The line with comments removed and the insides of strings and characters blanked.
    pub code: String,
    /// What comments on the line say.
    pub comment: String,
    /// Whether it is compiled for tests only.
    pub test: bool,
}

/// A Rust file.
pub struct Source {
    /// Path from the root of the repository, with `/`.
    pub path: String,
    /// Its lines.
    pub lines: Vec<Line>,
    /// Names of modules in files of their own that are compiled for tests only.
    pub test_modules: Vec<String>,
}

impl Source {
    /// All Rust files, those marked as tests that a `#[cfg(test)] mod name;` elsewhere declares.
    pub fn all(texts: &[(String, String)]) -> Vec<Source> {
        let rust = texts.iter().filter(|t| t.0.ends_with(".rs"));
        let mut all: Vec<Source> = rust.map(|(path, body)| Source::parse(path, body)).collect();
        let mut tests = Vec::new();
        for s in &all {
            let folder = match s.path.rsplit_once('/') {
                Some((folder, "lib.rs" | "main.rs" | "mod.rs")) => folder.to_owned(),
                _ => s.path.trim_end_matches(".rs").to_owned(),
            };
            tests.extend(s.test_modules.iter().map(|m| format!("{folder}/{m}")));
        }
        for s in &mut all {
            if tests.iter().any(|t| s.path == format!("{t}.rs") || s.path.starts_with(&format!("{t}/"))) {
                s.mark_all();
            }
        }
        all
    }

    /// Splits `text`.
    pub fn parse(path: &str, text: &str) -> Source {
        let mut source = Source { path: path.to_owned(), lines: split(text), test_modules: Vec::new() };
        let in_dir = |d: &str| path.starts_with(&format!("{d}/")) || path.contains(&format!("/{d}/"));
        if in_dir("tests") || in_dir("benches") || in_dir("examples") || in_dir("crates/testkit") {
            source.mark_all();
        } else {
            source.mark_tests();
        }
        source
    }

    /// Marks the whole file as a test.
    pub fn mark_all(&mut self) {
        self.lines.iter_mut().for_each(|l| l.test = true);
    }

    /// All code as characters with their line numbers (from 0), line ends included.
    pub fn code(&self) -> Vec<(char, usize)> {
        let of = |(n, l): (usize, &Line)| l.code.chars().chain(['\n']).map(move |c| (c, n)).collect::<Vec<_>>();
        self.lines.iter().enumerate().flat_map(of).collect()
    }

    fn mark_tests(&mut self) {
        let code = self.code();
        let mut i = 0;
        while i < code.len() {
            let Some((attribute, end)) = attribute_at(&code, i) else {
                i += 1;
                continue;
            };
            i = end;
            if !means_test(&attribute) {
                continue;
            }
            if attribute.starts_with("#!") {
                return self.mark_all();
            }
            let item = item_at(&code, end);
            let text: String = code[end..item].iter().map(|c| c.0).collect();
            if let Some(name) = text.trim().strip_suffix(';').and_then(|t| t.rsplit_once("mod ")) {
                self.test_modules.push(name.1.trim().to_owned());
            }
            let last = code.get(item.saturating_sub(1)).map_or(0, |c| c.1);
            let first = code.get(end).map_or(last, |c| c.1);
            self.lines[first..=last.max(first)].iter_mut().for_each(|l| l.test = true);
            i = item;
        }
    }
}

/// The attribute that begins at `i`, and where it ends.
fn attribute_at(code: &[(char, usize)], i: usize) -> Option<(String, usize)> {
    let at = |j: usize| code.get(j).map(|c| c.0);
    let open = if at(i)? == '#' && at(i + 1)? == '!' { i + 2 } else { i + 1 };
    if at(i)? != '#' || at(open)? != '[' {
        return None;
    }
    let end = skip_block(code, open);
    Some((code[i..end].iter().map(|c| c.0).collect(), end))
}

fn means_test(attribute: &str) -> bool {
    let bare: String = attribute.chars().filter(|c| !c.is_whitespace()).collect();
    let names_test = bare.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == "test");
    bare == "#[test]"
        || (bare.starts_with("#[cfg(") || bare.starts_with("#![cfg(")) && names_test && !bare.contains("not(test")
}

/// Past the bracketed block that opens at `i`.
pub fn skip_block(code: &[(char, usize)], i: usize) -> usize {
    let mut depth = 0usize;
    for (j, (c, _)) in code.iter().enumerate().skip(i) {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return j + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

/// Past the item that begins at `i`: its body, or the semicolon or comma that ends it.
pub fn item_at(code: &[(char, usize)], mut i: usize) -> usize {
    while i < code.len() {
        match code[i].0 {
            '(' | '[' => i = skip_block(code, i),
            '{' => return skip_block(code, i),
            ';' | ',' => return i + 1,
            _ => i += 1,
        }
    }
    code.len()
}

/// Separates code from comments and blanks literals.
fn split(text: &str) -> Vec<Line> {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let mut lines = vec![Line::default()];
    let mut i = 0;
    while i < chars.len() {
        let c = chars[i];
        let end = match c {
            '/' if at(i + 1) == '/' => (i..chars.len()).find(|j| at(*j) == '\n').unwrap_or(chars.len()),
            '/' if at(i + 1) == '*' => block_comment_end(&chars, i),
            '"' => string_end(&chars, i),
            'r' if starts_token(&chars, i) => raw_string_end(&chars, i).unwrap_or(i),
            '\'' => char_end(&chars, i).unwrap_or(i),
            _ => i,
        };
        let comment = c == '/' && end > i;
        if end == i {
            push(&mut lines, c, false);
            i += 1;
            continue;
        }
        for (j, c) in chars.iter().enumerate().take(end).skip(i) {
            let edge = j == i || j + 1 == end;
            let shown = if comment || edge || *c == '\n' { *c } else { ' ' };
            push(&mut lines, shown, comment);
        }
        i = end;
    }
    lines
}

fn push(lines: &mut Vec<Line>, c: char, comment: bool) {
    if c == '\n' {
        lines.push(Line::default());
    } else if let Some(line) = lines.last_mut() {
        if comment { line.comment.push(c) } else { line.code.push(c) }
    }
}

/// Whether an `r` at `i` may be a raw string's prefix: alone, or after a `b` or `c` that is.
fn starts_token(chars: &[char], i: usize) -> bool {
    let word = |j: usize| chars.get(j).is_some_and(|c| c.is_alphanumeric() || *c == '_');
    match i {
        0 => true,
        _ if matches!(chars[i - 1], 'b' | 'c') => i == 1 || !word(i - 2),
        _ => !word(i - 1),
    }
}

fn block_comment_end(chars: &[char], mut i: usize) -> usize {
    let mut depth = 0;
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => (depth, i) = (depth + 1, i + 2),
            ('*', Some('/')) => {
                (depth, i) = (depth - 1, i + 2);
                if depth == 0 {
                    break;
                }
            }
            _ => i += 1,
        }
    }
    i.min(chars.len())
}

fn string_end(chars: &[char], i: usize) -> usize {
    let mut j = i + 1;
    while j < chars.len() && chars[j] != '"' {
        j += if chars[j] == '\\' { 2 } else { 1 };
    }
    (j + 1).min(chars.len())
}

fn raw_string_end(chars: &[char], i: usize) -> Option<usize> {
    let hashes = chars[i + 1..].iter().take_while(|c| **c == '#').count();
    let mut j = i + 1 + hashes;
    if chars.get(j) != Some(&'"') {
        return None;
    }
    loop {
        j += 1;
        let closes =
            *chars.get(j)? == '"' && chars[j + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes;
        if closes {
            return Some(j + 1 + hashes);
        }
    }
}

/// The end of a character literal; none if the quote begins a lifetime.
fn char_end(chars: &[char], i: usize) -> Option<usize> {
    if *chars.get(i + 1)? == '\\' {
        let close = chars.iter().skip(i + 3).position(|c| *c == '\'')?;
        return Some(i + 3 + close + 1);
    }
    (chars.get(i + 2) == Some(&'\'')).then_some(i + 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_not_code() {
        let s = Source::parse(
            "a.rs",
            "let a = \"x // {\\\" {\"; // note {\nlet b = '{'; let c: &'static str = r#\"}\"{\"#; /* { /* } */ { */ end\n",
        );
        assert_eq!(s.lines[0].code.trim_end(), "let a = \"          \";");
        assert_eq!(s.lines[0].comment, "// note {");
        assert!(!s.lines[1].code.contains(['{', '}']) && s.lines[1].code.ends_with(" end"), "{:?}", s.lines[1].code);
    }

    #[test]
    fn test_code_is_marked() {
        let text = "fn a() {}\n#[cfg(all(test, not(loom)))]\nmod tests {\n  fn b() {}\n}\nfn c() {}\n#[cfg(test)]\nmod far;\n\
                    #[cfg_attr(test, allow(x))]\nfn d() {}\n#[cfg(not(test))]\nfn e() {}\n#[test]\nfn f(x: [u8; 2]) {\n}\n";
        let s = Source::parse("crates/x/src/lib.rs", text);
        let marked: Vec<usize> = (0..s.lines.len()).filter(|i| s.lines[*i].test).map(|i| i + 1).collect();
        assert_eq!(marked, [2, 3, 4, 5, 7, 8, 13, 14, 15]);
        assert_eq!(s.test_modules, ["far"]);
        assert!(Source::parse("crates/x/src/t.rs", "#![cfg(test)]\nfn a() {}").lines.iter().all(|l| l.test));
        assert!(Source::parse("crates/x/tests/t.rs", "fn a() {}").lines.iter().all(|l| l.test));
    }
}
