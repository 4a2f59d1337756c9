//! What the lock manager's mutex guards: the tables of held locks, the owners, and the requests that wait.
//!
//! A request waits for those that hold what it asks for, and, so that none is overtaken for ever, for earlier requests
//! that ask for it too. Requests are granted by the releasing thread, in the order in which they came, not by waking all to
//! try again. Each waiting request notes one transaction that it waits for, its witness: it is looked at again only when
//! the witness gives up its locks or its place.

use crate::kinds::{LockMode, Taken};
use crate::span::{Cut, CutRef, KeyBytes, Span, Want};
use crate::table::{Answer, Table};
use crate::tasks::Tasks;
use kingtide_base::sync::Condvar;
use kingtide_base::sync::atomic::{AtomicBool, Ordering};
use kingtide_base::{FamilyId, KeyOrder, TxnId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Lists of owned locks are kept for reuse, this many, and none that grew beyond so many entries.
const SPARE_LISTS: usize = 64;
const SPARE_CAPACITY: usize = 1024;

/// Where a request stands in line: upgrades before all others, because those can often not go on before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket {
    behind_upgrades: bool,
    number: u64,
}

/// A request that waits.
pub(super) struct Request {
    pub want: Want,
    /// When it began to wait, in monotonic nanoseconds.
    pub since: u64,
    /// Wakes the waiting thread.
    pub signal: Arc<Condvar>,
    /// Set by `wake`, so that a wake between two waits is not lost.
    pub poked: bool,
    /// One transaction that it waits for.
    witness: TxnId,
    /// Earlier requests that it need not stand behind, because they in turn wait for it.
    passes: Vec<Ticket>,
}

/// The place of a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub family: FamilyId,
    pub ticket: Ticket,
}

impl Place {
    /// Returns whether the request makes a lock stronger that its transaction has.
    pub fn is_upgrade(self) -> bool {
        !self.ticket.behind_upgrades
    }
}

/// A request of a cycle, and the lock that stands in its way.
pub(super) struct Step {
    pub want: Want,
    pub holder: TxnId,
    pub held: (Span, LockMode),
}

/// How a wait ended.
pub(super) enum Verdict {
    Granted,
    /// To break a deadlock: the cycle, beginning with the victim. Each waits for the next, the last for the first.
    Deadlock(Vec<Step>),
    /// The transaction's locks were released while it waited.
    Cancelled,
}

/// What is left to do of a release.
pub(super) enum Rest {
    /// There are more locks.
    Locks,
    /// The waits of tasks from this number on are to be settled.
    Tasks(u64),
    Nothing,
}

/// A transaction that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocker {
    pub txn: TxnId,
    /// It does not hold the lock but asked for it earlier, with this ticket.
    pub queued: Option<Ticket>,
}

#[derive(Default)]
struct Family {
    table: Table,
    queue: BTreeMap<Ticket, Request>,
}

impl Family {
    /// Earlier requests that one with this ticket stands behind.
    fn ahead<'a>(&'a self, ticket: Ticket, want: &'a Want, passes: &'a [Ticket]) -> impl Iterator<Item = Blocker> + 'a {
        let ahead = self.queue.range(..ticket).filter(move |(t, Request { want: other, .. })| {
            // A request that waits only for the place to be free holds no other up, and waits for holders alone.
            let both_lock = other.txn != 0 && want.txn != 0 && other.txn != want.txn;
            both_lock && other.mode.conflicts(want.mode) && other.span.overlaps(&want.span) && !passes.contains(t)
        });
        ahead.map(|(t, request)| Blocker { txn: request.want.txn, queued: Some(*t) })
    }

    fn blocker(&self, ticket: Ticket, want: &Want, passes: &[Ticket]) -> Option<Blocker> {
        match self.table.ask(want.txn, &want.span, want.mode) {
            Answer::Held(txn) => Some(Blocker { txn, queued: None }),
            Answer::Covered | Answer::Free { .. } => self.ahead(ticket, want, passes).next(),
        }
    }

    /// All that a waiting request waits for, each once; holders first.
    fn blockers(&self, ticket: Ticket, request: &Request) -> Vec<Blocker> {
        let want = &request.want;
        let mut seen = BTreeSet::new();
        let mut out = Vec::new();
        self.table.in_the_way(want.txn, &want.span, want.mode, |txn| {
            if seen.insert(txn) {
                out.push(Blocker { txn, queued: None });
            }
        });
        out.extend(self.ahead(ticket, want, &request.passes).filter(|ahead| seen.insert(ahead.txn)));
        out
    }

    /// Returns whether the transaction holds all of it in shared mode, so that this is an upgrade.
    fn is_upgrade(&self, want: &Want) -> bool {
        self.table.ask(want.txn, &want.span, LockMode::Shared) == Answer::Covered
    }
}

