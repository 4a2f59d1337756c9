//! What the lock manager's mutex guards: the tables of held locks, the owners, and the requests that wait.
//!
//! A request waits for those that hold what it asks for, and, so that none is overtaken for ever, for earlier requests
//! that ask for it too. Requests are granted by the releasing thread, in the order in which they came, not by waking all to
//! try again. Each waiting request notes one transaction that it waits for, its witness: it is looked at again only when
//! the witness gives up its locks or its place.

mod deadlocks;

#[cfg(test)]
pub(super) use deadlocks::PATIENCE;

use crate::kinds::{LockMode, Taken};
use crate::queue::{Line, Place, Queue, Request, Ticket};
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

/// A request of a cycle, and the lock that stands in its way.
pub(super) struct Step {
    pub want: Want,
    pub holder: TxnId,
    pub held: (Span, LockMode),
}

/// How a wait ended.
pub(super) enum Verdict {
    Granted,
    /// To break a deadlock.
    Deadlock {
        /// Beginning with the victim. Each waits for the next, the last for the first.
        cycle: Vec<Step>,
        /// Another thread gives the victim's locks back.
        let_go: bool,
    },
    /// The transaction's locks were released while it waited.
    Cancelled,
}

/// A transaction whose wait was ended to break a deadlock.
pub(super) struct Victim {
    pub txn: TxnId,
    /// The number of its request's ticket.
    number: u64,
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
    queue: Queue,
}

