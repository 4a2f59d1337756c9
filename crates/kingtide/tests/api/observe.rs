//! What an engine tells of itself: histograms, events, the perf context, slow operations, and the file `LOG`.

use kingtide::perf::{self, Level};
use kingtide::vfs::{Fault, FaultFs, Fs, MemFs, Op, Rule, Survival};
use kingtide::{
    ColumnFamily, Db, ErrorKind, Event, EventListener, Histogram, Isolation, LogLevel, Options, TransactionOptions,
    WriteBatch, verify,
};
use kingtide_base::rng::Rng;
use kingtide_testkit::{RaiseOnDrop, Scratch};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

fn in_memory() -> Options {
    Options::new().fs(MemFs::shared()).manual_jobs(true).seed(1)
}

/// Remembers what it hears.
#[derive(Default)]
struct Heard(Mutex<Vec<Event>>);

impl Heard {
    fn names(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().iter().map(Event::name).collect()
    }

    fn count(&self, name: &str) -> usize {
        self.names().iter().filter(|n| **n == name).count()
    }
}

impl EventListener for Heard {
    fn event(&self, event: &Event) {
        self.0.lock().unwrap().push(event.clone());
    }
}

#[test]
fn every_kind_of_operation_is_measured() {
    let db = Db::open("db", in_memory()).unwrap();
    let family = db.default_family();
    let batch_of_100 = |from: u32| {
        (from..from + 100).for_each(|i| {
            db.put(i.to_be_bytes(), [7; 50]).unwrap();
        })
    };
    batch_of_100(0);
    db.flush().unwrap();
    batch_of_100(50);
    db.flush().unwrap();
    db.compact().unwrap();
    db.get(1u32.to_be_bytes()).unwrap();
    db.get(b"absent").unwrap();
    kingtide::Read::multi_get(&db, &[[0; 4], [1; 4]]);
    let mut cursor = family.cursor(..).unwrap();
    cursor.seek_to_first();
    (0..130).for_each(|_| cursor.next());
    let mut txn = db.begin(Isolation::Snapshot).unwrap();
    txn.put(family, b"k", b"v").unwrap();
    txn.commit().unwrap();
    db.sync().unwrap();
    let count = |h| db.histogram(h).count();
    let expected = [
        (Histogram::Get, 2),
        (Histogram::MultiGet, 1),
        (Histogram::Seek, 1),
        (Histogram::Write, 200),
        (Histogram::Commit, 1),
        (Histogram::Flush, 2),
    ];
    expected.iter().for_each(|(h, n)| assert_eq!(count(*h), *n, "{h:?}"));
    // Of 130 steps two or three are timed, each of which stands for 64; seven more cannot be none.
    assert!(matches!(count(Histogram::Next), 64 | 128 | 192), "{}", count(Histogram::Next));
    assert!(count(Histogram::Compaction) >= 1 && count(Histogram::Fsync) >= 1);

    db.set_option("histograms", "false").unwrap();
    db.get(b"k").unwrap();
    assert_eq!(count(Histogram::Get), 2, "it is off");
    let text = db.prometheus();
    assert!(text.contains("kingtide_get_seconds_count 2\n"), "{text}");
    let report = db.stats().to_string();
    assert!(report.lines().any(|l| l.starts_with("get ") && l.contains("count 2, mean ")), "{report}");
}

