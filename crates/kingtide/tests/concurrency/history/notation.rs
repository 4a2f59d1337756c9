//! Histories in the notation of the literature: one word for each thing that happens, in the order in which it does.
//!
//! | word | what happens |
//! |---|---|
//! | `b1` | transaction 1 begins, with a snapshot of what is committed |
//! | `r1x2` `r1x0` | it reads register x: version 2, nothing |
//! | `u1x2` | the same for update |
//! | `p1x-z=x1,y2` | it reads the registers from x up to, not with, z |
//! | `w1x2` `w1x0` | it writes version 2, deletes |
//! | `l1l=1,2` | it reads list l |
//! | `a1l3` | it appends 3 to list l |
//! | `k1@2` | it takes back what it wrote from its operation 2 on |
//! | `c1` `x1` | it commits, aborts |
//! | `fx2` `Fl=1,2` | in the end register x and list l are that |

use super::recorded::{Finals, History, Key, Op, Outcome, OwnWrites, Txn, Value};
use kingtide::Isolation;

/// Where a history is put among others: what is added to its keys, values, events and sequence numbers.
#[derive(Clone, Copy, Default)]
pub struct Place {
    pub key: Key,
    pub value: Value,
    pub event: u64,
    pub seq: u64,
}

impl Place {
    fn key(&self, letter: &str) -> Key {
        self.key + letter.bytes().next().map_or(0, |c| (c - b'a') as Key)
    }

    fn value(&self, digits: &str) -> Option<Value> {
        let value: Value = digits.parse().expect("a number");
        (value != 0).then(|| self.value + value)
    }

    fn values(&self, list: &str) -> Box<[Value]> {
        list.split(',').filter_map(|v| if v.is_empty() { None } else { self.value(v) }).collect()
    }

    fn operation(&self, kind: &str, rest: &str) -> Op {
        match kind {
            "r" | "u" => Op::Read { key: self.key(rest), value: self.value(&rest[1..]), current: kind == "u" },
            "w" => Op::Write { key: self.key(rest), value: self.value(&rest[1..]) },
            "a" => Op::Append { key: self.key(rest), elem: self.value(&rest[1..]).expect("an element") },
            "l" => Op::ReadList { key: self.key(rest), list: self.values(&rest[2..]), current: false },
            "k" => Op::RollBack { to: rest[1..].parse().expect("a number") },
            "p" => {
                let found = rest[4..].split(',').filter(|f| !f.is_empty());
                let found = found.map(|f| (self.key(f), self.value(&f[1..]).expect("a value"))).collect();
                Op::ReadRange { lo: self.key(rest), hi: self.key(&rest[2..]), found }
            }
            _ => panic!("{kind}{rest} means nothing"),
        }
    }
}

/// Reads a history, all of it at one level.
pub fn parse(text: &str, level: Isolation, place: Place) -> History {
    let mut history = History::default();
    let mut numbers: Vec<&str> = Vec::new();
    let (mut event, mut seq) = (place.event, place.seq);
    for word in text.split_whitespace() {
        let (kind, rest) = word.split_at(1);
        if kind == "f" || kind == "F" {
            let finals: &mut Finals = history.finals.get_or_insert_default();
            if kind == "f" {
                finals.registers.insert(place.key(rest), place.value(&rest[1..]));
            } else {
                finals.lists.insert(place.key(rest), place.values(&rest[2..]));
            }
            continue;
        }
        event += 1;
        let (number, rest) = rest.split_at(1);
        if kind == "b" {
            let process = 1000 + numbers.len() as u32;
            numbers.push(number);
            let (outcome, ops) = (Outcome::Unknown, Vec::new());
            history.txns.push(Txn {
                process,
                level,
                locking: false,
                begin: event,
                end: event,
                snapshot: Some(seq),
                outcome,
                ops,
            });
            continue;
        }
        let at = numbers.iter().position(|n| *n == number).expect("a transaction that has begun");
        let txn = &mut history.txns[at];
        txn.end = event;
        match kind {
            "c" => {
                seq += OwnWrites::of(txn).all().len() as u64;
                txn.outcome = Outcome::Committed(seq);
            }
            "x" => txn.outcome = Outcome::Aborted,
            _ => txn.ops.push(place.operation(kind, rest)),
        }
    }
    history
}
