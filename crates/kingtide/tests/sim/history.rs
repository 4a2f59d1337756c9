//! What was committed, and which states a recovery may come back with.
//!
//! Logged commits survive as a prefix, over all families together. A commit without log (`Durability::None`) survives
//! once its family was flushed past it, so a recovered family is described by two numbers: how many commits the log
//! holds, and up to which commit the family was flushed. Families themselves come and go with the manifest, which is
//! synced before the call returns.

use kingtide_base::hash::{hash64, mix64};
use std::collections::BTreeMap;

/// A family of the scenario: never reused, whatever its name.
pub type FamilyNo = usize;
/// Contents of one family.
pub type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Debug)]
pub enum Op {
    Put(FamilyNo, Vec<u8>, Vec<u8>),
    Delete(FamilyNo, Vec<u8>),
    DeleteRange(FamilyNo, Vec<u8>, Vec<u8>),
}

impl Op {
    pub fn family(&self) -> FamilyNo {
        match self {
            Op::Put(f, ..) | Op::Delete(f, ..) | Op::DeleteRange(f, ..) => *f,
        }
    }

    pub fn apply(&self, to: &mut Contents) {
        match self {
            Op::Put(_, key, value) => {
                to.insert(key.clone(), value.clone());
            }
            Op::Delete(_, key) => {
                to.remove(key);
            }
            Op::DeleteRange(_, start, end) => {
                let gone: Vec<Vec<u8>> = to.range(start.clone()..end.clone()).map(|(k, _)| k.clone()).collect();
                gone.iter().for_each(|k| drop(to.remove(k)));
            }
        }
    }
}

#[derive(Clone, Debug)]
pub struct Commit {
    pub ops: Vec<Op>,
    /// It went to the log: any durability but `None`, and every batch over several families.
    pub logged: bool,
}

/// What the caller was told so far. Commits are counted from 1.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Commits begun.
    pub begun: usize,
    /// The last logged commit acknowledged: survives the process.
    pub process: usize,
    /// The last commit acknowledged to survive a power cut.
    pub power: usize,
    /// By family: the last commit that a flush was acknowledged for.
    pub flushed: BTreeMap<FamilyNo, usize>,
    /// Families by name.
    pub families: BTreeMap<String, FamilyNo>,
    /// The same after the change that is under way.
    pub changing: Option<BTreeMap<String, FamilyNo>>,
}

/// All commits of a scenario, with the hash of every state that a family can be found in.
#[derive(Default)]
pub struct History {
    pub commits: Vec<Commit>,
    /// By family: hashes by (commits of the log, commit flushed to). Filled by `freeze`.
    states: Vec<BTreeMap<(usize, usize), u64>>,
    /// By family: its commits without log.
    unlogged: Vec<Vec<usize>>,
}

/// A hash that is zero for nothing and the exclusive or over the entries.
pub fn hash_of(contents: &Contents) -> u64 {
    contents.iter().fold(0, |h, (k, v)| h ^ mix64(hash64(k) ^ mix64(hash64(v)).rotate_left(1)))
}

impl History {
    pub fn contents(&self, family: FamilyNo, logged_to: usize, flushed_to: usize) -> Contents {
        let mut contents = Contents::new();
        for (i, commit) in self.commits.iter().enumerate() {
            let there = i < if commit.logged { logged_to.max(flushed_to) } else { flushed_to };
            for op in commit.ops.iter().filter(|op| there && op.family() == family) {
                op.apply(&mut contents);
            }
        }
        contents
    }

    /// Computes the hashes of all states.
    pub fn freeze(&mut self) {
        let count = self.commits.iter().flat_map(|c| &c.ops).map(|op| op.family() + 1).max().unwrap_or(0);
        for family in 0..count {
            let touches = |c: &Commit| c.ops.iter().any(|op| op.family() == family);
            let unlogged: Vec<usize> =
                self.commits.iter().enumerate().filter(|(_, c)| !c.logged && touches(c)).map(|(i, _)| i + 1).collect();
            let mut states = BTreeMap::new();
            for flushed in std::iter::once(0).chain(unlogged.iter().copied()) {
                let mut last = None;
                for logged in 0..=self.commits.len() {
                    let same = logged > 0 && !touches(&self.commits[logged - 1]);
                    let hash = match last {
                        Some(hash) if same => hash,
                        _ => hash_of(&self.contents(family, logged, flushed)),
                    };
                    states.insert((logged, flushed), hash);
                    last = Some(hash);
                }
            }
            self.states.push(states);
            self.unlogged.push(unlogged);
        }
    }

    /// Whether a family may hold that when the log holds `logged` commits.
    fn fits(&self, family: FamilyNo, hash: u64, logged: usize, progress: &Progress) -> bool {
        let Some(states) = self.states.get(family) else { return hash == 0 }; // never written to
        let at_least = progress.flushed.get(&family).copied().unwrap_or(0);
        // The last one that must be there: later ones may be.
        let floor = self.unlogged[family].iter().rev().find(|c| **c <= at_least).copied().unwrap_or(0);
        std::iter::once(0)
            .chain(self.unlogged[family].iter().copied())
            .filter(|f| *f >= floor && *f <= logged)
            .any(|f| states.get(&(logged, f)) == Some(&hash))
    }

    /// How many commits of the log were recovered, `None` if the contents are no state that the history allows.
    pub fn recovered(
        &self,
        found: &BTreeMap<FamilyNo, Contents>,
        at_least: usize,
        progress: &Progress,
    ) -> Option<usize> {
        let hashes: Vec<(FamilyNo, u64)> = found.iter().map(|(f, c)| (*f, hash_of(c))).collect();
        (at_least..=progress.begun).rev().find(|n| hashes.iter().all(|(f, h)| self.fits(*f, *h, *n, progress)))
    }
}
