//! Lines over a common axis: over threads, over a swept value, over time.

use super::axis::{Axis, Tick};
use super::font::{self, SMALL};
use super::scene::{Anchor, Area, Scene, Shape};
use super::theme::Ink;
use super::unit::Unit;
use crate::stats::Estimate;

/// No line has more places than this: more is not seen.
const MOST_PLACES: usize = 400;
/// Marks on a line over time, whose places are too many to be marked.
const MARKS: usize = 4;

/// A measured place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spot {
    /// On the common axis.
    pub x: f64,
    /// What was measured there.
    pub y: Estimate,
}

/// One line.
#[derive(Clone, Debug)]
pub struct Line {
    /// What it stands for.
    pub name: String,
    /// Its ink.
    pub ink: Ink,
    /// From left to right.
    pub spots: Vec<Spot>,
}

/// The common axis.
#[derive(Clone, Debug)]
pub enum Across {
    /// Values that were run, each with its label.
    Values(Vec<Tick>),
    /// Seconds.
    Time,
}

/// A panel of lines.
#[derive(Clone, Debug)]
pub struct Lines {
    /// The common axis.
    pub across: Across,
    /// What it is.
    pub across_name: String,
    /// What was measured.
    pub unit: Unit,
    /// Whether decades may be equal distances, where data reach over some.
    pub may_be_log: bool,
    /// The lines. Those of one ink are repeats.
    pub lines: Vec<Line>,
}

/// The panel's inside and its axes.
struct Plot {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    across: Axis,
    up: Axis,
}

impl Plot {
    fn x(&self, x: f64) -> Option<f64> {
        self.across.place(x).map(|p| self.left + p * (self.right - self.left))
    }

    fn y(&self, y: f64) -> Option<f64> {
        self.up.place(y).map(|p| self.bottom - p * (self.bottom - self.top))
    }

    fn at(&self, spot: &Spot) -> Option<(f64, f64)> {
        self.x(spot.x).zip(self.y(spot.y.value))
    }
}

impl Lines {
    /// Whether there is anything to draw.
    pub fn any(&self) -> bool {
        self.lines.iter().flat_map(|l| &l.spots).any(|s| s.x.is_finite() && s.y.value.is_finite())
    }

    fn plot(&self, area: Area) -> Plot {
        let spots = || self.lines.iter().flat_map(|l| &l.spots);
        let heights: Vec<f64> = spots().flat_map(|s| [s.y.value, s.y.low, s.y.high]).collect();
        let wanted = if area.height > 180.0 { 5 } else { 4 };
        let up = if self.may_be_log {
            Axis::either(&heights, self.unit, wanted)
        } else {
            Axis::from_zero(&heights, self.unit, wanted)
        };
        let across = match &self.across {
            Across::Values(ticks) => Axis::of_values(ticks.clone()),
            Across::Time => {
                let times: Vec<f64> = spots().map(|s| s.x).collect();
                Axis::tight(&times, Unit::Seconds, if area.width > 500.0 { 10 } else { 5 })
            }
        };
        let labels = up.ticks.iter().map(|t| font::width(&t.label, SMALL)).fold(0.0, f64::max);
        let named = if self.across_name.is_empty() { 0.0 } else { 16.0 };
        Plot {
            left: area.x + labels + 8.0,
            right: area.x + area.width - 8.0,
            top: area.y + 6.0,
            bottom: area.y + area.height - 20.0 - named,
            across,
            up,
        }
    }

    /// Draws them.
    pub fn draw(&self, scene: &mut Scene, area: Area) {
        let plot = self.plot(area);
        self.frame(scene, &plot);
        for line in &self.lines {
            // Repeats of one thing are thin, so that they are seen as many.
            let repeats = self.lines.iter().filter(|l| l.ink == line.ink && l.name == line.name).count();
            self.line(scene, &plot, line, repeats);
        }
    }

    fn frame(&self, scene: &mut Scene, plot: &Plot) {
        for tick in &plot.up.ticks {
            let Some(y) = plot.y(tick.at) else { continue };
            scene.segment(Ink::Grid, 1.0, (plot.left, y), (plot.right, y));
            scene.text(Ink::Muted, SMALL, Anchor::End, (plot.left - 6.0, y + 4.0), &tick.label);
        }
        scene.segment(Ink::Axis, 1.0, (plot.left, plot.bottom), (plot.right, plot.bottom));
        let mut free = f64::MIN;
        for tick in &plot.across.ticks {
            let Some(x) = plot.x(tick.at) else { continue };
            scene.segment(Ink::Axis, 1.0, (x, plot.bottom), (x, plot.bottom + 4.0));
            let half = font::width(&tick.label, SMALL) / 2.0;
            if x - half >= free {
                scene.text(Ink::Muted, SMALL, Anchor::Middle, (x, plot.bottom + 16.0), &tick.label);
                free = x + half + 6.0;
            }
        }
        if !self.across_name.is_empty() {
            let name = font::fitted(&self.across_name, SMALL, plot.right - plot.left);
            scene.text(Ink::Muted, SMALL, Anchor::End, (plot.right, plot.bottom + 32.0), &name);
        }
    }

