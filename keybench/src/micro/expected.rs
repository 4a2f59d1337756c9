//! What a store must hold after a run. Choices are drawn again from their seeds, so the measured loops need not remember them.

use super::picker::{Picker, share};
use super::spec::{Spec, Workload};

/// Whether each entry, by index, must exist now: what was written and not deleted.
pub fn expected_entries(spec: &Spec) -> Vec<bool> {
    if spec.workload == Workload::TxnWrite && !spec.existing {
        return draws(spec).into_iter().map(|n| n > 0).collect();
    }
    let writes_draw = spec.workload == Workload::Write && !spec.existing;
    let mut exists = vec![!writes_draw; spec.entries as usize];
    let quota = |total: u64, t: usize| {
        let s = share(total, t, spec.threads);
        s.end - s.start
    };
    for t in 0..spec.threads {
        if writes_draw {
            let mut picker = Picker::for_writes(spec, t);
            (0..quota(spec.entries, t)).for_each(|_| exists[picker.next() as usize] = true);
        }
        if spec.workload == Workload::Delete {
            let mut picker = Picker::for_deletes(spec, t);
            (0..quota(spec.operations, t)).for_each(|_| exists[picker.next() as usize] = false);
        }
    }
    exists
}

/// Times that each entry was drawn by transactions.
pub fn draws(spec: &Spec) -> Vec<u64> {
    let mut times = vec![0; spec.entries as usize];
    for t in 0..spec.threads {
        let mut picker = Picker::for_txn(spec, t);
        share(spec.operations, t, spec.threads).for_each(|_| times[picker.next() as usize] += 1);
    }
    times
}
