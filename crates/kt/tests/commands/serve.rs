//! `kt serve`, asked as a browser and as Prometheus ask it.

use super::common::{Dir, kt};
use kingtide::{Db, Options};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A server that ends with the test.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn of(db: &str) -> Server {
        Server::by(&mut Command::new(env!("CARGO_BIN_EXE_kt")), db)
    }

    /// A server that may have so many files open.
    fn with_files(files: u32, db: &str) -> Server {
        let run = format!("ulimit -n {files} && exec \"$0\" \"$@\"");
        Server::by(Command::new("sh").args(["-c", &run, env!("CARGO_BIN_EXE_kt")]), db)
    }

    fn by(command: &mut Command, db: &str) -> Server {
        let args = ["serve", db, "--listen", "127.0.0.1:0"];
        let mut process = command.args(args).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://127.0.0.1:").and_then(|l| l.strip_suffix('/'));
        let address = format!("127.0.0.1:{}", address.unwrap_or_else(|| panic!("{line}")));
        Server { process, address }
    }

    /// Head and body of the answer to what is sent.
    fn send(&self, request: &str) -> (String, String) {
        let mut connection = TcpStream::connect(&self.address).unwrap();
        connection.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
        assert!(head.to_lowercase().contains(&format!("content-length: {}", body.len())), "{head}");
        (head.to_owned(), body.to_owned())
    }

    fn get(&self, path: &str) -> (String, String) {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address))
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.get("/status.json").1).unwrap()
    }
}

/// The time that a process has run so far, in ticks of a hundredth of a second.
fn ticks(process: &Child) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    fields.split_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().unwrap()).sum()
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_closed_database_is_shown_as_its_files_are() {
    let dir = Dir::new();
    let path = dir.at("db");
    kt(&["create", &path]).ok();
    kt(&["put", &path, "tide", "high"]).ok();
    kt(&["flush", &path]).ok();
    let server = Server::of(&path);
    let (head, page) = server.get("/");
    assert!(
        head.starts_with("HTTP/1.1 200 OK") && head.contains("text/html") && page.contains("<h1>Kingtide"),
        "{head}"
    );
    assert!(head.contains("default-src 'none'"), "{head}");
    let status = server.status();
    assert_eq!(status["live"], false);
    assert_eq!(status["families"][0]["name"], "default");
    assert_eq!(status["families"][0]["levels"][0]["entries"], 1, "{status}");
    assert!(status["counters"]["klog_bytes"].as_u64().unwrap() > 0);
    assert!(status["counters"]["wal_size_bytes"].as_u64().unwrap() > 0, "the log's files have a size: {status}");
    assert!(status["log"].as_array().unwrap().iter().any(|l| l.as_str().unwrap().contains("flush")), "{status}");
    let (head, text) = server.get("/metrics?from=prometheus");
    assert!(head.contains("text/plain; version=0.0.4") && text.contains("\nkingtide_klog_bytes "), "{head}");
    // It is neither locked nor changed, and later commits show.
    kt(&["put", &path, "moon", "full"]).ok();
    kt(&["flush", &path]).ok();
    assert_eq!(server.status()["counters"]["commits"], 0, "nothing was committed by the server");
    kt(&["verify", &path]).ok();
}

#[test]
fn what_a_running_process_publishes_is_shown() {
    let dir = Dir::new();
    let path = dir.at("db");
    let mut options = Options::new().manual_jobs(true);
    options.set("stats_interval_ms", "100").unwrap();
    let db = Db::open(&path, options).unwrap();
    for i in 0..100u32 {
        db.put(i.to_be_bytes(), b"value").unwrap();
    }
    while db.run_one_job().unwrap() {} // the first of them publishes
    let server = Server::of(&path);
    let status = server.status();
    assert_eq!((&status["live"], &status["counters"]["puts"]), (&Value::Bool(true), &100.into()), "{status}");
    let names = |of: &str| status[of].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert!(names("counters").iter().all(|name| !name.contains('{')), "families' histograms are no counters: {status}");
    assert!(names("histograms").contains(&"write".to_owned()), "{status}");
    let writes = status["histograms"]["write"].as_array().unwrap();
    assert_eq!(writes.last().unwrap(), &serde_json::json!([null, 100]));
    assert!(server.get("/metrics").1.contains("\nkingtide_puts 100\n"));
    let published = std::fs::read(dir.path("db").join("STATS")).unwrap();
    db.close().unwrap();
    assert_eq!(server.status()["live"], false);
    // As if the process had been killed: it cannot take the file away, and no longer holds the lock.
    std::fs::write(dir.path("db").join("STATS"), published).unwrap();
    assert_eq!(server.status()["live"], false);
    assert!(server.get("/metrics").1.contains("\nkingtide_puts 0\n"));
}

/// Chromium, where that is installed.
fn browser() -> Option<&'static str> {
    let works = |b: &&str| Command::new(b).arg("--version").output().is_ok_and(|o| o.status.success());
    let found = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(works);
    if found.is_none() {
        println!("skipped: needs Chromium");
    }
    found
}