    /// Where lines are marked, each stands a little beside the next, so that no whisker hides another.
    fn beside(&self, line: &Line) -> f64 {
        match self.across {
            Across::Time => 0.0,
            Across::Values(_) => {
                let at = self.lines.iter().position(|l| l.ink == line.ink).unwrap_or(0) as f64;
                ((at - (self.lines.len() as f64 - 1.0) / 2.0) * 3.0).clamp(-9.0, 9.0)
            }
        }
    }

    fn line(&self, scene: &mut Scene, plot: &Plot, line: &Line, repeats: usize) {
        let measured = matches!(self.across, Across::Values(_));
        let beside = self.beside(line);
        let at = |s: &Spot| plot.at(s).map(|(x, y)| (x + beside, y));
        let places: Vec<(f64, f64)> = line.spots.iter().filter_map(at).collect();
        let (width, opacity) = if repeats > 1 { (1.3, 0.75) } else { (2.0, 1.0) };
        if places.len() > 1 {
            let shape = Shape::Line { points: thinned(&places), width, dashed: false };
            let item = scene.add(line.ink, shape);
            item.opacity = opacity;
            item.tip = (!measured).then(|| self.course(line));
            if !measured {
                self.mark(scene, plot, line, &places);
            }
        }
        for spot in line.spots.iter().filter(|_| measured || places.len() == 1) {
            let Some((x, y)) = at(spot) else { continue };
            let whisker = plot.y(spot.y.low).zip(plot.y(spot.y.high)).filter(|_| spot.y.high > spot.y.low);
            if let Some((low, high)) = whisker {
                scene.segment(line.ink, 1.2, (x, low), (x, high));
                for end in [low, high] {
                    scene.segment(line.ink, 1.2, (x - 3.0, end), (x + 3.0, end));
                }
            }
            let mark = Shape::Mark { marker: line.ink.marker(), x, y, radius: 4.0 };
            scene.add(line.ink, mark).tip = Some(self.tip(line, spot));
        }
    }

    /// Marks a line over time here and there, so that colour is not all that tells engines apart. The marks of each are at places of their own.
    fn mark(&self, scene: &mut Scene, plot: &Plot, line: &Line, places: &[(f64, f64)]) {
        let mut inks: Vec<Ink> = Vec::new();
        for line in &self.lines {
            if !inks.contains(&line.ink) {
                inks.push(line.ink);
            }
        }
        let own = inks.iter().position(|ink| *ink == line.ink).unwrap_or(0) as f64;
        let mut last = None;
        for at in 0..if inks.len() > 1 { MARKS } else { 0 } {
            let part = (at as f64 + (own + 0.5) / inks.len() as f64) / MARKS as f64;
            let wanted = plot.left + part * (plot.right - plot.left);
            let far = |place: &(f64, f64)| (place.0 - wanted).abs();
            let nearest = places.iter().copied().min_by(|a, b| far(a).total_cmp(&far(b)));
            if let Some((x, y)) = nearest.filter(|_| nearest != last) {
                scene.add(line.ink, Shape::Mark { marker: line.ink.marker(), x, y, radius: 3.0 });
            }
            last = nearest;
        }
    }

    fn tip(&self, line: &Line, spot: &Spot) -> String {
        let place = match &self.across {
            Across::Time => Unit::Seconds.show(spot.x),
            Across::Values(ticks) => ticks.iter().find(|t| t.at == spot.x).map_or(String::new(), |t| t.label.clone()),
        };
        let mut tip = format!("{}, {} {place}: {}", line.name, self.across_name, self.unit.show(spot.y.value));
        if spot.y.high > spot.y.low {
            tip += &format!(" ({} to {})", self.unit.show(spot.y.low), self.unit.show(spot.y.high));
        }
        tip
    }

    fn course(&self, line: &Line) -> String {
        let values = || line.spots.iter().map(|s| s.y.value).filter(|v| v.is_finite());
        let (low, high) = (values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max));
        format!("{}: {} to {}", line.name, self.unit.show(low), self.unit.show(high))
    }
}

/// Fewer places that look the same: of each of equal stretches the highest and the lowest, in their order.
fn thinned(places: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if places.len() <= MOST_PLACES {
        return places.to_vec();
    }
    let stretch = places.len().div_ceil(MOST_PLACES / 2);
    let mut out = Vec::with_capacity(MOST_PLACES + 2);
    for part in places.chunks(stretch) {
        let by_height = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let mut ends: Vec<(f64, f64)> =
            part.iter().min_by(by_height).into_iter().chain(part.iter().max_by(by_height)).copied().collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        out.extend(ends);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thinned_line_keeps_its_peaks() {
        let mut places: Vec<(f64, f64)> = (0..100_000).map(|i| (f64::from(i), 5.0)).collect();
        places[77_777].1 = 9.0;
        places[12_345].1 = 1.0;
        let thin = thinned(&places);
        assert!(thin.len() <= MOST_PLACES + 2, "{}", thin.len());
        assert!(thin.contains(&(77_777.0, 9.0)) && thin.contains(&(12_345.0, 1.0)));
        assert!(thin.windows(2).all(|w| w[0].0 <= w[1].0));
        assert_eq!(thinned(&places[..300]).len(), 300);
    }
}
