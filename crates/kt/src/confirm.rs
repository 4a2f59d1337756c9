//! Commands that destroy data need a confirmation: `--yes`, or an answer at a terminal.

use crate::error::{Failure, Result};
use crate::plain::plain;
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
            return Err(Failure::usage(format!("{question} stdin is not a terminal; pass --yes to confirm")));
        }
        let mut answer = String::new();
        let mut ask = std::io::stderr();
        let asked = write!(ask, "{} [y/N] ", plain(question)).and_then(|()| ask.flush());
        let heard = asked.and_then(|()| stdin.lock().read_line(&mut answer));
        match heard {
            Ok(_) if matches!(answer.trim(), "y" | "Y" | "yes") => Ok(()),
            _ => Err(Failure::usage("not confirmed; nothing was done")),
        }
    }
}
