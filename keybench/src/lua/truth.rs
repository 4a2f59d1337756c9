//! `--verify`: what a get may answer, known from what was written.
//!
//! Every stored value is followed by 24 bytes: the hash of its key, its version, and a checksum over all that. A table of
//! versions, beside the engine, holds for each key the last version that was issued, the last that was acknowledged, and
//! the last that was a delete. Writes of one key happen one after another, so versions of a key are in commit order; a get
//! is right if its version lies between what was acknowledged before it and what was issued when it returned.

use kingtide_base::hash::hash64;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes behind each value.
const TRAILER: usize = 24;
const STRIPES: usize = 1024;

/// What is known of one key.
#[derive(Clone, Copy, Default, Debug)]
pub struct Known {
    issued: u64,
    acknowledged: u64,
    deleted: u64,
}

/// The table of versions, shared by all threads.
pub struct Truth {
    known: Vec<Mutex<HashMap<u64, Known>>>,
    writing: Vec<Mutex<()>>,
}

impl Default for Truth {
    fn default() -> Self {
        Truth {
            known: (0..STRIPES).map(|_| Mutex::default()).collect(),
            writing: (0..STRIPES).map(|_| Mutex::default()).collect(),
        }
    }
}

/// Writes under way: their keys are locked against other writes until this goes.
pub struct Writing<'a> {
    truth: &'a Truth,
    /// Hash and version of each operation.
    pub versions: Vec<(u64, u64)>,
    _locks: Vec<MutexGuard<'a, ()>>,
}

impl Writing<'_> {
    /// The engine acknowledged the writes.
    pub fn acknowledge(self) {
        for (hash, version) in &self.versions {
            self.truth.update(*hash, |k| k.acknowledged = *version);
        }
    }
}

fn locked<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Truth {
    fn update(&self, hash: u64, change: impl FnOnce(&mut Known)) {
        change(locked(&self.known[hash as usize % STRIPES]).entry(hash).or_default());
    }

    /// What is known of a key now: taken before a read and handed to [`Truth::judge`] after it.
    pub fn before_read(&self, key: &[u8]) -> Known {
        let hash = hash64(key);
        locked(&self.known[hash as usize % STRIPES]).get(&hash).copied().unwrap_or_default()
    }

    /// Issues versions for writes of these keys, in order.
    pub fn begin_write<'k>(&self, keys: impl Iterator<Item = &'k [u8]>, delete: bool) -> Writing<'_> {
        let hashes: Vec<u64> = keys.map(hash64).collect();
        // Stripes are locked in ascending order, each once, so that no two batches wait for each other.
        let mut stripes: Vec<usize> = hashes.iter().map(|h| *h as usize % STRIPES).collect();
        stripes.sort_unstable();
        stripes.dedup();
        let locks = stripes.into_iter().map(|s| locked(&self.writing[s])).collect();
        let mut versions = Vec::with_capacity(hashes.len());
        for hash in hashes {
            self.update(hash, |k| {
                k.issued += 1;
                if delete {
                    k.deleted = k.issued;
                }
                versions.push((hash, k.issued));
            });
        }
        Writing { truth: self, versions, _locks: locks }
    }

    /// A value with its trailer.
    pub fn seal(value: &[u8], (hash, version): (u64, u64), out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(value);
        out.extend_from_slice(&hash.to_le_bytes());
        out.extend_from_slice(&version.to_le_bytes());
        let sum = hash64(out);
        out.extend_from_slice(&sum.to_le_bytes());
    }

    /// The value without its trailer and its version, if it is whole and this key's.
    pub fn open<'v>(key: &[u8], stored: &'v [u8]) -> Result<(&'v [u8], u64), String> {
        let Some(body) = stored.len().checked_sub(TRAILER) else {
            return Err(format!("{} bytes are too few for a value that was put", stored.len()));
        };
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&stored[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        if word(body + 16) != hash64(&stored[..body + 16]) {
            return Err("its bytes were changed".into());
        }
        if word(body) != hash64(key) {
            return Err("it is another key's value".into());
        }
        Ok((&stored[..body], word(body + 8)))
    }

    /// What is wrong with an answer, if anything; `version` is none for a key that was not found.
    pub fn judge(&self, key: &[u8], before: Known, version: Option<u64>) -> Result<(), String> {
        let now = self.before_read(key);
        match version {
            Some(v) if v < before.acknowledged => {
                Err(format!("version {v} is stale: {} was acknowledged before the read", before.acknowledged))
            }
            Some(v) if v > now.issued => Err(format!("version {v} was never written; the last is {}", now.issued)),
            None if before.acknowledged > 0 && now.deleted < before.acknowledged => {
                Err(format!("it is lost: version {} was acknowledged", before.acknowledged))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(truth: &Truth, key: &[u8], value: &[u8]) -> Vec<u8> {
        let writing = truth.begin_write([key].into_iter(), false);
        let mut out = Vec::new();
        Truth::seal(value, writing.versions[0], &mut out);
        writing.acknowledge();
        out
    }

    #[test]
    fn right_answers_pass_and_wrong_ones_do_not() {
        let truth = Truth::default();
        assert!(truth.judge(b"k", truth.before_read(b"k"), None).is_ok(), "never written");
        let old = put(&truth, b"k", b"one");
        let new = put(&truth, b"k", b"two");
        let (value, version) = Truth::open(b"k", &new).unwrap();
        assert_eq!((value, version), (&b"two"[..], 2));
        let before = truth.before_read(b"k");
        assert!(truth.judge(b"k", before, Some(2)).is_ok());
        assert!(truth.judge(b"k", before, None).unwrap_err().contains("lost"));
        let stale = Truth::open(b"k", &old).unwrap().1;
        assert!(truth.judge(b"k", before, Some(stale)).unwrap_err().contains("stale"));
        assert!(truth.judge(b"k", before, Some(9)).unwrap_err().contains("never written"));
        assert!(Truth::open(b"other", &new).unwrap_err().contains("another key"));
        let mut damaged = new.clone();
        damaged[1] ^= 1;
        assert!(Truth::open(b"k", &damaged).unwrap_err().contains("changed"));
        assert!(Truth::open(b"k", b"short").is_err());
    }

    #[test]
    fn writes_during_a_read_allow_both_answers() {
        let truth = Truth::default();
        put(&truth, b"k", b"one");
        let before = truth.before_read(b"k");
        let deleting = truth.begin_write([&b"k"[..]].into_iter(), true);
        assert!(truth.judge(b"k", before, Some(1)).is_ok() && truth.judge(b"k", before, None).is_ok());
        deleting.acknowledge();
        let after = truth.before_read(b"k");
        assert!(truth.judge(b"k", after, None).is_ok());
        assert!(truth.judge(b"k", after, Some(1)).unwrap_err().contains("stale"), "a deleted value came back");
    }

    #[test]
    fn batches_with_repeated_keys_do_not_wait_for_themselves() {
        let truth = Truth::default();
        let keys = [&b"a"[..], b"b", b"a"];
        let writing = truth.begin_write(keys.into_iter(), false);
        assert_eq!(writing.versions.iter().map(|v| v.1).collect::<Vec<_>>(), [1, 1, 2]);
        writing.acknowledge();
        assert_eq!(truth.before_read(b"a").acknowledged, 2);
    }
}
