//! Deadlocks. A cycle can only close when a transaction begins to wait: every new edge of the graph then is at that
//! transaction, and one that is granted a lock no longer waits. So it is enough to look then, and only for cycles
//! through it.

use super::{Blocker, Family, State, Step, Verdict, Victim};
use crate::kinds::LockMode;
use crate::queue::{Line, Place, Request, Ticket};
use crate::span::CutRef;
use kingtide_base::{FamilyId, TxnId};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// How many times a request can be the first of those that a survivor is going to overtake: the last time, it moves up, too, and stays before
/// the survivor.
pub const PATIENCE: u32 = 8;

/// Requests of a cycle, each with the edge that leads to the next.
type Cycle = Vec<(Place, Blocker)>;

impl State {
    /// Breaks all cycles through a transaction that just began to wait. Only a cycle of held locks costs a victim. Where an edge of a
    /// cycle is nothing but an earlier place in line, the later request passes the earlier one, which waits for it anyway. Returns the
    /// victims.
    pub fn untangle(&mut self, txn: TxnId) -> Vec<Victim> {
        let (mut victims, mut moved) = (Vec::new(), Vec::new());
        if !self.may_be_waited_for(txn) {
            return victims;
        }
        // A search finds cycles of held locks first: what they cost has to be paid whatever the order in line, and may set the others free.
        // Passing makes no new such cycle, because only one that gets a lock by it is waited for anew, and that one goes on.
        while let Some(cycle) = self.cycle(txn) {
            if cycle.iter().all(|(_, edge)| edge.queued.is_none()) {
                victims.extend(self.sacrifice(&cycle, &mut moved));
            } else if !self.pass(&cycle) {
                break;
            }
        }
        // The edges that are new since lead to one that moved up, from those that it overtook: so all cycles that are new are through one, too.
        moved.into_iter().for_each(|moved| self.reorder(moved));
        victims
    }

    /// Returns whether another may wait for a transaction that just began to wait.
    fn may_be_waited_for(&self, txn: TxnId) -> bool {
        // None does if it holds nothing, because it comes last in line. If all that it holds is exclusive, and others ask only for
        // keys, the first in line for a key that it holds has no other to wait for, and so has it as its witness.
        let Some(owner) = self.owners.get(&txn) else { return false };
        owner.shares || self.ranges > 0 || self.witnessed(txn).next().is_some()
    }

    /// Breaks all cycles through a transaction, none of which is of held locks alone.
    fn reorder(&mut self, txn: TxnId) {
        while let Some(cycle) = self.cycle(txn) {
            if !self.pass(&cycle) {
                break;
            }
        }
    }

    /// Lets the first request of a cycle that stands behind another there pass it, and all like it that stand before it, too.
    fn pass(&mut self, cycle: &[(Place, Blocker)]) -> bool {
        let onward = cycle.iter().cycle().skip(1);
        let behind = cycle
            .iter()
            .zip(onward)
            .find_map(|((place, edge), (_, onward))| edge.queued.map(|ahead| (*place, ahead, *onward)));
        let Some((place, ahead, onward)) = behind else { return false };
        let Some((_, room)) = self.families.get_mut(&place.family) else { return false };
        let Some(want) = room.queue.get(ahead).map(|request| request.want.clone()) else { return false };
        // What asks for the same in the same mode waits for what `ahead` waits for, and so for the later request.
        let alike =
            room.queue.overlapping(&want.span, LockMode::Exclusive, ..place.ticket).filter(|(ticket, other)| {
                let same = other.want.mode == want.mode
                    && other.want.span.lo == want.span.lo
                    && other.want.span.end() == want.span.end();
                let waits = onward.queued.is_none_or(|before| before < *ticket && !other.passes.contains(&before));
                same && waits && other.want.txn != 0 && other.want.txn != onward.txn
            });
        let mut passed: Vec<Ticket> = alike.map(|(ticket, _)| ticket).collect();
        passed.push(ahead);
        if let Some(request) = room.queue.get_mut(place.ticket) {
            request.passes.extend(passed);
        }
        self.try_grant(place);
        true
    }

    /// Ends the wait of the one that holds the fewest locks, among equals that of the largest id. What it gives back goes to the one of the
    /// cycle that waited for it. Others further ahead in line would only meet that one in a deadlock in turn, and be its victims one after
    /// the other. Returns the victim, and adds the transactions whose requests moved up.
    fn sacrifice(&mut self, cycle: &[(Place, Blocker)], moved: &mut Vec<TxnId>) -> Option<Victim> {
        let mut steps: Vec<Step> = cycle.iter().filter_map(|(place, blocker)| self.step(*place, blocker.txn)).collect();
        let held = |txn: TxnId| self.owners.get(&txn).map_or(0, |owner| owner.pieces.len());
        let cheapest =
            (0..steps.len()).min_by_key(|i| (held(steps[*i].want.txn), std::cmp::Reverse(steps[*i].want.txn)));
        steps.rotate_left(cheapest.unwrap_or(0));
        let (victim, survivor) = (steps.first()?.want.txn, steps.last()?.want.txn);
        let place = self.waiting.get(&victim).copied()?;
        self.end_wait(place, Verdict::Deadlock { cycle: steps, let_go: false });
        self.settle(victim);
        moved.extend(self.advance(survivor));
        Some(Victim { txn: victim, number: place.ticket.number })
    }

