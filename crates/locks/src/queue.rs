//! The requests that wait in one family, in the order in which they are granted, and by what they ask for.

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
    /// For a lock that another transaction gives back as the victim of a deadlock with this one.
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

/// The queue of a family.
#[derive(Default)]
pub(super) struct Queue {
    requests: BTreeMap<Ticket, Request>,
    /// Those that ask for a key, by the cut before it: a request for one key does not look at those for others.
    keys: BTreeMap<Cut, BTreeSet<Ticket>>,
    /// Those that ask for more.
    ranges: BTreeSet<Ticket>,
}

impl Queue {
    pub fn insert(&mut self, ticket: Ticket, request: Request) {
        match request.want.span.hi {
            None => self.keys.entry(request.want.span.lo.clone()).or_default().insert(ticket),
            Some(_) => self.ranges.insert(ticket),
        };
        self.requests.insert(ticket, request);
    }

    pub fn remove(&mut self, ticket: Ticket) -> Option<Request> {
        let request = self.requests.remove(&ticket)?;
        let lo = &request.want.span.lo;
        if request.want.span.hi.is_some() {
            self.ranges.remove(&ticket);
        } else if let Some(same) = self.keys.get_mut(lo) {
            same.remove(&ticket);
            if same.is_empty() {
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

    /// Requests with these tickets that share something with the span: those for the same key in the order of their tickets, then ranges, or
    /// key by key if the span is a range.
    pub fn overlapping<'a>(
        &'a self,
        span: &'a Span,
        tickets: impl RangeBounds<Ticket> + Clone + 'a,
    ) -> impl DoubleEndedIterator<Item = (Ticket, &'a Request)> + 'a {
        let end =
            if span.hi.is_some() { Bound::Excluded(span.end().to_cut()) } else { Bound::Included(span.lo.clone()) };
        let keys = self.keys.range((Bound::Included(&span.lo), end.as_ref()));
        let within = tickets.clone();
        let keys = keys.flat_map(move |(_, same)| same.range(within.clone()));
        let ranges = self.ranges.range(tickets);
        keys.chain(ranges)
            .filter_map(|ticket| Some((*ticket, self.requests.get(ticket)?)))
            .filter(|(_, r)| r.want.span.overlaps(span))
    }

    /// Panics unless all is in both.
    #[cfg(test)]
    pub fn check(&self) {
        let mut indexed: Vec<Ticket> = self.keys.values().flatten().chain(&self.ranges).copied().collect();
        indexed.sort();
        assert_eq!(indexed, self.requests.keys().copied().collect::<Vec<_>>(), "the queue and its index differ");
        assert!(self.keys.values().all(|same| !same.is_empty()));
    }
}
