use super::*;
use crate::pin::Pin;
use clap::Parser;
use std::path::PathBuf;

#[derive(Parser)]
#[command(no_binary_name = true)]
struct Line {
    #[command(flatten)]
    args: lua::Args,
}

struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> File {
        let path = std::env::temp_dir().join(format!("keybench-config-{}-{name}.cnf", std::process::id()));
        std::fs::write(&path, text).unwrap();
        File(path)
    }

    /// The arguments of a run with this file and what else the command line says.
    fn args(&self, line: &str) -> Result<lua::Args> {
        let mut raw: Vec<OsString> = vec!["--config".into(), self.0.clone().into()];
        raw.extend(line.split_whitespace().map(OsString::from));
        let args = Line::try_parse_from(&raw).map_err(|e| Error::usage(e.to_string()))?.args;
        complete(args, &raw)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_file_is_flags_and_the_command_line_goes_before_it() {
    let file = File::new(
        "flags",
        "backend = rocksdb, kingtide\nthreads = 1,8\nseed_once = 1\nsecs = 60\nitems=500000\n\
         workload = mixed\nworkload = cart\nverify = 0\n[kingtide]\nl0_trigger = 7\n\
         [rocksdb]\nblock_based_table_factory = {block_cache=64M;filter_policy=bloomfilter:10:false}\n",
    );
    let args = file.args("").unwrap();
    assert_eq!((args.threads.as_slice(), args.secs, args.items), (&[1, 8][..], Some(60.0), 500_000));
    assert!(args.seed_once && !args.verify);
    assert_eq!(args.workloads, ["mixed", "cart"]);
    assert_eq!(
        args.engine_flags.opts,
        [
            "kingtide.l0_trigger=7",
            "rocksdb.block_based_table_factory={block_cache=64M;filter_policy=bloomfilter:10:false}"
        ]
    );
    let args = file
        .args("scan --threads 3 --ops 10 --seed-once=false --opt kingtide.l0_trigger=9 --backend kingtide")
        .unwrap();
    assert_eq!(args.workloads, ["scan"]);
    assert_eq!((args.threads.as_slice(), args.secs, args.ops), (&[3][..], None, Some(10)));
    assert!(!args.seed_once);
    assert_eq!(args.engine_flags.opts, ["kingtide.l0_trigger=7", "kingtide.l0_trigger=9"], "RocksDB takes no part");
    args.plan().unwrap();
}

#[test]
fn mistakes_name_file_line_and_key() {
    for (text, wanted) in [
        ("workload = mixed\nthread = 4\n", ":2: [bench] has no key 'thread', did you mean 'threads'?"),
        ("workload = mixed\nvalue_size = 4Q\n", ":2: value_size: "),
        ("\nthreads = many\n", ":2: threads: "),
        ("verify = maybe\n", ":1: verify: 'maybe' is neither true nor false"),
        ("backend =\n", ":1: backend: has no value"),
        ("[kingtide]\nl0_triger = 3\n", ":2: [kingtide] l0_triger: "),
        ("[kingtide]\nblock_size = 64MX\n", ":2: [kingtide] block_size: "),
        ("[tidesdb]\n\nnothing = 1\n", ":3: [tidesdb] nothing: tidesdb has no option 'nothing'"),
        ("[lmdb]\nmap_sise = 1G\n", ":2: [lmdb] map_sise: lmdb has no option 'map_sise', did you mean 'map_size'?"),
        ("[memory]\nsize = 1\n", ":2: [memory] size: engine memory has no options"),
        ("[bensh]\nthreads = 1\n", ":1: [bensh]: unknown engine 'bensh'"),
        ("\nbackend = rokcsdb\nworkload = mixed\n", ":2: backend: unknown engine 'rokcsdb', did you mean 'rocksdb'"),
        ("threads = 4\nworkload = none.lua\n", ":2: workload: no workload 'none.lua'"),
        ("workload = mixed\nthreads = 1,0\n", ":2: threads: "),
        ("workload = mixed\n\nitems = 0\n", ":3: items: "),
        ("threads = 1\n", "workload = in [bench]"),
    ] {
        let file = File::new("mistakes", text);
        let e = file.args("").unwrap_err();
        assert_eq!(e.exit_code(), 2);
        let message = e.to_string();
        assert!(message.contains(wanted), "{text:?}: {message}");
        assert!(message.contains(&file.0.display().to_string()) || wanted.starts_with("unknown"), "{message}");
    }
}

/// Every key of the file, with a value that it cannot have.
#[test]
fn every_key_refuses_nonsense_with_its_place() {
    let free = ["report_dir", "data_dir", "sweep", "script_hash"];
    let mut refused = 0;
    for key in KEYS.iter().filter(|k| !free.contains(&k.name)) {
        let file = File::new("nonsense", &format!("# first\n[bench]\n{} = no-such-thing\n", key.name));
        let message = file.args("").unwrap_err().to_string();
        let place = format!("{}:3: {}: ", file.0.display(), key.name);
        assert!(message.starts_with(&place), "{}: {message}", key.name);
        refused += 1;
    }
    println!("{refused} keys");
    assert_eq!(refused, KEYS.len() - free.len());
}

#[test]
fn threads_are_pinned_and_counts_have_suffixes() {
    for (key, flags, pin) in [
        ("", "", Pin::No),
        ("pin = 1\n", "", Pin::Each),
        ("pin = 0-0\n", "", Pin::To(vec![0])),
        ("pin = 0-0\n", "--pin=false", Pin::No),
        ("", "--pin", Pin::Each),
    ] {
        let file = File::new("pin", &format!("workload = mixed\nitems = 3K\n{key}"));
        let args = file.args(&format!("--ops 2M {flags}")).unwrap();
        assert_eq!((args.pin, args.items, args.ops), (pin, 3_000, Some(2_000_000)), "{key:?} {flags}");
    }
    let e = File::new("pin", "workload = mixed\npin = 3-1\n").args("").unwrap_err().to_string();
    assert!(e.contains(":2: pin: ") && e.contains("no list of processors"), "{e}");
}

#[test]
fn zeros_that_mean_the_default_and_keys_given_twice() {
    let file =
        File::new("zeros", "workload = mixed\nseed_threads = 0\nops = 0\nsecs = 3\nrepeat = 2\nrepeat = 5\nrate = 0\n");
    let args = file.args("").unwrap();
    assert_eq!((args.seed_threads, args.ops, args.secs, args.rate), (None, None, Some(3.0), None));
    assert_eq!(args.repeat, 2, "the first counts");
}

#[test]
fn figures_are_drawn_unless_they_are_turned_off() {
    for (key, flags, drawn) in [
        ("", "", true),
        ("auto_plot = 1\n", "", true),
        ("auto_plot = 0\n", "", false),
        ("auto_plot = 0\n", "--auto-plot", true),
        ("auto_plot = 1\n", "--auto-plot=false", false),
    ] {
        let args = File::new("plot", &format!("workload = mixed\n{key}")).args(flags).unwrap();
        assert_eq!(args.plan().unwrap().auto_plot, drawn, "{key:?} {flags}");
        let saved = Saved::of(&args).unwrap().to_string();
        assert!(saved.contains(&format!("auto_plot = {}\n", u8::from(drawn))), "{saved}");
    }
}

#[test]
fn options_of_earlier_tidesdb_versions_are_left_out() {
    let file = File::new(
        "tides",
        "backend = tidesdb\nworkload = mixed\n[tidesdb]\ncompression = none\nwrite_buffer_size = 64M\nuse_btree = 1\n",
    );
    assert_eq!(file.args("").unwrap().engine_flags.opts, ["tidesdb.compression=none", "tidesdb.write_buffer_size=64M"]);
}

#[test]
fn what_is_saved_runs_the_same() {
    let line = "mixed valsize --sweep 100,0.5,x --ignore-free-space --seed-threads 3 --backend kingtide,memory --threads 1,2 --batch 1,64 --secs 2.5 --warmup 1 --rate 1000 --speed 2 --seed-once \
                --verify --settle=false --equal --sync --data-dir /data --report-dir /reports --auto-plot=false --report console,tsv:x.tsv --probe system --opt kingtide.l0_trigger=3 \
                --opt kingtide.l0_trigger=4 --isolation serializable --txn-mode locking";
    let args = Line::try_parse_from(line.split_whitespace()).unwrap().args;
    let text = Saved::of(&args).unwrap().to_string();
    for key in KEYS.iter().filter(|k| k.name != "ops") {
        assert!(text.contains(&format!("\n{} = ", key.name)), "{} is not saved: {text}", key.name);
    }
    let file = File::new("saved", &text);
    let again = file.args("").unwrap();
    let show = |a: &lua::Args| {
        let mut a = a.clone();
        a.config = None;
        a.script_hash.clear();
        format!("{a:?}").replace("\"kingtide.l0_trigger=3\", ", "")
    };
    assert_eq!(show(&again), show(&args));
    assert_eq!(Saved::of(&again).unwrap().to_string(), text);
    let odd = Line::try_parse_from(["mixed", "--data-dir", "a #b"]).unwrap().args;
    assert!(Saved::of(&odd).is_err(), "would be read back as something else");
}

#[test]
fn the_samples_are_right() {
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/samples")).unwrap() {
        let path = entry.unwrap().path();
        let raw: Vec<OsString> = vec!["--config".into(), path.clone().into()];
        let args = complete(Line::try_parse_from(&raw).unwrap().args, &raw).unwrap();
        let plan = args.plan().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(plan.groups.len() == 4 && plan.engines.len() == 3);
    }
}