#[test]
fn families_have_histograms_of_their_own() {
    let db = Db::open("db", in_memory().family_histograms(2)).unwrap();
    let [one, two, three] = ["one", "two", "three"].map(|name| db.create_family(name, Default::default()).unwrap());
    for (family, times) in [(&one, 1), (&two, 20), (&three, 3)] {
        (0..times).for_each(|_| drop(family.get("k").unwrap()));
    }
    (0..5).for_each(|_| {
        one.put("k", "v").unwrap();
    });
    kingtide::Read::multi_get(&one, &["k", "l"]);
    let mut cursor = one.cursor(..).unwrap();
    (0..4).for_each(|_| cursor.seek_to_first());
    (0..300).for_each(|_| {
        cursor.next();
        cursor.seek_to_first();
    });
    let mut batch = WriteBatch::new();
    batch.put(&one, b"k", b"v").unwrap();
    db.write_with(&mut batch, &Default::default()).unwrap();
    batch.put(&two, b"k", b"v").unwrap();
    db.write(batch).unwrap();
    one.flush().unwrap();
    one.compact().unwrap();
    let count = |family: &ColumnFamily, h| family.histogram(h).count();
    for (h, n) in [(Histogram::Get, 1), (Histogram::Write, 6), (Histogram::MultiGet, 1), (Histogram::Flush, 1)] {
        assert_eq!(count(&one, h), n, "{h:?}");
    }
    assert!(count(&one, Histogram::Seek) >= 256 && count(&one, Histogram::Next) > 0);
    assert_eq!(count(&one, Histogram::Compaction), db.histogram(Histogram::Compaction).count());
    assert_eq!((count(&two, Histogram::Get), count(&two, Histogram::Write)), (20, 0));
    assert_eq!(one.histogram(Histogram::Commit), Default::default(), "the database alone has it");
    assert_eq!(count(&three, Histogram::Get), 0, "two families were used before it");
    let of_db = || [Histogram::Get, Histogram::Write].map(|h| db.histogram(h));
    assert_eq!(of_db().map(|h| h.count()), [24, 7], "those of the database cover all of them");

    let (report, text) = (db.stats(), db.prometheus());
    let named = |name: &str| report.families.iter().find(|f| f.name == name).unwrap();
    assert!(named("two").histograms.iter().any(|(name, h)| *name == "get" && h.count() == 20));
    assert!(named("three").histograms.is_empty());
    assert!(report.to_string().contains("\n  get        count 20, mean "), "{report}");
    assert!(text.contains("kingtide_family_get_seconds_bucket{family=\"two\",le=\"+Inf\"} 20\n"), "{text}");
    assert!(!text.contains("family=\"three\""));

    // A family that is gone takes nothing along, and its place is free for one that was not used yet.
    let before = of_db();
    db.drop_family("two").unwrap();
    drop(two);
    assert!(of_db() == before);
    let four = db.create_family("four", Default::default()).unwrap();
    four.get("k").unwrap();
    assert_eq!((count(&four, Histogram::Get), count(&three, Histogram::Get)), (1, 0));
    db.set_option("histograms", "false").unwrap();
    four.get("k").unwrap();
    assert_eq!(count(&four, Histogram::Get), 1, "it is off");
}

#[test]
fn histograms_of_families_miss_nothing_while_families_come_and_go() {
    let db = Db::open("db", in_memory().family_histograms(3)).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        let end = RaiseOnDrop(&done);
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                let db = &db;
                s.spawn(move || {
                    for round in 0..30 {
                        let name = format!("{worker}-{round}");
                        let family = db.create_family(&name, Default::default()).unwrap();
                        (0..10).for_each(|_| {
                            family.put("k", "v").unwrap();
                        });
                        db.drop_family(&name).unwrap();
                    }
                })
            })
            .collect();
        s.spawn(|| {
            let mut last = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let now = db.histogram(Histogram::Write).count();
                assert!(now >= last, "{now} after {last}");
                last = now;
            }
        });
        workers.into_iter().for_each(|w| w.join().unwrap());
        drop(end);
    });
    assert_eq!(db.histogram(Histogram::Write).count(), 1200);
}

