//! Runs the stories in `testdata/*.txt`: a tree and its circumstances, and below `=>` the jobs expected. With
//! `UPDATE_TESTDATA=1` the expectations are rewritten from what the planner says, to be read and judged.
//!
//! ```text
//! L0.12 1:a-m:50 2:n-z:50        level.run, then files as id:min-max:megabytes and attributes:
//!                                t=tombstones/entries rt=count from=min seq=max exp=expiry made=created v=vlog/megabytes
//! options name=value ...         idle | hint | draining | short | snapshot N | now MS | slots N | room MB | manual lo hi | asked N
//! vlog id megabytes              hides megabytes (an entry of level 0) | running top-bottom lo-hi | rewrite file ... | relocate vlog ...
//! ```

use crate::job::{CompactionRange, Footprint, Job, check_job};
use crate::planner::{Manual, PlanInput, Rewrite, plan};
use crate::version::{FileMeta, Version};
use crate::vlogs::VlogMeta;
use kingtide_base::KeyOrder;
use kingtide_base::options::FamilyOptions;
use kingtide_table::VlogRef;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

const MB: u64 = 1 << 20;

struct Story {
    version: Version,
    options: FamilyOptions,
    running: Vec<Footprint>,
    vlogs: Vec<VlogMeta>,
    slack: u64,
    covered: BTreeMap<u64, u64>,
    snapshot: u64,
    now_ms: u64,
    slots: usize,
    room: u64,
    collects_only: bool,
    idle: bool,
    hint: bool,
    draining: bool,
    manual: Option<CompactionRange>,
    asked: u64,
    rewrite: Rewrite,
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("not a number: {text}"))
}

fn parse_file(text: &str, run: u64) -> FileMeta {
    let parts: Vec<&str> = text.split(':').collect();
    let (lo, hi) = parts[1].split_once('-').unwrap();
    let mut f = FileMeta {
        id: number(parts[0]),
        run,
        size: number(parts[2]) * MB,
        entries: 100,
        tombstones: 0,
        range_tombstones: 0,
        raw_bytes: number(parts[2]) * MB,
        min_key: lo.into(),
        max_key: hi.into(),
        min_seq: 1,
        max_seq: 1,
        min_expiry_ms: 0,
        created_ms: 0,
        vlog_refs: Vec::new(),
        written_as: number(parts[0]),
        sequence: 0,
        hides: 0,
    };
    for attribute in &parts[3..] {
        let (name, value) = attribute.split_once('=').unwrap();
        let pair = value.split_once('/');
        match name {
            "t" => (f.tombstones, f.entries) = pair.map(|(a, b)| (number(a), number(b))).unwrap(),
            "from" => f.min_seq = number(value),
            "rt" => f.range_tombstones = number(value),
            "seq" => f.max_seq = number(value),
            "exp" => f.min_expiry_ms = number(value),
            "hides" => f.hides = number(value) * MB,
            "made" => f.created_ms = number(value),
            "v" => {
                let (file_id, bytes) = pair.map(|(a, b)| (number(a), number(b) * MB)).unwrap();
                f.vlog_refs.push(VlogRef { file_id, values: 1, bytes });
            }
            other => panic!("unknown attribute {other}"),
        }
    }
    f
}

fn parse_story(lines: &[&str]) -> Story {
    let mut s = Story {
        version: Version::default(),
        options: FamilyOptions::default(),
        running: Vec::new(),
        vlogs: Vec::new(),
        slack: 1000 * MB,
        covered: BTreeMap::new(),
        snapshot: u64::MAX,
        now_ms: 0,
        slots: 4,
        room: u64::MAX,
        collects_only: false,
        idle: false,
        hint: false,
        draining: false,
        manual: None,
        asked: u64::MAX,
        rewrite: Rewrite::default(),
    };
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[0] {
            "options" => words[1..].iter().for_each(|w| {
                let (name, value) = w.split_once('=').unwrap();
                s.options.set(name, value).unwrap();
            }),
            "idle" => s.idle = true,
            "hint" => s.hint = true,
            "draining" => s.draining = true,
            "slack" => s.slack = number(words[1]) * MB,
            "covers" => {
                s.covered.insert(number(words[1]), number(words[2]) * MB);
            }
            "snapshot" => s.snapshot = number(words[1]),
            "now" => s.now_ms = number(words[1]),
            "slots" => s.slots = number(words[1]) as usize,
            "room" => s.room = number(words[1]) * MB,
            "short" => s.collects_only = true,
            "manual" => s.manual = Some(CompactionRange { lo: Some(words[1].into()), hi: Some(words[2].into()) }),
            "asked" => s.asked = number(words[1]),
            "rewrite" => s.rewrite.files = words[1..].iter().map(|w| number(w)).collect(),
            "relocate" => s.rewrite.vlogs = words[1..].iter().map(|w| number(w)).collect(),
            "vlog" => {
                let (id, stored_bytes) = (number(words[1]), number(words[2]) * MB);
                s.vlogs.push(VlogMeta { id, size: stored_bytes, stored_bytes, values: 1 });
            }
            "running" => {
                let (top, bottom) = words[1].split_once('-').unwrap();
                let (lo, hi) = words[2].split_once('-').unwrap();
                let (top, bottom) = (number(top) as usize, number(bottom) as usize);
                s.running.push(Footprint { top, bottom, lo: lo.into(), hi: hi.into(), hi_open: false });
            }
            place => {
                let (level, run) = place.strip_prefix('L').and_then(|p| p.split_once('.')).expect("level.run");
                for file in &words[1..] {
                    let file = parse_file(file, number(run));
                    s.version.add(&KeyOrder::Bytewise, number(level) as usize, Arc::new(file));
                }
            }
        }
    }
    s.version.check(&KeyOrder::Bytewise).unwrap();
    s
}

