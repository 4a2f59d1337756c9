//! Figures, drawn by the program itself: SVG for pages, PNG for everything else.
//!
//! From the outside in: [`run`], [`timeline`] and [`suite`] say which figures there are and what is in them; a run's [`data`] come from
//! its results ([`model`]) or from a directory ([`tables`]). A [`chart`] puts titles, legends and panels on paper; [`bars`] and
//! [`lines`] fill panels along an [`axis`] in a [`unit`](mod@unit); what they draw is a [`scene`] in the inks of a [`theme`], which
//! becomes SVG, or PNG by [`raster`] with a [`font`] of its own.

mod axis;
mod bars;
mod chart;
mod data;
mod font;
mod lines;
mod model;
mod png;
mod raster;
mod run;
mod scene;
pub mod suite;
mod tables;
#[cfg(test)]
mod tests;
mod theme;
mod timeline;
mod unit;

pub use model::of_repeats;
pub use run::LOAD;

use crate::error::{Error, Result};
use crate::results::Results;
use chart::Chart;
use data::Run;
use scene::Scene;
use std::path::Path;

/// A figure.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Of its files, without their ending.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// For a page that has [`style`]'s sheet.
    pub svg: String,
    /// The same for a page as narrow as a phone.
    pub narrow: String,
    scene: Scene,
    #[cfg(test)]
    narrow_scene: Scene,
}

/// The style sheet of figures inside a page: see [`theme::style`].
pub use theme::style;

/// The figures that a run has data for.
pub fn of_run(results: &Results) -> Vec<Figure> {
    draw(charts(&Run::of_results(results)))
}

/// The figures that a report directory has data for: `report.json` and `timeline.tsv`, or the tables of the original
/// keybench.
///
/// # Errors
/// A directory that holds none of them; a file that is none of its kind.
pub fn of_dir(dir: &Path) -> Result<Vec<Figure>> {
    Ok(draw(charts(&Run::of_dir(dir)?)))
}

/// A run's figures, those over time last.
fn charts(run: &Run) -> Vec<(String, Chart)> {
    let mut all = run::charts(run);
    all.extend(timeline::charts(run));
    all
}

/// The figures that a suite has data for.
pub fn of_suite(suite: &suite::Suite) -> Vec<Figure> {
    draw(suite::charts(suite))
}

/// Draws charts.
fn draw(charts: Vec<(String, Chart)>) -> Vec<Figure> {
    let mut out: Vec<Figure> = Vec::new();
    for (name, chart) in charts {
        let (scene, narrow_scene) = (chart.scene(chart::WIDTH), chart.scene(chart::NARROW));
        let label = if chart.subtitle.is_empty() {
            chart.title.clone()
        } else {
            format!("{}. {}", chart.title, chart.subtitle)
        };
        let mut name = file_name(&name);
        while out.iter().any(|f| f.name == name) {
            name.push('_');
        }
        out.push(Figure {
            name,
            svg: scene.svg(&label),
            narrow: narrow_scene.svg(&label),
            title: chart.title,
            scene,
            #[cfg(test)]
            narrow_scene,
        });
    }
    out
}

/// A name that every file system has: workloads and engines may be called anything.
fn file_name(name: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = name.chars().take(120).map(|c| if allowed(c) { c } else { '_' }).collect();
    name
}

/// Writes each figure as SVG and as PNG into `dir`, which is made if it is not there.
///
/// # Errors
/// What the file system says.
pub fn write(dir: &Path, figures: &[Figure]) -> Result<()> {
    if figures.is_empty() {
        return Ok(());
    }
    std::fs::create_dir_all(dir).map_err(|e| Error::io("create", dir, e))?;
    for figure in figures {
        let path = dir.join(format!("{}.svg", figure.name));
        std::fs::write(&path, figure.scene.svg_file(&figure.title)).map_err(|e| Error::io("write", &path, e))?;
        let path = dir.join(format!("{}.png", figure.name));
        let png = raster::png(&figure.scene).map_err(|e| e.context(&figure.name))?;
        std::fs::write(&path, png).map_err(|e| Error::io("write", &path, e))?;
    }
    Ok(())
}
