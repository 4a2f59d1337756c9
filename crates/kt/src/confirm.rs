//! Nothing is destroyed without a yes: from `--yes`, or from a person at a terminal.

use crate::error::{Failure, Result};
use std::io::{BufRead, IsTerminal, Write};

/// The flag of commands that destroy something.
#[derive(clap::Args)]
pub struct Yes {
    /// Do not ask
    #[arg(long, short = 'y')]
    pub yes: bool,
}

impl Yes {
    /// Asks whether to do what `question` says, unless the flag was given.
    pub fn confirm(&self, question: &str) -> Result<()> {
        if self.yes {
            return Ok(());
        }
        let stdin = std::io::stdin();
        if !stdin.is_terminal() || !std::io::stderr().is_terminal() {
            return Err(Failure::usage(format!("{question} Nobody can be asked here: give --yes to do it")));
        }
        let mut answer = String::new();
        let mut ask = std::io::stderr();
        let asked = write!(ask, "{question} [y/N] ").and_then(|()| ask.flush());
        let heard = asked.and_then(|()| stdin.lock().read_line(&mut answer));
        match heard {
            Ok(_) if matches!(answer.trim(), "y" | "Y" | "yes") => Ok(()),
            _ => Err(Failure::usage("not confirmed, so nothing was done")),
        }
    }
}