fn describe(job: &Job) -> String {
    let mut out = format!("{:?}", job.kind);
    let mut levels: Vec<usize> = job.inputs.iter().map(|(l, _)| *l).collect();
    levels.sort_unstable();
    levels.dedup();
    for level in levels {
        let mut ids: Vec<u64> = job.inputs.iter().filter(|(l, _)| *l == level).map(|(_, f)| f.id).collect();
        ids.sort_unstable();
        let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
        let _ = write!(out, " L{level}:{}", ids.join(","));
    }
    let _ = write!(out, " -> L{}.{}", job.output_level, job.output_run);
    if job.drop_tombstones {
        out.push_str(" drop");
    }
    if !job.boundaries.is_empty() {
        let keys: Vec<_> = job.boundaries.iter().map(|k| String::from_utf8_lossy(k).into_owned()).collect();
        let _ = write!(out, " cut={}", keys.join(","));
    }
    if !job.relocate_vlogs.is_empty() {
        let ids: Vec<String> = job.relocate_vlogs.iter().map(u64::to_string).collect();
        let _ = write!(out, " relocate={}", ids.join(","));
    }
    out
}

fn tell(s: &Story) -> String {
    let order = KeyOrder::Bytewise;
    let input = PlanInput {
        version: &s.version,
        options: &s.options,
        order: &order,
        running: &s.running,
        oldest_snapshot: s.snapshot,
        now_ms: s.now_ms,
        vlogs: &s.vlogs,
        dead_slack: s.slack,
        covered: &s.covered,
        read_hint: s.hint,
        idle: s.idle,
        draining: s.draining,
        manual: s.manual.as_ref().map(|range| Manual { range, since: s.asked, rewrite: &s.rewrite }),
        slots: s.slots,
        room: s.room,
        collects_only: s.collects_only,
    };
    let plan = plan(&input);
    let mut running = s.running.clone();
    let mut out = String::new();
    for job in &plan.jobs {
        check_job(&order, &s.version, &running, job).unwrap();
        running.extend(job.footprints(&order));
        out.push_str(&describe(job));
        out.push('\n');
    }
    if plan.draining {
        out.push_str("draining\n");
    }
    if plan.manual_done {
        out.push_str("manual done\n");
    }
    if out.is_empty() { "nothing\n".into() } else { out }
}

#[test]
fn stories() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/testdata");
    let mut files: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let mut told = 0;
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let mut rewritten = String::new();
        let mut wrong = String::new();
        for block in text.split("\n\n").map(str::trim).filter(|b| !b.is_empty()) {
            let (given, want) = block.split_once("=>").unwrap_or((block, ""));
            let lines: Vec<&str> =
                given.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')).collect();
            if !rewritten.is_empty() {
                rewritten.push('\n');
            }
            if lines.is_empty() {
                let _ = writeln!(rewritten, "{block}");
                continue;
            }
            let got = tell(&parse_story(&lines));
            let _ = write!(rewritten, "{}\n=>\n{got}", given.trim());
            if got.trim() != want.trim() {
                let _ = write!(wrong, "{}\nexpected:\n{}\ngot:\n{got}\n", given.trim(), want.trim());
            }
            told += 1;
        }
        if std::env::var_os("UPDATE_TESTDATA").is_some() {
            std::fs::write(&path, rewritten).unwrap();
        } else {
            assert!(wrong.is_empty(), "{}:\n{wrong}", path.display());
        }
    }
    assert!(told > 20, "only {told} stories found");
}
