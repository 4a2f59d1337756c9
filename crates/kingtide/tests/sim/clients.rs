//! Clients with transactions that take many steps, optimistic and locking, prepared or not.

use crate::sim::durability::{By, How};
use crate::sim::history::{FamilyNo, Op, What, Xid};
use crate::sim::locked::{Read, is_relied_on};
use crate::sim::world::World;
use crate::sim::writes::{Sink, is_in_pieces};
use kingtide::{Durability, Error, ErrorKind, Isolation, Result, Transaction, TransactionOptions};
use kingtide_base::rng::Rng;
use std::time::Duration;

/// Transactions in doubt at once.
const IN_DOUBT: usize = 4;

/// One client: at most one transaction at a time.
#[derive(Default)]
pub struct Client {
    txn: Option<Transaction>,
    ops: Vec<Op>,
    /// What it has read and relies on.
    reads: Vec<Read>,
    /// Operations before each savepoint.
    savepoints: Vec<usize>,
    /// Events when it began.
    began: usize,
    locking: bool,
    durability: Option<Durability>,
    /// Its name, once prepared.
    xid: Option<Xid>,
}

impl World {
    fn begin(&mut self) -> Result<Client> {
        let locking = self.plan.mix.locking;
        let locking = self.percent(locking);
        let durability = self.asked();
        let options = TransactionOptions::new(Isolation::ALL[self.rng.below(5) as usize])
            .locking(locking)
            .durability(durability)
            .lock_timeout(Duration::ZERO);
        let txn = self.db().begin_with(options)?;
        Ok(Client { txn: Some(txn), began: self.begun(), locking, durability, ..Client::default() })
    }

    /// The next call of some client. It is taken out of the world meanwhile.
    pub fn client_step(&mut self) -> Result<()> {
        let at = self.rng.below(self.clients.len() as u64) as usize;
        let mut client = std::mem::take(&mut self.clients[at]);
        if client.txn.is_none() {
            self.clients[at] = self.begin()?;
            return Ok(());
        }
        let done = self.go_on(&mut client);
        // After some errors it is as before, and may go on; after others it is over.
        let goes_on = |e: &Error| matches!(e.kind(), ErrorKind::Io | ErrorKind::NoSpace | ErrorKind::Busy);
        let over = client.txn.is_none() || done.as_ref().is_err_and(|e| !goes_on(e));
        if !over {
            self.clients[at] = client;
        }
        done
    }

    fn go_on(&mut self, client: &mut Client) -> Result<()> {
        if client.xid.is_some() {
            return if self.rng.one_in(3) { self.end_own(client) } else { Ok(()) };
        }
        match self.rng.below(20) {
            0..9 => self.write_in(client),
            9..13 => self.read_in(client),
            13 | 14 => self.savepoint(client),
            15 => client.txn.take().expect("begun").rollback(),
            _ => self.commit(client),
        }
    }

    fn write_in(&mut self, client: &mut Client) -> Result<()> {
        let (no, family) = self.any_family();
        let op = self.random_op(no);
        let now = self.clock_ms();
        let staged = matches!(&op, Op::Put(_, _, value, _) if is_in_pieces(value));
        if staged {
            let worker = (self.db().clone(), Rng::new(self.rng.next_u64()));
            self.clock.work_while_sleeping(Some(worker)); // writing a value in pieces may wait
        }
        let added = Sink::Transaction(client.txn.as_mut().expect("begun")).add(&family, &op, now);
        if staged {
            self.clock.work_while_sleeping(None);
        }
        added?;
        client.ops.push(op);
        Ok(())
    }

    /// What a read must give, where the level says so.
    fn expected(&self, client: &Client, family: FamilyNo, key: &[u8]) -> Option<Option<Vec<u8>>> {
        use Isolation::{ReadCommitted, RepeatableRead, Serializable, Snapshot};
        let txn = client.txn.as_ref().expect("begun");
        let mut state = match txn.isolation() {
            ReadCommitted => self.now[&family].clone(),
            // What a clone shows at an earlier snapshot is undefined.
            _ if self.history.is_cloned_after(family, client.began) => return None,
            RepeatableRead | Snapshot | Serializable if !client.locking => {
                self.history.state(family, client.began, client.began, self.epoch(), 0)
            }
            _ => return None,
        };
        client.ops.iter().filter(|op| op.family() == family).for_each(|op| state.apply(op));
        Some(state.visible(self.clock_ms()).remove(key))
    }

    fn read_in(&mut self, client: &mut Client) -> Result<()> {
        let ((no, family), key) = (self.any_family(), self.key());
        let expected = self.expected(client, no, &key);
        let lock = self.rng.below(4);
        let txn = client.txn.as_mut().expect("begun");
        let found = match lock {
            0 => txn.get_for_update(&family, &key)?,
            1 => txn.get_for_share(&family, &key)?,
            _ => txn.get(&family, &key)?,
        };
        let (level, read) = (txn.isolation(), (no, key));
        if is_relied_on(&read, level, lock < 2, &client.ops) {
            client.reads.push(read.clone());
        }
        let key = read.1;
        if let Some(expected) = expected.filter(|_| lock > 1) {
            assert!(found.as_deref() == expected.as_deref(), "read of {key:?} in {txn:?}");
        }
        Ok(())
    }

