//! A chart: a title, what was measured how, a legend, panels side by side, remarks.
//!
//! Panels are small and many rather than large and crowded (Tufte, "Envisioning Information", 1990, on small multiples):
//! each has its own scale, so that a workload of a thousand operations a second is seen beside one of a million.

use super::bars::Bars;
use super::font::{self, BODY, SMALL, TITLE};
use super::lines::Lines;
use super::scene::{Anchor, Area, Scene, Shape};
use super::theme::Ink;

/// Pixels across a figure.
pub const WIDTH: f64 = 900.0;
/// Pixels across a figure for a phone, whose letters are as large there.
pub const NARROW: f64 = 360.0;
/// Around a figure.
pub const MARGIN: f64 = 20.0;
/// Between panels.
const GAP: (f64, f64) = (30.0, 22.0);
/// Above a panel's body, for its title.
const PANEL_TITLE: f64 = 24.0;

/// What a panel shows.
#[derive(Clone, Debug)]
pub enum Body {
    /// A bar for each thing.
    Bars(Bars),
    /// Lines over a common axis.
    Lines(Lines),
}

/// One panel.
#[derive(Clone, Debug)]
pub struct Panel {
    /// What is special about it.
    pub title: String,
    /// What it shows.
    pub body: Body,
}

/// A whole figure.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// What is measured, and in which unit.
    pub title: String,
    /// Under which conditions.
    pub subtitle: String,
    /// Names and inks, where panels don't name what they show.
    pub legend: Vec<(String, Ink)>,
    /// In the order of reading.
    pub panels: Vec<Panel>,
    /// What panels would waste space on: names and values in columns, under a heading.
    pub facts: Option<(String, Vec<String>)>,
    /// What a reader must know besides.
    pub notes: Vec<String>,
}

impl Chart {
    /// How many panels stand side by side.
    fn columns(&self, across: f64) -> usize {
        match self.panels.len() {
            _ if across < WIDTH => 1,
            0 | 1 => 1,
            2 | 4 => 2,
            _ => 3,
        }
    }

    /// Draws everything, on a sheet of so many pixels across.
    pub fn scene(&self, across: f64) -> Scene {
        let mut scene = Scene::new(across, 0.0);
        let mut y = self.head(&mut scene);
        let columns = self.columns(across);
        let width = (across - 2.0 * MARGIN - GAP.0 * (columns - 1) as f64) / columns as f64;
        for row in self.panels.chunks(columns) {
            let height = row.iter().map(|p| p.body_height(columns, across)).fold(0.0, f64::max);
            for (at, panel) in row.iter().enumerate() {
                let x = MARGIN + at as f64 * (width + GAP.0);
                let title = font::fitted(&panel.title, BODY * font::BOLD, width);
                let cut = title != panel.title;
                let heading = scene.heading(BODY, (x, y + 14.0), &title);
                heading.tip = cut.then(|| panel.title.clone());
                let area = Area { x, y: y + PANEL_TITLE, width, height };
                match &panel.body {
                    Body::Bars(bars) => bars.draw(&mut scene, area),
                    Body::Lines(lines) => lines.draw(&mut scene, area),
                }
            }
            y += PANEL_TITLE + height + GAP.1;
        }
        if let Some((heading, facts)) = &self.facts {
            y = list(&mut scene, y, heading, facts);
        }
        for line in self.notes.iter().flat_map(|n| font::wrapped(n, SMALL, across - 2.0 * MARGIN)) {
            y += 16.0;
            scene.text(Ink::Muted, SMALL, Anchor::Start, (MARGIN, y - 10.0), &line);
        }
        scene.height = (y + MARGIN - GAP.1 / 2.0).ceil();
        scene
    }

    /// Title, conditions and legend; where the panels begin.
    fn head(&self, scene: &mut Scene) -> f64 {
        let (mut y, across) = (MARGIN + 16.0, scene.width);
        for line in font::wrapped(&self.title, TITLE * font::BOLD, across - 2.0 * MARGIN) {
            scene.heading(TITLE, (MARGIN, y), &line);
            y += 22.0;
        }
        for line in font::wrapped(&self.subtitle, BODY, across - 2.0 * MARGIN) {
            scene.text(Ink::Muted, BODY, Anchor::Start, (MARGIN, y), &line);
            y += 17.0;
        }
        if self.legend.is_empty() {
            return y + 6.0;
        }
        y += 9.0;
        let mut x = MARGIN;
        for (name, ink) in &self.legend {
            let room = 28.0 + font::width(name, BODY);
            if x > MARGIN && x + room > across - MARGIN {
                (x, y) = (MARGIN, y + 18.0);
            }
            scene.segment(*ink, 2.0, (x, y - 4.0), (x + 20.0, y - 4.0));
            scene.add(*ink, Shape::Mark { marker: ink.marker(), x: x + 10.0, y: y - 4.0, radius: 4.0 });
            scene.text(Ink::Text, BODY, Anchor::Start, (x + 27.0, y), name);
            x += room + 24.0;
        }
        y + 18.0
    }
}

/// Facts in columns, read downwards; where what follows begins.
fn list(scene: &mut Scene, y: f64, heading: &str, facts: &[String]) -> f64 {
    let columns = if scene.width < WIDTH { 1 } else { 3 };
    const LINE: f64 = 16.0;
    scene.heading(BODY, (MARGIN, y + 14.0), heading);
    let rows = facts.len().div_ceil(columns).max(1);
    let width = (scene.width - 2.0 * MARGIN - GAP.0 * (columns - 1) as f64) / columns as f64;
    for (at, fact) in facts.iter().enumerate() {
        let place = (MARGIN + (at / rows) as f64 * (width + GAP.0), y + PANEL_TITLE + 10.0 + (at % rows) as f64 * LINE);
        scene.text(Ink::Muted, SMALL, Anchor::Start, place, &font::fitted(fact, SMALL, width)).tip = Some(fact.clone());
    }
    y + PANEL_TITLE + rows as f64 * LINE + GAP.1
}

impl Panel {
    fn body_height(&self, columns: usize, across: f64) -> f64 {
        match &self.body {
            Body::Bars(bars) => bars.height(),
            Body::Lines(_) => match columns {
                _ if across < WIDTH => 200.0,
                1 => 300.0,
                2 => 200.0,
                _ => 150.0,
            },
        }
    }
}
