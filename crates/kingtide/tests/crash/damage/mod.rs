//! Damaged, missing and exchanged files of every kind: opening or reading gives an error that names the file and the
//! place in it, or the right data. Never a panic, a wrong value, a silently missing key, or an allocation beyond what
//! the files hold; and what lies in undamaged files stays readable. Verification reports whatever reads trip over, and
//! repair saves the rest and tells what is lost.
//!
//! The bodies run in processes of their own under `ulimit -v`, so that a length field that was believed ends them.
//! `KINGTIDE_FULL=1` flips 200,000 bits (or `KINGTIDE_FLIPS`) and cuts every file at every length (or at the first
//! `KINGTIDE_CUTS`). The seed is that of the day, or `KINGTIDE_SEED`.

mod anatomy;
mod backups;
mod check;
mod files;
mod harm;
mod online;
mod sample;

use check::{Extra, Found, Tally};
use harm::{FILE_KINDS, HOWS, Victim, victims};
use kingtide_base::rng::Rng;
use kingtide_testkit::number;
use sample::{KINDS, Sample, full};
use std::collections::BTreeMap;

/// The same for a day; printed, so that a failure can be repeated with `KINGTIDE_SEED`.
pub fn seed(test: &str) -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    let seed = number("KINGTIDE_SEED").unwrap_or(now.map_or(0, |d| d.as_secs() / 86_400));
    println!("{test}: KINGTIDE_SEED={seed}");
    seed
}

/// How much is done to the files of one kind of one sample.
struct Amount {
    flips: u64,
    cuts: u64,
    others: u64,
}

fn amount() -> Amount {
    if !full() {
        return Amount { flips: 40, cuts: 15, others: 8 };
    }
    // Of the twelve samples four have no log, and three no value logs.
    let parts = (KINDS.len() * 3 * FILE_KINDS.len()) as u64 - 4 - 3;
    let flips = number("KINGTIDE_FLIPS").unwrap_or(200_000).div_ceil(parts);
    Amount { flips, cuts: number("KINGTIDE_CUTS").unwrap_or(u64::MAX), others: 100 }
}

/// Files of one kind of one sample.
fn damage_kind(sample: &Sample, all: &[Victim], kind: &'static str, rng: &mut Rng, tally: &mut Tally) {
    let of_kind: Vec<&Victim> = all.iter().filter(|v| v.kind == kind).collect();
    let Amount { flips, cuts, others } = amount();
    let pick = |rng: &mut Rng| of_kind[rng.below(of_kind.len() as u64) as usize];
    let extra = |rng: &mut Rng, every: u64| {
        let read_only = rng.one_in(8);
        Extra { read_only, verify: rng.one_in(every), repair: rng.one_in(every * 4) }
    };
    for _ in 0..flips {
        let victim = pick(rng);
        let harm = victim.flip(rng);
        sample.examine(victim, &harm, extra(rng, 6), tally);
    }
    for how in HOWS {
        for _ in 0..others {
            let victim = pick(rng);
            if let Some(harm) = victim.harmed(how, all, sample, rng) {
                sample.examine(victim, &harm, extra(rng, 2), tally);
            }
        }
    }
    if kind == "MANIFEST" {
        // Between two records it seems to be whole.
        let repair = Extra { verify: true, repair: true, ..Extra::default() };
        let manifest = of_kind[0];
        manifest.parts.iter().for_each(|p| sample.examine(manifest, &manifest.cut(p.place.start), repair, tally));
    }
    // Every length of every file, or some of one.
    let shortest = of_kind.iter().min_by_key(|v| v.used()).copied();
    let to_cut = if full() { of_kind } else { shortest.into_iter().collect() };
    for victim in to_cut {
        let lengths = (victim.used() + 64).min(victim.bytes.len());
        for i in 0..cuts.min(lengths as u64) {
            let len = if full() { i } else { rng.below(lengths as u64) };
            sample.examine(victim, &victim.cut(len as usize), extra(rng, 10), tally);
        }
    }
}

fn damage_every_kind(kind: usize) {
    let mut tally = Tally::new();
    let seed = seed(KINDS[kind].name);
    let kind_of = &KINDS[kind];
    let samples = [Sample::new(kind_of, false), Sample::new(kind_of, true), Sample::checkpointed(kind_of)];
    for (n, sample) in (0u64..).zip(&samples) {
        let mut rng = Rng::new(seed ^ (kind as u64) << 32 ^ n << 40);
        let all = victims(sample);
        for file in FILE_KINDS {
            if all.iter().any(|v| v.kind == file) {
                damage_kind(sample, &all, file, &mut rng, &mut tally);
            }
        }
    }
    let mut by_file: BTreeMap<&str, Found> = BTreeMap::new();
    for ((file, part, how), found) in &tally {
        println!("{:6} {file:9} {part:16} {how:28} {found:?}", KINDS[kind].name);
        by_file.entry(file).or_default().add(found);
    }
    for (file, found) in by_file {
        println!("{:6} {file}: {found:?}", KINDS[kind].name);
        assert!(found.refused + found.read_errors > 0, "damage of {file} is not noticed");
    }
    let flips: u64 = tally.iter().filter(|((.., how), _)| *how == "flipped bit").map(|(_, f)| f.cases).sum();
    let cases: u64 = tally.values().map(|f| f.cases).sum();
    println!("{}: {flips} flipped bits, {} cases in all", KINDS[kind].name, cases);
}

// Each body in a process of its own whose address space is limited.

fn limited(body: &str) {
    let exe = std::env::current_exe().unwrap();
    let args = ["--exact", "--ignored", "--nocapture", "--test-threads=1"];
    let mut run = match cfg!(unix) && !kingtide_testkit::sanitized() {
        true => std::process::Command::new("sh"),
        false => std::process::Command::new(&exe),
    };
    if run.get_program() == "sh" {
        run.args(["-c", "ulimit -v 1500000; exec \"$0\" \"$@\""]).arg(exe);
    }
    let run = run.arg(body).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    println!("{text}");
    assert!(run.status.success() && text.contains("1 passed"), "{body}: {}", String::from_utf8_lossy(&run.stderr));
}

macro_rules! in_a_process_of_its_own {
    ($($body:ident, $test:ident: $run:expr;)*) => { $(
        #[test]
        #[ignore = "run by the test of the same purpose, under limits"]
        fn $body() {
            $run
        }

        #[test]
        fn $test() {
            limited(&kingtide_testkit::test_name!(stringify!($body)));
        }
    )* };
}

in_a_process_of_its_own! {
    body_none, damaged_files_without_compression: damage_every_kind(0);
    body_lz4, damaged_files_with_lz4: damage_every_kind(1);
    body_zstd, damaged_files_with_zstd: damage_every_kind(2);
    body_snappy, damaged_files_with_snappy: damage_every_kind(3);
    body_missing, missing_exchanged_and_newer_files: {
        files::missing_and_exchanged();
        files::missing_segments();
        files::newer_versions()
    };
    body_online, damage_under_an_open_database: online::damage();
    body_backup, damaged_backups: backups::damage();
}
