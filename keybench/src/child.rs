//! Every engine runs in a child process of its own: its memory and processor time are its own, a crash of it is a line in
//! the report, and no two engines share a process-wide cache.

use crate::error::{Error, Result};
use crate::interrupt;
use crate::say::note;
use serde::{Serialize, de::DeserializeOwned};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Interval between checks for a request to stop.
const LOOK: Duration = Duration::from_millis(20);

/// Marks a line of the child's output that is meant for the parent; peers may print lines of their own.
const MARK: &str = "keybench> ";

/// Starts `keybench child KIND` and gives it `spec`. Its standard input stays open, for more to be told with [`tell`].
pub fn start(kind: &str, spec: &impl Serialize) -> Result<(Child, ChildStdin)> {
    start_with(kind, spec, Stdio::inherit())
}

fn start_with(kind: &str, spec: &impl Serialize, stderr: Stdio) -> Result<(Child, ChildStdin)> {
    let exe = std::env::current_exe().map_err(|e| Error::failed(format!("cannot find this program: {e}")))?;
    let mut command = Command::new(exe);
    command.args(["child", kind]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
    let started = command.spawn();
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
    let message = parsed(line);
    if message.is_none() && !line.is_empty() {
        note!("{line}");
    }
    message
}

/// The message in a line of a child's output, if it is one.
fn parsed<M: DeserializeOwned>(line: &str) -> Option<Result<M>> {
    let json = line.strip_prefix(MARK)?;
    let garbled = |e| Error::failed(format!("a child process sent an invalid answer: {e}"));
    Some(serde_json::from_str(json).map_err(garbled))
}

/// Kills a child process when the end is asked for, unless `ended` ends before.
fn kill_on_request(child: &mut Child, ended: &Receiver<()>) {
    while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        if interrupt::requested() {
            // It has ended by itself meanwhile, or it ends now.
            let _ = child.kill();
            return;
        }
    }
}

/// Starts `keybench child KIND`, gives it `spec`, and calls `each` for every message it sends.
///
/// # Errors
/// [`Error::Interrupted`] if it was killed because a stop was requested.
pub fn run<M: DeserializeOwned>(kind: &str, spec: &impl Serialize, each: impl FnMut(M)) -> Result<()> {
    if interrupt::requested() {
        return Err(Error::Interrupted);
    }
    let (child, stdin) = start(kind, spec)?;
    drop(stdin);
    listen(child, message, each)
}

/// The same, but what the child prints beside its messages is not shown.
pub fn run_quietly<M: DeserializeOwned>(kind: &str, spec: &impl Serialize, each: impl FnMut(M)) -> Result<()> {
    if interrupt::requested() {
        return Err(Error::Interrupted);
    }
    let (child, stdin) = start_with(kind, spec, Stdio::null())?;
    drop(stdin);
    listen(child, parsed, each)
}

/// Calls `each` for every message that a child sends until it ends.
fn listen<M>(mut child: Child, message: impl Fn(&str) -> Option<Result<M>>, mut each: impl FnMut(M)) -> Result<()> {
    let mut garbled = None;
    let stdout = child.stdout.take();
    let (end, ended) = channel();
    std::thread::scope(|scope| {
        let child = &mut child;
        scope.spawn(move || kill_on_request(child, &ended));
        for line in stdout.into_iter().flat_map(|out| BufReader::new(out).lines().map_while(std::result::Result::ok)) {
            match message(&line) {
                Some(Ok(message)) => each(message),
                Some(Err(e)) => garbled = Some(e),
                None => {}
            }
        }
        drop(end);
    });
    let status = child.wait().map_err(|e| Error::failed(format!("cannot wait for a child process: {e}")))?;
    match garbled {
        _ if !status.success() && interrupt::explains(status) => Err(Error::Interrupted),
        Some(e) => Err(e),
        None if !status.success() => Err(Error::failed(format!("the engine's process ended with {status}"))),
        None => Ok(()),
    }
}

/// The child's side: the next message from the parent; its settings come first.
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
