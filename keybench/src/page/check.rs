//! Whether a page is well-formed: a small reader for tests that knows as much of HTML as the pages here use.

/// Elements without an end.
const VOID: [&str; 5] = ["meta", "br", "hr", "img", "link"];

/// Fails unless every tag of `page` is closed in its turn, every `<`, `>` and `&` is one of HTML's own, no id is there twice,
/// and nothing asks for anything from elsewhere.
pub fn page(page: &str) {
    let mut rest = page.strip_prefix("<!DOCTYPE html>").expect("begins with its type");
    let (mut open, mut ids): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    while let Some(at) = rest.find('<') {
        text(&rest[..at]);
        rest = &rest[at + 1..];
        let end = end_of_tag(rest);
        let (tag, after) = (&rest[..end], &rest[end + 1..]);
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closed out of turn, before {:.60}", after);
            continue;
        }
        let name = tag.split([' ', '/']).next().unwrap();
        assert!(!name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric()), "<{tag}>");
        attributes(tag[name.len()..].trim_end_matches('/'), &mut ids);
        if matches!(name, "style" | "script") {
            let end = rest.find(&format!("</{name}>")).expect("is closed");
            assert!(!rest[..end].contains("url(") && !rest[..end].contains("@import"), "asks for something");
            rest = &rest[end + name.len() + 3..];
        } else if !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
        }
    }
    text(rest);
    assert!(open.is_empty(), "left open: {open:?}");
}

/// The end of the tag that `rest` begins in; a `>` in quotes is none.
fn end_of_tag(rest: &str) -> usize {
    let mut quoted = false;
    let end = rest.find(|c| {
        quoted ^= c == '"';
        c == '>' && !quoted
    });
    end.unwrap_or_else(|| panic!("no end: {rest:.60}"))
}

fn attributes<'a>(mut rest: &'a str, ids: &mut Vec<&'a str>) {
    while let Some((name, after)) = rest.split_once("=\"") {
        let (value, after) = after.split_once('"').unwrap_or_else(|| panic!("no end: {after:.60}"));
        let name = name.trim();
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "'{name}' is no attribute");
        assert!(!matches!(name, "src" | "srcset" | "action" | "ping"), "{name} asks for something");
        assert!(name != "href" || value.starts_with('#'), "{name}={value} leads elsewhere");
        assert!(!name.starts_with("on"), "{name} is a script");
        if name == "id" {
            assert!(!ids.contains(&value), "id {value} is there twice");
            ids.push(value);
        }
        text(value);
        rest = after;
    }
    assert_eq!(rest.trim(), "", "no attribute");
}

fn text(text: &str) {
    assert!(!text.contains('>'), "a stray >: {text:.60}");
    for (at, _) in text.match_indices('&') {
        let name = text[at + 1..].split(';').next().unwrap();
        assert!(matches!(name, "amp" | "lt" | "gt" | "quot" | "#39" | "apos"), "a stray &: {:.60}", &text[at..]);
    }
}

#[test]
fn what_is_wrong_is_found() {
    page("<!DOCTYPE html><html><meta charset=\"x\"><p id=\"a\">1 &lt; 2<br></p><svg><circle r=\"1\"/></svg></html>");
    for bad in [
        "<p>",
        "</p>",
        "<p><b></p></b>",
        "<p>a > b</p>",
        "<p>a & b</p>",
        "<p id=\"a\"></p><p id=\"a\"></p>",
        "<img src=\"https://example.org/x.png\">",
        "<p onclick=\"x\"></p>",
        "<p class=a></p>",
        "<style>@import \"x\"</style>",
        "<p",
    ] {
        assert!(std::panic::catch_unwind(|| page(&format!("<!DOCTYPE html>{bad}"))).is_err(), "{bad}");
    }
}
