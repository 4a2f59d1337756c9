//! What a scenario writes: random operations, batches, and families that come and go.

use crate::sim::durability::{By, How};
use crate::sim::history::{FOREVER, FamilyNo, Op, What};
use crate::sim::world::World;
use kingtide::{ColumnFamily, Durability, Result, StagedValue, Transaction, WriteBatch, WriteOptions};
use std::time::Duration;

/// Lives of entries that expire, in milliseconds: within the scenario, and after it.
const LIVES: [u64; 4] = [1, 20, 200, 3_600_000];

/// What takes operations: a batch or a transaction.
pub enum Sink<'a> {
    Batch(&'a mut WriteBatch),
    Transaction(&'a mut Transaction),
}

impl Sink<'_> {
    /// Adds an operation. `now`: the clock's Unix milliseconds.
    pub fn add(&mut self, family: &ColumnFamily, op: &Op, now: u64) -> Result<()> {
        let ttl = |expiry: u64| Duration::from_millis(expiry - now);
        match (self, op) {
            (Sink::Batch(b), Op::Put(_, k, v, FOREVER)) if is_in_pieces(v) => {
                b.put_staged(family, k, &stage(family, v)?)
            }
            (Sink::Batch(b), Op::Put(_, k, v, expiry)) if is_in_pieces(v) => {
                b.put_staged_ttl(family, k, &stage(family, v)?, ttl(*expiry))
            }
            (Sink::Batch(b), Op::Put(_, k, v, FOREVER)) => b.put(family, k, v),
            (Sink::Batch(b), Op::Put(_, k, v, expiry)) => b.put_ttl(family, k, v, ttl(*expiry)),
            (Sink::Batch(b), Op::Delete(_, k)) => b.delete(family, k),
            (Sink::Batch(b), Op::SingleDelete(_, k)) => b.single_delete(family, k),
            (Sink::Batch(b), Op::DeleteRange(_, from, to)) => b.delete_range(family, from..to),
            (Sink::Batch(b), Op::DeletePrefix(_, prefix, _)) => b.delete_prefix(family, prefix),
            (Sink::Transaction(t), Op::Put(_, k, v, FOREVER)) if is_in_pieces(v) => {
                t.put_staged(family, k, &stage(family, v)?)
            }
            (Sink::Transaction(t), Op::Put(_, k, v, expiry)) if is_in_pieces(v) => {
                t.put_staged_ttl(family, k, &stage(family, v)?, ttl(*expiry))
            }
            (Sink::Transaction(t), Op::Put(_, k, v, FOREVER)) => t.put(family, k, v),
            (Sink::Transaction(t), Op::Put(_, k, v, expiry)) => t.put_ttl(family, k, v, ttl(*expiry)),
            (Sink::Transaction(t), Op::Delete(_, k)) => t.delete(family, k),
            (Sink::Transaction(t), Op::SingleDelete(_, k)) => t.single_delete(family, k),
            (Sink::Transaction(t), Op::DeleteRange(_, from, to)) => t.delete_range(family, from..to),
            (Sink::Transaction(t), Op::DeletePrefix(_, prefix, _)) => t.delete_prefix(family, prefix),
        }
    }
}

/// Whether a batch or a transaction gets a value in pieces. Its bytes are random, so they say so, and no draw of another thing moves.
pub fn is_in_pieces(value: &[u8]) -> bool {
    value.len() > 100 && value[0].is_multiple_of(3)
}

/// Writes a value in pieces, and sometimes a part of it before, which is given up.
fn stage(family: &ColumnFamily, value: &[u8]) -> Result<StagedValue> {
    let piece = 1 + value.len() / (1 + value[1] as usize % 5);
    if value[2].is_multiple_of(4) {
        let mut given_up = family.value_writer()?;
        value.chunks(piece).take(2).try_for_each(|piece| given_up.append(piece))?;
    }
    let mut writer = family.value_writer()?;
    value.chunks(piece).try_for_each(|piece| writer.append(piece))?;
    writer.finish()
}

impl World {
    pub fn percent(&mut self, share: u64) -> bool {
        self.rng.below(100) < share
    }

    pub fn key(&mut self) -> Vec<u8> {
        format!("key-{:03}", self.rng.below(self.plan.mix.keys)).into_bytes()
    }

    pub fn value(&mut self) -> Vec<u8> {
        let mix = &self.plan.mix;
        let len = match self.rng.below(1000) {
            n if n < mix.long => 70_000, // more than a log segment
            n if n < mix.long + 40 => self.rng.below(10 * mix.value),
            _ => self.rng.below(mix.value),
        };
        let mut value = vec![0; len as usize];
        self.rng.fill(&mut value);
        value
    }

