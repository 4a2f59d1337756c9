//! A commit that flow control slows delays only its own thread.

use kingtide::vfs::MemFs;
use kingtide::{Clock, Db, Isolation, Options, SystemClock};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

type OnSleep = Box<dyn FnOnce() + Send>;

/// The machine's clock, which does something at the first sleep.
struct Noticing {
    clock: Arc<dyn Clock>,
    on_sleep: Mutex<Option<OnSleep>>,
}

impl Clock for Noticing {
    fn monotonic_ns(&self) -> u64 {
        self.clock.monotonic_ns()
    }

    fn unix_ms(&self) -> u64 {
        self.clock.unix_ms()
    }

    fn sleep(&self, d: Duration) {
        let on_sleep = self.on_sleep.lock().unwrap().take();
        on_sleep.into_iter().for_each(|f| f());
        self.clock.sleep(d);
    }
}

/// Long enough for a thread that is not delayed.
const PATIENCE: Duration = Duration::from_secs(20);

fn read_uncommitted(db: &Db, to: Sender<()>) {
    let db = db.clone();
    std::thread::spawn(move || {
        let mut txn = db.begin(Isolation::ReadUncommitted).unwrap();
        txn.get(db.default_family(), b"k").unwrap();
        let _ = to.send(());
    });
}

#[test]
fn a_read_uncommitted_transaction_does_not_wait_for_a_slowed_commit() {
    for prepare in [false, true] {
        let clock = Arc::new(Noticing { clock: SystemClock::shared(), on_sleep: Mutex::default() });
        let mut o = Options::new().fs(MemFs::shared()).clock(clock.clone()).manual_jobs(true);
        o.set("l0_trigger", "1").unwrap();
        let db = Db::open("db", o).unwrap();
        for i in 0..10u8 {
            db.put([i], b"a run of level 0").unwrap();
            db.flush().unwrap();
        }
        let mut txn = db.begin(Isolation::ReadCommitted).unwrap();
        txn.put(db.default_family(), b"k", &vec![1; 400_000]).unwrap();

        let (to, from) = channel();
        let (told, tell) = channel();
        let reader = db.clone();
        *clock.on_sleep.lock().unwrap() = Some(Box::new(move || {
            read_uncommitted(&reader, to);
            told.send(from.recv_timeout(PATIENCE)).unwrap();
        }));
        match prepare {
            true => txn.prepare(b"xid").unwrap(),
            false => _ = txn.commit().unwrap(),
        }
        let read = tell.try_recv().expect("the commit was slowed");
        read.expect("the reader waited for the commit");
    }
}
