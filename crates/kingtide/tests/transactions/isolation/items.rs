//! Anomalies over single keys. Each scenario runs one interleaving and tells what became of it.

use super::world::{Outcome::*, Verdict, World};

/// Two transactions write two keys, and of each one key stays.
pub fn dirty_write(w: &World) -> Verdict {
    let (mut a, mut b) = (w.begin(), w.begin());
    a.put("1", 11)?;
    b.put("1", 12)?;
    a.put("2", 21)?;
    a.commit()?;
    assert_eq!((w.committed("1"), w.committed("2")), (Some(11), Some(21)));
    b.put("2", 22)?;
    b.commit()?;
    let both = (w.committed("1").unwrap(), w.committed("2").unwrap());
    Ok(if both == (12, 22) { Held } else { Seen })
}

/// A value is read whose transaction rolls back.
pub fn aborted_read(w: &World) -> Verdict {
    let (mut a, mut b) = (w.begin(), w.begin());
    a.put("1", 101)?;
    let seen = b.read("1")?;
    a.rollback();
    assert_eq!(b.read("1")?, 10);
    b.commit()?;
    Ok(if seen == 101 { Seen } else { Held })
}

/// A value is read that is not its transaction's last word.
pub fn intermediate_read(w: &World) -> Verdict {
    let (mut a, mut b) = (w.begin(), w.begin());
    a.put("1", 101)?;
    let seen = b.read("1")?;
    a.put("1", 11)?;
    a.commit()?;
    assert_ne!(b.read("1")?, 101);
    b.commit()?;
    Ok(if seen == 101 { Seen } else { Held })
}

/// Each of two transactions reads what the other wrote.
pub fn circular_information_flow(w: &World) -> Verdict {
    let (mut a, mut b) = (w.begin(), w.begin());
    a.put("1", 11)?;
    b.put("2", 22)?;
    let seen = (a.read("2")?, b.read("1")?);
    a.commit()?;
    b.commit()?;
    Ok(match seen {
        (22, 11) => Seen,
        (20, 10) => Held,
        other => panic!("{other:?}"),
    })
}

/// A reader sees one write of a transaction and then a value that another write of it replaced.
pub fn observed_transaction_vanishes(w: &World) -> Verdict {
    let mut reader = w.begin();
    let mut a = w.begin();
    a.put("1", 11)?;
    a.put("2", 19)?;
    a.commit()?;
    let mut b = w.begin();
    b.put("1", 12)?;
    let first = (reader.read("1")?, reader.read("2")?);
    b.put("2", 18)?;
    b.commit()?;
    let then = (reader.read("1")?, reader.read("2")?);
    reader.commit()?;
    Ok(match (first, then) {
        ((12, 19), (12, 18)) => Seen,
        ((11, 19), (12, 18)) => Held,
        ((10, 20), (10, 20)) => View,
        other => panic!("{other:?}"),
    })
}

/// Of two increments one is lost.
pub fn lost_update(w: &World) -> Verdict {
    let (mut a, mut b) = (w.begin(), w.begin());
    let (of_a, of_b) = (a.read("1")?, b.read("1")?);
    a.put("1", of_a + 1)?;
    a.commit()?;
    b.put("1", of_b + 2)?;
    b.commit()?;
    assert_eq!(w.committed("1"), Some(12), "a's increment is gone");
    Ok(Seen)
}

/// The same, with reads that say what they are for.
pub fn lost_update_of_reads_for_update(w: &World) -> Verdict {
    let (mut a, mut b) = (w.begin(), w.begin());
    let (of_a, of_b) = (a.read_for_update("1")?, b.read_for_update("1")?);
    a.put("1", of_a + 1)?;
    a.commit()?;
    b.put("1", of_b + 2)?;
    b.commit()?;
    Ok(Seen)
}