/// The page as a browser shows it after nine seconds of its time, and what it says of it.
fn shown(browser: &str, dir: &Dir, server: &Server) -> Output {
    let profile = format!("--user-data-dir={}", dir.at("profile"));
    let how = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=9000"];
    let address = format!("http://{}/", server.address);
    Command::new(browser).args(how).args([&profile, "--dump-dom", &address]).output().unwrap()
}

#[test]
fn a_browser_shows_a_database_at_rest() {
    let Some(browser) = browser() else { return };
    let dir = Dir::new();
    let path = dir.at("db");
    let page = || String::from_utf8_lossy(&shown(browser, &dir, &Server::of(&path)).stdout).into_owned();
    let mut options = Options::new().manual_jobs(true);
    options.set("stats_interval_ms", "100").unwrap();
    let db = Db::open(&path, options).unwrap();
    while db.run_one_job().unwrap() {} // which publishes
    let live = page();
    assert!(live.contains("<td colspan=\"5\">No calls yet.</td>") && live.contains("block cache</span>"), "{live}");
    db.close().unwrap();
    let closed = page();
    // What only a process that has it open can know is not shown as nothing.
    assert!(closed.contains("<td colspan=\"5\">Not known, because no process publishes"), "{closed}");
    assert!(closed.contains("write-ahead log</span>") && !closed.contains("block cache</span>"), "{closed}");
}

/// The page's script runs under the server's policy, fetches the figures, and shows them.
#[test]
fn a_browser_shows_the_page() {
    let Some(browser) = browser() else { return };
    let dir = Dir::new();
    let path = dir.at("db");
    let mut options = Options::new().manual_jobs(true);
    options.set("stats_interval_ms", "100").unwrap();
    let db = Db::open(&path, options).unwrap();
    let server = Server::of(&path);
    let (stop, writes) = (AtomicBool::new(false), AtomicU32::new(0));
    let shown = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                db.put(writes.fetch_add(1, Ordering::Relaxed).to_be_bytes(), b"value").unwrap();
                while db.run_one_job().unwrap() {} // which publishes
            }
        });
        while writes.load(Ordering::Relaxed) < 100 {
            std::thread::yield_now();
        }
        let out = shown(browser, &dir, &server);
        stop.store(true, Ordering::Relaxed);
        out
    });
    let (page, log) = (String::from_utf8_lossy(&shown.stdout), String::from_utf8_lossy(&shown.stderr));
    let console: Vec<&str> = log.lines().filter(|l| l.contains("CONSOLE")).collect();
    assert!(shown.status.success() && console.is_empty(), "{console:?}\n{log}");
    let texts = [
        &format!("<title>Kingtide {path}</title>"),
        "Rates of the process that has the database open.",
        "puts and deletes",
        "block cache",
        "<td>write</td>",
        "<td>default</td>",
        "<polyline",
    ];
    for text in texts {
        assert!(page.contains(text), "no {text} in:\n{page}");
    }
    // The first figures have no rate yet; the later ones have.
    assert!(!page.contains("<b>…</b>"), "{page}");
}

#[test]
fn without_file_descriptors_it_waits_until_there_are_some() {
    let dir = Dir::new();
    let path = dir.at("db");
    kt(&["create", &path]).ok();
    let server = Server::with_files(24, &path);
    let open: Vec<_> = (0..30).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
    std::thread::sleep(std::time::Duration::from_millis(200));
    let before = ticks(&server.process);
    std::thread::sleep(std::time::Duration::from_secs(1));
    let used = ticks(&server.process) - before;
    assert!(used < 20, "it was busy for {used} of 100 ticks");
    drop(open);
    assert!(server.get("/").0.starts_with("HTTP/1.1 200"));
}

#[test]
fn requests_that_are_not_for_it_are_refused() {
    let dir = Dir::new();
    let path = dir.at("db");
    kt(&["create", &path]).ok();
    let server = Server::of(&path);
    let first = |request: &str| server.send(request).0.lines().next().unwrap().to_owned();
    assert_eq!(first("GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"), "HTTP/1.1 403 Forbidden");
    assert_eq!(first("GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 403 Forbidden");
    assert_eq!(first("POST / HTTP/1.1\r\nHost: localhost\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
    assert_eq!(first("GET /../LOG HTTP/1.1\r\nHost: localhost\r\n\r\n"), "HTTP/1.1 404 Not Found");
    // No request, or one without an end: the connection is closed, and the server goes on.
    for nonsense in ["\r\n\r\n".to_owned(), "x".repeat(40_000)] {
        let mut connection = TcpStream::connect(&server.address).unwrap();
        let _ = connection.write_all(nonsense.as_bytes());
        let _ = connection.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = connection.read_to_end(&mut answer);
        assert!(answer.is_empty());
    }
    assert_eq!(first("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), "HTTP/1.1 200 OK");
    kt(&["serve", &dir.at("nowhere")]).fails(3);
}
