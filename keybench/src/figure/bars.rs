//! Horizontal bars: what each is, how long it is, and how sure that is.

use super::axis::{Axis, Tick};
use super::font::{self, BODY, SMALL};
use super::scene::{Anchor, Area, Scene, Shape};
use super::theme::Ink;
use super::unit::Unit;
use crate::stats::Estimate;

/// From one bar to the next.
const ROW: f64 = 23.0;
/// Of a bar.
const THICK: f64 = 15.0;

/// A bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// What it stands for.
    pub label: String,
    /// Its ink.
    pub ink: Ink,
    /// Its length; none if there is none to speak of.
    pub value: Option<Estimate>,
    /// Why not, or what else is to be known.
    pub remark: Option<String>,
}

/// A panel of bars.
#[derive(Clone, Debug)]
pub struct Bars {
    /// What a length is.
    pub unit: Unit,
    /// From top to bottom.
    pub bars: Vec<Bar>,
    /// Bars begin at 1 and show by how many times something is more or less. What other panels show, too, so that all have
    /// one scale.
    pub ratio: Option<Vec<f64>>,
}

impl Bars {
    /// Pixels that its body needs.
    pub fn height(&self) -> f64 {
        self.bars.len() as f64 * ROW + if self.ratio.is_some() { 20.0 } else { 2.0 }
    }

    /// Whether there is a bar at all.
    pub fn any(&self) -> bool {
        self.bars.iter().any(|b| b.value.is_some_and(|v| v.value.is_finite() && v.value > 0.0))
    }

    fn axis(&self) -> Axis {
        let ends = |e: Estimate| [e.value, e.low, e.high];
        let values: Vec<f64> = self.bars.iter().filter_map(|b| b.value).flat_map(ends).collect();
        let around = self.ratio.as_ref().and_then(|others| {
            let above: Vec<f64> = values.iter().chain(others).copied().filter(|v| *v > 0.0).collect();
            Axis::around_one(&above, self.unit)
        });
        around.unwrap_or_else(|| Axis::tight(&values, self.unit, 4))
    }

    /// Draws them.
    pub fn draw(&self, scene: &mut Scene, area: Area) {
        let widest = |words: &mut dyn Iterator<Item = String>| words.map(|w| font::width(&w, BODY)).fold(0.0, f64::max);
        let labels = widest(&mut self.bars.iter().map(|b| b.label.clone())).min(area.width * 0.5) + 10.0;
        let numbers =
            widest(&mut self.bars.iter().map(|b| b.value.map_or(String::new(), |v| self.unit.show(v.value)))) + 9.0;
        let (left, room) = (area.x + labels, (area.width - labels - numbers).max(20.0));
        let axis = self.axis();
        let place = |x: f64| axis.place(x).map(|p| left + p * room);
        let zero = place(if self.ratio.is_some() { 1.0 } else { 0.0 }).unwrap_or(left);
        let bottom = area.y + self.bars.len() as f64 * ROW;
        if self.ratio.is_some() {
            // The one that bars begin at has its label in any case, the others where there is room: a phone has little.
            let (ones, others): (Vec<&Tick>, Vec<&Tick>) = axis.ticks.iter().partition(|t| t.at == 1.0);
            let mut taken: Vec<(f64, f64)> = Vec::new();
            for tick in ones.into_iter().chain(others) {
                let Some(x) = place(tick.at) else { continue };
                scene.segment(Ink::Grid, 1.0, (x, area.y), (x, bottom));
                let half = font::width(&tick.label, SMALL) / 2.0 + 3.0;
                if taken.iter().all(|(from, to)| x + half <= *from || *to <= x - half) {
                    scene.text(Ink::Muted, SMALL, Anchor::Middle, (x, bottom + 15.0), &tick.label);
                    taken.push((x - half, x + half));
                }
            }
        }
        for (at, bar) in self.bars.iter().enumerate() {
            let middle = area.y + at as f64 * ROW + ROW / 2.0;
            let base = middle + 4.5;
            let label = font::fitted(&bar.label, BODY, labels - 8.0);
            let item = scene.text(Ink::Text, BODY, Anchor::End, (left - 8.0, base), &label);
            item.tip = (label != bar.label).then(|| bar.label.clone());
            let drawn = bar.value.filter(|v| v.value.is_finite()).and_then(|v| Some((v, place(v.value)?)));
            let Some((value, end)) = drawn else {
                let why = bar.remark.as_deref().unwrap_or("not measured");
                let why = font::fitted(why, SMALL, room + numbers - 8.0);
                scene.text(Ink::Alarm, SMALL, Anchor::Start, (left + 4.0, base), &why).tip.clone_from(&bar.remark);
                continue;
            };
            let rect =
                Shape::Rect { x: zero.min(end), y: middle - THICK / 2.0, width: (end - zero).abs(), height: THICK };
            let item = scene.add(bar.ink, rect);
            item.tip = Some(self.tip(bar, value));
            let undecided = self.ratio.is_some() && value.low < 1.0 && value.high > 1.0;
            item.opacity = if undecided { 0.4 } else { 1.0 };
            let whisker = place(value.low).zip(place(value.high)).filter(|_| value.high > value.low);
            let right = whisker.map_or(end, |(low, high)| {
                whisker_across(scene, middle, low, high);
                end.max(high)
            });
            scene.text(Ink::Text, BODY, Anchor::Start, (right.max(zero) + 7.0, base), &self.unit.show(value.value));
        }
        scene.segment(Ink::Axis, 1.0, (zero, area.y), (zero, bottom));
    }

    fn tip(&self, bar: &Bar, value: Estimate) -> String {
        let mut tip = format!("{}: {}", bar.label, self.unit.show(value.value));
        if value.high > value.low {
            tip += &format!(" ({} to {})", self.unit.show(value.low), self.unit.show(value.high));
        }
        if let Some(remark) = &bar.remark {
            tip += &format!("; {remark}");
        }
        tip
    }
}

/// An interval over a bar: seen on the bar and beside it.
fn whisker_across(scene: &mut Scene, y: f64, low: f64, high: f64) {
    scene.segment(Ink::Page, 3.6, (low, y), (high, y)).opacity = 0.75;
    scene.segment(Ink::Text, 1.4, (low, y), (high, y));
    for x in [low, high] {
        scene.segment(Ink::Text, 1.4, (x, y - 3.5), (x, y + 3.5));
    }
}
