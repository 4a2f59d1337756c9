//! A bank: transfers between accounts in two families, by several threads, on every level and in every mode in which a
//! transfer is safe, some in two phases. The process is killed at a random moment, again and again.
//!
//! Transfer `n` of a worker is a function of (seed, worker, n), and it also sets the worker's counter to `n`. So the
//! counters found after a kill tell what every account must hold, to the cent: an update that was lost, a transfer of
//! which a part survived or one that was acknowledged and is gone all show as a difference. Meanwhile readers see the sum
//! of all accounts: it never changes.
//!
//! CI runs 40 kills; `KINGTIDE_FULL=1` runs 500. `KINGTIDE_SEED` repeats a run.

use kingtide::{
    ColumnFamily, Db, Durability, Error, ErrorKind, Isolation, Options, PinnedValue, Result, Transaction,
    TransactionOptions,
};
use kingtide_base::hash::mix64;
use kingtide_base::rng::{Rng, entropy};
use kingtide_testkit::Scratch;
use kingtide_testkit::full;
use kingtide_testkit::killed::{BEGIN, DIR, JOB, SEED, acknowledge, parse, run_and_kill};
use kingtide_testkit::test_name;
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Mutex;
use std::time::Duration;

const FAMILIES: [&str; 2] = ["default", "savings"];
const ACCOUNTS: u64 = 24;
const BALANCE: i64 = 1000;
const WORKERS: u64 = 5;
/// In acknowledgements, above the worker: its transfer is committed, or prepared.
const COMMITTED: u64 = 0;
const PREPARED: u64 = 1 << 8;
/// A balance takes so many bytes, so that memtables fill up.
const WIDTH: usize = 120;

fn options() -> Options {
    let mut o = Options::default();
    o.family.memtable_size = 64 << 10;
    o.family.target_file_size = 64 << 10;
    o.family.value_threshold = 100;
    o.family.l0_trigger = 2;
    o.db.wal_segment_size = 256 << 10;
    o.db.max_wal_size = 1 << 20;
    o
}

/// Takes `amount` from one account and gives it to another.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    from: u64,
    to: u64,
    amount: i64,
}

fn transfer(seed: u64, worker: u64, n: u64) -> Transfer {
    let mut rng = Rng::new(seed ^ mix64(worker << 48 | n));
    let from = rng.below(ACCOUNTS);
    let to = (from + 1 + rng.below(ACCOUNTS - 1)) % ACCOUNTS;
    Transfer { from, to, amount: 1 + rng.below(50) as i64 }
}

fn family_of(families: &[ColumnFamily], account: u64) -> &ColumnFamily {
    &families[account as usize % FAMILIES.len()]
}

fn account_key(account: u64) -> [u8; 9] {
    let mut key = *b"a00000000";
    key[1..].copy_from_slice(&account.to_be_bytes());
    key
}

fn counter_key(worker: u64) -> [u8; 9] {
    let mut key = account_key(worker);
    key[0] = b'c';
    key
}

/// A number as it is stored; what follows it depends on it.
fn stored(number: i64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(WIDTH, mix64(number as u64) as u8);
    bytes
}

fn number(bytes: &[u8]) -> i64 {
    let n = bytes.first_chunk().map_or(0, |b| i64::from_le_bytes(*b));
    assert!(bytes == stored(n), "no number of this test: {bytes:?}");
    n
}

fn balance(found: Option<PinnedValue>) -> i64 {
    found.map_or(BALANCE, |v| number(&v))
}

fn count(family: &ColumnFamily, worker: u64) -> u64 {
    family.get(counter_key(worker)).unwrap().map_or(0, |v| number(&v) as u64)
}

fn open(dir: &std::path::Path) -> (Db, Vec<ColumnFamily>) {
    let db = Db::open(dir, options()).unwrap_or_else(|e| panic!("open: {e}"));
    let families = FAMILIES.map(|n| db.family(n).or_else(|_| db.create_family(n, options().family)).unwrap()).to_vec();
    (db, families)
}

// The child.