    /// Moves a transaction's request ahead of those in line that are not upgrades. The first that it would overtake moves up, too, and stays
    /// before it, if it has been the first [`PATIENCE`] times; so does the first that this one would overtake in turn, which asks for
    /// something else or in another mode. So no request is overtaken [`PATIENCE`] times for each that was in line when it began to wait, itself
    /// included: each time counts for it or for one before it, and none counts more often. To move up all that were overtaken so often
    /// would make each a victim in turn. Returns the transactions whose requests moved up.
    fn advance(&mut self, txn: TxnId) -> Vec<TxnId> {
        let mut next = self.waiting.get(&txn).copied().filter(|place| place.ticket.line == Line::Other);
        let mut places = Vec::new();
        while let Some(place) = next {
            places.push(place);
            next = self.overtake(place);
        }
        places.into_iter().rev().filter_map(|place| self.move_up(place)).collect()
    }

    /// Counts that the one at `place` is going to overtake others, for the first of them. Returns where that one is if this has happened
    /// [`PATIENCE`] times.
    fn overtake(&mut self, place: Place) -> Option<Place> {
        let (_, room) = self.families.get_mut(&place.family)?;
        let request = room.queue.get(place.ticket)?;
        let ahead = room.ahead(place.ticket, &request.want, Some(&request.passes));
        let first = ahead.filter_map(|ahead| ahead.queued).filter(|ticket| ticket.line == Line::Other).min()?;
        let request = room.queue.get_mut(first)?;
        request.overtaken += 1;
        (request.overtaken >= PATIENCE).then_some(Place { ticket: first, ..place })
    }

    /// Moves a request to the line of survivors. Returns its transaction.
    fn move_up(&mut self, place: Place) -> Option<TxnId> {
        let request = self.take(place)?;
        let txn = request.want.txn;
        let place = Place { ticket: Ticket { line: Line::Survivor, ..place.ticket }, ..place };
        self.put(place, request);
        self.try_grant(place); // the witness may have been one that it overtook
        Some(txn)
    }

    fn step(&self, place: Place, holder: TxnId) -> Option<Step> {
        let room = &self.families.get(&place.family)?.1;
        let want = room.queue.get(place.ticket)?.want.clone();
        let held = room.table.held_by(holder, &want.span).find(|(_, mode)| mode.conflicts(want.mode));
        let held = held.unwrap_or_else(|| (want.span.clone(), LockMode::Exclusive)); // not there only if it is no holder
        Some(Step { want, holder, held })
    }

    /// A cycle through a transaction: a shortest one of held locks if there is one. `None` also when the transaction does not wait.
    fn cycle(&mut self, through: TxnId) -> Option<Cycle> {
        let mut search = Search {
            state: self,
            through,
            found: BTreeMap::new(),
            order: vec![through],
            alike: BTreeMap::new(),
            edges: Vec::new(),
            steps: 0,
        };
        let cycle = search.run();
        #[cfg(test)]
        {
            let steps = search.steps;
            self.steps += steps;
        }
        cycle
    }

    /// Returns whether there is a cycle through a transaction, without the search's short cuts.
    #[cfg(test)]
    pub fn is_in_a_cycle(&self, through: TxnId) -> bool {
        let mut seen = std::collections::BTreeSet::new();
        let mut next = vec![through];
        while let Some(place) = next.pop().and_then(|txn| self.waiting.get(&txn)) {
            for blocker in self.blockers(*place) {
                if blocker == through {
                    return true;
                }
                if self.waiting.contains_key(&blocker) && seen.insert(blocker) {
                    next.push(blocker);
                }
            }
        }
        false
    }
}

/// What requests have in common that ask for the same in the same mode: family, whether it is exclusive, and the ends.
type Kind<'a> = (FamilyId, bool, CutRef<'a>, CutRef<'a>);

/// What a search has read of the edges of such requests, which are the same but for where each stands.
#[derive(Default)]
struct Read {
    /// The holders have been read.
    holders: bool,
    /// The searched transaction is one of the holders: it waits for all the others of this kind to be no cycle.
    through_holds: bool,
    /// Requests in line before this one have been read, but for those that are `left`.
    up_to: Option<Ticket>,
    /// Passed by all that have been read of this kind.
    left: Vec<Ticket>,
}

