//! Anomalies over predicates, evaluated by scans.

use super::world::{Outcome::*, Verdict, World};

/// A predicate that matched nothing matches something the next time.
pub fn predicate_many_preceders(w: &World) -> Verdict {
    let (mut a, mut b) = (w.begin(), w.begin());
    assert_eq!(a.select(|v| v == 30)?, []);
    b.put("3", 30)?;
    b.commit()?;
    let again = a.select(|v| v % 3 == 0)?;
    a.commit()?;
    Ok(if again.is_empty() { View } else { Seen })
}

/// Both transactions write by a predicate. One adds 10 to everything, the other deletes what is 20: in either order one
/// key is left.
pub fn predicate_many_preceders_of_writes(w: &World) -> Verdict {
    let (mut a, mut b) = (w.begin(), w.begin());
    let all = a.select(|_| true)?;
    assert_eq!(all.len(), 2);
    let twenties = b.select(|v| v == 20)?;
    assert_eq!(twenties.len(), 1);
    for (key, _) in &twenties {
        b.delete(key)?;
    }
    b.commit()?;
    for (key, value) in &all {
        a.put(key, value + 10)?;
    }
    a.commit()?;
    assert_eq!((w.committed("1"), w.committed("2")), (Some(20), Some(30)));
    Ok(Seen)
}

/// Read skew between two predicates.
pub fn read_skew_of_predicates(w: &World) -> Verdict {
    let (mut a, mut b) = (w.begin(), w.begin());
    assert_eq!(a.select(|v| v % 5 == 0)?.len(), 2);
    b.put("1", 12)?;
    b.commit()?;
    let again = a.select(|v| v % 3 == 0)?;
    a.commit()?;
    Ok(if again.is_empty() { View } else { Seen })
}

/// Read skew between a key and a predicate by which the transaction then deletes.
pub fn read_skew_of_a_write_predicate(w: &World) -> Verdict {
    let (mut a, mut b) = (w.begin(), w.begin());
    assert_eq!(a.read("1")?, 10);
    assert_eq!(b.select(|_| true)?.len(), 2);
    b.put("1", 12)?;
    b.put("2", 18)?;
    b.commit()?;
    // A reader that sees b sees no 20, but 10 above says that b was not seen; one that does not undoes part of it.
    for (key, _) in a.select(|v| v == 20)? {
        a.delete(&key)?;
    }
    a.commit()?;
    assert_eq!(w.committed("1"), Some(12));
    Ok(Seen)
}

/// A scan shows an uncommitted insert, an uncommitted change, and no longer what was deleted and not committed.
pub fn dirty_scan(w: &World) -> Verdict {
    w.db.put("4", "40").unwrap();
    w.db.put("5", "50").unwrap();
    let (mut a, mut b) = (w.begin(), w.begin());
    a.put("1", 11)?;
    a.put("3", 30)?;
    a.delete("2")?;
    a.step(|t, f| t.delete_range(f, b"4"..b"6"))?;
    let seen: Vec<i64> = b.select(|_| true)?.into_iter().map(|(_, v)| v).collect();
    a.rollback();
    b.commit()?;
    Ok(match seen[..] {
        [11, 30] => Seen,
        [10, 20, 40, 50] => Held,
        _ => panic!("{seen:?}"),
    })
}

/// Two scans of one range show different keys.
pub fn phantom(w: &World) -> Verdict {
    let (mut a, mut b) = (w.begin(), w.begin());
    assert_eq!(a.select(|_| true)?.len(), 2);
    b.put("15", 0)?;
    b.delete("2")?;
    b.commit()?;
    let again: Vec<String> = a.select(|_| true)?.into_iter().map(|(k, _)| k).collect();
    a.commit()?;
    Ok(if again == ["1", "15"] { Seen } else { View })
}

/// Two transactions find that nothing matches, and each inserts something that does.
pub fn write_skew_of_predicates(w: &World) -> Verdict {
    let (mut a, mut b) = (w.begin(), w.begin());
    assert_eq!(a.select(|v| v % 3 == 0)?, []);
    assert_eq!(b.select(|v| v % 3 == 0)?, []);
    a.put("3", 30)?;
    b.put("4", 42)?;
    a.commit()?;
    b.commit()?;
    Ok(Seen)
}

/// A cycle of three transactions, each of which writes into the range that the next one read.
pub fn cycle_of_three(w: &World) -> Verdict {
    let mut cycle = [w.begin(), w.begin(), w.begin()];
    for (i, txn) in cycle.iter_mut().enumerate() {
        let (from, to) = (format!("{}", i + 3), format!("{}", i + 4));
        let empty = txn.step(|t, f| {
            let mut it = t.cursor(f, from.as_bytes()..to.as_bytes())?;
            it.seek_to_first();
            it.status().map(|()| !it.valid())
        })?;
        assert!(empty);
    }
    for (i, txn) in cycle.iter_mut().enumerate() {
        txn.put(&format!("{}5", (i + 1) % 3 + 3), i as i64)?;
    }
    for txn in &mut cycle {
        txn.commit()?;
    }
    Ok(Seen)
}
