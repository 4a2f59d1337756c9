//! The isolation levels by their definitions: every anomaly, on every level, optimistic and locking, is either prevented,
//! and in the way that [`TABLE`] says, or it is seen to happen. Most are from Martin Kleppmann's Hermitage; `docs/isolation.md`
//! names the sources.
//!
//! The interleavings are exact: one thread steps several transactions, whose wait for a lock is zero. Each scenario runs
//! with its data in the memtable, flushed between any two steps, merged to the deepest level between any two steps, and
//! flushed by itself because memtables are tiny. Where a wait itself is the point, `waits` has threads.

mod items;
mod mixed;
mod phantoms;
mod predicates;
mod waits;
mod world;

use world::{Mode, Outcome, Outcome::*, Storage, Verdict, World};

/// An anomaly, and what becomes of it on each level: read uncommitted, read committed, repeatable read, snapshot, serializable.
struct Row {
    name: &'static str,
    scenario: fn(&World) -> Verdict,
    optimistic: [Outcome; 5],
    locking: [Outcome; 5],
}

/// THE table, and a test for each of its rows.
macro_rules! table {
    ($($test:ident, $name:literal, $scenario:path: $optimistic:expr, $locking:expr;)*) => {
        static TABLE: &[Row] = &[$(
            Row { name: $name, scenario: $scenario, optimistic: $optimistic, locking: $locking }
        ),*];

        $(#[test]
        fn $test() {
            check($name);
        })*
    };
}

table! {
    g0, "G0 dirty write", items::dirty_write:
        [Held, Held, Held, Refused, Refused], [Locked, Locked, Locked, Locked, Locked];
    g1a, "G1a aborted read", items::aborted_read:
        [Seen, Held, Held, Held, Held], [Seen, Held, Held, Held, Locked];
    g1a_scan, "G1a by a scan", predicates::dirty_scan:
        [Seen, Held, Held, Held, Held], [Seen, Held, Held, Held, Locked];
    g1b, "G1b intermediate read", items::intermediate_read:
        [Seen, Held, Held, Held, Held], [Seen, Held, Held, Held, Locked];
    g1c, "G1c circular information flow", items::circular_information_flow:
        [Seen, Held, Held, Held, Refused], [Seen, Held, Held, Held, Locked];
    otv, "OTV observed transaction vanishes", items::observed_transaction_vanishes:
        [Seen, Held, View, View, View], [Seen, Held, View, View, Locked];
    pmp, "PMP predicate-many-preceders", predicates::predicate_many_preceders:
        [Seen, Seen, View, View, View], [Seen, Seen, View, View, Locked];
    pmp_write, "PMP with write predicates", predicates::predicate_many_preceders_of_writes:
        [Seen, Seen, Seen, Refused, Refused], [Seen, Seen, Seen, Refused, Locked];
    p2, "P2 non-repeatable read", items::non_repeatable_read:
        [Seen, Seen, View, View, View], [Seen, Seen, View, View, Locked];
    p3, "P3 phantom", predicates::phantom:
        [Seen, Seen, View, View, View], [Seen, Seen, View, View, Locked];
    p4, "P4 lost update", items::lost_update:
        [Seen, Seen, Seen, Refused, Refused], [Seen, Seen, Seen, Refused, Locked];
    p4_for_update, "P4 with get_for_update", items::lost_update_of_reads_for_update:
        [Refused, Refused, Refused, Refused, Refused], [Locked, Locked, Locked, Locked, Locked];
    p4_blind, "P4 of get_for_update and a blind write", items::blind_write_over_a_read_for_update:
        [Refused, Refused, Refused, Refused, Refused], [Locked, Locked, Locked, Locked, Locked];
    g_single, "G-single read skew", items::read_skew:
        [Seen, Seen, View, View, View], [Seen, Seen, View, View, Locked];
    g_single_predicates, "G-single with predicates", predicates::read_skew_of_predicates:
        [Seen, Seen, View, View, View], [Seen, Seen, View, View, Locked];
    g_single_write, "G-single with a write predicate", predicates::read_skew_of_a_write_predicate:
        [Seen, Seen, Seen, Refused, Refused], [Seen, Seen, Seen, Refused, Locked];
    g2_item, "G2-item write skew", items::write_skew:
        [Seen, Seen, Seen, Seen, Refused], [Seen, Seen, Seen, Seen, Locked];
    g2_item_multi_get, "G2-item by multi_get", items::write_skew_of_multi_gets:
        [Seen, Seen, Seen, Seen, Refused], [Seen, Seen, Seen, Seen, Locked];
    g2_item_for_share, "G2-item with get_for_share", items::write_skew_of_reads_for_share:
        [Refused, Refused, Refused, Refused, Refused], [Locked, Locked, Locked, Locked, Locked];
    g2, "G2 phantom write skew", predicates::write_skew_of_predicates:
        [Seen, Seen, Seen, Seen, Refused], [Seen, Seen, Seen, Seen, Locked];
    g2_three, "G2 around three ranges", predicates::cycle_of_three:
        [Seen, Seen, Seen, Seen, Refused], [Seen, Seen, Seen, Seen, Locked];
    read_only_anomaly, "Read-only anomaly", items::read_only_anomaly:
        [Seen, Seen, Seen, Seen, Refused], [Seen, Seen, Seen, Seen, Locked];
}

/// Runs one row of the table on every level, in both modes, over all kinds of storage.
fn check(name: &str) {
    let row = TABLE.iter().find(|r| r.name == name).unwrap();
    for mode in Mode::all() {
        let expected = if mode.locking { row.locking } else { row.optimistic }[mode.level as usize];
        for storage in Storage::ALL {
            let world = World::new(mode, storage);
            let outcome = (row.scenario)(&world).unwrap_or_else(|refused| refused);
            assert_eq!(outcome, expected, "{name} ({mode}, {storage:?})");
            world.check_after();
        }
    }
}

/// A level excludes what every weaker one excludes.
#[test]
fn the_table_ascends() {
    for row in TABLE {
        for cells in [row.optimistic, row.locking] {
            let first = cells.iter().position(|c| *c != Seen).unwrap_or(5);
            assert!(cells[first..].iter().all(|c| *c != Seen), "{}", row.name);
            assert_ne!(cells[4], Seen, "{}: serializable excludes everything", row.name);
        }
    }
}
