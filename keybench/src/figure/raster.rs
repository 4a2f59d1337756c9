//! The PNG of a picture: the same shapes as the SVG's, painted.

use super::font;
use super::scene::{Anchor, Item, Scene, Shape, corners};
use super::theme::Ink;
use crate::error::{Error, Result};
use tiny_skia::{
    Color, FillRule, LineCap, LineJoin, Paint, Path, PathBuilder, Pixmap, Rect, Stroke, StrokeDash, Transform,
};

/// Pixels of the PNG for one of the SVG: sharp on dense screens and in print.
pub const SCALE: f64 = 2.0;

/// No figure has more pixels than this, whatever it is drawn from.
const MOST_PIXELS: f64 = 120e6;

/// Paints a picture and encodes it as PNG.
///
/// # Errors
/// A picture that is empty or larger than 120 million pixels.
pub fn png(scene: &Scene) -> Result<Vec<u8>> {
    let (width, height) = ((scene.width * SCALE).round(), (scene.height * SCALE).round());
    let wrong = || Error::failed(format!("cannot paint a figure of {width} x {height} pixels"));
    if !(width >= 1.0 && height >= 1.0 && width * height <= MOST_PIXELS) {
        return Err(wrong());
    }
    let mut pixmap = Pixmap::new(width as u32, height as u32).ok_or_else(wrong)?;
    pixmap.fill(colour(Ink::Page, 1.0));
    for item in &scene.items {
        paint(item, &mut pixmap);
    }
    // The paper is opaque, so every pixel is.
    let pixels = pixmap.data().as_chunks::<4>().0;
    let mut rgb = vec![[0; 3]; pixels.len()];
    for (to, [red, green, blue, _]) in rgb.iter_mut().zip(pixels) {
        *to = [*red, *green, *blue];
    }
    Ok(super::png::encode(width as u32, height as u32, rgb.as_flattened()))
}

fn colour(ink: Ink, opacity: f64) -> Color {
    let number = u32::from_str_radix(ink.light().trim_start_matches('#'), 16).unwrap_or_default();
    let [_, red, green, blue] = number.to_be_bytes();
    Color::from_rgba8(red, green, blue, (opacity.clamp(0.0, 1.0) * 255.0).round() as u8)
}

fn paint(item: &Item, pixmap: &mut Pixmap) {
    let mut ink = Paint { anti_alias: true, ..Paint::default() };
    ink.set_color(colour(item.ink, item.opacity));
    let scaled = Transform::from_scale(SCALE as f32, SCALE as f32);
    let mut fill = |path: Option<Path>| {
        if let Some(path) = path {
            pixmap.fill_path(&path, &ink, FillRule::Winding, scaled, None);
        }
    };
    match &item.shape {
        Shape::Rect { x, y, width, height } => {
            let rect = Rect::from_xywh(*x as f32, *y as f32, *width as f32, *height as f32);
            fill(rect.map(PathBuilder::from_rect));
        }
        Shape::Mark { marker, x, y, radius } => fill(match corners(*marker, *x, *y, *radius) {
            None => PathBuilder::from_circle(*x as f32, *y as f32, *radius as f32),
            Some(corners) => path(&corners, true),
        }),
        Shape::Line { points, width, dashed } => {
            let stroke = Stroke {
                width: *width as f32,
                line_cap: LineCap::Round,
                line_join: LineJoin::Round,
                dash: if *dashed { StrokeDash::new(vec![4.0, 3.0], 0.0) } else { None },
                ..Stroke::default()
            };
            if let Some(path) = path(points, false) {
                pixmap.stroke_path(&path, &ink, &stroke, scaled, None);
            }
        }
        Shape::Text { x, y, size, anchor, bold, text } => {
            let wide = font::drawn_width(text, *size);
            let x = match anchor {
                Anchor::Start => *x,
                Anchor::Middle => x - wide / 2.0,
                Anchor::End => x - wide,
            };
            let mut letters = PathBuilder::new();
            font::outline(text, *size, x, *y, &mut letters);
            if let Some(path) = letters.finish() {
                pixmap.fill_path(&path, &ink, FillRule::Winding, scaled, None);
                let weight = if *bold { 0.065 } else { 0.022 };
                let stroke = Stroke { width: (size * weight) as f32, line_join: LineJoin::Round, ..Stroke::default() };
                pixmap.stroke_path(&path, &ink, &stroke, scaled, None);
            }
        }
    }
}

/// A path through points; `None` where there is none, as for a single point or what is no number.
fn path(points: &[(f64, f64)], closed: bool) -> Option<Path> {
    let mut builder = PathBuilder::new();
    for (at, (x, y)) in points.iter().enumerate() {
        match at {
            0 => builder.move_to(*x as f32, *y as f32),
            _ => builder.line_to(*x as f32, *y as f32),
        }
    }
    if closed {
        builder.close();
    }
    builder.finish()
}