/// Each sample belongs to the family of the last TYPE line, names and values have the right form, and histograms are complete.
#[test]
fn the_prometheus_text_has_the_right_form() {
    let db = Db::open("db", in_memory()).unwrap();
    db.put(b"k", b"v").unwrap();
    let odd = db.create_family("a \"b\" \\c\nd", Default::default()).unwrap();
    odd.put(b"k", b"v").unwrap();
    let text = db.prometheus();
    assert!(text.ends_with('\n'));
    assert!(text.contains(r#"kingtide_family_write_seconds_count{family="a \"b\" \\c\nd"} 1"#), "{text}");
    let (mut name, mut kind, mut last) = (String::new(), String::new(), 0);
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            name = rest.split(' ').next().unwrap().to_owned();
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (of, is) = rest.split_once(' ').unwrap();
            assert_eq!(of, name, "TYPE follows HELP");
            assert!(["counter", "gauge", "histogram"].contains(&is), "{line}");
            (kind, last) = (is.to_owned(), 0);
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
            let rest = sample.strip_prefix(name.as_str()).unwrap_or_else(|| panic!("{line} is not of {name}"));
            // A family's label does not change what its lines must be.
            let (before, label) = rest.split_once("{family=\"").unwrap_or((rest, ""));
            assert_eq!(label.is_empty(), !name.starts_with("kingtide_family_"), "{line}");
            let bucket = label.rsplit_once("\",").map(|(_, le)| format!("_bucket{{{le}"));
            if rest.contains("le=\"0.000001023\"") {
                last = 0;
            }
            match bucket.as_deref().unwrap_or(before) {
                "" => assert_ne!(kind, "histogram"),
                "_sum" => assert_eq!(kind, "histogram"),
                "_count" => assert_eq!(value.parse::<u64>().unwrap(), last, "the last bucket has all"),
                bucket => {
                    let bound = bucket.strip_prefix("_bucket{le=\"").and_then(|b| b.strip_suffix("\"}")).unwrap();
                    assert!(bound == "+Inf" || bound.parse::<f64>().is_ok(), "{line}");
                    let n: u64 = value.parse().unwrap();
                    assert!(n >= last, "buckets are cumulative: {line}");
                    last = n;
                }
            }
        }
    }
}

#[test]
fn a_listener_hears_what_happens_in_order() {
    let heard = Arc::new(Heard::default());
    let db = Db::open("db", in_memory().listener(heard.clone())).unwrap();
    assert_eq!(heard.names(), ["recovered", "opened"]);
    for round in 0..2 {
        (0..100u32).for_each(|i| {
            db.put(i.to_be_bytes(), [round; 600]).unwrap();
        });
        db.flush().unwrap();
    }
    db.compact().unwrap();
    db.create_family("other", Default::default()).unwrap();
    db.drop_family("other").unwrap();
    db.set_option("lock_timeout_ms", "5").unwrap();
    let (mut one, mut two) = (db.begin(Isolation::Snapshot).unwrap(), db.begin(Isolation::Snapshot).unwrap());
    for txn in [&mut one, &mut two] {
        txn.put(db.default_family(), b"k", b"v").unwrap();
    }
    one.commit().unwrap();
    assert_eq!(two.commit().unwrap_err().kind(), ErrorKind::Conflict);
    drop((one, two));
    db.close().unwrap();

    let names = heard.names();
    let at = |name: &str| names.iter().position(|n| *n == name).unwrap_or_else(|| panic!("no {name} in {names:?}"));
    let order =
        ["flush_begun", "flush_ended", "compaction_begun", "compaction_ended", "family_created", "family_dropped"];
    assert!(order.map(at).is_sorted(), "{names:?}");
    assert_eq!((heard.count("flush_begun"), heard.count("flush_ended")), (3, 3), "the close flushes too: {names:?}");
    assert!(at("option_changed") < at("write_conflict") && names.last() == Some(&"closed"), "{names:?}");
    assert!(heard.count("file_created") >= 3 && heard.count("file_deleted") >= 2, "{names:?}");
    let events = heard.0.lock().unwrap();
    let flush = events.iter().find_map(|e| if let Event::FlushEnded(i) = e { Some(i) } else { None }).unwrap();
    assert!(
        flush.family == "default" && flush.memtable_bytes > 60_000 && flush.written_bytes > 0 && flush.error.is_none()
    );
    let mut compactions = events.iter().filter_map(|e| if let Event::CompactionEnded(i) = e { Some(i) } else { None });
    let compacted = compactions.find(|i| i.reason != "TrivialMove").unwrap();
    assert!(compacted.input_files == 2 && compacted.output_files >= 1 && compacted.input_bytes > 0, "{compacted:?}");
}