/// A lock as its owner remembers it, to give it back.
enum Piece {
    Key(KeyBytes),
    Range(Box<Span>),
}

impl Piece {
    /// Whether just that span was asked for.
    fn is_for(&self, span: &Span) -> bool {
        match self {
            Piece::Key(key) => span.hi.is_none() && span.lo.clone().into_key().as_slice() == key.as_slice(),
            Piece::Range(range) => span.hi.is_some() && range.lo == span.lo && range.end() == span.end(),
        }
    }
}

/// What a transaction holds.
#[derive(Default)]
struct Owner {
    pieces: Vec<(FamilyId, Piece)>,
    /// Bytes that the pieces hold on the heap.
    heap: u64,
}

impl Owner {
    #[inline]
    fn push(&mut self, family: FamilyId, span: Span) {
        if let (Some(_), Some((last, Piece::Range(range)))) = (&span.hi, self.pieces.last_mut())
            && *last == family
        {
            // A scan locks one range after the other.
            let before = range.heap();
            if range.extend(&span) {
                self.heap = (self.heap + range.heap()).saturating_sub(before);
                return;
            }
        }
        self.heap += span.heap();
        self.pieces.push(match span.hi {
            None => (family, Piece::Key(span.lo.into_key())),
            Some(_) => (family, Piece::Range(Box::new(span))),
        });
    }
}

type Families = BTreeMap<FamilyId, (KeyOrder, Family)>;

fn holder(families: &Families, want: &Want) -> Option<TxnId> {
    match families.get(&want.family)?.1.table.ask(want.txn, &want.span, want.mode) {
        Answer::Held(holder) => Some(holder),
        Answer::Covered | Answer::Free { .. } => None,
    }
}

/// Everything under the manager's mutex.
pub(super) struct State {
    families: Families,
    /// Transactions that hold locks.
    owners: BTreeMap<TxnId, Owner>,
    /// Transactions that wait, each for one request.
    waiting: BTreeMap<TxnId, Place>,
    /// Verdicts that their threads have not read yet.
    verdicts: BTreeMap<u64, Verdict>,
    /// Whether there are owners; read without the mutex.
    any: Arc<AtomicBool>,
    next_ticket: u64,
    spare: Vec<Vec<(FamilyId, Piece)>>,
    /// Waits that take no thread.
    pub tasks: Tasks,
}

impl State {
    pub fn new(any: Arc<AtomicBool>) -> State {
        State {
            families: BTreeMap::new(),
            owners: BTreeMap::new(),
            waiting: BTreeMap::new(),
            verdicts: BTreeMap::new(),
            any,
            next_ticket: 0,
            spare: Vec::new(),
            tasks: Tasks::default(),
        }
    }