    fn savepoint(&mut self, client: &mut Client) -> Result<()> {
        let txn = client.txn.as_mut().expect("begun");
        match (client.savepoints.len(), self.rng.below(3)) {
            (0, _) | (_, 0) => {
                txn.set_savepoint(&format!("{}", client.savepoints.len()))?;
                client.savepoints.push(client.ops.len());
            }
            (depth, 1) => {
                txn.rollback_to_savepoint(&format!("{}", depth - 1))?;
                client.ops.truncate(client.savepoints[depth - 1]);
                client.reads.clear(); // it still relies on those before the savepoint, but the check does without them
            }
            (depth, _) => {
                txn.release_savepoint(&format!("{}", depth - 1))?;
                client.savepoints.pop();
            }
        }
        Ok(())
    }

    fn commit(&mut self, client: &mut Client) -> Result<()> {
        let txn = client.txn.as_mut().expect("begun");
        if client.ops.is_empty() {
            txn.commit()?;
            client.txn = None;
            return Ok(());
        }
        if self.rng.one_in(4) {
            client.durability = self.asked();
        }
        let txn = client.txn.as_mut().expect("begun");
        txn.set_durability(client.durability);
        let ops = client.ops.clone();
        let what = What::Commit { logged: self.is_logged(&ops, client.durability), ops };
        let (by, asked) = self.or_ordered(By::Transaction, client.durability);
        self.attempt(what, How::new(by, asked), |_| commit_by(txn, by))?;
        client.txn = None;
        Ok(())
    }

    /// Some commits are made in order, and do not wait for what `Power` promises: until then they survive what `Process` names.
    fn or_ordered(&mut self, by: By, asked: Option<Durability>) -> (By, Option<Durability>) {
        let waits = !self.rng.one_in(6);
        match self.durability(asked) {
            _ if waits => (by, asked),
            Durability::Power => (By::Ordered, Some(Durability::Process)),
            _ => (By::Ordered, asked),
        }
    }

    /// A client that wrote something prepares.
    pub fn prepare(&mut self) -> Result<()> {
        let in_doubt = self.history.in_doubt(self.begun(), self.epoch());
        let ready = |c: &Client| c.txn.is_some() && c.xid.is_none() && !c.ops.is_empty();
        let Some(at) = self.clients.iter().position(ready).filter(|_| in_doubt.len() < IN_DOUBT) else {
            return self.client_step();
        };
        let mut client = std::mem::take(&mut self.clients[at]);
        let xid = self.history.events.len() as Xid + 1;
        let asked = client.durability.or(Some(Durability::Power));
        let txn = client.txn.as_mut().expect("begun");
        self.prepared_reads.remove(&xid); // a death may have taken another one of that name
        let prepare = What::Prepare(xid, client.ops.clone());
        self.attempt(prepare, How::new(By::Prepare, asked), |db| {
            txn.prepare(&xid.to_be_bytes()).map(|()| db.latest_sequence())
        })?;
        client.xid = Some(xid);
        self.prepared_reads.insert(xid, client.reads.clone());
        if self.rng.one_in(2) {
            self.clients[at] = client; // else it is left to a client that knows the name
        }
        Ok(())
    }

    fn end_own(&mut self, client: &mut Client) -> Result<()> {
        let (xid, commit) = (client.xid.expect("prepared"), self.rng.one_in(2));
        if self.rng.one_in(2) {
            client.durability = self.asked();
        }
        let txn = client.txn.as_mut().expect("begun");
        txn.set_durability(client.durability);
        let (by, asked) = match commit {
            true => self.or_ordered(By::CommitPrepared, client.durability),
            false => (By::RollBackPrepared, client.durability),
        };
        self.end(xid, commit, How::new(by, asked), |db| match commit {
            true => commit_by(txn, by),
            false => txn.rollback().map(|()| db.latest_sequence()),
        })?;
        client.txn = None;
        Ok(())
    }

    /// Ends a transaction in doubt that no client holds.
    pub fn resolve(&mut self) -> Result<()> {
        let held: Vec<Xid> = self.clients.iter().filter_map(|c| c.xid).collect();
        let mut in_doubt = self.history.in_doubt(self.begun(), self.epoch());
        in_doubt.retain(|xid| !held.contains(xid));
        if in_doubt.is_empty() {
            return self.client_step();
        }
        let at = self.rng.below(in_doubt.len() as u64) as usize;
        let xid = *in_doubt.iter().nth(at).expect("in doubt");
        let commit = self.rng.one_in(2);
        let by = if commit { By::CommitPrepared } else { By::RollBackPrepared };
        self.end(xid, commit, How::new(by, None), |db| match commit {
            true => db.commit_prepared(&xid.to_be_bytes()),
            false => db.rollback_prepared(&xid.to_be_bytes()).map(|()| db.latest_sequence()),
        })
    }
}

fn commit_by(txn: &mut Transaction, by: By) -> Result<u64> {
    match by {
        By::Ordered => txn.commit_ordered().map(|ticket| ticket.sequence()),
        _ => txn.commit(),
    }
}
