//! Deadlocks. A cycle can only close when a transaction begins to wait: every new edge of the graph then is at that
//! transaction, and one that is granted a lock no longer waits. So it is enough to look then, and only for cycles
//! through it.

use super::{Blocker, State, Step, Verdict};
use crate::kinds::LockMode;
use crate::queue::{Line, Place, Ticket};
use crate::span::CutRef;
use kingtide_base::{FamilyId, TxnId};
use std::collections::{BTreeMap, VecDeque};

/// Requests of a cycle, each with the edge that leads to the next.
type Cycle = Vec<(Place, Blocker)>;

impl State {
    /// Breaks all cycles through a transaction that just began to wait. Only a cycle of held locks costs a victim. Where an edge of a
    /// cycle is nothing but an earlier place in line, the later request passes the earlier one, which waits for it anyway. Returns how
    /// many victims it cost.
    pub fn untangle(&mut self, txn: TxnId) -> u64 {
        // No transaction waits for one that holds nothing, and that comes last in line.
        if !self.owners.contains_key(&txn) {
            return 0;
        }
        let (mut victims, mut survivors) = (0, Vec::new());
        // Held locks first: what they cost has to be paid whatever the order in line, and may set the others free. Passing makes no new
        // such cycle, because only one that gets a lock by it is waited for anew, and that one goes on.
        while let Some(cycle) = self.cycle(txn, Edges::Held) {
            victims += 1;
            survivors.extend(self.sacrifice(&cycle));
        }
        // The edges that are new since lead to a survivor, from those that it overtook: so all cycles that are new are through one, too.
        survivors.into_iter().for_each(|survivor| self.reorder(survivor));
        self.reorder(txn);
        victims
    }

