//! Reads the table: lines that are JSON arrays of strings, whose characters stand for bytes.

/// Bytes of a string of the table.
pub type Text = Vec<u8>;

/// An operation with its arguments, and the answer.
pub struct Step {
    pub line: usize,
    pub operation: Vec<Text>,
    pub answer: Vec<Text>,
}

/// A case: its steps begin with nothing.
pub struct Case {
    pub name: String,
    pub steps: Vec<Step>,
}

/// The cases of a file.
pub fn parse(text: &str) -> Result<Vec<Case>, String> {
    let mut cases: Vec<Case> = Vec::new();
    for (n, line) in text.lines().enumerate().filter(|(_, l)| !l.is_empty()) {
        let line_number = n + 1;
        let words = strings(line).ok_or_else(|| format!("line {line_number} is no array of strings"))?;
        if let [first, name] = &words[..]
            && first == b"case"
        {
            cases.push(Case { name: String::from_utf8_lossy(name).into_owned(), steps: Vec::new() });
            continue;
        }
        let Some(arrow) = words.iter().position(|w| w == b"=>").filter(|at| (1..words.len() - 1).contains(at)) else {
            return Err(format!("line {line_number} has no operation, `=>` and answer"));
        };
        let case = cases.last_mut().ok_or_else(|| format!("line {line_number} comes before any case"))?;
        let (operation, answer) = (words[..arrow].to_vec(), words[arrow + 1..].to_vec());
        case.steps.push(Step { line: line_number, operation, answer });
    }
    Ok(cases)
}

/// The strings of a JSON array of strings.
fn strings(line: &str) -> Option<Vec<Text>> {
    let mut rest = line.trim().strip_prefix('[')?.strip_suffix(']')?.trim();
    let mut words = Vec::new();
    while !rest.is_empty() {
        let (word, behind) = string(rest)?;
        words.push(word);
        let behind = behind.trim_start();
        rest = if behind.is_empty() { behind } else { behind.strip_prefix(',')?.trim_start() };
    }
    Some(words)
}

/// The JSON string at the beginning, and what comes behind it.
fn string(text: &str) -> Option<(Text, &str)> {
    let mut chars = text.strip_prefix('"')?.chars();
    let mut word = Vec::new();
    loop {
        let c = match chars.next()? {
            '"' => return Some((word, chars.as_str())),
            '\\' => match chars.next()? {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'b' => '\u{8}',
                'f' => '\u{c}',
                'u' => {
                    let digits: String = chars.by_ref().take(4).collect();
                    char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?
                }
                c @ ('"' | '\\' | '/') => c,
                _ => return None,
            },
            c => c,
        };
        word.push(u8::try_from(u32::from(c)).ok()?);
    }
}

/// Words for people.
pub fn show(words: &[Text]) -> String {
    let quoted: Vec<String> = words.iter().map(|w| format!("\"{}\"", w.escape_ascii())).collect();
    quoted.join(" ")
}