/// The same, when the other transaction does not read at all.
pub fn blind_write_over_a_read_for_update(w: &World) -> Verdict {
    let (mut a, mut b) = (w.begin(), w.begin());
    let of_b = b.read_for_update("1")?;
    a.put("1", 1000)?;
    a.commit()?;
    b.put("1", of_b + 2)?;
    b.commit()?;
    Ok(Seen)
}

/// Two reads of one key differ.
pub fn non_repeatable_read(w: &World) -> Verdict {
    let (mut a, mut b) = (w.begin(), w.begin());
    assert_eq!(a.read("1")?, 10);
    b.put("1", 11)?;
    b.commit()?;
    let again = a.read("1")?;
    a.commit()?;
    Ok(if again == 11 { Seen } else { View })
}

/// A transaction sees one key from before another transaction and one from after it.
pub fn read_skew(w: &World) -> Verdict {
    let (mut a, mut b) = (w.begin(), w.begin());
    assert_eq!(a.read("1")?, 10);
    assert_eq!((b.read("1")?, b.read("2")?), (10, 20));
    b.put("1", 12)?;
    b.put("2", 18)?;
    b.commit()?;
    let two = a.read("2")?;
    a.commit()?;
    Ok(if two == 18 { Seen } else { View })
}

/// Two transactions read the same keys and write one each, by what they read.
pub fn write_skew(w: &World) -> Verdict {
    let (mut a, mut b) = (w.begin(), w.begin());
    for txn in [&mut a, &mut b] {
        assert_eq!((txn.read("1")?, txn.read("2")?), (10, 20));
    }
    a.put("1", 11)?;
    b.put("2", 21)?;
    a.commit()?;
    b.commit()?;
    Ok(Seen)
}

/// The same through `multi_get`.
pub fn write_skew_of_multi_gets(w: &World) -> Verdict {
    let (mut a, mut b) = (w.begin(), w.begin());
    for txn in [&mut a, &mut b] {
        let found =
            txn.step(|t, f| t.multi_get(f, &["1", "2", "absent"]).into_iter().collect::<Result<Vec<_>, _>>())?;
        let found: Vec<_> = found.iter().map(|v| v.as_deref()).collect();
        assert_eq!(found, [Some(&b"10"[..]), Some(b"20"), None]);
    }
    a.put("1", 11)?;
    b.put("absent", 1)?;
    a.commit()?;
    b.commit()?;
    Ok(Seen)
}

/// The same with reads that are to stay true until the commit.
pub fn write_skew_of_reads_for_share(w: &World) -> Verdict {
    let (mut a, mut b) = (w.begin(), w.begin());
    assert_eq!((a.read_for_share("2")?, b.read_for_share("1")?), (20, 10));
    a.put("1", 11)?;
    b.put("2", 21)?;
    a.commit()?;
    b.commit()?;
    Ok(Seen)
}

/// Fekete, O'Neil, O'Neil: "A Read-Only Transaction Anomaly Under Snapshot Isolation", SIGMOD Record 2004. Accounts x and y
/// hold 0; `deposit` puts 20 into y; `withdraw` takes 10 from x, with a fee of 1 if that overdraws both together; the
/// report sees the deposit and no withdrawal, which with the fee that was taken fits no order of the three.
pub fn read_only_anomaly(w: &World) -> Verdict {
    w.db.put("x", "0").unwrap();
    w.db.put("y", "0").unwrap();
    let (mut withdraw, mut deposit) = (w.begin(), w.begin());
    let sum = withdraw.read("x")? + withdraw.read("y")?;
    let fee = if sum - 10 < 0 { 1 } else { 0 };
    let y = deposit.read("y")?;
    deposit.put("y", y + 20)?;
    deposit.commit()?;
    let mut report = w.begin();
    assert_eq!((report.read("x")?, report.read("y")?), (0, 20));
    report.commit()?;
    withdraw.put("x", -10 - fee)?;
    withdraw.commit()?;
    assert_eq!((w.committed("x"), w.committed("y")), (Some(-11), Some(20)));
    Ok(Seen)
}
