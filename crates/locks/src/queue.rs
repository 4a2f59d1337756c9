//! The requests that wait in one family, in the order in which they are granted, and by what they ask for.

use crate::kinds::LockMode;
use crate::span::{Cut, Span, Want};
use kingtide_base::sync::Condvar;
use kingtide_base::{FamilyId, TxnId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

/// Which requests come before others, whenever they began to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Line {
    /// Upgrades, because the others can often not go on before them.
    Upgrade,
    /// Requests for a lock that the victim of a deadlock gives back, and those that such requests have overtaken often enough.
    Survivor,
    Other,
}

/// Where a request stands in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket {
    pub line: Line,
    /// Its own: no other request has it, in whichever line.
    pub number: u64,
}

impl Ticket {
    pub const FIRST: Ticket = Ticket { line: Line::Upgrade, number: 0 };
    pub const LAST: Ticket = Ticket { line: Line::Other, number: u64::MAX };
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
    pub witness: TxnId,
    /// Earlier requests that it need not stand behind, because they in turn wait for it.
    pub passes: BTreeSet<Ticket>,
    /// How often it was the first of those that a later request moved ahead of.
    pub overtaken: u32,
}

impl Request {
    /// Returns whether one that comes later and shares something with it stands behind it.
    pub fn holds_up(&self, later: &Want) -> bool {
        // A request that waits only for the place to be free holds no other up, and waits for holders alone.
        let both_lock = self.want.txn != 0 && later.txn != 0 && self.want.txn != later.txn;
        both_lock && self.want.mode.conflicts(later.mode)
    }
}

/// The place of a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub family: FamilyId,
    pub ticket: Ticket,
}

impl Place {
    /// Returns whether the request makes a lock stronger that its transaction has.
    pub fn is_upgrade(self) -> bool {
        self.ticket.line == Line::Upgrade
    }
}

/// Requests that ask for the same key, or for ranges.
#[derive(Default)]
struct Alike {
    all: BTreeSet<Ticket>,
    /// A request in shared mode looks at these alone: there may be many others, and it stands behind none.
    exclusive: BTreeSet<Ticket>,
}

impl Alike {
    fn insert(&mut self, ticket: Ticket, mode: LockMode) {
        self.all.insert(ticket);
        if mode == LockMode::Exclusive {
            self.exclusive.insert(ticket);
        }
    }

    fn remove(&mut self, ticket: Ticket) {
        self.all.remove(&ticket);
        self.exclusive.remove(&ticket);
    }

    /// Those that conflict with a mode.
    fn against(&self, mode: LockMode) -> &BTreeSet<Ticket> {
        if LockMode::Shared.conflicts(mode) { &self.all } else { &self.exclusive }
    }
}

/// The queue of a family.
#[derive(Default)]
pub(super) struct Queue {
    requests: BTreeMap<Ticket, Request>,
    /// Those that ask for a key, by the cut before it: a request for one key does not look at those for others.
    keys: BTreeMap<Cut, Alike>,
    /// Those that ask for more.
    ranges: Alike,
    /// Requests that others looked at.
    #[cfg(test)]
    pub steps: std::cell::Cell<u64>,
}

impl Queue {
    pub fn insert(&mut self, ticket: Ticket, request: Request) {
        let Want { span, mode, .. } = &request.want;
        match span.hi {
            None => self.keys.entry(span.lo.clone()).or_default().insert(ticket, *mode),
            Some(_) => self.ranges.insert(ticket, *mode),
        }
        self.requests.insert(ticket, request);
    }

    pub fn remove(&mut self, ticket: Ticket) -> Option<Request> {
        let request = self.requests.remove(&ticket)?;
        let lo = &request.want.span.lo;
        if request.want.span.hi.is_some() {
            self.ranges.remove(ticket);
        } else if let Some(same) = self.keys.get_mut(lo) {
            same.remove(ticket);
            if same.all.is_empty() {
                self.keys.remove(lo);
            }
        }
        Some(request)
    }

    pub fn get(&self, ticket: Ticket) -> Option<&Request> {
        self.requests.get(&ticket)
    }

    pub fn get_mut(&mut self, ticket: Ticket) -> Option<&mut Request> {
        self.requests.get_mut(&ticket)
    }

    /// All, in the order in which they are granted.
    pub fn iter(&self) -> impl Iterator<Item = (Ticket, &Request)> {
        self.requests.iter().map(|(ticket, request)| (*ticket, request))
    }

    pub fn len(&self) -> usize {
        self.requests.len()
    }

    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Requests with these tickets that share something with the span, in modes that conflict with `mode`: those for the same key in the order
    /// of their tickets, then ranges, or key by key if the span is a range.
    pub fn overlapping<'a>(
        &'a self,
        span: &'a Span,
        mode: LockMode,
        tickets: impl RangeBounds<Ticket> + Clone + 'a,
    ) -> impl DoubleEndedIterator<Item = (Ticket, &'a Request)> + 'a {
        let end =
            if span.hi.is_some() { Bound::Excluded(span.end().to_cut()) } else { Bound::Included(span.lo.clone()) };
        let keys = self.keys.range((Bound::Included(&span.lo), end.as_ref()));
        let within = tickets.clone();
        let keys = keys.flat_map(move |(_, same)| same.against(mode).range(within.clone()));
        let ranges = self.ranges.against(mode).range(tickets);
        keys.chain(ranges)
            .filter_map(|ticket| Some((*ticket, self.requests.get(ticket)?)))
            .inspect(|_| {
                #[cfg(test)]
                self.steps.set(self.steps.get() + 1);
            })
            .filter(|(_, r)| r.want.span.overlaps(span))
    }

    /// Panics unless all is in both.
    #[cfg(test)]
    pub fn check(&self) {
        for mode in [LockMode::Exclusive, LockMode::Shared] {
            let indexed = self.keys.values().chain([&self.ranges]).flat_map(|alike| alike.against(mode));
            let mut indexed: Vec<Ticket> = indexed.copied().collect();
            indexed.sort();
            let conflicting = self.requests.iter().filter(|(_, request)| request.want.mode.conflicts(mode));
            let conflicting: Vec<Ticket> = conflicting.map(|(ticket, _)| *ticket).collect();
            assert_eq!(indexed, conflicting, "the queue and its index differ");
        }
        assert!(self.keys.values().all(|same| !same.all.is_empty()));
    }
}