#[test]
fn a_failed_flush_is_told_and_its_repetition_too() {
    let (heard, faults) = (Arc::new(Heard::default()), Arc::new(FaultFs::new(MemFs::shared(), 1)));
    let fs: Arc<dyn Fs> = faults.clone();
    let db = Db::open("db", in_memory().fs(fs).listener(heard.clone())).unwrap();
    db.put(b"k", b"v").unwrap();
    faults.add(Rule::new(Op::Write, Fault::Eio).path(".klog"));
    db.flush().unwrap(); // tries again
    let events = heard.0.lock().unwrap().clone();
    let failed = events.iter().position(|e| matches!(e, Event::FlushEnded(i) if i.error.is_some())).unwrap();
    assert!(matches!(&events[failed + 1], Event::BackgroundError(e) if e.contains(".klog")), "{events:?}");
    assert!(events[failed..].iter().any(|e| matches!(e, Event::FlushEnded(i) if i.error.is_none())), "{events:?}");
}

/// A listener that uses the database whose events it receives, tries what would wait for its own thread, and panics.
struct Busy(OnceLock<Db>, Mutex<Vec<Option<ErrorKind>>>);

impl EventListener for Busy {
    fn event(&self, event: &Event) {
        let Some(db) = self.0.get() else { return };
        if matches!(event, Event::FlushBegun(_) | Event::FlushEnded(_)) {
            db.put(b"from the listener", b"v").unwrap();
            assert!(db.get(b"from the listener").unwrap().is_some());
            let flushes = [db.flush(), db.default_family().flush()];
            let waits = [db.wait_for_background(), db.compact(), db.default_family().compact_range(..), db.close()];
            let kinds = flushes.into_iter().chain(waits).map(|w| w.err().map(|e| e.kind()));
            self.1.lock().unwrap().extend(kinds);
            panic!("a listener panics");
        }
    }
}

#[test]
fn a_listener_may_use_the_database_and_its_panic_harms_nothing() {
    let busy = Arc::new(Busy(OnceLock::new(), Mutex::default()));
    let options = Options::new().fs(MemFs::shared()).listener(busy.clone());
    let db = Db::open("db", options).unwrap(); // with background threads
    assert!(busy.0.set(db.clone()).is_ok());
    db.put(b"k", b"v").unwrap();
    db.flush().unwrap();
    db.wait_for_background().unwrap();
    // The thread that delivers the event may still be in the listener when this thread learns that the flush is done.
    while db.stats().get("listener_panics") < Some(2) {
        std::thread::yield_now();
    }
    assert_eq!(*busy.1.lock().unwrap(), [Some(ErrorKind::InvalidArgument); 12], "waits for its thread are refused");
    assert!(db.get(b"from the listener").unwrap().is_some());
    db.close().unwrap();
}

/// A listener that drops the last handle of its database when it hears of a flush.
#[derive(Default)]
struct LastHandle(Mutex<Option<Db>>);

impl EventListener for LastHandle {
    fn event(&self, event: &Event) {
        if matches!(event, Event::FlushEnded(_)) {
            drop(self.0.lock().unwrap().take());
        }
    }
}