    /// Grants a request at once, or says what is in the way. `in_line`: requests that wait already come first.
    #[inline]
    pub fn try_lock(&mut self, want: &Want, order: &KeyOrder, in_line: bool) -> Result<Taken, Blocker> {
        let new = || (order.clone(), Family::default());
        let (_, room) = self.families.entry(want.family).or_insert_with(new);
        let upgrade = match room.table.ask(want.txn, &want.span, want.mode) {
            Answer::Covered => return Ok(Taken::Before),
            Answer::Free { upgrade } => upgrade,
            Answer::Held(txn) => return Err(Blocker { txn, queued: None }),
        };
        if in_line && !upgrade && !room.queue.is_empty() {
            let last = Ticket { behind_upgrades: true, number: u64::MAX };
            if let Some(ahead) = room.ahead(last, want, &[]).next() {
                return Err(ahead);
            }
        }
        self.grant(want, upgrade);
        Ok(if upgrade { Taken::Raised } else { Taken::Now })
    }

    /// Puts a request in line that [`State::try_lock`] refused.
    pub fn enqueue(&mut self, want: Want, since: u64, signal: Arc<Condvar>, witness: Blocker) -> Option<Place> {
        let (_, room) = self.families.get_mut(&want.family)?;
        let ticket = Ticket { behind_upgrades: !room.is_upgrade(&want), number: self.next_ticket };
        self.next_ticket += 1;
        let place = Place { family: want.family, ticket };
        if want.txn != 0 {
            self.waiting.insert(want.txn, place);
        }
        let passes = Vec::new();
        room.queue.insert(ticket, Request { want, since, signal, poked: false, witness: witness.txn, passes });
        Some(place)
    }

    /// Enters a lock with which no other conflicts. An `upgrade` is known to its owner already.
    #[inline]
    fn grant(&mut self, want: &Want, upgrade: bool) {
        if want.txn == 0 {
            return;
        }
        if self.owners.is_empty() {
            // Before the lock is in the table. Pairs with the load in `any_held`; that a commit sees either this or
            // the lock's owner sees the commit is the barrier's doing, see docs/concurrency.md.
            self.any.store(true, Ordering::SeqCst);
        }
        if let Some((_, room)) = self.families.get_mut(&want.family) {
            room.table.insert(want.txn, &want.span, want.mode);
        }
        if !upgrade {
            let spare = &mut self.spare;
            let new = || Owner { pieces: spare.pop().unwrap_or_default(), heap: 0 };
            self.owners.entry(want.txn).or_insert_with(new).push(want.family, want.span.clone());
        }
    }

    /// Returns a transaction that holds what a request asks for.
    pub fn holder(&self, want: &Want) -> Option<TxnId> {
        holder(&self.families, want)
    }

    /// All that hold what a request asks for.
    pub fn holders(&self, want: &Want) -> Vec<TxnId> {
        let mut seen = BTreeSet::new();
        if let Some((_, room)) = self.families.get(&want.family) {
            room.table.in_the_way(want.txn, &want.span, want.mode, |txn| _ = seen.insert(txn));
        }
        seen.into_iter().collect()
    }

    /// Ends a transaction's wait, if it waits, and gives back up to `limit` of what it asked for, newest first; grants
    /// what that sets free. After the last of them, settles up to `tasks` waits of tasks.
    #[inline]
    pub fn release(&mut self, txn: TxnId, limit: usize, tasks: usize) -> Rest {
        let place = self.waiting.get(&txn).copied();
        if let Some(place) = place {
            self.end_wait(place, Verdict::Cancelled);
        }
        let Some(owner) = self.owners.get_mut(&txn) else {
            if place.is_some() {
                self.settle(txn);
            }
            return Rest::Nothing;
        };
        let rest = owner.pieces.len().saturating_sub(limit);
        for (family, piece) in owner.pieces.drain(rest..) {
            let Some((order, room)) = self.families.get_mut(&family) else { continue };
            match piece {
                Piece::Key(key) => room.table.remove(txn, &Span::of_key(order, key)),
                Piece::Range(span) => room.table.remove(txn, &span),
            }
        }
        let done = if rest == 0 { self.owners.remove(&txn) } else { None };
        self.settle(txn);
        let Some(owner) = done else { return Rest::Locks };
        if self.spare.len() < SPARE_LISTS && owner.pieces.capacity() <= SPARE_CAPACITY {
            self.spare.push(owner.pieces);
        }
        if self.owners.is_empty() {
            // After the locks left the table. Pairs with the load in `any_held`.
            self.any.store(false, Ordering::SeqCst);
        }
        self.settle_tasks(txn, 0, tasks)
    }