/// A search for a cycle: breadth first, each transaction once, and the holders and the line before requests of the same kind once. It follows
/// the edges to holders first, of all that it has found, and then those to earlier requests in line.
struct Search<'a> {
    state: &'a State,
    through: TxnId,
    /// How the search came to a transaction: from which, by which edge.
    found: BTreeMap<TxnId, (TxnId, Blocker)>,
    /// The transactions in the order in which they were found.
    order: Vec<TxnId>,
    alike: BTreeMap<Kind<'a>, Read>,
    /// The edges of the request that is read.
    edges: Vec<Blocker>,
    /// Edges looked at, and requests.
    steps: u64,
}

/// A request that a search reads.
struct At<'a> {
    txn: TxnId,
    room: &'a Family,
    ticket: Ticket,
    request: &'a Request,
}

impl<'a> At<'a> {
    fn kind(&self) -> Kind<'a> {
        let want = &self.request.want;
        (want.family, want.mode == LockMode::Exclusive, want.span.lo.as_ref(), want.span.end())
    }
}

impl<'a> Search<'a> {
    fn run(&mut self) -> Option<Cycle> {
        let (mut held, mut in_line) = (0, 0); // how many have been read
        loop {
            let (next, holders) = if held < self.order.len() { (&mut held, true) } else { (&mut in_line, false) };
            let txn = *self.order.get(*next)?;
            *next += 1;
            self.steps += 1;
            let Some(at) = self.at(txn) else { continue };
            if holders {
                self.read_holders(&at);
            } else {
                self.read_line(&at);
            }
            if let Some(last) = self.follow(txn) {
                return self.path(txn, last);
            }
        }
    }

    fn at(&self, txn: TxnId) -> Option<At<'a>> {
        let place = *self.state.waiting.get(&txn)?;
        let (_, room) = self.state.families.get(&place.family)?;
        Some(At { txn, room, ticket: place.ticket, request: room.queue.get(place.ticket)? })
    }

    /// Lists the holders that a request waits for, or those of them that are not found yet.
    fn read_holders(&mut self, at: &At<'a>) {
        let (want, read) = (&at.request.want, self.alike.entry(at.kind()).or_default());
        if !std::mem::replace(&mut read.holders, true) {
            at.room.table.in_the_way(0, &want.span, want.mode, |holder| {
                self.steps += 1;
                if holder != at.txn {
                    self.edges.push(Blocker { txn: holder, queued: None });
                } else if holder == self.through {
                    read.through_holds = true;
                }
            });
        } else if read.through_holds {
            self.edges.push(Blocker { txn: self.through, queued: None });
        }
    }

    /// Lists the earlier requests in line that a request waits for, or those of them that are not found yet.
    fn read_line(&mut self, at: &At<'a>) {
        let (want, read) = (&at.request.want, self.alike.entry(at.kind()).or_default());
        let passes = |ticket: &Ticket| at.request.passes.contains(ticket);
        let queue = &at.room.queue;
        let (left, seen): (Vec<Ticket>, Vec<Ticket>) =
            read.left.drain(..).partition(|ticket| *ticket >= at.ticket || passes(ticket));
        read.left = left;
        let edge = |ticket: Ticket| Some(Blocker { txn: queue.get(ticket)?.want.txn, queued: Some(ticket) });
        self.edges.extend(seen.into_iter().filter_map(edge));
        let from = read.up_to.unwrap_or(Ticket::FIRST);
        if from >= at.ticket {
            return;
        }
        for (ticket, other) in queue.overlapping(&want.span, want.mode, from..at.ticket) {
            self.steps += 1;
            if !other.holds_up(want) {
                continue;
            }
            if passes(&ticket) {
                read.left.push(ticket);
            } else {
                self.edges.push(Blocker { txn: other.want.txn, queued: Some(ticket) });
            }
        }
        read.up_to = Some(at.ticket);
    }

    /// Notes where the listed edges of a transaction lead. Returns the one that closes a cycle.
    fn follow(&mut self, txn: TxnId) -> Option<Blocker> {
        for edge in self.edges.drain(..) {
            if edge.txn == self.through {
                return Some(edge);
            }
            if self.state.waiting.contains_key(&edge.txn)
                && let Entry::Vacant(entry) = self.found.entry(edge.txn)
            {
                entry.insert((txn, edge));
                self.order.push(edge.txn);
            }
        }
        None
    }

    /// The cycle that the search came along to `last`, whose edge closes it.
    fn path(&self, last: TxnId, closing: Blocker) -> Option<Cycle> {
        let mut cycle = vec![(*self.state.waiting.get(&last)?, closing)];
        let mut at = last;
        while at != self.through {
            let (before, edge) = *self.found.get(&at)?;
            cycle.push((*self.state.waiting.get(&before)?, edge));
            at = before;
        }
        cycle.reverse();
        Some(cycle)
    }
}
