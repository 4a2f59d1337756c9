//! `keybench plot`: the figures of what was measured before.

use crate::error::{Error, Result};
use crate::say::say;
use crate::{figure, lua, suite};
use std::path::PathBuf;

/// Draws figures again: of a report directory, this program's or the original keybench's, or of a suite's CSV file. In a
/// directory that has a report.json, report.html and report.txt are written again too.
#[derive(clap::Args, Debug, Clone)]
pub struct Args {
    /// The directory of a report (report.json, repeats.tsv or points.tsv, and timeline.tsv), or the CSV file of a suite
    pub from: PathBuf,
    /// Where the figures go [default: figures in the directory; beside FILE.csv FILE-figures]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Runs `keybench plot`.
pub fn main(args: &Args) -> Result<()> {
    let (out, count) = if args.from.is_dir() {
        let figures = figure::of_dir(&args.from)?;
        let out = args.out.clone().unwrap_or_else(|| args.from.join("figures"));
        figure::write(&out, &figures)?;
        if args.out.is_none() {
            lua::again(&args.from, &figures)?;
        }
        (out, figures.len())
    } else {
        suite::plot(&args.from, args.out.as_deref())?
    };
    if count == 0 {
        return Err(Error::usage(format!("{} has nothing to draw", args.from.display())));
    }
    say!("{count} figures in {}", out.display());
    Ok(())
}
