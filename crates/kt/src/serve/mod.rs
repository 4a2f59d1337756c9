//! `kt serve`: a page about one database, for a browser on the same machine.
//!
//! The server speaks as much HTTP as a browser and Prometheus need: it answers GET with three documents, one request a connection. It
//! reads the database without a lock, and what a running process publishes (option `stats_interval_ms`), and changes nothing.

mod http;

use crate::error::{Failure, Result};
use crate::info::published;
use crate::open::{log_bytes, open_to_read};
use crate::output::Out;
use http::{Answer, Request};
use kingtide::Db;
use kingtide::vfs::{OpenMode, SystemFs};
use serde_json::{Map, Value, json};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const PAGE: &str = include_str!("page.html");
/// Connections that are served at once; more are closed without an answer.
const CONNECTIONS: usize = 32;
/// How long to wait when no connection can be taken, which is until another is closed if there are too many.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes at the end of the file `LOG` that are shown.
const LOG_TAIL: u64 = 8 << 10;

/// Serve a page about a database on this machine, and /metrics for Prometheus.
#[derive(clap::Args)]
#[command(
    after_help = "The page shows rates, latencies, levels, stalls and the last lines of the file LOG. Rates are those of the process that has the
database open, if that process set the option stats_interval_ms; otherwise the page shows only data from the files.
It requires no password, so listen on an address other than loopback only in a network that you trust.

Examples:
  kt serve my-database
  kt serve my-database --listen 127.0.0.1:0"
)]
pub struct ServeArgs {
    /// Directory of the database
    path: PathBuf,
    /// Address and port; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9190", value_parser = listen_at)]
    listen: SocketAddr,
}

/// An address and a port; `localhost` is the loopback address, and so is what is not said.
fn listen_at(text: &str) -> Result<SocketAddr, String> {
    let at = match text.rsplit_once(':') {
        Some(("localhost" | "", port)) => format!("127.0.0.1:{port}"),
        None => format!("127.0.0.1:{text}"),
        Some(_) => text.to_owned(),
    };
    at.parse().map_err(|_| "write ADDRESS:PORT, such as 127.0.0.1:9190, or only the port".to_owned())
}

