//! Scenario files: what a scenario does, with which options, on what disk.
//!
//! A file is a small subset of TOML: `[section]` and `[[section]]` headers, `name = value` lines, comments. A value is a
//! number, a word, or a quoted text. A section or name that is not listed here is an error.
//!
//! `[workload]` gives each part a weight; parts that are not named do not happen:
//!
//! | part | one step of it |
//! |---|---|
//! | `batch` | commits a batch over one to three families |
//! | `transaction` | the next call of one of three clients: begin, write, read, savepoint, commit, roll back |
//! | `prepare` | a client prepares what it wrote; it or any other client may end that later |
//! | `resolve` | commits or rolls back a transaction in doubt by its name |
//! | `ingest` | ingests one to three sorted files into one or two families |
//! | `flush`, `merge` | flushes all families; merges a part of one down |
//! | `family` | creates, drops or renames a family |
//! | `clone` | clones a family, or drops a clone |
//! | `reopen`, `kill`, `cut` | closes, loses the process, or loses power, and opens again |
//! | `job`, `drain` | runs a few background jobs, or all there are |
//! | `sync` | syncs the log |
//! | `snapshot` | opens a snapshot or an iterator, or goes on reading one, and compares it with the history |
//! | `check` | reads everything |
//! | `stream` | reads on in a change stream |
//! | `checkpoint`, `backup` | copies the database into a new directory, or into the directory of backups |
//! | `set` | changes an option of `[live]` |
//! | `tick` | lets time pass |
//! | `trouble` | a random fault of the disk begins, or the one that there is ends |
//! | `clock` | the clocks go back, or forward again |
//! | `panic` | a background job panics; the database is closed and opened again |
//! | `shadow` | recovers the same files a second time, beside the open database, and compares all that it finds |
//!
//! `[mix]` says what commits are made of; [`Mix`] lists the names. `[options]` sets options of the database and its
//! families, `[live]` lists values that `set` chooses from, as `"a b c"`. `[[fault]]` is a rule for the failing disk: `op`
//! and `fault` by their names in lower case, `nth` or `probability`, `sticky`, `path` (a part of it), and the steps `from`
//! and `until` between which it holds. `[[disk]]` sets the disk's `capacity` in bytes, 0 for no limit, at step `at`.

use kingtide::Options;
use kingtide::vfs::{Fault, Op as FsOp, Rule};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    Batch,
    Transaction,
    Prepare,
    Resolve,
    Ingest,
    Flush,
    Merge,
    Family,
    Clone,
    Reopen,
    Kill,
    Cut,
    Job,
    Drain,
    Sync,
    Snapshot,
    Check,
    Stream,
    Checkpoint,
    Backup,
    Set,
    Tick,
    Trouble,
    Clock,
    Shadow,
    Panic,
}

const PARTS: [Part; 26] = [
    Part::Batch,
    Part::Transaction,
    Part::Prepare,
    Part::Resolve,
    Part::Ingest,
    Part::Flush,
    Part::Merge,
    Part::Family,
    Part::Clone,
    Part::Reopen,
    Part::Kill,
    Part::Cut,
    Part::Job,
    Part::Drain,
    Part::Sync,
    Part::Snapshot,
    Part::Check,
    Part::Stream,
    Part::Checkpoint,
    Part::Backup,
    Part::Set,
    Part::Tick,
    Part::Trouble,
    Part::Clock,
    Part::Shadow,
    Part::Panic,
];