    /// Gives back the newest of a transaction's locks, if it is on a key that is a segment of its own: what was asked for
    /// in between, or beside it, may have made it a part of something larger.
    pub fn release_newest(&mut self, txn: TxnId) -> bool {
        let Some(owner) = self.owners.get_mut(&txn) else { return false };
        let Some(&(family, Piece::Key(ref key))) = owner.pieces.last() else { return false };
        let Some((order, room)) = self.families.get_mut(&family) else { return false };
        let span = Span::of_key(order, key.clone());
        if !room.table.is_apart(&span) {
            return false;
        }
        owner.heap = owner.heap.saturating_sub(span.heap());
        owner.pieces.pop();
        room.table.remove(txn, &span);
        if owner.pieces.is_empty() {
            self.owners.remove(&txn);
            if self.owners.is_empty() {
                // After the lock left the table. Pairs with the load in `any_held`.
                self.any.store(false, Ordering::SeqCst);
            }
        }
        self.settle(txn);
        self.settle_tasks_on(txn, family, &span);
        true
    }

    /// Returns the parts of what a request asks for that its transaction holds, in order, with their modes.
    pub fn held_of(&self, want: &Want) -> Vec<(Span, LockMode)> {
        let Some((_, room)) = self.families.get(&want.family).filter(|_| self.owners.contains_key(&want.txn)) else {
            return Vec::new();
        };
        let held = room.table.held_by(want.txn, &want.span);
        let within = held.filter_map(|(part, mode)| {
            let end = part.end().min(want.span.end());
            Some((Span::between(part.lo.clone().max(want.span.lo.clone()), end)?, mode))
        });
        within.collect()
    }