    /// One operation on a family.
    pub fn random_op(&mut self, family: FamilyNo) -> Op {
        let mix = self.plan.mix.clone();
        let (roll, key) = (self.rng.below(100), self.key());
        if roll < mix.delete {
            Op::Delete(family, key)
        } else if roll < mix.delete + mix.delete_range {
            let other = self.key();
            let (from, mut to) = (key.clone().min(other.clone()), key.max(other));
            to.push(b'x'); // never empty: a batch without operations is not logged, so syncs nothing
            Op::DeleteRange(family, from, to)
        } else if roll < mix.delete + mix.delete_range + mix.delete_prefix {
            let prefix = key[..6].to_vec();
            let mut end = prefix.clone();
            end[5] += 1;
            Op::DeletePrefix(family, prefix, end)
        } else {
            let value = self.value();
            let expires = self.percent(mix.ttl);
            let life = LIVES[self.rng.below(4) as usize];
            Op::Put(family, key, value, if expires { self.clock_ms() + life } else { FOREVER })
        }
    }

    /// Puts a key that is not there, or deletes it again, as single deletes demand.
    fn once_op(&mut self, family: FamilyNo) -> Op {
        let key = format!("once-{:02}", self.rng.below(20)).into_bytes();
        match self.now[&family].holds(&key) {
            true => Op::SingleDelete(family, key),
            false => Op::Put(family, key, self.value(), FOREVER),
        }
    }

    fn random_batch(&mut self) -> Vec<Op> {
        let spread = 1 + self.rng.below(3.min(self.families.len() as u64));
        let chosen: Vec<FamilyNo> = (0..spread).map(|_| self.any_family().0).collect();
        let count = 1 + self.rng.below(self.plan.mix.batch);
        let mut ops: Vec<Op> = (0..count)
            .map(|_| {
                let family = chosen[self.rng.below(spread) as usize];
                self.random_op(family)
            })
            .collect();
        let once = self.plan.mix.once;
        if self.percent(once * count) {
            ops.push(self.once_op(chosen[0]));
        }
        ops
    }

    pub fn batch(&mut self) -> Result<()> {
        let ops = self.random_batch();
        let once =
            ops.iter().any(|op| matches!(op, Op::Put(_, k, ..) | Op::SingleDelete(_, k) if k.starts_with(b"once")));
        let asked = match self.asked() {
            // A put that a crash takes and a single delete that it leaves would not match.
            asked if once && self.durability(asked) == Durability::None => Some(Durability::Process),
            None if ops.len() == 1 => return self.commit_one(&ops[0]),
            asked => asked,
        };
        let no_wait = self.rng.one_in(8);
        self.commit_batch(ops, asked, no_wait)
    }

    /// Commits, in the usual way.
    pub fn commit_ops(&mut self, ops: Vec<Op>, asked: Option<Durability>) -> Result<()> {
        self.commit_batch(ops, asked, false)
    }

    fn family_of(&self, op: &Op) -> ColumnFamily {
        self.families.values().find(|f| f.0 == op.family()).expect("family").1.clone()
    }

    /// Whether a commit goes to the log.
    pub fn is_logged(&self, ops: &[Op], asked: Option<Durability>) -> bool {
        self.durability(asked) != Durability::None || ops.iter().any(|op| op.family() != ops[0].family())
    }

    /// Commits one operation with the call for it, which takes the durability of the database.
    fn commit_one(&mut self, op: &Op) -> Result<()> {
        let (family, now) = (self.family_of(op), self.clock_ms());
        let worker = (self.db().clone(), kingtide_base::rng::Rng::new(self.rng.next_u64()));
        let ops = vec![op.clone()];
        let what = What::Commit { logged: self.is_logged(&ops, None), ops };
        self.clock.work_while_sleeping(Some(worker));
        let done = self.attempt(what, How::new(By::Single, None), |db| match op {
            Op::Put(_, k, v, FOREVER) if is_in_pieces(v) => {
                family.put_reader(k, v.as_slice()).map(|_| db.latest_sequence())
            }
            Op::Put(_, k, v, FOREVER) => family.put(k, v),
            Op::Put(_, k, v, expiry) => family.put_ttl(k, v, Duration::from_millis(expiry - now)),
            Op::Delete(_, k) => family.delete(k),
            Op::SingleDelete(_, k) => family.single_delete(k),
            Op::DeleteRange(_, from, to) => family.delete_range(from..to),
            Op::DeletePrefix(_, prefix, _) => family.delete_prefix(prefix),
        });
        self.clock.work_while_sleeping(None);
        done
    }

