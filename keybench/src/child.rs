//! Every engine runs in a child process of its own: its memory and processor time are its own, a crash of it is a line in
//! the report, and no two engines share a process-wide cache.

use crate::error::{Error, Result};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

/// Marks a line of the child's output that is meant for the parent; peers may print lines of their own.
const MARK: &str = "keybench> ";

/// Starts `keybench child KIND` and gives it `spec`. Its standard input stays open, for more to be told with [`tell`].
pub fn start(kind: &str, spec: &impl Serialize) -> Result<(Child, ChildStdin)> {
    let exe = std::env::current_exe().map_err(|e| Error::failed(format!("cannot find this program: {e}")))?;
    let started = Command::new(exe).args(["child", kind]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = started.map_err(|e| Error::failed(format!("cannot start a child process: {e}")))?;
    let Some(mut stdin) = child.stdin.take() else { return Err(Error::failed("a child process has no input")) };
    tell(&mut stdin, spec)?;
    Ok((child, stdin))
}

/// Tells a child process something, in a line of its own.
pub fn tell(stdin: &mut ChildStdin, what: &impl Serialize) -> Result<()> {
    let json = serde_json::to_string(what).map_err(|e| Error::failed(format!("cannot write a run's settings: {e}")))?;
    // A child that died early says why by its exit status.
    let _ = writeln!(stdin, "{json}").and_then(|()| stdin.flush());
    Ok(())
}

/// A message in a line of a child's output; lines of a peer's own go to standard error.
pub fn message<M: DeserializeOwned>(line: &str) -> Option<Result<M>> {
    let Some(json) = line.strip_prefix(MARK) else {
        if !line.is_empty() {
            eprintln!("{line}");
        }
        return None;
    };
    let garbled = |e| Error::failed(format!("a child process answered in a way not understood: {e}"));
    Some(serde_json::from_str(json).map_err(garbled))
}

/// Starts `keybench child KIND`, gives it `spec`, and calls `each` for every message it sends.
pub fn run<M: DeserializeOwned>(kind: &str, spec: &impl Serialize, mut each: impl FnMut(M)) -> Result<()> {
    let (mut child, stdin) = start(kind, spec)?;
    drop(stdin);
    let mut garbled = None;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines().map_while(std::result::Result::ok) {
            match message(&line) {
                Some(Ok(message)) => each(message),
                Some(Err(e)) => garbled = Some(e),
                None => {}
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

/// The child's side: the next thing it is told; its settings come first.
pub fn read_spec<S: DeserializeOwned>() -> Result<S> {
    let mut text = String::new();
    std::io::stdin().read_line(&mut text).map_err(|e| Error::failed(format!("cannot read a run's settings: {e}")))?;
    serde_json::from_str(&text).map_err(|e| Error::usage(format!("settings of a child process: {e}")))
}

/// The child's side: one message to the parent.
pub fn send(message: &impl Serialize) -> Result<()> {
    let json = serde_json::to_string(message).map_err(|e| Error::failed(format!("cannot write a result: {e}")))?;
    let mut out = std::io::stdout().lock();
    // The mark must start a line whatever a peer has printed before.
    writeln!(out, "\n{MARK}{json}").and_then(|()| out.flush()).map_err(|e| Error::failed(format!("cannot report: {e}")))
}
