//! Runs that do not come to their end: ctrl-C, and full disks. They leave what is finished, and nothing else.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A place for stores and reports, gone with the test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let dir = std::env::temp_dir().join(format!("keybench-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Place(dir)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn keybench(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keybench"));
    command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

/// Starts a command, sends it a signal when its standard error has a line with `cue`, and waits for its end.
fn interrupted(words: &[&str], cue: &str, name: &str) -> (ExitStatus, Duration, String) {
    let mut child = keybench(words).spawn().unwrap();
    let mut seen = Vec::new();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let found = lines.find(|line| {
        seen.push(line.clone());
        line.contains(cue)
    });
    assert!(found.is_some(), "{words:?} never said '{cue}': {seen:?}");
    signal(&child, name);
    let sent = Instant::now();
    lines.for_each(drop);
    let out = child.wait_with_output().unwrap();
    (out.status, sent.elapsed(), String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Stores that were left over.
fn stores(place: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(place.join("data")).into_iter().flatten().flatten();
    entries.map(|e| e.path()).collect()
}

const ENDLESS: [&str; 10] =
    ["--threads", "2", "--repeat", "1", "--items", "1000", "--users", "100", "--value-size", "100"];

#[test]
fn a_run_leaves_a_report_of_what_is_finished() {
    for name in ["-INT", "-TERM"] {
        let place = Place::new(&format!("run{name}"));
        let (data, reports) = (place.path("data"), place.path("reports"));
        let short = place.path("short.lua");
        std::fs::write(
            &short,
            "return { run = function(ctx) if ctx.thread == 0 and ctx.iter == 1 then kv.put('k', 'v') end end }",
        )
        .unwrap();
        // The first point is done at once, the second takes its time.
        let long = place.path("long.lua");
        std::fs::write(&long, "return { run = function(ctx) for i = 1, 300000 do kv.put('k', 'v') end end }").unwrap();
        let words = [
            "run",
            &short,
            &long,
            "--ops",
            "10",
            "--backend",
            "kingtide",
            "--data-dir",
            &data,
            "--report-dir",
            &reports,
        ];
        let words: Vec<&str> = words.into_iter().chain(ENDLESS).collect();
        let (status, took, printed) = interrupted(&words, "long on kingtide", name);
        println!("run {name}: {status}, {took:?}");
        assert_eq!(status.code(), Some(130), "{printed}");
        let report = std::fs::read_dir(&reports).unwrap().next().unwrap().unwrap().path();
        for file in
            ["report.txt", "report.json", "report.html", "points.tsv", "repeats.tsv", "timeline.tsv", "replay.cnf"]
        {
            assert!(report.join(file).is_file(), "no {file}");
        }
        let read = |file: &str| std::fs::read_to_string(report.join(file)).unwrap();
        assert!(read("report.txt").contains("INTERRUPTED") && printed.contains("INTERRUPTED"), "{printed}");
        assert!(read("report.txt").contains("short, 2 threads on kingtide"), "{}", read("report.txt"));
        assert!(read("report.json").contains("\"ending\": \"interrupted\""));
        for file in ["points.tsv", "repeats.tsv"] {
            assert_eq!(read(file).lines().filter(|l| l.starts_with("short\tkingtide")).count(), 1, "{file}");
        }
        assert_eq!(stores(&place.0), Vec::<PathBuf>::new(), "data are cleaned up");
    }
}

#[test]
fn native_runs_suites_and_kills_end_too() {
    let place = Place::new("others");
    let (data, csv, out) = (place.path("data"), place.path("micro.csv"), place.path("suite"));
    // The first engine of each repeat is done at once, the second hardly ever.
    let micro = ["micro", "-e", "null,kingtide", "-o", "2000000", "-t", "1", "-w", "write", "-d", &data, "--csv", &csv];
    let (status, took, printed) = interrupted(&micro, ": kingtide write", "-INT");
    println!("micro: {status}, {took:?}");
    assert!(status.code() == Some(130) && printed.contains("INTERRUPTED"), "{status} {printed}");
    let rows = std::fs::read_to_string(&csv).unwrap();
    assert_eq!(rows.lines().filter(|l| l.starts_with("null,")).count(), 1, "{rows}");
    assert_eq!(stores(&place.0), Vec::<PathBuf>::new());

    let suite = ["suite", "core", "--scale", "0.2", "-e", "null,kingtide", "--repeat", "1", "-d", &data, "--out", &out];
    let (status, took, printed) = interrupted(&suite, ": kingtide ", "-INT");
    println!("suite: {status}, {took:?}");
    assert!(status.code() == Some(130) && printed.contains("INTERRUPTED"), "{status} {printed}");
    assert!(place.0.join("suite.csv").is_file() && place.0.join("suite.txt").is_file());
    assert_eq!(stores(&place.0), Vec::<PathBuf>::new());

    let kill = place.path("kill");
    let campaign =
        ["kill", "mixed", "--every", "0.1..0.2", "--minutes", "5", "--items", "500", "--json", "--dir", &kill];
    let (status, took, printed) = interrupted(&campaign, "killed", "-INT");
    println!("kill: {status}, {took:?}");
    assert!(status.code() == Some(130) && printed.contains("\"lost\": 0"), "{status} {printed}");
    assert!(!Path::new(&kill).exists());
}

#[test]
fn two_at_once_are_one() {
    let place = Place::new("twice");
    let (data, reports) = (place.path("data"), place.path("reports"));
    let long = place.path("long.lua");
    std::fs::write(&long, "return { run = function(ctx) for i = 1, 300000 do kv.put('k', 'v') end end }").unwrap();
    let words = ["run", &long, "--ops", "10", "--backend", "memory", "--data-dir", &data, "--report-dir", &reports];
    let mut child = keybench(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pid = child.id();
    let grandchildren = || {
        let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        list.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    while grandchildren().is_empty() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let engine = grandchildren();
    // Stopped, it can't act on the first before it has the second.
    signal(&child, "-STOP");
    signal(&child, "-INT");
    signal(&child, "-TERM");
    signal(&child, "-CONT");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let report = std::fs::read_dir(&reports).unwrap().next().unwrap().unwrap().path().join("report.txt");
    assert!(std::fs::read_to_string(report).unwrap().contains("INTERRUPTED"));
    let alive = |pid: &String| std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z"));
    let deadline = Instant::now() + Duration::from_secs(30);
    while engine.iter().any(alive) {
        assert!(Instant::now() < deadline, "{engine:?} outlived its parent");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_second_ends_the_process() {
    let place = Place::new("again");
    let (data, reports, pipe) = (place.path("data"), place.path("reports"), place.path("pipe"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // It waits until the pipe is read, and notices the first signal only after that.
    let sink = format!("tsv:{pipe}");
    let words =
        ["run", "mixed", "--backend", "memory", "--data-dir", &data, "--report-dir", &reports, "--report", &sink];
    let mut child = keybench(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while !Path::new(&reports).exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    signal(&child, "-INT");
    std::thread::sleep(Duration::from_millis(200));
    assert!(child.try_wait().unwrap().is_none(), "the first one asks");
    let deadline = Instant::now() + Duration::from_secs(30);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < deadline, "the second one has no effect");
        signal(&child, "-INT");
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(status.code(), Some(130));
}

#[test]
fn a_script_that_does_not_end_is_interrupted_before_any_engine_starts() {
    let place = Place::new("chunk");
    let script = place.path("endless.lua");
    std::fs::write(&script, "io.stderr:write('begun\\n') while true do end").unwrap();
    let mut child = keybench(&["run", &script, "--backend", "memory"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "begun"));
    signal(&child, "-INT"); // once
    let deadline = Instant::now() + Duration::from_secs(30);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("the signal has no effect");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(status.code(), Some(130));
}

/// Where the chunk itself did it, the run ended with success and had measured nothing.
#[test]
fn a_script_cannot_end_its_process() {
    let place = Place::new("exit");
    let (data, reports, script) = (place.path("data"), place.path("reports"), place.path("exit.lua"));
    for source in ["return { run = function() os.exit(0) end }", "os.exit(0)", "os.exit(true, true)"] {
        std::fs::write(&script, source).unwrap();
        let words = ["run", &script, "--backend", "memory", "--repeat", "1", "--ops", "10"];
        let done = keybench(&[&words[..], &["--data-dir", &data, "--report-dir", &reports]].concat()).output().unwrap();
        let told = String::from_utf8_lossy(&done.stderr);
        let refused = "os.exit would end keybench itself";
        assert!(done.status.code() == Some(2) && told.contains(refused), "{source}: {:?}: {told}", done.status);
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error_and_one_that_is_not_read_is_none() {
    let place = Place::new("output");
    let (data, reports) = (place.path("data"), place.path("reports"));
    let run = [
        "run",
        "mixed",
        "--backend",
        "memory",
        "--items",
        "1000",
        "--ops",
        "100",
        "--repeat",
        "1",
        "--data-dir",
        &data,
    ];
    let run = [&run[..], &["--report-dir", &reports]].concat();
    for words in [&["suite"][..], &["suite", "core", "--list"], &run] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let done = keybench(words).stdout(full).output().unwrap();
        let told = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.code() == Some(1) && told.contains("cannot write to standard output"), "{words:?}: {told}");

        let mut child = keybench(words).spawn().unwrap();
        drop((child.stdout.take(), child.stderr.take())); // closed before anything is written, or while it is
        assert_eq!(child.wait().unwrap().code(), Some(0), "{words:?}");
    }
    let whole = std::fs::read_dir(&reports).unwrap().map(|dir| dir.unwrap().path().join("report.html"));
    assert!(whole.map(|page| assert!(page.exists(), "{}", page.display())).count() >= 1);
}

/// Files may have 512 bytes here. The system would end the process with a signal.
#[test]
fn a_write_beyond_the_limit_for_files_is_an_error() {
    let place = Place::new("limit");
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -f 1; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_keybench")]);
    shell.args(["run", "mixed", "--backend", "memory", "--items", "1000", "--ops", "100", "--repeat", "1"]);
    shell.args(["--data-dir", &place.path("data"), "--report-dir", &place.path("reports")]);
    let done = shell.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(1) && said.contains("File too large"), "{}: {said}", done.status);
}

/// A small file system in memory, as far as this user may make one.
struct Mount(String);

impl Mount {
    fn new(dir: &str, size: &str) -> Option<Mount> {
        std::fs::create_dir_all(dir).unwrap();
        let options = format!("size={size}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "keybench-test", dir]).output();
        mounted.is_ok_and(|out| out.status.success()).then(|| Mount(dir.to_owned()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_ends_an_engine_and_not_the_report() {
    let place = Place::new("full");
    let (data, reports) = (place.path("data"), place.path("reports"));
    let Some(_mount) = Mount::new(&data, "48m") else {
        println!("not run: this user may not mount a file system");
        return;
    };
    let small = place.path("small.lua");
    std::fs::write(&small, "return { run = function(ctx) kv.put('k' .. ctx.iter, 'v') end }").unwrap();
    let fill = place.path("fill.lua");
    let source = "return { run = function(ctx) kv.put('k' .. ctx.thread .. '-' .. ctx.iter, gen.value(65536, 0)) end }";
    std::fs::write(&fill, source).unwrap();
    let flags = ["--threads", "2", "--repeat", "2", "--ops", "2000", "--data-dir", &data, "--report-dir", &reports];

    let out = keybench(&["run", "mixed", "--items", "10000"]).args(flags).output().unwrap();
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(2), "{told}");
    for part in [&data, "needs about", "48.0 MiB are free", "--ignore-free-space"] {
        assert!(told.contains(part), "'{part}' is not in {told}");
    }
    assert!(!Path::new(&reports).exists(), "nothing was begun");

    let words = ["run", &small, &fill, "--items", "10", "--users", "10", "--backend", "kingtide,memory"];
    let out = keybench(&words).args(flags).output().unwrap();
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{told}");
    let report = std::fs::read_dir(&reports).unwrap().next().unwrap().unwrap().path();
    let read = |file: &str| std::fs::read_to_string(report.join(file)).unwrap();
    let failure = read("report.txt").lines().find(|l| l.contains("kingtide failed")).unwrap_or_default().to_owned();
    println!("{failure}");
    let dir = format!("{data}/kingtide");
    for part in ["fill in ", &dir, "put: ", "No space left"] {
        assert!(failure.contains(part), "'{part}' is not in '{failure}': {}", read("report.txt"));
    }
    let lines = |file: &str, start: &str| read(file).lines().filter(|l| l.starts_with(start)).count();
    let both = |start: &str| (lines("points.tsv", start), lines("repeats.tsv", start));
    assert_eq!(both("small\tkingtide"), (1, 1), "what was finished before is kept");
    assert_eq!(both("fill\tkingtide"), (0, 0));
    assert_eq!((both("small\tmemory"), both("fill\tmemory")), ((1, 2), (1, 2)), "the others go on");
    assert!(read("report.json").contains("No space left"));
    assert_eq!(stores(&place.0), Vec::<PathBuf>::new());
}