impl Family {
    /// Earlier requests that one with this ticket stands behind.
    fn ahead<'a>(
        &'a self,
        ticket: Ticket,
        want: &'a Want,
        passes: Option<&'a BTreeSet<Ticket>>,
    ) -> impl DoubleEndedIterator<Item = Blocker> + 'a {
        let passes = move |ticket: &Ticket| passes.is_some_and(|passes| passes.contains(ticket));
        let ahead = self.queue.overlapping(&want.span, want.mode, ..ticket);
        let ahead = ahead.filter(move |(t, other)| other.holds_up(want) && !passes(t));
        ahead.map(|(t, request)| Blocker { txn: request.want.txn, queued: Some(t) })
    }

    /// One of those that a waiting request waits for: a holder, if any.
    fn blocker(&self, ticket: Ticket, request: &Request) -> Option<Blocker> {
        let want = &request.want;
        match self.table.ask(want.txn, &want.span, want.mode) {
            Answer::Held(txn) => Some(Blocker { txn, queued: None }),
            Answer::Covered | Answer::Free { .. } => self.ahead(ticket, want, Some(&request.passes)).next(),
        }
    }

    /// One of those that a request waits for: the last in line before it if there is one. That one holds the lock next, so that a release is
    /// of no concern to those further behind.
    fn witness(&self, ticket: Ticket, want: &Want, passes: Option<&BTreeSet<Ticket>>) -> Option<TxnId> {
        if let Some(ahead) = self.ahead(ticket, want, passes).next_back() {
            return Some(ahead.txn);
        }
        match self.table.ask(want.txn, &want.span, want.mode) {
            Answer::Held(txn) => Some(txn),
            Answer::Covered | Answer::Free { .. } => None,
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
        let mut ahead: Vec<Blocker> = self.ahead(ticket, want, Some(&request.passes)).collect();
        ahead.sort_by_key(|blocker| blocker.queued);
        out.extend(ahead.into_iter().filter(|ahead| seen.insert(ahead.txn)));
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
    /// Whether it was ever granted a lock in shared mode.
    shares: bool,
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
    /// The requests that wait, each by its witness.
    witnesses: BTreeSet<(TxnId, Place)>,
    /// How many of them ask for ranges.
    ranges: usize,
    /// Verdicts that their threads have not read yet.
    verdicts: BTreeMap<u64, Verdict>,
    /// Of the threads that have new verdicts, to be notified without the mutex, because each needs it as soon as it wakes up.
    signals: Vec<Arc<Condvar>>,
    /// Whether there are owners; read without the mutex.
    any: Arc<AtomicBool>,
    next_ticket: u64,
    spare: Vec<Vec<(FamilyId, Piece)>>,
    /// Waits that take no thread.
    pub tasks: Tasks,
    /// Steps of all searches for deadlocks.
    #[cfg(test)]
    pub steps: u64,
}

impl State {
    pub fn new(any: Arc<AtomicBool>) -> State {
        State {
            families: BTreeMap::new(),
            owners: BTreeMap::new(),
            waiting: BTreeMap::new(),
            witnesses: BTreeSet::new(),
            ranges: 0,
            verdicts: BTreeMap::new(),
            signals: Vec::new(),
            any,
            next_ticket: 0,
            spare: Vec::new(),
            tasks: Tasks::default(),
            #[cfg(test)]
            steps: 0,
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
        if in_line
            && !upgrade
            && !room.queue.is_empty()
            && let Some(ahead) = room.ahead(Ticket::LAST, want, None).next()
        {
            return Err(ahead);
        }
        self.grant(want, upgrade);
        Ok(if upgrade { Taken::Raised } else { Taken::Now })
    }

    /// Puts a request in line that [`State::try_lock`] refused.
    pub fn enqueue(&mut self, want: Want, since: u64, signal: Arc<Condvar>, blocker: Blocker) -> Option<Place> {
        let (_, room) = self.families.get_mut(&want.family)?;
        let line = if room.is_upgrade(&want) { Line::Upgrade } else { Line::Other };
        let ticket = Ticket { line, number: self.next_ticket };
        self.next_ticket += 1;
        let place = Place { family: want.family, ticket };
        let witness = room.witness(ticket, &want, None).unwrap_or(blocker.txn);
        let passes = BTreeSet::new();
        self.put(place, Request { want, since, signal, poked: false, witness, passes, overtaken: 0 });
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
            let new = || Owner { pieces: spare.pop().unwrap_or_default(), heap: 0, shares: false };
            let owner = self.owners.entry(want.txn).or_insert_with(new);
            owner.shares |= want.mode == LockMode::Shared;
            owner.push(want.family, want.span.clone());
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
        self.settle_on(txn, family, &span);
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
        let mut reach = want.span.lo.clone();
        let mut take_off = |reach: Cut, end: CutRef<'_>| {
            if let Some(gap) = Span::between(reach, end) {
                room.table.give_back(want.txn, &gap, false);
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
        // A range that made the one before it longer stays a part of that, even if what became of the two is just what was asked for. What
        // is left in the list does not say that all of it is held.
        if let Some(owner) = self.owners.get_mut(&want.txn)
            && before.is_empty()
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
        self.settle_on(want.txn, want.family, &want.span);
        self.settle_tasks_on(want.txn, want.family, &want.span);
    }

    /// The requests whose witness a transaction is.
    fn witnessed(&self, txn: TxnId) -> impl Iterator<Item = Place> + '_ {
        let first = Place { family: FamilyId::MIN, ticket: Ticket::FIRST };
        let last = Place { family: FamilyId::MAX, ticket: Ticket::LAST };
        self.witnesses.range((txn, first)..=(txn, last)).map(|(_, place)| *place)
    }

    /// Looks again at the requests that waited for a transaction which gave up its locks or its place.
    pub fn settle(&mut self, gone: TxnId) {
        if self.witnesses.is_empty() {
            return;
        }
        let places: Vec<Place> = self.witnessed(gone).collect();
        for place in places {
            self.try_grant(place);
        }
    }

    /// The same, for a transaction that gave up this.
    fn settle_on(&mut self, gone: TxnId, family: FamilyId, span: &Span) {
        if self.witnesses.is_empty() {
            return;
        }
        let Some((_, room)) = self.families.get(&family) else { return };
        let (first, last) = (Place { family, ticket: Ticket::FIRST }, Place { family, ticket: Ticket::LAST });
        let theirs = self.witnesses.range((gone, first)..=(gone, last)).map(|(_, place)| *place);
        let concerned = |place: &Place| room.queue.get(place.ticket).is_some_and(|r| r.want.span.overlaps(span));
        let places: Vec<Place> = theirs.filter(concerned).collect();
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
        let Some(request) = room.queue.get(place.ticket) else { return };
        match room.witness(place.ticket, &request.want, Some(&request.passes)) {
            Some(witness) => {
                if let Some(request) = room.queue.get_mut(place.ticket).filter(|request| request.witness != witness) {
                    self.witnesses.remove(&(request.witness, place));
                    request.witness = witness;
                    self.witnesses.insert((witness, place));
                }
            }
            None => {
                let (want, upgrade) = (request.want.clone(), room.is_upgrade(&request.want));
                self.grant(&want, upgrade);
                self.end_wait(place, Verdict::Granted);
            }
        }
    }

    /// Takes a request out of the queue. Its thread is to be woken: see [`State::take_signals`]. The caller settles what the place sets free.
    fn end_wait(&mut self, place: Place, verdict: Verdict) {
        if let Some(request) = self.take(place) {
            self.verdicts.insert(place.ticket.number, verdict);
            self.signals.push(request.signal);
        }
    }

    /// Takes the signals of the threads whose waits have ended. To be called before the mutex is given up; they are notified after that.
    #[inline]
    pub fn take_signals(&mut self) -> Vec<Arc<Condvar>> {
        std::mem::take(&mut self.signals)
    }

    fn put(&mut self, place: Place, request: Request) {
        let Some((_, room)) = self.families.get_mut(&place.family) else { return };
        let want = &request.want;
        self.witnesses.insert((request.witness, place));
        self.ranges += usize::from(want.span.hi.is_some());
        if want.txn != 0 {
            self.waiting.insert(want.txn, place);
        }
        room.queue.insert(place.ticket, request);
    }

    fn take(&mut self, place: Place) -> Option<Request> {
        let request = self.families.get_mut(&place.family)?.1.queue.remove(place.ticket)?;
        self.witnesses.remove(&(request.witness, place));
        self.ranges -= usize::from(request.want.span.hi.is_some());
        if request.want.txn != 0 {
            self.waiting.remove(&request.want.txn);
        }
        Some(request)
    }

    /// The waiting thread gives up.
    pub fn withdraw(&mut self, place: Place) {
        self.verdicts.remove(&place.ticket.number);
        if let Some(request) = self.take(self.moved(place)) {
            self.settle(request.want.txn);
        }
    }

    /// Returns how the wait ended, if it did.
    pub fn verdict(&mut self, place: Place) -> Option<Verdict> {
        self.verdicts.remove(&place.ticket.number)
    }

    /// Notes that another thread is going to give a victim's locks back. False if its own thread has read the verdict.
    pub fn let_go(&mut self, victim: &Victim) -> bool {
        match self.verdicts.get_mut(&victim.number) {
            Some(Verdict::Deadlock { let_go, .. }) => {
                *let_go = true;
                true
            }
            _ => false,
        }
    }

    /// Where the request is that began to wait at a place.
    fn moved(&self, place: Place) -> Place {
        let ahead = Place { ticket: Ticket { line: Line::Survivor, ..place.ticket }, ..place };
        let is_there = self.families.get(&ahead.family).is_some_and(|(_, room)| room.queue.get(ahead.ticket).is_some());
        if is_there { ahead } else { place }
    }

    /// Returns whether the thread should check its state instead of waiting: there is a verdict, or it was woken.
    pub fn roused(&mut self, place: Place) -> bool {
        self.verdicts.contains_key(&place.ticket.number)
            || self.request_mut(self.moved(place)).is_some_and(|request| std::mem::take(&mut request.poked))
    }

    fn request_mut(&mut self, place: Place) -> Option<&mut Request> {
        self.families.get_mut(&place.family)?.1.queue.get_mut(place.ticket)
    }

    /// One of those that a waiting request waits for.
    pub fn blocker(&self, place: Place) -> Option<Blocker> {
        let place = self.moved(place);
        let (_, room) = self.families.get(&place.family)?;
        let request = room.queue.get(place.ticket)?;
        room.blocker(place.ticket, request)
    }

    /// All that a waiting request waits for; empty if it does not wait any more.
    pub fn blockers(&self, place: Place) -> Vec<TxnId> {
        let place = self.moved(place);
        let found = self.families.get(&place.family).and_then(|(_, room)| {
            let request = room.queue.get(place.ticket)?;
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

    /// The families of the locks of one transaction, each as often as it has locks there.
    pub fn families_of(&self, txn: TxnId) -> impl Iterator<Item = FamilyId> + '_ {
        self.owners.get(&txn).into_iter().flat_map(|owner| &owner.pieces).map(|(family, _)| *family)
    }

    /// All requests that wait, each with what it waits for.
    pub fn waits(&self) -> impl Iterator<Item = (&Request, Vec<Blocker>)> + '_ {
        self.families
            .values()
            .flat_map(|(_, room)| room.queue.iter().map(|(ticket, request)| (request, room.blockers(ticket, request))))
    }

    pub fn memory(&self) -> u64 {
        let piece = size_of::<(FamilyId, Piece)>();
        let tables = self.families.values().map(|(_, room)| {
            let entry = size_of::<(Ticket, Request)>() + size_of::<(Cut, Ticket)>() + size_of::<(TxnId, Place)>();
            let requests = room.queue.len() * entry;
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
        let (mut waiting, mut requests) = (0, 0);
        for (family, (_, room)) in &self.families {
            room.table.check();
            room.queue.check();
            for (ticket, request) in room.queue.iter() {
                let blockers = room.blockers(ticket, request);
                assert!(blockers.iter().any(|b| b.txn == request.witness), "{ticket:?} waits for no transaction");
                assert!(self.witnesses.contains(&(request.witness, Place { family: *family, ticket })));
                requests += 1;
                waiting += usize::from(request.want.txn != 0);
            }
        }
        assert_eq!((waiting, requests), (self.waiting.len(), self.witnesses.len()));
        let requests = self.families.values().flat_map(|(_, room)| room.queue.iter());
        assert_eq!(requests.filter(|(_, request)| request.want.span.hi.is_some()).count(), self.ranges);
        assert!(!self.waiting.keys().any(|txn| self.is_in_a_cycle(*txn)), "a deadlock");
        self.tasks.check(|want| self.holders(want));
    }

    /// How often a request of a family looked at another in line.
    #[cfg(test)]
    pub fn looks(&self, family: FamilyId) -> u64 {
        self.families.get(&family).map_or(0, |(_, room)| room.queue.steps.get())
    }

    /// Number of segments in a family's table.
    #[cfg(test)]
    pub fn segments(&self, family: FamilyId) -> usize {
        self.families.get(&family).map_or(0, |(_, room)| room.table.len())
    }
}
