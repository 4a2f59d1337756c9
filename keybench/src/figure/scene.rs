//! A picture as a list of shapes, and its SVG.
//!
//! Every shape has an [`Ink`], which is what it stands for and not a colour. The SVG says both: a presentation attribute
//! with the colour on light paper, and a class, by which a style sheet ([`super::theme::style`]) gives it another colour
//! on dark paper. Coordinates are pixels of the SVG's own size, from the upper left corner.

use super::theme::{self, Ink, Marker};
use std::fmt::Write as _;

/// Which end of a text is where it is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// Its beginning.
    Start,
    /// Its middle.
    Middle,
    /// Its end.
    End,
}

/// Something to draw.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// A filled rectangle.
    Rect { x: f64, y: f64, width: f64, height: f64 },
    /// A line through points.
    Line { points: Vec<(f64, f64)>, width: f64, dashed: bool },
    /// A filled mark around a place.
    Mark { marker: Marker, x: f64, y: f64, radius: f64 },
    /// Words; `y` is their base line.
    Text { x: f64, y: f64, size: f64, anchor: Anchor, bold: bool, text: String },
}

/// A shape with what it stands for.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// What to draw.
    pub shape: Shape,
    /// What it stands for.
    pub ink: Ink,
    /// 1 hides what is under it, 0 is not seen.
    pub opacity: f64,
    /// Its tooltip.
    pub tip: Option<String>,
}

/// A picture.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scene {
    /// In pixels.
    pub width: f64,
    /// In pixels.
    pub height: f64,
    /// From the lowest to the uppermost.
    pub items: Vec<Item>,
}

/// Where to draw.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    /// Left edge.
    pub x: f64,
    /// Upper edge.
    pub y: f64,
    /// Pixels.
    pub width: f64,
    /// Pixels.
    pub height: f64,
}

/// Corners of a marker that has some.
pub fn corners(marker: Marker, x: f64, y: f64, radius: f64) -> Option<Vec<(f64, f64)>> {
    let r = radius;
    match marker {
        Marker::Circle => None,
        Marker::Square => {
            let r = r * 0.88;
            Some(vec![(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)])
        }
        Marker::Triangle => Some(vec![(x, y - r * 1.15), (x + r * 1.1, y + r * 0.85), (x - r * 1.1, y + r * 0.85)]),
        Marker::Wedge => Some(vec![(x, y + r * 1.15), (x + r * 1.1, y - r * 0.85), (x - r * 1.1, y - r * 0.85)]),
        Marker::Diamond => {
            let r = r * 1.25;
            Some(vec![(x, y - r), (x + r, y), (x, y + r), (x - r, y)])
        }
    }
}

impl Scene {
    /// An empty picture.
    pub fn new(width: f64, height: f64) -> Scene {
        Scene { width, height, items: Vec::new() }
    }

    /// Adds a shape, and gives it back for what is special about it.
    pub fn add(&mut self, ink: Ink, shape: Shape) -> &mut Item {
        self.items.push(Item { shape, ink, opacity: 1.0, tip: None });
        let last = self.items.len() - 1;
        &mut self.items[last]
    }

    /// Adds a straight line.
    pub fn segment(&mut self, ink: Ink, width: f64, from: (f64, f64), to: (f64, f64)) -> &mut Item {
        self.add(ink, Shape::Line { points: vec![from, to], width, dashed: false })
    }

    /// Adds words.
    pub fn text(&mut self, ink: Ink, size: f64, anchor: Anchor, at: (f64, f64), text: &str) -> &mut Item {
        self.add(ink, Shape::Text { x: at.0, y: at.1, size, anchor, bold: false, text: text.to_owned() })
    }

    /// Adds words that stand out.
    pub fn heading(&mut self, size: f64, at: (f64, f64), text: &str) -> &mut Item {
        let anchor = Anchor::Start;
        self.add(Ink::Text, Shape::Text { x: at.0, y: at.1, size, anchor, bold: true, text: text.to_owned() })
    }

    /// The SVG, for a page that has the style sheet: `label` is its text for readers who cannot see it.
    pub fn svg(&self, label: &str) -> String {
        self.render(label, None)
    }

    /// The SVG with the style sheet in it, for a file of its own.
    pub fn svg_file(&self, label: &str) -> String {
        self.render(label, Some(&theme::style()))
    }

    fn render(&self, label: &str, style: Option<&str>) -> String {
        let (width, height) = (number(self.width), number(self.height));
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"kb-figure\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" role=\"img\" aria-label=\"{}\" font-family=\"{}\">\n",
            escape(label),
            escape(theme::FONTS),
        );
        if let Some(style) = style {
            // Writing to a String cannot fail, here and below.
            let _ = write!(out, "<style>\n{style}</style>\n");
        }
        let _ = writeln!(
            out,
            "<rect class=\"{}\" fill=\"{}\" width=\"{width}\" height=\"{height}\"/>",
            Ink::Page.fill_class(),
            Ink::Page.light()
        );
        for item in &self.items {
            item.render(&mut out);
        }
        out.push_str("</svg>\n");
        out
    }
}

