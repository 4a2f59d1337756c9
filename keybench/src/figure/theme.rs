//! Colours: which ink is which on light and on dark paper, and which engine has which.
//!
//! The colours of engines are those of Okabe and Ito ("Color Universal Design", 2008), which people of every colour vision
//! tell apart, a little darker where thin lines ask for it. An engine has the same colour and marker in every figure.

use std::fmt::Write as _;

/// Fonts of the SVG, the first that a reader's machine has. The PNG has the first of them, drawn from the program itself.
pub const FONTS: &str = "Ubuntu, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif";

/// What a shape stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// The paper.
    Page,
    /// What is to be read first.
    Text,
    /// What is to be read when the question comes up.
    Muted,
    /// Axes.
    Axis,
    /// The lines of a grid.
    Grid,
    /// An engine: its number in [`SERIES`], counted round.
    Series(usize),
    /// What is wrong.
    Alarm,
}

/// What marks a place: engines differ by it as well as by colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// A circle.
    Circle,
    /// A square.
    Square,
    /// A triangle that points up.
    Triangle,
    /// A square on its corner.
    Diamond,
    /// A triangle that points down.
    Wedge,
}

/// Colours on light paper and on dark paper.
type Pair = (&'static str, &'static str);

const PAGE: Pair = ("#ffffff", "#15181c");
const TEXT: Pair = ("#1c2127", "#e8ebee");
const MUTED: Pair = ("#5b646e", "#a3acb5");
const AXIS: Pair = ("#8b949e", "#6c757e");
const GRID: Pair = ("#e4e7eb", "#2b3036");
const ALARM: Pair = ("#b3261e", "#ff8a80");

/// The engines' colours and markers.
const SERIES: [(Pair, Marker); 10] = [
    (("#0069b4", "#4aa8f0"), Marker::Circle),
    (("#dd8500", "#f0a63c"), Marker::Square),
    (("#008a63", "#3cc39a"), Marker::Triangle),
    (("#7b838c", "#9aa3ac"), Marker::Diamond),
    (("#b8578f", "#e08fbf"), Marker::Wedge),
    (("#3fa7de", "#8fd3f7"), Marker::Diamond),
    (("#c04a12", "#f0845a"), Marker::Wedge),
    (("#5d4aa8", "#a596ec"), Marker::Square),
    (("#7a5a2b", "#c7a26a"), Marker::Triangle),
    (("#a9b1b9", "#687079"), Marker::Circle),
];

/// Engines with a colour of their own: names, and numbers in [`SERIES`].
const KNOWN: &[(&str, usize)] = &[
    ("kingtide", 0),
    ("rocksdb", 1),
    ("tidesdb", 2),
    ("memory", 3),
    ("skiplist", 3),
    ("lmdb", 4),
    ("kingtide-c", 5),
    ("fjall", 6),
    ("redb", 7),
    ("sqlite", 8),
    ("null", 9),
];

/// Numbers that are left for engines that are not known yet.
const OTHERS: [usize; 4] = [6, 7, 8, 9];

/// The ink of each engine of a comparison, in its order. Of a name with a version behind it the name counts.
pub fn inks(engines: &[String]) -> Vec<Ink> {
    let mut others = OTHERS.iter().cycle();
    let ink = |engine: &String| {
        let name = engine.split_whitespace().next().unwrap_or_default().to_ascii_lowercase();
        let known = KNOWN.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
        Ink::Series(known.or_else(|| others.next().copied()).unwrap_or_default())
    };
    engines.iter().map(ink).collect()
}

impl Ink {
    fn pair(self) -> Pair {
        match self {
            Ink::Page => PAGE,
            Ink::Text => TEXT,
            Ink::Muted => MUTED,
            Ink::Axis => AXIS,
            Ink::Grid => GRID,
            Ink::Alarm => ALARM,
            Ink::Series(n) => SERIES[n % SERIES.len()].0,
        }
    }