#[test]
fn a_listener_that_drops_the_last_handle_closes_the_database() {
    for manual in [false, true] {
        let (fs, listener) = (MemFs::shared(), Arc::new(LastHandle::default()));
        let options = || Options::new().fs(fs.clone()).manual_jobs(manual);
        let db = Db::open("db", options().listener(listener.clone())).unwrap();
        let (family, other) = (db.default_family().clone(), db.create_family("other", Default::default()).unwrap());
        family.put("flushed", "1").unwrap();
        let mut batch = WriteBatch::new();
        batch.put(&other, b"unlogged", b"2").unwrap();
        db.write_with(batch, &kingtide::WriteOptions::new().durability(kingtide::Durability::None)).unwrap();
        *listener.0.lock().unwrap() = Some(db);
        let _ = family.flush(); // of which the close may come first
        let db = loop {
            match Db::open("db", options()) {
                Err(e) if e.kind() == ErrorKind::Locked => std::thread::yield_now(),
                opened => break opened.unwrap(),
            }
        };
        assert!(listener.0.lock().unwrap().is_none());
        assert_eq!(family.get("flushed").unwrap_err().kind(), ErrorKind::Closed);
        assert!(db.get("flushed").unwrap().is_some() && db.family("other").unwrap().get("unlogged").unwrap().is_some());
    }
}

#[test]
fn the_perf_context_counts_what_an_operation_touches() {
    let db = Db::open("db", in_memory()).unwrap();
    db.put(b"small", b"v").unwrap();
    db.put(b"large", [7; 5000]).unwrap();
    perf::start(Level::Counts);
    db.get(b"small").unwrap();
    let memory = perf::take();
    assert_eq!((memory.memtables_searched, memory.tables_searched, memory.blocks_read), (1, 0, 0), "{memory}");
    db.put(b"other", b"v").unwrap();
    let put = perf::take();
    assert!(put.log_bytes > 0 && put.log_bytes < 50 && put.log_ns > 0, "{put}");
    perf::stop();
    db.flush().unwrap();

    perf::start(Level::Times);
    db.get(b"small").unwrap();
    let cold = perf::take();
    assert_eq!((cold.tables_searched, cold.cache_misses, cold.blocks_read), (1, 1, 1), "{cold}");
    assert!(cold.block_bytes > 0 && cold.value_log_reads == 0, "{cold}");
    assert!(cold.table_search_ns >= cold.block_read_ns, "{cold}");
    db.get(b"large").unwrap();
    let large = perf::take();
    assert_eq!(large.value_log_reads, 1, "{large}");
    assert!(large.decompress_ns > 0 && large.decompress_ns <= large.value_log_ns, "{large}");
    (0..4).for_each(|_| _ = db.get(b"small").unwrap());
    let warm = perf::take();
    assert_eq!((warm.tables_searched, warm.blocks_read), (4, 0), "the thread has the block still: {warm}");
    db.get(b"l-absent").unwrap(); // between the keys: a filter decides
    let absent = perf::take();
    assert_eq!((absent.filter_skips, absent.blocks_read), (1, 0), "{absent}");
    perf::stop();
    db.get(b"small").unwrap();
    assert_eq!(perf::take(), Default::default(), "it is off");
}

#[test]
fn a_slow_commit_is_recorded_with_the_stage_that_made_it_slow() {
    const SLOW: Duration = Duration::from_millis(30);
    let (fs, heard) = (MemFs::new(), Arc::new(Heard::default()));
    let options = in_memory().fs(Arc::new(fs.clone())).listener(heard.clone());
    let db = Db::open("db", options).unwrap();
    db.set_option("durability", "power").unwrap();
    db.put(b"before", b"v").unwrap();
    assert!(db.slow_operations().is_empty(), "nothing is slow unless a threshold is set");
    db.set_option("slow_operation_threshold_us", "20000").unwrap();
    fs.on_write(Some(Box::new(|b| {
        if b.op == kingtide::vfs::WriteOp::Sync {
            std::thread::sleep(SLOW);
        }
    })));
    db.put(b"the key", b"v").unwrap();
    fs.on_write(None);
    let slow = db.slow_operations();
    let put = slow.iter().find(|s| s.operation == Histogram::Write).expect("the put");
    assert!(put.ns >= 20_000_000 && put.stages.sync_ns >= SLOW.as_nanos() as u64, "{put}");
    assert_eq!((put.subject.key_len, put.subject.keys), (7, 1));
    assert!(!put.to_string().contains("the key"), "keys are the user's");
    db.run_one_job().unwrap();
    assert!(heard.count("slow_operation") >= 1 && db.stats().get("slow_operations") >= Some(1));
}

