//! Sorted files of a scenario. An ingest is one commit among the others, and survives a power cut when its call returns.

use super::durability::{By, How};
use super::history::{FOREVER, FamilyNo, Op, What};
use super::world::World;
use kingtide::vfs::Fs;
use kingtide::{ColumnFamily, Durability, IngestOptions, Result, SortedFileWriter};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

impl World {
    /// Writes one to three files for one or two families, and ingests them all at once.
    pub fn ingest(&mut self) -> Result<()> {
        let dir = Path::new("/sorted");
        self.disk.create_dir_all(dir)?;
        let mut files: Vec<(FamilyNo, PathBuf, Vec<Op>)> = Vec::new();
        for i in 0..1 + self.rng.below(3) {
            let no = if i == 1 { files[0].0 } else { self.any_family().0 };
            let path = dir.join(format!("{}-{i}", self.steps));
            let ops = self.sorted_ops(no);
            files.push((no, path, ops));
        }
        // Files of one family are one after the other, and the last of them counts.
        files.sort_by_key(|f| f.0);
        let done = self.write_and_ingest(&files);
        files.iter().for_each(|(_, path, _)| _ = self.disk.remove(path));
        done
    }

    /// What a file holds: at first ranges that it deletes, then keys in ascending order.
    fn sorted_ops(&mut self, family: FamilyNo) -> Vec<Op> {
        // Keys that hardly anything else writes, so that no memtable overlaps them, or keys among all others.
        let apart = self.rng.one_in(2);
        let first = self.rng.below(50);
        let keys: BTreeSet<Vec<u8>> = (0..1 + self.rng.below(6))
            .map(|i| match apart {
                true => format!("bulk-{:03}", first + i).into_bytes(),
                false => self.key(),
            })
            .collect();
        let mut ops = Vec::new();
        if self.percent(20) {
            let (from, mut to) = (keys.first().expect("a key").clone(), keys.last().expect("a key").clone());
            to.push(b'x');
            ops.push(Op::DeleteRange(family, from, to));
        }
        for key in keys {
            match self.percent(20) {
                true => ops.push(Op::Delete(family, key)),
                false => {
                    let value = self.value();
                    ops.push(Op::Put(family, key, value, FOREVER));
                }
            }
        }
        ops
    }

    fn write_and_ingest(&mut self, files: &[(FamilyNo, PathBuf, Vec<Op>)]) -> Result<()> {
        let handle = |no: FamilyNo| self.families.values().find(|f| f.0 == no).expect("family").1.clone();
        let mut parts: Vec<(ColumnFamily, Vec<PathBuf>)> = Vec::new();
        for (no, path, ops) in files {
            let family = handle(*no);
            write_file(&family, path, ops)?;
            match parts.last_mut().filter(|(last, _)| last.name() == family.name()) {
                Some((_, paths)) => paths.push(path.clone()),
                None => parts.push((family, vec![path.clone()])),
            }
        }
        let ops: Vec<Op> = files.iter().flat_map(|f| &f.2).cloned().collect();
        let options = IngestOptions::new().move_files(self.rng.one_in(2)).no_wait(self.rng.one_in(4));
        self.attempt(What::Ingest(ops), How::new(By::Files, Some(Durability::Power)), |db| {
            let parts: Vec<(&ColumnFamily, &[PathBuf])> = parts.iter().map(|(f, p)| (f, p.as_slice())).collect();
            db.ingest(&parts, &options)
        })
    }
}

fn write_file(family: &ColumnFamily, path: &Path, ops: &[Op]) -> Result<()> {
    let mut writer = SortedFileWriter::create(path, family)?;
    for op in ops {
        match op {
            Op::Put(_, key, value, _) => writer.put(key, value)?,
            Op::Delete(_, key) => writer.delete(key)?,
            Op::DeleteRange(_, from, to) => writer.delete_range(from..to)?,
            Op::SingleDelete(..) | Op::DeletePrefix(..) => unreachable!("no file of a scenario has one"),
        }
    }
    writer.finish().map(drop)
}