impl Item {
    fn render(&self, out: &mut String) {
        let (colour, opacity) = (self.ink.light(), opacity(self.opacity));
        let fill = format!("class=\"{}\" fill=\"{colour}\"{opacity}", self.ink.fill_class());
        let stroke = format!("class=\"{}\" stroke=\"{colour}\"{opacity} fill=\"none\"", self.ink.stroke_class());
        let (element, attributes) = match &self.shape {
            Shape::Rect { x, y, width, height } => {
                let [x, y, width, height] = [x, y, width, height].map(|n| number(*n));
                ("rect", format!("{fill} x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\""))
            }
            Shape::Line { points, width, dashed } => {
                let dashes = if *dashed { " stroke-dasharray=\"4 3\"" } else { "" };
                let (points, width) = (places(points), number(*width));
                let joined = "stroke-linejoin=\"round\" stroke-linecap=\"round\"";
                ("polyline", format!("{stroke} stroke-width=\"{width}\" {joined}{dashes} points=\"{points}\""))
            }
            Shape::Mark { marker, x, y, radius } => match corners(*marker, *x, *y, *radius) {
                None => {
                    let [x, y, radius] = [x, y, radius].map(|n| number(*n));
                    ("circle", format!("{fill} cx=\"{x}\" cy=\"{y}\" r=\"{radius}\""))
                }
                Some(corners) => ("polygon", format!("{fill} points=\"{}\"", places(&corners))),
            },
            Shape::Text { x, y, size, anchor, bold, text } => {
                let anchor = match anchor {
                    Anchor::Start => "",
                    Anchor::Middle => " text-anchor=\"middle\"",
                    Anchor::End => " text-anchor=\"end\"",
                };
                let weight = if *bold { " font-weight=\"600\"" } else { "" };
                let [x, y, size] = [x, y, size].map(|n| number(*n));
                let tip = self.tip.as_deref().map_or(String::new(), |t| format!("<title>{}</title>", escape(t)));
                let _ = writeln!(
                    out,
                    "<text {fill} x=\"{x}\" y=\"{y}\" font-size=\"{size}\"{anchor}{weight}>{tip}{}</text>",
                    escape(text)
                );
                return;
            }
        };
        let _ = match &self.tip {
            None => writeln!(out, "<{element} {attributes}/>"),
            Some(tip) => writeln!(out, "<{element} {attributes}><title>{}</title></{element}>", escape(tip)),
        };
    }
}

fn opacity(of: f64) -> String {
    if of < 1.0 { format!(" opacity=\"{}\"", number(of)) } else { String::new() }
}

fn places(points: &[(f64, f64)]) -> String {
    points.iter().map(|(x, y)| format!("{},{}", number(*x), number(*y))).collect::<Vec<_>>().join(" ")
}

/// Two digits are finer than anyone sees. What is no number is drawn nowhere rather than breaking the picture.
fn number(x: f64) -> String {
    if !x.is_finite() {
        return "0".to_owned();
    }
    let text = format!("{x:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// Text as XML has it, in elements and attributes alike. What XML has no form for at all becomes a replacement character.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\r' | '\t' => out.push(' '),
            '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_picture_is_this_svg() {
        let mut scene = Scene::new(40.0, 30.5);
        scene.add(Ink::Series(0), Shape::Rect { x: 1.0, y: 2.126, width: 3.0, height: f64::NAN }).tip =
            Some("a<b".into());
        scene.segment(Ink::Grid, 1.0, (0.0, 5.0), (40.0, 5.0)).opacity = 0.5;
        scene.text(Ink::Text, 12.0, Anchor::End, (39.0, 20.0), "R&D \"x\"");
        scene.add(Ink::Series(1), Shape::Mark { marker: Marker::Circle, x: 5.0, y: 6.0, radius: 2.0 });
        let svg = scene.svg("It's & all");
        let lines: Vec<&str> = svg.lines().collect();
        assert!(lines[0].contains("viewBox=\"0 0 40 30.5\"") && lines[0].contains("role=\"img\""), "{svg}");
        assert!(lines[0].contains("aria-label=\"It&#39;s &amp; all\""), "{svg}");
        let (kingtide, rocksdb, grid, text) =
            (Ink::Series(0).light(), Ink::Series(1).light(), Ink::Grid.light(), Ink::Text.light());
        assert_eq!(
            lines[2..].join("\n"),
            format!(
                "<rect class=\"kb-s0\" fill=\"{kingtide}\" x=\"1\" y=\"2.13\" width=\"3\" height=\"0\"><title>a&lt;b</title></rect>\n\
                 <polyline class=\"kb-grid-l\" stroke=\"{grid}\" opacity=\"0.5\" fill=\"none\" stroke-width=\"1\" \
                 stroke-linejoin=\"round\" stroke-linecap=\"round\" points=\"0,5 40,5\"/>\n\
                 <text class=\"kb-text\" fill=\"{text}\" x=\"39\" y=\"20\" font-size=\"12\" text-anchor=\"end\">R&amp;D &quot;x&quot;</text>\n\
                 <circle class=\"kb-s1\" fill=\"{rocksdb}\" cx=\"5\" cy=\"6\" r=\"2\"/>\n</svg>"
            )
        );
        assert!(!svg.contains("<style>") && scene.svg_file("x").contains("<style>"));
    }

    #[test]
    fn nothing_in_a_name_breaks_the_xml() {
        assert_eq!(escape("a\u{0}b\u{7}\n\u{ffff}'<>&"), "a\u{fffd}b\u{fffd} \u{fffd}&#39;&lt;&gt;&amp;");
        assert_eq!(number(-0.001), "0");
        assert_eq!(number(f64::INFINITY), "0");
        assert_eq!(number(1e300).len(), 301, "huge, but a number that readers of SVG know");
    }
}