#[test]
#[ignore = "run by the others, as a process of its own"]
fn child() {
    let (Ok(dir), Ok(seed), Ok(job)) = (std::env::var(DIR), std::env::var(SEED), std::env::var(JOB)) else { return };
    let (seed, round): (u64, u64) = (seed.parse().unwrap(), job.parse().unwrap());
    let out = Mutex::new(std::io::stdout());
    out.lock().unwrap().write_all(BEGIN).unwrap();
    let (db, families) = open(dir.as_ref());
    let (db, families, out) = (&db, &families[..], &out);
    std::thread::scope(|s| {
        for worker in 0..WORKERS {
            s.spawn(move || {
                let rng = Rng::new(mix64(seed ^ round << 8 ^ worker));
                let mut teller = Teller { db, families, seed, worker, rng, out, attempts: round << 32 };
                let mut n = count(&families[0], worker);
                loop {
                    n += 1;
                    teller.transfer(n);
                }
            });
        }
        s.spawn(move || audit(db, families, seed ^ round));
    });
}

struct Teller<'a> {
    db: &'a Db,
    families: &'a [ColumnFamily],
    seed: u64,
    worker: u64,
    rng: Rng,
    out: &'a Mutex<std::io::Stdout>,
    /// Tells one prepared transaction from another, also from those of other rounds.
    attempts: u64,
}

impl Teller<'_> {
    /// Tries until it is done.
    fn transfer(&mut self, n: u64) {
        let level = Isolation::ALL[self.rng.below(5) as usize];
        let options = TransactionOptions::new(level)
            .locking(self.rng.one_in(2))
            .lock_timeout(Duration::from_millis(self.rng.below(40)))
            .durability(if self.rng.one_in(20) { Some(Durability::Power) } else { Some(Durability::Process) });
        let protect = level < Isolation::Snapshot || self.rng.one_in(3);
        loop {
            let mut t = self.db.begin_with(options.clone()).unwrap();
            match self.write(&mut t, n, protect).and_then(|()| self.finish(t, n)) {
                Ok(true) => return acknowledge(self.out, COMMITTED | self.worker, n),
                Ok(false) => {}
                Err(e) if e.is_transient_conflict() => {}
                Err(e) => panic!("{options:?}: {e}"),
            }
        }
    }

    fn write(&mut self, t: &mut Transaction, n: u64, protect: bool) -> Result<()> {
        let Transfer { from, to, amount } = transfer(self.seed, self.worker, n);
        for (account, change) in [(from, -amount), (to, amount)] {
            let (family, key) = (family_of(self.families, account), account_key(account));
            let found = if protect { t.get_for_update(family, &key) } else { t.get(family, &key) };
            t.put(family, &key, &stored(balance(found?) + change))?;
        }
        t.put(&self.families[0], &counter_key(self.worker), &stored(n as i64))
    }

    /// Whether it was committed.
    fn finish(&mut self, mut t: Transaction, n: u64) -> Result<bool> {
        if !self.rng.one_in(5) {
            return t.commit().map(|_| true);
        }
        self.attempts += 1;
        let commit = !self.rng.one_in(4);
        let xid = xid(self.worker, n, self.attempts, commit);
        t.prepare(&xid)?;
        acknowledge(self.out, PREPARED | self.worker, u64::from_le_bytes(*xid.last_chunk().unwrap()));
        std::thread::sleep(Duration::from_micros(self.rng.below(3000)));
        let by_name = self.rng.one_in(2);
        let ended = match (commit, by_name) {
            (true, true) => self.db.commit_prepared(&xid).map(|_| ()),
            (true, false) => t.commit().map(|_| ()),
            (false, true) => self.db.rollback_prepared(&xid),
            (false, false) => t.rollback(),
        };
        ended.unwrap_or_else(|e: Error| panic!("{xid:?} stays in doubt: {e}"));
        Ok(commit)
    }
}