macro_rules! mix {
    ($( $(#[doc = $doc:literal])+ $name:ident = $default:literal; )*) => {
        /// What commits are made of. Those without a unit are percent.
        #[derive(Clone, Debug)]
        pub struct Mix { $( $(#[doc = $doc])+ pub $name: u64, )* }

        impl Mix {
            fn read(section: &mut Section) -> Mix {
                Mix { $( $name: section.take(stringify!($name)).unwrap_or($default), )* }
            }
        }
    };
}

mix! {
    /// Keys.
    keys = 60;
    /// Bytes of the usual value, at most; a few have ten times as many.
    value = 300;
    /// One value in a thousand so often is longer than a log segment.
    long = 5;
    /// Commits that ask for `Power`.
    power = 25;
    /// Commits that ask for `Interval`.
    interval = 10;
    /// Commits that are not logged.
    unlogged = 0;
    /// Operations that delete a key.
    delete = 15;
    /// Operations that delete a range.
    delete_range = 6;
    /// Operations that delete a prefix.
    delete_prefix = 3;
    /// Operations on keys that are put once and then single-deleted.
    once = 5;
    /// Puts that expire.
    ttl = 0;
    /// Transactions that lock.
    locking = 40;
    /// Most operations of a batch.
    batch = 5;
    /// Families that are there from the first open on. If there are any, families are chosen by a Zipfian distribution, so
    /// that most of them are idle most of the time.
    families = 0;
    /// Of so many power cuts one is checked, where each is dear.
    sample = 1;
    /// Whether the default family has a key order that can panic.
    fragile = 0;
}

#[derive(Clone, Debug)]
pub struct FaultRule {
    pub rule: Rule,
    pub from: u64,
    pub until: u64,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub name: String,
    pub weights: Vec<(Part, u64)>,
    pub mix: Mix,
    pub options: Vec<(String, String)>,
    pub live: Vec<(String, Vec<String>)>,
    pub faults: Vec<FaultRule>,
    /// Capacity from a step on; `None` for no limit.
    pub disk: Vec<(u64, Option<u64>)>,
}

/// Files so small that everything happens within a few hundred steps.
const SMALL: &str = "wal_segment_size=65536 max_wal_size=400000 memtable_size=65536 memtable_budget=1M \
    target_file_size=65536 value_threshold=200 l0_trigger=2 level_ratio=2 block_size=1024 block_cache_size=100000 \
    cache_shards=1 max_subcompactions=1 lock_timeout_ms=0 background_threads=1";

impl Plan {
    /// All scenarios, by name.
    pub fn all() -> Vec<Plan> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("sim/scenarios");
        let mut all: Vec<Plan> = std::fs::read_dir(dir)
            .expect("scenarios")
            .map(|entry| {
                let path = entry.expect("entry").path();
                let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
                Plan::parse(&name, &std::fs::read_to_string(&path).expect("scenario"))
            })
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    pub fn parse(name: &str, text: &str) -> Plan {
        let mut sections = Section::split(name, text);
        let mut one = |title: &str| {
            let found = sections.iter().position(|s| s.title == title).map(|at| sections.remove(at));
            found.unwrap_or_else(|| Section::new(name, title))
        };
        let mut workload = one("workload");
        let weights = PARTS.iter().filter_map(|p| Some((*p, workload.take(&format!("{p:?}").to_lowercase())?)));
        let weights = weights.collect();
        let mut mix = one("mix");
        let (options, live) = (one("options").all(), one("live").all());
        let live = live.into_iter().map(|(k, v)| (k, v.split_whitespace().map(str::to_owned).collect())).collect();
        let parsed = Mix::read(&mut mix);
        let mut plan =
            Plan { name: name.to_owned(), weights, mix: parsed, options, live, faults: Vec::new(), disk: Vec::new() };
        [workload, mix].into_iter().for_each(Section::end);
        for mut section in sections {
            match section.title.as_str() {
                "fault" => plan.faults.push(fault(&mut section)),
                "disk" => {
                    let capacity = section.take("capacity").filter(|c| *c > 0);
                    plan.disk.push((section.take("at").expect("at"), capacity));
                }
                other => panic!("{name}: unknown or second section [{other}]"),
            }
            section.end();
        }
        assert!(plan.weights.iter().any(|w| w.1 > 0), "{name}: nothing to do");
        assert!(plan.disk.is_empty() || !plan.does(Part::Trouble), "{name}: two that limit the disk");
        // What is not logged may go with a close that fails, which would leave nothing to compare reads with.
        assert!(!plan.is_faulty() || plan.mix.unlogged == 0, "{name}: faults and unlogged commits");
        plan
    }

    /// Whether calls may fail.
    pub fn is_faulty(&self) -> bool {
        !self.faults.is_empty() || !self.disk.is_empty() || self.does(Part::Trouble)
    }

    pub fn does(&self, part: Part) -> bool {
        self.weights.iter().any(|w| w.0 == part && w.1 > 0)
    }

    pub fn changes_families(&self) -> bool {
        self.does(Part::Family) || self.does(Part::Clone)
    }

    /// The options to open with, without file system and clock.
    pub fn options(&self) -> Options {
        let mut options = Options::new().manual_jobs(true).seed(1);
        let small = SMALL.split_whitespace().map(|text| text.split_once('=').expect("name=value"));
        for (name, value) in small.chain(self.options.iter().map(|(n, v)| (n.as_str(), v.as_str()))) {
            options.set(name, value).unwrap_or_else(|e| panic!("{}: {e}", self.name));
        }
        options
    }
}

fn fault(section: &mut Section) -> FaultRule {
    let (op, fault): (String, String) = (section.take("op").expect("op"), section.take("fault").expect("fault"));
    let mut rule = Rule::new(named(&FsOp::ALL, &op), named(&FAULTS, &fault));
    if let Some(n) = section.take("nth") {
        rule = rule.nth(n);
    }
    if let Some(p) = section.take("probability") {
        rule = rule.probability(p);
    }
    if section.take("sticky") == Some(true) {
        rule = rule.sticky();
    }
    if let Some(path) = section.take::<String>("path") {
        rule = rule.path(path);
    }
    FaultRule { rule, from: section.take("from").unwrap_or(0), until: section.take("until").unwrap_or(u64::MAX) }
}

pub const FAULTS: [Fault; 8] = [
    Fault::Eio,
    Fault::Enospc,
    Fault::Edquot,
    Fault::Emfile,
    Fault::Eintr,
    Fault::ShortRead,
    Fault::ShortWrite,
    Fault::DoneEio,
];

fn named<T: Debug + Copy>(all: &[T], name: &str) -> T {
    let found = all.iter().find(|t| format!("{t:?}").to_lowercase() == name);
    *found.unwrap_or_else(|| panic!("'{name}' is none of {all:?}"))
}

/// A section of a scenario file.
struct Section {
    file: String,
    title: String,
    values: BTreeMap<String, String>,
}

impl Section {
    fn new(file: &str, title: &str) -> Section {
        Section { file: file.to_owned(), title: title.to_owned(), values: BTreeMap::new() }
    }

    fn split(file: &str, text: &str) -> Vec<Section> {
        let mut all: Vec<Section> = Vec::new();
        for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
            if let Some(title) = line.strip_prefix('[') {
                all.push(Section::new(file, title.trim_matches(['[', ']'])));
                continue;
            }
            let (name, value) = line.split_once('=').unwrap_or_else(|| panic!("{file}: '{line}' is no name = value"));
            let section = all.last_mut().unwrap_or_else(|| panic!("{file}: '{line}' before any section"));
            let value = value.split(" #").next().expect("a first part").trim().trim_matches('"');
            let old = section.values.insert(name.trim().to_owned(), value.to_owned());
            assert!(old.is_none(), "{file}: {} is given twice", name.trim());
        }
        all
    }

    fn take<T: FromStr>(&mut self, name: &str) -> Option<T> {
        let text = self.values.remove(name)?;
        match text.parse() {
            Ok(value) => Some(value),
            Err(_) => panic!("{}: [{}] {name} = {text} cannot be read", self.file, self.title),
        }
    }

    fn all(self) -> Vec<(String, String)> {
        self.values.into_iter().collect()
    }

    /// Everything in it must have been taken.
    fn end(self) {
        let left: Vec<&String> = self.values.keys().collect();
        assert!(left.is_empty(), "{}: [{}] knows no {left:?}", self.file, self.title);
    }
}

#[test]
fn a_scenario_file_with_an_unknown_name_is_refused() {
    let good = "# text\n[workload]\nbatch = 1\n[mix]\nvalue = 7\n[[disk]]\nat = 3\ncapacity = 0\n";
    let plan = Plan::parse("good", good);
    assert_eq!((plan.weights, plan.mix.value, plan.disk), (vec![(Part::Batch, 1)], 7, vec![(3, None)]));
    for bad in
        ["[workload]\nbath = 1", "[workload]\nbatch = x", "[wrkload]\nbatch = 1", "batch = 1", "[workload]\nbatch"]
    {
        std::panic::catch_unwind(|| Plan::parse("bad", bad)).expect_err(bad);
    }
}