    /// Its colour on light paper, as `#rrggbb`.
    pub fn light(self) -> &'static str {
        self.pair().0
    }

    /// How its places are marked.
    pub fn marker(self) -> Marker {
        match self {
            Ink::Series(n) => SERIES[n % SERIES.len()].1,
            _ => Marker::Circle,
        }
    }

    fn name(self) -> String {
        match self {
            Ink::Page => "page".into(),
            Ink::Text => "text".into(),
            Ink::Muted => "muted".into(),
            Ink::Axis => "axis".into(),
            Ink::Grid => "grid".into(),
            Ink::Alarm => "alarm".into(),
            Ink::Series(n) => format!("s{}", n % SERIES.len()),
        }
    }

    /// The class of what is filled with it.
    pub fn fill_class(self) -> String {
        format!("kb-{}", self.name())
    }

    /// The class of lines.
    pub fn stroke_class(self) -> String {
        format!("kb-{}-l", self.name())
    }

    fn all() -> impl Iterator<Item = Ink> {
        let named = [Ink::Page, Ink::Text, Ink::Muted, Ink::Axis, Ink::Grid, Ink::Alarm];
        named.into_iter().chain((0..SERIES.len()).map(Ink::Series))
    }
}

/// The style sheet that figures ask for: each ink is a variable, `--kb-text` and so on, which is light or dark as the reader
/// wants it. A page whose root element has `data-theme="light"` or `data-theme="dark"` decides itself.
pub fn style() -> String {
    let variables = |of: fn(Pair) -> &'static str| {
        Ink::all().map(|i| format!("--kb-{}:{};", i.name(), of(i.pair()))).collect::<String>()
    };
    let (light, dark) = (variables(|p| p.0), variables(|p| p.1));
    let mut out = format!(
        ".kb-figure{{{light}}}\n@media (prefers-color-scheme:dark){{.kb-figure{{{dark}}}}}\n\
         :root[data-theme=\"light\"] .kb-figure{{{light}}}\n:root[data-theme=\"dark\"] .kb-figure{{{dark}}}\n"
    );
    for ink in Ink::all() {
        let (fill, stroke, name) = (ink.fill_class(), ink.stroke_class(), ink.name());
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            ".kb-figure .{fill}{{fill:var(--kb-{name})}} .kb-figure .{stroke}{{stroke:var(--kb-{name})}}"
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|n| (*n).to_owned()).collect()
    }

    #[test]
    fn an_engine_keeps_its_colour_in_any_company() {
        let alone = inks(&names(&["kingtide"]));
        assert_eq!(inks(&names(&["tidesdb", "new", "kingtide", "other"]))[2], alone[0]);
        assert_eq!(inks(&names(&["RocksDB 11.1.2"])), inks(&names(&["rocksdb"])));
        assert_eq!(inks(&names(&["skiplist"])), inks(&names(&["memory"])));
        let known = inks(&crate::engine::NAMES.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>());
        assert!(known.iter().enumerate().all(|(i, ink)| !known[..i].contains(ink)), "{known:?}");
        assert!(crate::engine::NAMES.iter().all(|n| KNOWN.iter().any(|(known, _)| known == n)));
        let many = inks(&names(&["a", "b", "c", "kingtide"]));
        assert!(many.iter().enumerate().all(|(i, ink)| !many[..i].contains(ink)), "{many:?}");
    }

    #[test]
    fn the_style_sheet_knows_every_class() {
        let style = style();
        for ink in Ink::all() {
            assert!(style.contains(&format!(".{}{{fill", ink.fill_class())), "{ink:?}");
            assert!(style.contains(&format!(".{}{{stroke", ink.stroke_class())), "{ink:?}");
            assert!(style.contains(&format!("--kb-{}:{}", ink.name(), ink.light())), "{ink:?}");
        }
    }

    /// The least contrast that WCAG 2.2 asks of text (4.5) and of graphics (3).
    #[test]
    fn colours_can_be_seen() {
        let channel = |hex: &str, at: usize| {
            let c = f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap()) / 255.0;
            if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
        };
        let bright = |hex: &str| 0.2126 * channel(hex, 1) + 0.7152 * channel(hex, 3) + 0.0722 * channel(hex, 5);
        let contrast = |a: &str, b: &str| {
            let (a, b) = (bright(a) + 0.05, bright(b) + 0.05);
            a.max(b) / a.min(b)
        };
        for ink in [Ink::Text, Ink::Muted, Ink::Alarm] {
            let (light, dark) = ink.pair();
            assert!(contrast(light, PAGE.0) >= 4.5 && contrast(dark, PAGE.1) >= 4.5, "{ink:?}");
        }
        for ink in (0..SERIES.len() - 1).map(Ink::Series) {
            let (light, dark) = ink.pair();
            let (on_light, on_dark) = (contrast(light, PAGE.0), contrast(dark, PAGE.1));
            assert!(on_light >= 2.6 && on_dark >= 3.0, "{ink:?}: {on_light:.2} {on_dark:.2}");
        }
    }
}
