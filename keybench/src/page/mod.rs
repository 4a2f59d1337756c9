//! The skeleton of a page: one file that needs no network and no script, light or dark as the reader wants it, and no wider
//! than a phone.
//!
//! [`Html`] is written tag by tag, each closed by the call that opened it; whatever is not a tag's name goes in escaped. So
//! no name of an engine, no option and no message can end a tag or begin one.

#[cfg(test)]
pub mod check;
pub mod verdicts;

/// What is between a page's tags.
#[derive(Debug, Default)]
pub struct Html(String);

/// A tag's attributes.
type Attributes<'a> = &'a [(&'a str, &'a str)];

impl Html {
    /// Text.
    pub fn text(&mut self, text: &str) {
        escape(text, &mut self.0);
    }

    /// A tag, and what `inner` writes into it.
    pub fn tag(&mut self, name: &str, attributes: Attributes<'_>, inner: impl FnOnce(&mut Html)) {
        self.0.push('<');
        self.0.push_str(name);
        for (attribute, value) in attributes.iter().filter(|(_, value)| !value.is_empty()) {
            self.0.push(' ');
            self.0.push_str(attribute);
            self.0.push_str("=\"");
            self.text(value);
            self.0.push('"');
        }
        self.0.push('>');
        inner(self);
        self.0.push_str("</");
        self.0.push_str(name);
        self.0.push('>');
    }

    /// A tag of a class, if that is not empty.
    pub fn within(&mut self, name: &str, class: &str, inner: impl FnOnce(&mut Html)) {
        self.tag(name, &[("class", class)], inner);
    }

    /// A tag of a class with nothing but text in it.
    pub fn leaf(&mut self, name: &str, class: &str, text: &str) {
        self.within(name, class, |h| h.text(text));
    }

    /// What is HTML already.
    pub fn raw(&mut self, html: &str) {
        self.0.push_str(html);
    }

    /// A part of the page with its heading.
    pub fn section(&mut self, id: &str, heading: &str, inner: impl FnOnce(&mut Html)) {
        self.tag("section", &[("id", id)], |h| {
            h.leaf("h2", "", heading);
            inner(h);
        });
        self.0.push('\n');
    }

    /// A table in a box of its own, which is scrolled when the page is too narrow for it.
    pub fn table(&mut self, label: &str, head: &[Head], inner: impl FnOnce(&mut Html)) {
        self.tag("div", &[("class", "scroll"), ("role", "region"), ("aria-label", label), ("tabindex", "0")], |h| {
            h.within("table", "", |h| {
                h.within("thead", "", |h| h.within("tr", "", |h| head.iter().for_each(|c| c.write(h))));
                inner(h);
            });
        });
        self.0.push('\n');
    }

    /// A figure in a box of its own, which is scrolled when the page is too narrow for it to be read. `narrow` stands in its
    /// place on a page as narrow as a phone.
    pub fn figure(&mut self, label: &str, svg: &str, narrow: &str) {
        self.within("figure", "", |h| {
            h.tag("div", &[("class", "scroll"), ("role", "region"), ("aria-label", label), ("tabindex", "0")], |h| {
                h.within("div", "wide", |h| h.raw(svg));
                h.within("div", "narrow", |h| h.raw(narrow));
            });
        });
        self.0.push('\n');
    }

    /// A table of figures of each of `engines`: behind a test's name, under each of `groups` a column for each engine.
    pub fn grouped_table(&mut self, label: &str, groups: &[String], engines: &[String], inner: impl FnOnce(&mut Html)) {
        self.tag("div", &[("class", "scroll"), ("role", "region"), ("aria-label", label), ("tabindex", "0")], |h| {
            h.within("table", "grouped", |h| {
                h.within("thead", "", |h| {
                    h.row("", |h| h.groups(groups, engines.len()));
                    h.row("", |h| groups.iter().for_each(|_| h.engines_of_a_group(engines)));
                });
                inner(h);
            });
        });
        self.0.push('\n');
    }

