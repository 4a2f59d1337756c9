//! Letters: how large they are, how wide words are, and the outlines that the PNG has of them.
//!
//! The PNG's font comes with the program (Ubuntu Light), so that a machine without fonts draws the same picture. A light face is drawn
//! with a thin stroke around it, which makes it regular, and with a thicker one, which makes it bold.

use std::sync::OnceLock;
use ttf_parser::{Face, OutlineBuilder};

/// The SVG's reader may have a wider font than this one: what is laid out leaves room for it.
const ROOM: f64 = 1.15;

/// Size of the letters of titles.
pub const TITLE: f64 = 18.0;
/// Of what is read.
pub const BODY: f64 = 12.5;
/// Of what is looked up.
pub const SMALL: f64 = 11.5;

/// How much wider letters of headings may be than others.
pub const BOLD: f64 = 1.15;

/// Where a letter that the font lacks is as wide as this, in parts of the size.
const MISSING: f64 = 0.6;

fn face() -> Option<&'static Face<'static>> {
    static FACE: OnceLock<Option<Face<'static>>> = OnceLock::new();
    FACE.get_or_init(|| Face::parse(epaint_default_fonts::UBUNTU_LIGHT, 0).ok()).as_ref()
}

fn advance(face: &Face<'_>, c: char) -> f64 {
    let units = f64::from(face.units_per_em());
    face.glyph_index(c).and_then(|g| face.glyph_hor_advance(g)).map_or(MISSING, |a| f64::from(a) / units)
}

/// How wide `text` is at `size`, in pixels, as the PNG draws it.
pub fn drawn_width(text: &str, size: f64) -> f64 {
    let Some(face) = face() else { return text.chars().count() as f64 * MISSING * size };
    text.chars().map(|c| advance(face, c)).sum::<f64>() * size
}

/// How much room `text` needs at `size`, in pixels, whichever font a reader has.
pub fn width(text: &str, size: f64) -> f64 {
    drawn_width(text, size) * ROOM
}

/// `text`, cut so that it needs no more than `room` pixels.
pub fn fitted(text: &str, size: f64, room: f64) -> String {
    if width(text, size) <= room {
        return text.to_owned();
    }
    let mut out = String::new();
    for c in text.chars() {
        out.push(c);
        if width(&out, size) + width("…", size) > room {
            out.pop();
            break;
        }
    }
    format!("{}…", out.trim_end())
}

/// Lines of whole words, none of which needs more than `room` pixels unless a single word does.
pub fn wrapped(text: &str, size: f64, room: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width(&format!("{line} {word}"), size) <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Draws the outlines of `text` at `size`, its base line's left end at (`x`, `y`), into `path`.
pub fn outline(text: &str, size: f64, x: f64, y: f64, path: &mut tiny_skia::PathBuilder) {
    let Some(face) = face() else { return };
    let scale = size / f64::from(face.units_per_em());
    let mut pen = x;
    for c in text.chars() {
        if let Some(glyph) = face.glyph_index(c) {
            let mut letter = Letter { path, scale: scale as f32, x: pen as f32, y: y as f32 };
            // A letter without an outline, as the space is, draws nothing.
            let _ = face.outline_glyph(glyph, &mut letter);
        }
        pen += advance(face, c) * size;
    }
}

/// Puts a letter, which has its own units and an upward axis, where it belongs.
struct Letter<'a> {
    path: &'a mut tiny_skia::PathBuilder,
    scale: f32,
    x: f32,
    y: f32,
}

impl Letter<'_> {
    fn at(&self, x: f32, y: f32) -> (f32, f32) {
        (self.x + x * self.scale, self.y - y * self.scale)
    }
}

impl OutlineBuilder for Letter<'_> {
    fn move_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let ((x1, y1), (x, y)) = (self.at(x1, y1), self.at(x, y));
        self.path.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        let ((x1, y1), (x2, y2), (x, y)) = (self.at(x1, y1), self.at(x2, y2), self.at(x, y));
        self.path.cubic_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.path.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_a_width() {
        assert!(width("i", 10.0) < width("W", 10.0));
        assert!((drawn_width("ab", 20.0) - 2.0 * drawn_width("ab", 10.0)).abs() < 1e-9);
        assert_eq!(width("", 10.0), 0.0);
        // Every letter that figures use on their own account is there.
        let face = face().unwrap();
        for c in "…µ×–%/·≥".chars() {
            assert!(face.glyph_index(c).is_some(), "{c}");
        }
    }

    #[test]
    fn long_words_are_cut_and_long_lines_wrapped() {
        assert_eq!(fitted("short", 10.0, 100.0), "short");
        let cut = fitted("a very long name of an engine", 10.0, 60.0);
        assert!(cut.ends_with('…') && cut.starts_with("a very") && width(&cut, 10.0) <= 60.0, "{cut}");
        assert_eq!(fitted("word", 10.0, 0.0), "…");
        let lines = wrapped("one two three four five six", 10.0, 50.0);
        assert!(lines.len() > 1 && lines.iter().all(|l| width(l, 10.0) <= 50.0), "{lines:?}");
        assert_eq!(lines.join(" "), "one two three four five six");
        assert!(wrapped(" ", 10.0, 50.0).is_empty());
    }
}