#[test]
fn a_slow_commit_says_how_long_each_of_its_stages_took() {
    let mut options = in_memory();
    options.db.slow_operation_threshold = Some(Duration::from_micros(1));
    options.db.wal_segment_size = 1 << 20;
    options.family.memtable_size = 1 << 20;
    let db = Db::open("db", options).unwrap();
    let (mut switched, mut sealed, mut rng, mut value) = (0, 0, Rng::new(1), vec![0; 10_000]);
    for i in 0..300u32 {
        rng.fill(&mut value);
        db.put(i.to_be_bytes(), &value).unwrap();
        let slow = db.slow_operations();
        let Some(put) = slow.last() else { continue };
        let s = &put.stages;
        assert!(s.turn_ns + s.log_ns + s.memtable_insert_ns + s.seal_ns <= put.ns + 1000, "{put}");
        assert!(i == 0 || s.log_switch_ns <= s.log_ns, "{put}"); // the first commit begins the log before its turn
        switched += u32::from(s.log_switch_ns > 0);
        sealed += u32::from(s.seal_ns > 0);
        while db.run_one_job().unwrap() {}
    }
    assert!(switched > 0 && sealed > 0, "{switched} switches of the log segment, {sealed} sealed memtables");
}

#[test]
fn a_write_that_waits_for_a_lock_says_so() {
    let mut options = in_memory();
    options.db.slow_operation_threshold = Some(Duration::from_millis(10));
    options.db.lock_timeout = Duration::from_millis(20);
    let db = Db::open("db", options).unwrap();
    let locking = TransactionOptions::default().locking(true);
    let mut txn = db.begin_with(locking).unwrap();
    txn.put(db.default_family(), b"k", b"v").unwrap();
    assert_eq!(db.put(b"k", b"w").unwrap_err().kind(), ErrorKind::LockTimeout);
    // On a busy machine what came before may be slow, too.
    let slow = db.slow_operations();
    let put = slow.iter().find(|s| s.stages.lock_wait_ns > 0).expect("the put");
    assert!(put.stages.lock_wait_ns >= 20_000_000, "{put}");
    assert!(db.histogram(Histogram::LockWait).max() >= Duration::from_millis(20));
}

