//! Every engine runs in a child process of its own: its memory and processor time are its own, a crash of it is a line in
//! the report, and no two engines share a process-wide cache.

use crate::error::{Error, Result};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

/// Marks a line of the child's output that is meant for the parent; peers may print lines of their own.
const MARK: &str = "keybench> ";

/// Starts `keybench child KIND`, gives it `spec`, and calls `each` for every message it sends.
pub fn run<M: DeserializeOwned>(kind: &str, spec: &impl Serialize, mut each: impl FnMut(M)) -> Result<()> {
    let exe = std::env::current_exe().map_err(|e| Error::failed(format!("cannot find this program: {e}")))?;
    let json = serde_json::to_string(spec).map_err(|e| Error::failed(format!("cannot write a run's settings: {e}")))?;
    let mut child = Command::new(exe)
        .args(["child", kind])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| Error::failed(format!("cannot start a child process: {e}")))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A child that died early says why by its exit status below.
        let _ = stdin.write_all(json.as_bytes());
    }
    let mut garbled = None;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines().map_while(std::result::Result::ok) {
            let Some(json) = line.strip_prefix(MARK) else {
                if !line.is_empty() {
                    eprintln!("{line}");
                }
                continue;
            };
            match serde_json::from_str(json) {
                Ok(message) => each(message),
                Err(e) => {
                    garbled = Some(Error::failed(format!("a child process answered in a way not understood: {e}")))
                }
            }
        }
    }
    let status = child.wait().map_err(|e| Error::failed(format!("cannot wait for a child process: {e}")))?;
    match garbled {
        Some(e) => Err(e),
        None if !status.success() => Err(Error::failed(format!("the engine's process ended with {status}"))),
        None => Ok(()),
    }
}

/// The child's side: its settings.
pub fn read_spec<S: DeserializeOwned>() -> Result<S> {
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|e| Error::failed(format!("cannot read a run's settings: {e}")))?;
    serde_json::from_str(&text).map_err(|e| Error::usage(format!("settings of a child process: {e}")))
}

/// The child's side: one message to the parent.
pub fn send(message: &impl Serialize) -> Result<()> {
    let json = serde_json::to_string(message).map_err(|e| Error::failed(format!("cannot write a result: {e}")))?;
    let mut out = std::io::stdout().lock();
    // The mark must start a line whatever a peer has printed before.
    writeln!(out, "\n{MARK}{json}").and_then(|()| out.flush()).map_err(|e| Error::failed(format!("cannot report: {e}")))
}