    fn groups(&mut self, groups: &[String], columns: usize) {
        let span = columns.to_string();
        self.tag("th", &[("scope", "col"), ("rowspan", "2")], |h| h.text("test"));
        for group in groups {
            self.tag("th", &[("scope", "colgroup"), ("colspan", &span), ("class", "group")], |h| h.text(group));
        }
    }

    fn engines_of_a_group(&mut self, engines: &[String]) {
        for (at, engine) in engines.iter().enumerate() {
            let class = if at == 0 { "num first" } else { "num" };
            self.tag("th", &[("scope", "col"), ("class", class)], |h| h.text(engine));
        }
    }

    /// A row of a table.
    pub fn row(&mut self, class: &str, inner: impl FnOnce(&mut Html)) {
        self.within("tr", class, inner);
        self.0.push('\n');
    }

    /// A cell with a number in it.
    pub fn number(&mut self, text: &str) {
        self.leaf("td", "num", text);
    }
}

/// A column's heading.
pub enum Head<'a> {
    /// Of words.
    Words(&'a str),
    /// Of numbers, which stand at the right.
    Numbers(&'a str),
}

impl Head<'_> {
    fn write(&self, h: &mut Html) {
        let (class, text) = match self {
            Head::Words(text) => ("", text),
            Head::Numbers(text) => ("num", text),
        };
        h.tag("th", &[("scope", "col"), ("class", class)], |h| h.text(text));
    }
}

/// Escapes text for any place between tags and in quoted attributes.
fn escape(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // No page may hold these; what an engine prints may.
            c if c.is_control() && !matches!(c, '\n' | '\t') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
}

const STYLE: &str = include_str!("style.css");

/// Turns the page light or dark, against what the reader's system says. The page can be read without.
const SCRIPT: &str = include_str!("theme.js");

/// The whole page. `style` is what its figures need besides.
pub fn document(title: &str, style: &str, body: impl FnOnce(&mut Html)) -> String {
    let mut h = Html::default();
    h.raw("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    h.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    h.raw("<meta name=\"color-scheme\" content=\"light dark\">\n");
    // Whatever gets into the page, it requests nothing from the network.
    h.raw("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; ");
    h.raw("style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n");
    h.leaf("title", "", title);
    h.within("style", "", |h| {
        h.raw(STYLE);
        h.raw(style);
    });
    h.raw("\n</head>\n<body>\n");
    h.tag("button", &[("id", "theme"), ("type", "button"), ("hidden", "hidden")], |h| h.text("Light or dark"));
    h.within("main", "", body);
    h.within("script", "", |h| h.raw(SCRIPT));
    h.raw("\n</body>\n</html>\n");
    h.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that stays on one line, and in its place, would cover all numbers of a narrow page.
    #[test]
    fn names_of_rows_are_broken_on_a_narrow_page() {
        let narrow = STYLE.split("@media (max-width: 640px)").nth(1).unwrap();
        assert!(narrow.contains("tbody th { white-space: normal;"));
    }

    #[test]
    fn nothing_that_is_told_becomes_a_tag() {
        let evil = "</td><script>alert('1' & \"2\")</script>\u{1b}[31m";
        let page = document(evil, "", |h| {
            h.section("a", evil, |h| {
                h.table(evil, &[Head::Words(evil), Head::Numbers("n")], |h| {
                    h.within("tbody", "", |h| h.row("", |h| h.number(evil)));
                });
                h.tag("p", &[("title", evil), ("class", "")], |h| h.text(evil));
            });
        });
        check::page(&page);
        assert_eq!(page.matches("<script>").count(), 1, "its own");
        assert!(!page.contains("alert('") && !page.contains('\u{1b}') && !page.contains("class=\"\""));
        assert!(page.contains("&lt;/td&gt;&lt;script&gt;alert(&#39;1&#39; &amp; &quot;2&quot;)"));
    }
}