    fn commit_batch(&mut self, ops: Vec<Op>, asked: Option<Durability>, no_wait: bool) -> Result<()> {
        let mut batch = WriteBatch::new();
        let now = self.clock_ms();
        let worker = (self.db().clone(), kingtide_base::rng::Rng::new(self.rng.next_u64()));
        self.clock.work_while_sleeping(Some(worker)); // writing a value in pieces may wait too
        let filled = ops.iter().try_for_each(|op| Sink::Batch(&mut batch).add(&self.family_of(op), op, now));
        if let Err(e) = filled {
            self.clock.work_while_sleeping(None);
            return Err(e);
        }
        let what = What::Commit { logged: self.is_logged(&ops, asked), ops };
        let options = WriteOptions::new().durability(asked).no_wait(no_wait);
        let done = self.attempt(what, How::new(By::Batch, asked), |db| db.write_with(&mut batch, &options));
        self.clock.work_while_sleeping(None);
        done
    }

    /// Makes the families that are there from the beginning.
    pub fn make_families(&mut self) -> Result<()> {
        if self.edit(|p| p.changing.is_some()) {
            return Ok(());
        }
        for n in 0..self.plan.mix.families {
            let name = format!("lasting-{n:03}");
            if !self.families.contains_key(&name) {
                self.create_family(name)?;
            }
        }
        Ok(())
    }

    fn create_family(&mut self, name: String) -> Result<()> {
        let no = self.next_family;
        self.next_family += 1;
        let mut next = self.edit(|p| p.families.clone());
        next.insert(name.clone(), no);
        self.edit(|p| p.changing = Some(next.clone()));
        let options = self.plan.options().family.value_threshold(100);
        let handle = self.db().create_family(&name, options)?;
        self.now.insert(no, crate::sim::history::State::at(0));
        self.families.insert(name, (no, handle));
        self.edit(|p| (p.families, p.changing) = (next, None));
        Ok(())
    }

    pub fn change_family(&mut self) -> Result<()> {
        if self.edit(|p| p.changing.is_some()) {
            return self.batch(); // one in doubt at a time; the next open decides it
        }
        let name = format!("family-{}", self.rng.below(4));
        let mut next = self.edit(|p| p.families.clone());
        let renamed = format!("renamed-{}", self.rng.below(2));
        let exists = next.contains_key(&name);
        if !exists {
            return self.create_family(name);
        }
        let rename = !next.contains_key(&renamed) && self.rng.one_in(3);
        let no = next.remove(&name).expect("exists");
        if rename {
            next.insert(renamed.clone(), no);
        }
        self.edit(|p| p.changing = Some(next.clone()));
        if rename {
            self.db().rename_family(&name, &renamed)?;
            let family = self.families.remove(&name).expect("known");
            self.families.insert(renamed, family);
        } else {
            self.families.remove(&name);
            self.db().drop_family(&name)?;
        }
        self.edit(|p| (p.families, p.changing) = (next, None));
        Ok(())
    }

    /// Clones some family, or drops a clone. A clone is an event among the others, and survives a power cut when its call returns.
    pub fn clone_or_drop(&mut self) -> Result<()> {
        if self.edit(|p| p.changing.is_some()) {
            return self.batch();
        }
        let name = format!("clone-{}", self.rng.below(3));
        let mut next = self.edit(|p| p.families.clone());
        if next.remove(&name).is_some() {
            self.edit(|p| p.changing = Some(next.clone()));
            self.families.remove(&name);
            self.db().drop_family(&name)?;
            self.edit(|p| (p.families, p.changing) = (next, None));
            return Ok(());
        }
        let (from, source) = self.any_family();
        let to = self.next_family;
        self.next_family += 1;
        next.insert(name.clone(), to);
        self.edit(|p| p.changing = Some(next.clone()));
        self.now.insert(to, crate::sim::history::State::at(0));
        let (ops, source) = (self.now[&from].puts(to), source.name());
        self.attempt(What::Clone(name.clone(), ops), How::new(By::Files, Some(Durability::Power)), |db| {
            db.clone_family(&source, &name)?;
            Ok(db.latest_sequence())
        })?;
        let handle = self.db().family(&name)?;
        self.families.insert(name, (to, handle));
        self.edit(|p| (p.families, p.changing) = (next, None));
        Ok(())
    }
}