    /// Gives back what a request was granted while it waited, where `before` is what [`State::held_of`] it was then.
    pub fn undo(&mut self, want: &Want, before: &[(Span, LockMode)]) {
        let Some((_, room)) = self.families.get_mut(&want.family) else { return };
        let (mut reach, mut new) = (want.span.lo.clone(), false);
        let mut take_off = |reach: Cut, end: CutRef<'_>| {
            if let Some(gap) = Span::between(reach, end) {
                room.table.give_back(want.txn, &gap, false);
                new = true;
            }
        };
        for (part, _) in before {
            take_off(reach, part.lo.as_ref());
            reach = part.end().to_cut();
        }
        take_off(reach, want.span.end());
        if want.mode == LockMode::Exclusive {
            let weaker = before.iter().filter(|(_, mode)| *mode == LockMode::Shared);
            weaker.for_each(|(part, _)| room.table.give_back(want.txn, part, true));
        }
        // A range that made the one before it longer stays a part of that.
        if let Some(owner) = self.owners.get_mut(&want.txn)
            && new
            && owner.pieces.last().is_some_and(|(family, piece)| *family == want.family && piece.is_for(&want.span))
        {
            owner.heap = owner.heap.saturating_sub(want.span.heap());
            owner.pieces.pop();
            if owner.pieces.is_empty() {
                self.owners.remove(&want.txn);
                if self.owners.is_empty() {
                    // After the lock left the table. Pairs with the load in `any_held`.
                    self.any.store(false, Ordering::SeqCst);
                }
            }
        }
        self.settle(want.txn);
        self.settle_tasks_on(want.txn, want.family, &want.span);
    }

    /// Looks again at the requests that waited for a transaction which gave up its locks or its place.
    pub fn settle(&mut self, gone: TxnId) {
        let mut places = Vec::new();
        for (family, (_, room)) in &self.families {
            let theirs = room.queue.iter().filter(|(_, request)| request.witness == gone);
            places.extend(theirs.map(|(ticket, _)| Place { family: *family, ticket: *ticket }));
        }
        for place in places {
            self.try_grant(place);
        }
    }

    /// Looks again at up to `limit` waits of tasks that waited for a transaction which gave up all its locks, from number `from` on. After
    /// [`State::settle`], which may have given locks to others that the tasks wait for then.
    #[inline]
    pub fn settle_tasks(&mut self, gone: TxnId, from: u64, limit: usize) -> Rest {
        if self.tasks.is_empty() {
            return Rest::Nothing;
        }
        let next = self.tasks.settle((gone, from, limit), |_| true, |want| holder(&self.families, want));
        next.map_or(Rest::Nothing, Rest::Tasks)
    }

    /// The same, for a transaction that gave up this.
    fn settle_tasks_on(&mut self, gone: TxnId, family: FamilyId, span: &Span) {
        if !self.tasks.is_empty() {
            let concerns = |want: &Want| want.family == family && want.span.overlaps(span);
            self.tasks.settle((gone, 0, usize::MAX), concerns, |want| holder(&self.families, want));
        }
    }

    /// Grants a waiting request if nothing stands in its way any more.
    fn try_grant(&mut self, place: Place) {
        let Some((_, room)) = self.families.get_mut(&place.family) else { return };
        let Some(Request { want, passes, .. }) = room.queue.get(&place.ticket) else { return };
        match room.blocker(place.ticket, want, passes) {
            Some(blocker) => {
                if let Some(request) = room.queue.get_mut(&place.ticket) {
                    request.witness = blocker.txn;
                }
            }
            None => {
                let (want, upgrade) = (want.clone(), room.is_upgrade(want));
                self.grant(&want, upgrade);
                self.end_wait(place, Verdict::Granted);
            }
        }
    }

    /// Takes a request out of the queue and tells its thread. The caller settles what the place sets free.
    fn end_wait(&mut self, place: Place, verdict: Verdict) {
        if let Some(request) = self.take(place) {
            self.verdicts.insert(place.ticket.number, verdict);
            request.signal.notify_one();
        }
    }

    fn take(&mut self, place: Place) -> Option<Request> {
        let request = self.families.get_mut(&place.family)?.1.queue.remove(&place.ticket)?;
        if request.want.txn != 0 {
            self.waiting.remove(&request.want.txn);
        }
        Some(request)
    }

    /// The waiting thread gives up.
    pub fn withdraw(&mut self, place: Place) {
        self.verdicts.remove(&place.ticket.number);
        if let Some(request) = self.take(place) {
            self.settle(request.want.txn);
        }
    }

    /// Returns how the wait ended, if it did.
    pub fn verdict(&mut self, place: Place) -> Option<Verdict> {
        self.verdicts.remove(&place.ticket.number)
    }

    /// Returns whether the thread should check its state instead of waiting: there is a verdict, or it was woken.
    pub fn roused(&mut self, place: Place) -> bool {
        self.verdicts.contains_key(&place.ticket.number)
            || self.request_mut(place).is_some_and(|request| std::mem::take(&mut request.poked))
    }

    fn request_mut(&mut self, place: Place) -> Option<&mut Request> {
        self.families.get_mut(&place.family)?.1.queue.get_mut(&place.ticket)
    }

    /// One of those that a waiting request waits for.
    pub fn blocker(&self, place: Place) -> Option<Blocker> {
        let (_, room) = self.families.get(&place.family)?;
        let request = room.queue.get(&place.ticket)?;
        room.blocker(place.ticket, &request.want, &request.passes)
    }

    /// All that a waiting request waits for; empty if it does not wait any more.
    pub fn blockers(&self, place: Place) -> Vec<TxnId> {
        let found = self.families.get(&place.family).and_then(|(_, room)| {
            let request = room.queue.get(&place.ticket)?;
            Some(room.blockers(place.ticket, request).iter().map(|b| b.txn).collect())
        });
        found.unwrap_or_default()
    }

    /// Wakes a waiting transaction's thread to check its state.
    pub fn wake(&mut self, txn: TxnId) {
        let Some(place) = self.waiting.get(&txn).copied() else { return };
        if let Some(request) = self.request_mut(place) {
            request.poked = true;
            request.signal.notify_one();
        }
    }

    /// All locks, as what their owners asked for.
    pub fn held(&self) -> impl Iterator<Item = Want> + '_ {
        self.families.iter().flat_map(|(family, (_, room))| {
            let family = *family;
            room.table.held().into_iter().map(move |(txn, span, mode)| Want { txn, family, span, mode })
        })
    }

    /// The locks of one transaction, as its own list leads to them: what lies between two of them may be in both.
    pub fn held_by(&self, txn: TxnId) -> Vec<Want> {
        let mut all = Vec::new();
        for (family, piece) in self.owners.get(&txn).into_iter().flat_map(|owner| &owner.pieces) {
            let Some((order, room)) = self.families.get(family) else { continue };
            let held = |span: &Span| {
                let held = room.table.held_by(txn, span);
                held.map(|(span, mode)| Want { txn, family: *family, span, mode }).collect::<Vec<_>>()
            };
            all.extend(match piece {
                Piece::Key(key) => held(&Span::of_key(order, key.clone())),
                Piece::Range(span) => held(span),
            });
        }
        all
    }

    /// All requests that wait, each with what it waits for.
    pub fn waits(&self) -> impl Iterator<Item = (&Request, Vec<Blocker>)> + '_ {
        self.families
            .values()
            .flat_map(|(_, room)| room.queue.iter().map(|(ticket, request)| (request, room.blockers(*ticket, request))))
    }

    pub fn memory(&self) -> u64 {
        let piece = size_of::<(FamilyId, Piece)>();
        let tables = self.families.values().map(|(_, room)| {
            let requests = room.queue.len() * size_of::<(Ticket, Request)>();
            room.table.memory() + requests as u64 + size_of::<(KeyOrder, Family)>() as u64
        });
        let owners = self
            .owners
            .values()
            .map(|owner| owner.heap + (owner.pieces.capacity() * piece + size_of::<(TxnId, Owner)>()) as u64);
        let spare = self.spare.iter().map(|list| (list.capacity() * piece) as u64);
        tables.chain(owners).chain(spare).sum::<u64>() + self.tasks.memory()
    }

    /// Panics unless tables, owners and queues agree, every waiter waits for a holder or an earlier request, and there is no deadlock.
    #[cfg(test)]
    pub fn check(&self) {
        let holders: BTreeSet<TxnId> = self.held().map(|want| want.txn).collect();
        assert_eq!(holders, self.owners.keys().copied().collect(), "owners and tables differ");
        assert_eq!(self.any.load(Ordering::SeqCst), !holders.is_empty());
        let mut waiting = 0;
        for (_, room) in self.families.values() {
            room.table.check();
            for (ticket, request) in &room.queue {
                let blockers = room.blockers(*ticket, request);
                assert!(blockers.iter().any(|b| b.txn == request.witness), "{ticket:?} waits for no transaction");
                waiting += usize::from(request.want.txn != 0);
            }
        }
        assert_eq!(waiting, self.waiting.len());
        assert!(self.waiting.keys().all(|txn| self.cycle(*txn).is_none()), "a deadlock");
        self.tasks.check(|want| self.holders(want));
    }

    /// Number of segments in a family's table.
    #[cfg(test)]
    pub fn segments(&self, family: FamilyId) -> usize {
        self.families.get(&family).map_or(0, |(_, room)| room.table.len())
    }
}

