//! `keybench plot`: the figures of what was measured before.

use crate::error::{Error, Result};
use crate::figure;
use std::path::PathBuf;

/// Draws the figures of a report directory again: of one of this program's, or of the original keybench's.
#[derive(clap::Args, Debug, Clone)]
pub struct Args {
    /// The directory, with points.tsv and timeline.tsv
    pub dir: PathBuf,
    /// Where the figures go [default: DIR/figures]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Runs `keybench plot`.
pub fn main(args: &Args) -> Result<()> {
    let figures = figure::of_dir(&args.dir)?;
    if figures.is_empty() {
        return Err(Error::usage(format!("{} holds nothing to draw", args.dir.display())));
    }
    let out = args.out.clone().unwrap_or_else(|| args.dir.join("figures"));
    figure::write(&out, &figures)?;
    println!("{} figures in {}", figures.len(), out.display());
    Ok(())
}