/// `kt serve`. It ends with the process.
pub fn serve(args: &ServeArgs, out: &mut Out) -> Result<()> {
    let source = Arc::new(Source { path: args.path.clone(), db: Mutex::new(Some(open_to_read(&args.path)?)) });
    let failed = |e: std::io::Error| match (Failure::io("listen on", args.listen, &e), e.kind()) {
        (failed, std::io::ErrorKind::AddrInUse) => failed.then("--listen 0 takes a free port"),
        (failed, _) => failed,
    };
    let listener = TcpListener::bind(args.listen).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    match out.json {
        true => out.object(&json!({ "url": format!("http://{address}/") }))?,
        false => out.line(format!("http://{address}/"))?,
    }
    out.finish()?;
    let busy = Arc::new(AtomicUsize::new(0));
    for connection in listener.incoming() {
        let Ok(connection) = connection else {
            std::thread::sleep(PAUSE);
            continue;
        };
        // Relaxed: a number that only this loop compares.
        if busy.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS {
            busy.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (source, done) = (Arc::clone(&source), Arc::clone(&busy));
        let started = std::thread::Builder::new().name("kt-serve".to_owned()).spawn(move || {
            answer(&source, connection, address);
            done.fetch_sub(1, Ordering::Relaxed);
        });
        if started.is_err() {
            busy.fetch_sub(1, Ordering::Relaxed); // no memory for a thread: the browser asks again
        }
    }
    Ok(())
}

/// Answers one request. What fails on the way is the other side's to notice.
fn answer(source: &Source, connection: TcpStream, address: SocketAddr) {
    let Some(request) = http::read(&connection) else { return };
    let _ = match reply(source, &request, address) {
        Ok(answer) => answer.send(connection),
        Err(e) => Answer::text("500 Internal Server Error", e.text()).send(connection),
    };
}

fn reply(source: &Source, request: &Request, address: SocketAddr) -> Result<Answer> {
    // A page of another site must not read this one by a name that it lets point here.
    if address.ip().is_loopback() && !request.is_for_loopback() {
        return Ok(Answer::text("403 Forbidden", "ask for 127.0.0.1 or localhost"));
    }
    if request.method != "GET" {
        return Ok(Answer::text("405 Method Not Allowed", "only GET is understood"));
    }
    Ok(match request.path.as_str() {
        "/" => Answer::new("200 OK", "text/html; charset=utf-8", PAGE),
        "/status.json" => Answer::new("200 OK", "application/json", source.status()?.to_string()),
        "/metrics" => Answer::new("200 OK", "text/plain; version=0.0.4; charset=utf-8", source.metrics()?),
        _ => Answer::text("404 Not Found", "there are /, /status.json and /metrics"),
    })
}

/// What is known of the database.
struct Source {
    path: PathBuf,
    /// Open for reading only; `None` after it failed, until the next request.
    db: Mutex<Option<Db>>,
}

impl Source {
    /// Runs `look` on the database as it is now.
    fn with_db<T>(&self, look: impl FnOnce(&Db) -> T) -> Result<T> {
        let mut held = self.db.lock().unwrap_or_else(PoisonError::into_inner);
        let db = match held.take() {
            Some(db) => db,
            None => open_to_read(&self.path)?,
        };
        db.try_catch_up()?;
        Ok(look(held.insert(db)))
    }

    /// Text for Prometheus: what the process that has the database open published last, or else what follows from the files.
    fn metrics(&self) -> Result<Vec<u8>> {
        match published(&self.path) {
            Ok(text) => Ok(text),
            Err(_) => self.with_db(|db| db.prometheus().into_bytes()),
        }
    }

    /// Everything that the page shows.
    fn status(&self) -> Result<Value> {
        let live = published(&self.path).ok().map(|text| String::from_utf8_lossy(&text).into_owned());
        let (families, own) = self.with_db(|db| (families(db), db.prometheus()))?;
        let (mut counters, histograms) = parse(live.as_deref().unwrap_or(&own));
        if live.is_none() {
            // A reader has no log of its own, and that of the database has a size.
            counters.insert("wal_size_bytes".to_owned(), log_bytes(&self.path).into());
        }
        Ok(json!({
            "path": self.path.display().to_string(),
            "live": live.is_some(),
            "counters": counters,
            "histograms": histograms,
            "families": families,
            "log": log_tail(&self.path),
        }))
    }
}

fn families(db: &Db) -> Vec<Value> {
    let report = db.stats();
    let level = |l: &kingtide::LevelReport| {
        json!({
            "level": l.level, "runs": l.runs, "files": l.files, "bytes": l.bytes, "entries": l.entries,
            "tombstones": l.tombstones,
        })
    };
    let family = |f: &kingtide::FamilyReport| {
        json!({
            "name": f.name, "memtable_bytes": f.active_bytes, "immutable_memtables": f.immutable_memtables,
            "vlog_bytes": f.vlog_bytes, "vlog_dead_bytes": f.vlog_dead_bytes,
            "vlog_hidden_bytes": f.vlog_hidden_bytes,
            "levels": f.levels.iter().map(level).collect::<Vec<_>>(),
        })
    };
    report.families.iter().map(family).collect()
}

/// Counters and gauges by name, and of each histogram the bounds with how many were below them, of text for Prometheus.
fn parse(text: &str) -> (Map<String, Value>, Map<String, Value>) {
    let (mut counters, mut histograms) = (Map::new(), Map::new());
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let Some((name, value)) = line.strip_prefix("kingtide_").and_then(|l| l.rsplit_once(' ')) else { continue };
        let Ok(number) = value.parse::<u64>() else { continue }; // sums of seconds are not shown
        match name.split_once("_seconds_bucket{le=\"") {
            Some((of, bound)) => {
                let bound = bound.trim_end_matches("\"}").parse::<f64>().ok().filter(|b| b.is_finite());
                let all = histograms.entry(of).or_insert_with(|| json!([]));
                if let Some(all) = all.as_array_mut() {
                    all.push(json!([bound, number]));
                }
            }
            None if name.contains('{') => {} // a family's histogram; the page shows those of the database
            None => drop(counters.insert(name.to_owned(), number.into())),
        }
    }
    (counters, histograms)
}

/// The last lines of the file `LOG`, if there is one.
fn log_tail(path: &Path) -> Vec<String> {
    let read = || -> kingtide::Result<Vec<u8>> {
        let file = SystemFs::shared().open(&path.join("LOG"), OpenMode::Read)?;
        let len = file.len()?;
        let mut tail = vec![0; len.min(LOG_TAIL) as usize];
        file.read_exact_at(&mut tail, len - len.min(LOG_TAIL))?;
        Ok(tail)
    };
    let Ok(tail) = read() else { return Vec::new() };
    let text = String::from_utf8_lossy(&tail);
    let whole =
        if tail.len() < LOG_TAIL as usize { &*text } else { text.split_once('\n').map_or("", |(_, rest)| rest) };
    let mut lines: Vec<String> = whole.lines().rev().take(30).map(str::to_owned).collect();
    lines.reverse();
    lines
}