// Deadlocks. A cycle can only close when a transaction begins to wait: every new edge of the graph then is at that
// transaction, and one that is granted a lock no longer waits. So it is enough to look then, and only for cycles
// through it.
impl State {
    /// Breaks all cycles through a transaction that just began to wait. Where an edge of a cycle is nothing but an
    /// earlier place in line, the later request passes the earlier one, which waits for it anyway; only a cycle of held
    /// locks costs a victim. Returns how many it cost.
    pub fn untangle(&mut self, txn: TxnId) -> u64 {
        let mut victims = 0;
        while let Some(cycle) = self.cycle(txn) {
            let passing = cycle.iter().find_map(|(place, blocker)| blocker.queued.map(|ahead| (*place, ahead)));
            if let Some((place, ahead)) = passing {
                if let Some(request) = self.request_mut(place) {
                    request.passes.push(ahead);
                }
                self.try_grant(place);
                continue;
            }
            victims += 1;
            self.sacrifice(&cycle);
        }
        victims
    }

    /// Ends the wait of the one that holds the fewest locks, among equals that of the largest id.
    fn sacrifice(&mut self, cycle: &[(Place, Blocker)]) {
        let mut steps: Vec<Step> = cycle.iter().filter_map(|(place, blocker)| self.step(*place, blocker.txn)).collect();
        let held = |txn: TxnId| self.owners.get(&txn).map_or(0, |owner| owner.pieces.len());
        let cheapest =
            (0..steps.len()).min_by_key(|i| (held(steps[*i].want.txn), std::cmp::Reverse(steps[*i].want.txn)));
        steps.rotate_left(cheapest.unwrap_or(0));
        let Some(victim) = steps.first().map(|step| step.want.txn) else { return };
        if let Some(place) = self.waiting.get(&victim).copied() {
            self.end_wait(place, Verdict::Deadlock(steps));
            self.settle(victim);
        }
    }

