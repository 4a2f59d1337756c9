//! Value logs: what the manifest knows about each, and what of them is live.

use crate::version::FileMeta;
use kingtide_base::FamilyId;
use kingtide_table::VlogRef;
use std::collections::{BTreeMap, BTreeSet};

/// What the manifest knows about a value log. It never changes: `LiveValues` knows which values are dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VlogMeta {
    /// File id; names the file.
    pub id: u64,
    /// Bytes of the file.
    pub size: u64,
    /// Stored bytes of all its values, dead ones included.
    pub stored_bytes: u64,
    /// Number of its values, dead ones included.
    pub values: u64,
}

/// A value log in use, and the family that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedVlog {
    /// The family.
    pub family: FamilyId,
    /// The value log.
    pub meta: VlogMeta,
}

/// The value logs in use, by file id, and by the family that they belong to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VlogSet {
    by_id: BTreeMap<u64, OwnedVlog>,
    by_family: BTreeSet<(FamilyId, u64)>,
}

impl VlogSet {
    /// Adds a value log, or replaces the one with its id.
    pub fn insert(&mut self, log: OwnedVlog) {
        self.remove(log.meta.id);
        self.by_family.insert((log.family, log.meta.id));
        self.by_id.insert(log.meta.id, log);
    }

    /// Takes a value log out, if it is there.
    pub fn remove(&mut self, id: u64) -> Option<OwnedVlog> {
        let log = self.by_id.remove(&id)?;
        self.by_family.remove(&(log.family, id));
        Some(log)
    }

    /// The value log of that id.
    pub fn get(&self, id: u64) -> Option<&OwnedVlog> {
        self.by_id.get(&id)
    }

    /// All, by ascending id.
    pub fn iter(&self) -> impl Iterator<Item = &OwnedVlog> {
        self.by_id.values()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.by_id.len()
    }

    /// Those of a family, by ascending id. O(log n) for each, however many others have.
    pub fn of(&self, family: FamilyId) -> impl Iterator<Item = &VlogMeta> {
        let ids = self.by_family.range((family, 0)..=(family, u64::MAX));
        ids.filter_map(|(_, id)| Some(&self.by_id.get(id)?.meta))
    }
}

/// The values that tables refer to, by value log: exact, because each table states how much of which log it refers to.
/// The one place where they are added up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveValues {
    by_log: BTreeMap<u64, VlogRef>,
}

impl LiveValues {
    /// What these tables refer to. O(references).
    pub fn of<'a>(tables: impl IntoIterator<Item = &'a FileMeta>) -> LiveValues {
        let mut live = LiveValues::default();
        tables.into_iter().flat_map(|t| &t.vlog_refs).for_each(|r| live.add(r));
        live
    }

    /// Adds what a table refers to in one value log. Sums of damaged numbers saturate.
    pub fn add(&mut self, r: &VlogRef) {
        let sum = self.by_log.entry(r.file_id).or_insert(VlogRef { file_id: r.file_id, values: 0, bytes: 0 });
        sum.values = sum.values.saturating_add(r.values);
        sum.bytes = sum.bytes.saturating_add(r.bytes);
    }

    /// What is live of each value log of which anything is, by ascending file id.
    pub fn iter(&self) -> impl Iterator<Item = &VlogRef> {
        self.by_log.values()
    }

    /// What is live of a value log; `None` if no table refers to it.
    pub fn get(&self, id: u64) -> Option<&VlogRef> {
        self.by_log.get(&id)
    }

    /// Stored bytes of the values of a log that no table refers to.
    pub fn dead_bytes(&self, log: &VlogMeta) -> u64 {
        log.stored_bytes.saturating_sub(self.get(log.id).map_or(0, |r| r.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_logs_are_found_by_id_and_by_family() {
        let log = |family, id, size| OwnedVlog { family, meta: VlogMeta { id, size, stored_bytes: size, values: 1 } };
        let mut logs = VlogSet::default();
        for (family, id) in [(2, 9), (1, 7), (2, 3), (0, 5), (3, 1)] {
            logs.insert(log(family, id, 10));
        }
        logs.insert(log(1, 5, 20)); // an id has one owner, the last that was named
        let of = |logs: &VlogSet, family| logs.of(family).map(|m| m.id).collect::<Vec<_>>();
        assert_eq!([0, 1, 2, 3, 4].map(|f| of(&logs, f)), [vec![], vec![5, 7], vec![3, 9], vec![1], vec![]]);
        assert_eq!(logs.iter().map(|l| l.meta.id).collect::<Vec<_>>(), [1, 3, 5, 7, 9]);
        assert_eq!((logs.remove(3), logs.remove(3), logs.count()), (Some(log(2, 3, 10)), None, 4));
        assert_eq!((of(&logs, 2), logs.get(3), logs.get(9)), (vec![9], None, Some(&log(2, 9, 10))));
    }

    #[test]
    fn live_values_are_the_sum_of_all_references() {
        let mut live = LiveValues::default();
        for (file_id, values, bytes) in [(7, 1, 100), (3, 2, 50), (7, 4, 1000), (9, u64::MAX, u64::MAX), (9, 1, 1)] {
            live.add(&VlogRef { file_id, values, bytes });
        }
        let sums: Vec<_> = live.iter().map(|r| (r.file_id, r.values, r.bytes)).collect();
        assert_eq!(sums, [(3, 2, 50), (7, 5, 1100), (9, u64::MAX, u64::MAX)]);
        let log = |id| VlogMeta { id, size: 5000, stored_bytes: 4000, values: 9 };
        assert_eq!([3, 7, 8, 9].map(|id| live.dead_bytes(&log(id))), [3950, 2900, 4000, 0]);
        assert!(live.get(8).is_none());
    }
}
