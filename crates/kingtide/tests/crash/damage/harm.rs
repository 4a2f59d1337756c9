//! What is done to a file.

use super::anatomy::{Part, parts};
use super::sample::{Sample, bytes_of};
use kingtide_base::rng::Rng;
use std::path::{Path, PathBuf};

/// A damaged file.
pub struct Harm {
    pub path: PathBuf,
    pub part: &'static str,
    pub how: &'static str,
    pub at: usize,
    pub bytes: Vec<u8>,
}

/// A file that is to be damaged.
pub struct Victim {
    pub path: PathBuf,
    pub kind: &'static str,
    pub bytes: Vec<u8>,
    pub parts: Vec<Part>,
    pub owner: Option<String>,
}

pub const FILE_KINDS: [&str; 5] = [".klog", ".vlog", ".wal", "MANIFEST", "CURRENT"];
/// Kinds of damage besides flipped bits and cuts.
pub const HOWS: [&str; 9] = [
    "frames exchanged",
    "frame overwritten by another",
    "frame of another file",
    "frame doubled",
    "512 bytes of zeros",
    "4096 bytes of zeros",
    "512 bytes of garbage",
    "4096 bytes of garbage",
    "sector of an earlier time",
];

/// All files of a sample, but log segments that are not in use.
pub fn victims(sample: &Sample) -> Vec<Victim> {
    let mut all = Vec::new();
    for kind in FILE_KINDS {
        for path in sample.files(kind) {
            let bytes = bytes_of(&sample.fs, &path);
            let parts = parts(sample, &path, &bytes);
            if !parts.is_empty() {
                all.push(Victim { owner: sample.owner(&path), path, kind, bytes, parts });
            }
        }
    }
    all
}

impl Victim {
    /// Bytes that mean something.
    pub fn used(&self) -> usize {
        self.parts.last().map_or(0, |p| p.place.end)
    }

    fn harm(&self, part: &Part, how: &'static str, at: usize, bytes: Vec<u8>) -> Harm {
        Harm { path: self.path.clone(), part: part.name, how, at, bytes }
    }

    /// A flipped bit in a part, chosen so that small parts are hit as often as large ones.
    pub fn flip(&self, rng: &mut Rng) -> Harm {
        // Now all parts alike, now their names by turns: a table has one footer and many blocks.
        let mut of: Vec<&Part> = self.parts.iter().collect();
        if rng.one_in(2) {
            let mut names: Vec<&str> = self.parts.iter().map(|p| p.name).collect();
            names.sort_unstable();
            names.dedup();
            let name = names[rng.below(names.len() as u64) as usize];
            of.retain(|p| p.name == name);
        }
        let part = of[rng.below(of.len() as u64) as usize];
        let at = part.place.start + rng.below(part.place.len() as u64) as usize;
        self.flip_at(at, rng)
    }

    pub fn flip_at(&self, at: usize, rng: &mut Rng) -> Harm {
        let between = Part { name: "gap", place: at..at + 1 };
        let part = self.parts.iter().find(|p| p.place.contains(&at)).unwrap_or(&between);
        let mut bytes = self.bytes.clone();
        bytes[at] ^= 1 << rng.below(8);
        self.harm(part, "flipped bit", at, bytes)
    }

    pub fn cut(&self, len: usize) -> Harm {
        let behind = Part { name: "behind", place: len..len };
        let part = self.parts.iter().find(|p| p.place.contains(&len)).unwrap_or(&behind);
        self.harm(part, "cut", len, self.bytes[..len].to_vec())
    }

    /// Damage of one of [`HOWS`]; `None` where it changes nothing or cannot be done.
    pub fn harmed(&self, how: &'static str, all: &[Victim], sample: &Sample, rng: &mut Rng) -> Option<Harm> {
        let part = &self.parts[rng.below(self.parts.len() as u64) as usize];
        let other = &self.parts[rng.below(self.parts.len() as u64) as usize];
        let mut bytes = self.bytes.clone();
        match how {
            "frames exchanged" => {
                let (a, b) = if part.place.start < other.place.start { (part, other) } else { (other, part) };
                let between = self.bytes.get(a.place.end..b.place.start)?;
                let pieces = [&self.bytes[b.place.clone()], between, &self.bytes[a.place.clone()]];
                bytes[a.place.start..b.place.end].copy_from_slice(&pieces.concat());
            }
            "frame overwritten by another" => {
                overwrite(&mut bytes, part, &self.bytes[other.place.clone()]);
            }
            "frame of another file" => {
                let from = &all[rng.below(all.len() as u64) as usize];
                let with = &from.parts[rng.below(from.parts.len() as u64) as usize];
                overwrite(&mut bytes, part, &from.bytes[with.place.clone()]);
            }
            "frame doubled" => {
                let twice = self.bytes[part.place.clone()].to_vec();
                bytes.splice(part.place.end..part.place.end, twice);
                if self.kind == ".wal" {
                    bytes.truncate(self.bytes.len());
                }
            }
            _ => return self.harmed_sector(how, sample, rng),
        }
        (bytes != self.bytes).then(|| self.harm(part, how, part.place.start, bytes))
    }

    fn harmed_sector(&self, how: &'static str, sample: &Sample, rng: &mut Rng) -> Option<Harm> {
        let size = if how.starts_with("4096") { 4096 } else { 512 };
        let start = rng.below(self.used().div_ceil(size) as u64) as usize * size;
        let place = start..(start + size).min(self.bytes.len());
        let mut bytes = self.bytes.clone();
        let sector = &mut bytes[place.clone()];
        if how.ends_with("zeros") {
            sector.fill(0);
        } else if how.ends_with("garbage") {
            rng.fill(sector);
        } else {
            let same = |p: &Path| p.extension() == self.path.extension();
            let old: Vec<&Vec<u8>> = sample.earlier.iter().filter(|(p, _)| same(p)).map(|(_, b)| b).collect();
            let from = old.get(rng.below(old.len().max(1) as u64) as usize)?;
            sector.copy_from_slice(from.get(place.clone())?);
        }
        let part = self.parts.iter().find(|p| p.place.end > start)?;
        (bytes != self.bytes).then(|| self.harm(part, how, start, bytes))
    }
}

fn overwrite(bytes: &mut [u8], part: &Part, with: &[u8]) {
    let len = part.place.len().min(with.len());
    bytes[part.place.start..part.place.start + len].copy_from_slice(&with[..len]);
}