    fn step(&self, place: Place, holder: TxnId) -> Option<Step> {
        let room = &self.families.get(&place.family)?.1;
        let want = room.queue.get(&place.ticket)?.want.clone();
        let held = room.table.held_by(holder, &want.span).find(|(_, mode)| mode.conflicts(want.mode));
        let held = held.unwrap_or_else(|| (want.span.clone(), LockMode::Exclusive)); // not there only if it is no holder
        Some(Step { want, holder, held })
    }

    /// A cycle in the wait-for graph, through a transaction: its requests, each with the edge that leads to
    /// the next. `None` also when the transaction does not wait.
    fn cycle(&self, through: TxnId) -> Option<Vec<(Place, Blocker)>> {
        let mut seen = BTreeSet::from([through]);
        let mut path = vec![(*self.waiting.get(&through)?, self.edges(through).into_iter())];
        let mut taken: Vec<Blocker> = Vec::new(); // the edge taken from each of the path but the last
        while let Some((_, edges)) = path.last_mut() {
            let Some(edge) = edges.next() else {
                path.pop();
                taken.pop();
                continue;
            };
            if edge.txn == through {
                taken.push(edge);
                return Some(path.into_iter().map(|(place, _)| place).zip(taken).collect());
            }
            if let Some(place) = self.waiting.get(&edge.txn)
                && seen.insert(edge.txn)
            {
                path.push((*place, self.edges(edge.txn).into_iter()));
                taken.push(edge);
            }
        }
        None
    }

    /// Those that a transaction waits for.
    fn edges(&self, txn: TxnId) -> Vec<Blocker> {
        let edges = self.waiting.get(&txn).and_then(|place| {
            let (_, room) = self.families.get(&place.family)?;
            Some(room.blockers(place.ticket, room.queue.get(&place.ticket)?))
        });
        edges.unwrap_or_default()
    }
}