#[test]
fn the_log_file_tells_the_life_of_a_database() {
    let dir = Scratch::new("observe-log");
    let at = |name: &str| dir.0.join("db").join(name);
    let read = || std::fs::read_to_string(at("LOG")).unwrap_or_default();
    let mut options = Options::new().manual_jobs(true);
    options.db.lock_timeout = Duration::from_millis(77);
    let db = Db::open(at(""), options.clone()).unwrap();
    db.put(b"secret", b"v").unwrap();
    db.flush().unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(at("LOG")).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let checkpoint = dir.0.join("checkpoint");
    db.checkpoint(&checkpoint).unwrap();
    assert!(!checkpoint.join("LOG").exists(), "a copy has a life of its own");
    db.close().unwrap();
    let first = read();
    for part in ["recovered:", "with lock_timeout_ms=77", "flush_begun", "flush_ended", "closed:"] {
        assert!(first.contains(part), "{part} in\n{first}");
    }
    assert!(!first.contains("secret") && first.lines().all(|l| l.as_bytes()[4] == b'-' && l.contains("Z ")), "{first}");

    let reader = Db::open_read_only(at(""), Options::default()).unwrap();
    drop(reader);
    assert_eq!(read(), first, "a reader writes nothing");
    let report = verify(at(""), &Options::default()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    options.db.log_level = LogLevel::Off;
    Db::open(at(""), options.clone()).unwrap().close().unwrap();
    assert_eq!(read(), first, "it is off");
    options.db.log_level = LogLevel::Info;
    Db::open(at(""), options).unwrap().close().unwrap();
    assert!(read().starts_with(&first) && read().len() > first.len(), "another open appends");
}

#[test]
fn the_level_of_the_log_file_changes_while_the_database_runs() {
    let dir = Scratch::new("observe-level");
    let at = |name: &str| dir.0.join("db").join(name);
    let read = || std::fs::read_to_string(at("LOG")).unwrap_or_default();
    let mut options = Options::new().manual_jobs(true);
    options.db.log_level = LogLevel::Off;
    let db = Db::open(at(""), options).unwrap();
    let flush = || {
        db.put(b"k", b"v").unwrap();
        db.flush().unwrap();
        read()
    };
    assert_eq!(flush(), "", "it is off");
    db.set_option("log_level", "info").unwrap();
    let info = flush();
    assert!(info.contains("option_changed: option log_level set to info") && info.contains("flush_ended"), "{info}");
    assert!(!info.contains("file_created"), "{info}");
    db.set_option("log_level", "debug").unwrap();
    assert!(flush().contains("file_created"), "{}", read());
    db.set_option("log_level", "error").unwrap();
    let before = read();
    assert_eq!(flush(), before);
    db.close().unwrap();
}

#[test]
fn an_open_that_fails_says_why_in_the_log_file() {
    let dir = Scratch::new("observe-failed-open");
    let heard = Arc::new(Heard::default());
    let options = Options::new().manual_jobs(true).listener(heard.clone());
    let at = |name: &str| dir.0.join("db").join(name);
    let read = || std::fs::read_to_string(at("LOG")).unwrap_or_default();
    let db = Db::open(at(""), options.clone()).unwrap();
    let before = read();
    assert_eq!(Db::open(at(""), options.clone()).unwrap_err().kind(), ErrorKind::Locked);
    assert_eq!(read(), before, "the file is its owner's");
    db.close().unwrap();
    drop(db);
    std::fs::write(at("CURRENT"), b"damaged").unwrap();
    let e = Db::open(at(""), options.clone()).unwrap_err();
    let log = read();
    let last = log.lines().last().unwrap();
    assert!(last.contains(" error open_failed: ") && last.ends_with(&e.to_string().replace('\n', " ")), "{last}, {e}");
    assert_eq!(heard.names().last(), Some(&"open_failed"));
    let lines = log.lines().count();
    assert!(Db::open(at(""), options).is_err(), "nothing keeps the lock");
    assert_eq!(read().lines().count(), lines + 1);
}

#[test]
fn recovery_tells_how_much_it_read_and_whether_the_log_was_torn() {
    let recovery = |disk: &MemFs| {
        let heard = Arc::new(Heard::default());
        let options = in_memory().fs(Arc::new(disk.clone())).listener(heard.clone());
        drop(Db::open("db", options).unwrap());
        let events = heard.0.lock().unwrap();
        let info = events.iter().find_map(|e| if let Event::Recovered(i) = e { Some(i.clone()) } else { None });
        (info.unwrap(), events[0].to_string(), events[0].level())
    };
    let fs = MemFs::new();
    let db = Db::open("db", in_memory().fs(Arc::new(fs.clone()))).unwrap();
    (0..10u32).for_each(|i| {
        db.put(i.to_be_bytes(), [7; 1000]).unwrap();
    });
    let killed = fs.kill_clone();
    let (info, text, level) = recovery(&killed);
    assert_eq!((info.log_records, info.torn_bytes, info.closed, level), (10, None, false, LogLevel::Info), "{text}");
    assert!(info.log_bytes > 10_000 && info.log_bytes < 12_000, "{text}");

    let mut rng = Rng::new(1);
    let cut = |_| recovery(&fs.crash_clone(Survival::ALL[rng.below(4) as usize], &mut rng));
    let torn: Vec<_> = (0..40).map(cut).filter(|(info, ..)| info.torn_bytes.is_some()).collect();
    assert!(torn.len() > 2, "{} of 40 power cuts tore a record", torn.len());
    for (info, text, level) in torn {
        assert!(info.torn_bytes > Some(0) && info.log_records < 10 && level == LogLevel::Warn, "{text}");
        assert!(text.ends_with("bytes of incomplete records at its end were discarded"), "{text}");
    }
}

/// The log of a closed database still has its last segment, but all operations in it are in tables.
#[test]
fn records_whose_operations_are_in_tables_are_not_counted_as_replayed() {
    let fs = MemFs::new();
    let open = |fs: &MemFs| Db::open("db", in_memory().fs(Arc::new(fs.clone()))).unwrap();
    let replayed = |fs: &MemFs| open(fs).stats().get("recovered_records");
    let db = open(&fs);
    let family = db.create_family("other", Default::default()).unwrap();
    for i in 0..10u32 {
        db.put(i.to_be_bytes(), "default").unwrap();
        family.put(i.to_be_bytes(), "other").unwrap();
    }
    assert_eq!(replayed(&fs.kill_clone()), Some(20));
    family.flush().unwrap();
    assert_eq!(replayed(&fs.kill_clone()), Some(10));
    let mut txn = db.begin(Isolation::Snapshot).unwrap();
    txn.put(db.default_family(), b"in doubt", b"").unwrap();
    txn.prepare(b"x").unwrap();
    drop(txn);
    db.close().unwrap();
    drop((db, family));
    assert_eq!(replayed(&fs), Some(1), "the transaction in doubt");
    let db = open(&fs);
    db.commit_prepared(b"x").unwrap();
    db.close().unwrap();
    drop(db);
    assert_eq!(replayed(&fs), Some(0));
}

#[test]
fn a_full_disk_stops_the_log_file_and_nothing_else() {
    let faults = Arc::new(FaultFs::new(MemFs::shared(), 1));
    let fs: Arc<dyn Fs> = faults.clone();
    let mut options = in_memory().fs(fs);
    options.tuning.info_log = true;
    faults.add(Rule::new(Op::Write, Fault::Enospc).path("LOG").sticky());
    let db = Db::open("db", options).unwrap();
    db.put(b"k", b"v").unwrap();
    db.flush().unwrap();
    assert!(db.stats().get("log_lines_dropped") >= Some(3));
    assert_eq!(db.stats().background_error, None);
    db.close().unwrap();
}

#[test]
fn a_running_database_publishes_its_statistics_if_it_is_asked_to() {
    let (fs, clock) = (MemFs::shared(), kingtide::ManualClock::at_unix_ms(1));
    let db = Db::open("db", in_memory().fs(fs.clone()).clock(clock.clone())).unwrap();
    let published = || fs.open("db/STATS".as_ref(), kingtide::vfs::OpenMode::Read).ok().map(|f| f.len().unwrap());
    db.run_one_job().unwrap();
    assert_eq!(published(), None, "not unless it is asked to");
    db.set_option("stats_interval_ms", "1000").unwrap();
    while db.run_one_job().unwrap() {}
    let first = published().expect("the file");
    assert!(first > 10_000);
    assert!(db.verify().unwrap().problems.is_empty());
    (0..2_000_000u32).step_by(20_000).for_each(|i| {
        db.put(i.to_be_bytes(), b"v").unwrap();
    });
    while db.run_one_job().unwrap() {}
    assert_eq!(published(), Some(first), "it is not time yet");
    clock.advance(Duration::from_secs(2));
    while db.run_one_job().unwrap() {}
    assert!(published() > Some(first));
    db.close().unwrap();
    assert_eq!(published(), None, "a closed database has none");
}