/// The name of a prepared transfer: worker and attempt, then what the pipe says of it, number and intention.
fn xid(worker: u64, n: u64, attempt: u64, commit: bool) -> Vec<u8> {
    [worker, attempt, n << 1 | commit as u64].iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// Worker, transfer and intention of a prepared transaction.
fn parts(xid: &[u8]) -> (u64, u64, bool) {
    let word = |at: usize| u64::from_le_bytes(xid[at * 8..][..8].try_into().unwrap());
    (word(0), word(2) >> 1, word(2) & 1 == 1)
}

/// Adds up the accounts on the levels that promise one moment, for ever.
fn audit(db: &Db, families: &[ColumnFamily], seed: u64) {
    let mut rng = Rng::new(seed);
    loop {
        let level = Isolation::ALL[2 + rng.below(3) as usize];
        let locking = level == Isolation::Serializable && rng.one_in(4);
        let options = TransactionOptions::new(level).locking(locking);
        let mut t = db.begin_with(options).unwrap();
        match sum(&mut t, families, rng.one_in(2)).and_then(|sum| t.commit().map(|_| sum)) {
            Ok(sum) => assert_eq!(sum, ACCOUNTS as i64 * BALANCE, "{level} locking {locking}"),
            Err(e) if e.is_transient_conflict() => {}
            Err(e) => panic!("{level} locking {locking}: {e}"),
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

fn sum(t: &mut Transaction, families: &[ColumnFamily], by_key: bool) -> Result<i64> {
    let mut total = 0;
    if by_key {
        for account in 0..ACCOUNTS {
            total += balance(t.get(family_of(families, account), &account_key(account))?);
        }
        return Ok(total);
    }
    let mut found = 0;
    for family in families {
        let mut it = t.cursor(family, &b"a"[..]..&b"b"[..])?;
        it.seek_to_first();
        while it.valid() {
            total += number(it.value()?);
            found += 1;
            it.next();
        }
        it.status()?;
    }
    Ok(total + (ACCOUNTS as i64 - found) * BALANCE) // those that were never touched
}

// The parent.

struct Run {
    seed: u64,
    dir: Scratch,
    /// By worker: the last transfer acknowledged as committed.
    committed: [u64; WORKERS as usize],
    /// By worker: the last one acknowledged as prepared in order to be committed.
    prepared: [u64; WORKERS as usize],
    rng: Rng,
    in_doubt: usize,
}

impl Run {
    fn note(&mut self, output: &[u8]) {
        for (who, n) in parse(output) {
            let worker = (who & 0xff) as usize;
            if who & PREPARED == 0 {
                self.committed[worker] = self.committed[worker].max(n);
            } else if n & 1 == 1 {
                self.prepared[worker] = self.prepared[worker].max(n >> 1);
            }
        }
    }

    /// Transfers that were acknowledged as committed.
    fn transfers(&self) -> u64 {
        self.committed.iter().sum()
    }

    /// Ends what is in doubt, now and then after another start. `prepared` transfers were not lost by then.
    fn resolve(&mut self, place: &str) -> (Db, Vec<ColumnFamily>) {
        let (mut db, mut families) = open(&self.dir.0);
        let names = |db: &Db| db.recover_prepared().into_iter().map(|p| p.xid).collect::<Vec<_>>();
        let doubt = names(&db);
        self.in_doubt += doubt.len();
        let mut expected: BTreeSet<u64> = (0..WORKERS).collect();
        for (worker, n, commit) in doubt.iter().map(|x| parts(x)) {
            assert!(expected.remove(&worker), "{place}: worker {worker} has two in doubt");
            assert_eq!(n, count(&families[0], worker) + 1, "{place}: worker {worker}'s transfer in doubt");
            assert!(commit || n > self.prepared[worker as usize], "{place}: worker {worker}, {n} rolled back twice");
        }
        for worker in expected {
            // Nothing in doubt: what was prepared to be committed is.
            let (there, prepared) = (count(&families[0], worker), self.prepared[worker as usize]);
            assert!(there >= prepared, "{place}: worker {worker} prepared {prepared}, which is gone; {there} is there");
        }
        if !doubt.is_empty() && self.rng.one_in(3) {
            self.check_locked(place, &db, &families, &doubt[0]);
            if self.rng.one_in(2) {
                db.close().unwrap();
            }
            drop((families, db));
            (db, families) = open(&self.dir.0);
            assert_eq!(names(&db), doubt, "{place}: in doubt after one more start");
        }
        for xid in &doubt {
            let (worker, n, _) = parts(xid);
            // Its worker is gone, so either end will do, except for what it knows to be committed.
            let commit = self.rng.one_in(2);
            if commit {
                db.commit_prepared(xid).unwrap();
            } else {
                db.rollback_prepared(xid).unwrap();
                self.prepared[worker as usize] = self.prepared[worker as usize].min(n - 1);
            }
            assert_eq!(db.commit_prepared(xid).unwrap_err().kind(), ErrorKind::NotFound, "{place}");
        }
        (db, families)
    }

    /// What is in doubt keeps its keys.
    fn check_locked(&self, place: &str, db: &Db, families: &[ColumnFamily], xid: &[u8]) {
        let (worker, n, _) = parts(xid);
        let account = transfer(self.seed, worker, n).from;
        let mut t = db.begin(Isolation::ReadCommitted).unwrap();
        t.put(family_of(families, account), &account_key(account), &stored(0)).unwrap();
        let refused = t.commit().err().map(|e| e.kind());
        assert_eq!(refused, Some(ErrorKind::Conflict), "{place}: account {account} of a transfer in doubt was written");
    }

    /// Every account holds what the transfers up to the counters make of it.
    fn check(&self, place: &str, db: &Db, families: &[ColumnFamily]) {
        let mut expected = [BALANCE; ACCOUNTS as usize];
        for worker in 0..WORKERS {
            let (there, acknowledged) = (count(&families[0], worker), self.committed[worker as usize]);
            assert!(
                there >= acknowledged,
                "{place}: worker {worker} had {acknowledged} acknowledged, {there} is there"
            );
            for n in 1..=there {
                let Transfer { from, to, amount } = transfer(self.seed, worker, n);
                expected[from as usize] -= amount;
                expected[to as usize] += amount;
            }
        }
        for account in 0..ACCOUNTS {
            let found = family_of(families, account).get(account_key(account)).unwrap();
            assert_eq!(balance(found), expected[account as usize], "{place}: account {account}");
        }
        let mut t = db.begin(Isolation::Serializable).unwrap();
        assert_eq!(sum(&mut t, families, false).unwrap(), ACCOUNTS as i64 * BALANCE, "{place}");
        t.commit().unwrap();
    }
}

#[test]
fn no_money_is_made_or_lost() {
    let seed = kingtide_testkit::number("KINGTIDE_SEED").unwrap_or_else(|| entropy() >> 16);
    let rounds = if full() { 500 } else { 40 };
    println!("seed {seed}, {rounds} rounds");
    let mut run = Run {
        seed,
        dir: Scratch::new("bank"),
        committed: [0; WORKERS as usize],
        prepared: [0; WORKERS as usize],
        rng: Rng::new(seed),
        in_doubt: 0,
    };
    // A busy machine may come to no transfer, or leave none in doubt, in such lives: it gets further rounds with longer ones.
    let mut round = 0;
    while round < rounds || ((run.transfers() == 0 || run.in_doubt == 0) && round < 10 * rounds) {
        let life = 40 + run.rng.below(if full() { 400 } else { 120 });
        let life = Duration::from_millis(life * (1 + round / rounds));
        let output = run_and_kill(&test_name!("child"), &run.dir.0, seed, &round.to_string(), life);
        run.note(&output);
        let place = format!("seed {seed} round {round}");
        let (db, families) = run.resolve(&place);
        run.check(&place, &db, &families);
        if run.rng.one_in(3) {
            db.close().unwrap();
        }
        round += 1;
    }
    let transfers = run.transfers();
    println!("{round} kills, {transfers} transfers, {} found in doubt, every balance exact", run.in_doubt);
    assert!(transfers > 0 && run.in_doubt > 0);
}