    /// Breaks all cycles through a transaction, none of which is of held locks alone.
    fn reorder(&mut self, txn: TxnId) {
        while let Some(cycle) = self.cycle(txn, Edges::All) {
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
    /// cycle that waited for it, which is returned. Others further ahead in line would only meet that one in a deadlock in turn, and be its
    /// victims one after the other.
    fn sacrifice(&mut self, cycle: &[(Place, Blocker)]) -> Option<TxnId> {
        let mut steps: Vec<Step> = cycle.iter().filter_map(|(place, blocker)| self.step(*place, blocker.txn)).collect();
        let held = |txn: TxnId| self.owners.get(&txn).map_or(0, |owner| owner.pieces.len());
        let cheapest =
            (0..steps.len()).min_by_key(|i| (held(steps[*i].want.txn), std::cmp::Reverse(steps[*i].want.txn)));
        steps.rotate_left(cheapest.unwrap_or(0));
        let victim = steps.first()?.want.txn;
        let survivor = steps.last()?.want.txn;
        if let Some(place) = self.waiting.get(&victim).copied() {
            self.end_wait(place, Verdict::Deadlock(steps));
            self.settle(victim);
        }
        self.advance(survivor);
        Some(survivor)
    }

    /// Puts a transaction's request before those of others in line that do not make a lock stronger.
    fn advance(&mut self, txn: TxnId) {
        let Some(place) = self.waiting.get(&txn).copied().filter(|place| place.ticket.line == Line::Other) else {
            return;
        };
        let Some(request) = self.take(place) else { return };
        let Some((_, room)) = self.families.get_mut(&place.family) else { return };
        let place = Place { ticket: Ticket { line: Line::Survivor, ..place.ticket }, ..place };
        self.waiting.insert(txn, place);
        self.witnesses.insert((request.witness, place));
        room.queue.insert(place.ticket, request);
        self.try_grant(place); // the witness may have been one that it overtook
    }

    fn step(&self, place: Place, holder: TxnId) -> Option<Step> {
        let room = &self.families.get(&place.family)?.1;
        let want = room.queue.get(place.ticket)?.want.clone();
        let held = room.table.held_by(holder, &want.span).find(|(_, mode)| mode.conflicts(want.mode));
        let held = held.unwrap_or_else(|| (want.span.clone(), LockMode::Exclusive)); // not there only if it is no holder
        Some(Step { want, holder, held })
    }

    /// A shortest cycle through a transaction; `None` also when the transaction does not wait.
    fn cycle(&mut self, through: TxnId, edges: Edges) -> Option<Cycle> {
        let mut search = Search {
            state: self,
            through,
            edges,
            found: BTreeMap::new(),
            unread: VecDeque::from([through]),
            alike: BTreeMap::new(),
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

/// The edges of the graph that a search follows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Edges {
    /// To those that hold locks.
    Held,
    /// To earlier requests in line, too.
    All,
}

/// What requests have in common that ask for the same in the same mode: family, whether it is exclusive, and the ends.
type Kind<'a> = (FamilyId, bool, CutRef<'a>, CutRef<'a>);

/// What a search has read of the edges of such requests, which are the same but for where each stands.
#[derive(Default)]
struct Read {
    /// The searched transaction is one of the holders: it waits for all the others of this kind to be no cycle.
    through_holds: bool,
    /// Requests in line before this one have been read, but for those that are `left`.
    up_to: Option<Ticket>,
    /// Passed by all that have been read of this kind.
    left: Vec<Ticket>,
}

/// A search for a cycle: breadth first, each transaction once, and the holders and the line before requests of the same kind once.
struct Search<'a> {
    state: &'a State,
    through: TxnId,
    edges: Edges,
    /// How the search came to a transaction: from which, by which edge.
    found: BTreeMap<TxnId, (TxnId, Blocker)>,
    unread: VecDeque<TxnId>,
    alike: BTreeMap<Kind<'a>, Read>,
    /// Edges looked at, and requests.
    steps: u64,
}

impl<'a> Search<'a> {
    fn run(&mut self) -> Option<Cycle> {
        while let Some(txn) = self.unread.pop_front() {
            self.steps += 1;
            if let Some(last) = self.read(txn) {
                return self.path(txn, last);
            }
        }
        None
    }

    /// Notes what a transaction waits for. Returns the edge that closes a cycle.
    fn read(&mut self, txn: TxnId) -> Option<Blocker> {
        let state = self.state;
        let place = *state.waiting.get(&txn)?;
        let (_, room) = state.families.get(&place.family)?;
        let request = room.queue.get(place.ticket)?;
        let want = &request.want;
        let kind: Kind<'a> = (want.family, want.mode == LockMode::Exclusive, want.span.lo.as_ref(), want.span.end());
        let is_first = !self.alike.contains_key(&kind);
        let mut read = self.alike.remove(&kind).unwrap_or_default();
        let mut edges = Vec::new();
        if is_first {
            room.table.in_the_way(0, &want.span, want.mode, |holder| {
                self.steps += 1;
                if holder != txn {
                    edges.push(Blocker { txn: holder, queued: None });
                } else if holder == self.through {
                    read.through_holds = true;
                }
            });
        } else if read.through_holds {
            edges.push(Blocker { txn: self.through, queued: None });
        }
        if self.edges == Edges::All {
            let passes = |ticket: &Ticket| request.passes.contains(ticket);
            let (left, seen) = read.left.iter().partition(|ticket| **ticket >= place.ticket || passes(ticket));
            read.left = left;
            let seen: Vec<Ticket> = seen;
            edges
                .extend(seen.into_iter().filter_map(|ticket| {
                    Some(Blocker { txn: room.queue.get(ticket)?.want.txn, queued: Some(ticket) })
                }));
            let from = read.up_to.unwrap_or(Ticket::FIRST);
            if from < place.ticket {
                for (ticket, other) in room.queue.overlapping(&want.span, want.mode, from..place.ticket) {
                    self.steps += 1;
                    if !other.holds_up(want) {
                        continue;
                    }
                    if passes(&ticket) {
                        read.left.push(ticket);
                    } else {
                        edges.push(Blocker { txn: other.want.txn, queued: Some(ticket) });
                    }
                }
                read.up_to = Some(place.ticket);
            }
        }
        self.alike.insert(kind, read);
        for edge in edges {
            if edge.txn == self.through {
                return Some(edge);
            }
            if state.waiting.contains_key(&edge.txn) && !self.found.contains_key(&edge.txn) {
                self.found.insert(edge.txn, (txn, edge));
                self.unread.push_back(edge.txn);
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
