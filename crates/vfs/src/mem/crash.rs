//! What a power cut leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kingtide_base::rng::Rng;

use super::content::Content;
use super::disk::{DirNode, Disk, FileNode, Node, ROOT};
use super::journal::{PAGE, SECTOR};

/// What a power cut leaves of everything that was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Survival {
    /// Nothing unsynced.
    AllLost,
    /// Everything.
    AllKept,
    /// Each 512-byte block holds what some prefix of the unsynced writes to it left; the length of a file is one that it
    /// had, whatever its blocks; each file keeps a prefix of the changes of its names.
    RandomBlocks,
    /// The unsynced changes up to some moment, the write of that moment cut at a 512-byte boundary. Half of the time one
    /// moment for the whole file system, otherwise one for each file and one for the names.
    Torn,
    /// As the page cache writes pages back: each page of 4 KiB was last written at some moment of its own, and of its blocks
    /// some may be those of an earlier write-back. A small write to a log segment is a store into a mapped page, which may
    /// be written back in the midst of it: any aligned words of it may be missing then. Lengths and names as
    /// [`Survival::RandomBlocks`].
    Pages,
}

impl Survival {
    /// Every model.
    pub const ALL: [Survival; 5] =
        [Survival::AllLost, Survival::AllKept, Survival::RandomBlocks, Survival::Torn, Survival::Pages];
}

impl Disk {
    /// The disk after a power cut. Everything on it is durable, and the boot is another one.
    pub(super) fn crash(&self, model: Survival, rng: &mut Rng) -> Disk {
        let mut disk = self.clone();
        let cut = match model {
            Survival::Torn if rng.one_in(2) => Some(self.choose_cut(rng)),
            _ => None,
        };
        for change in self.surviving_names(model, cut, rng) {
            disk.make_durable(&self.names[change]);
        }
        disk.names.clear();
        for node in disk.nodes.values_mut() {
            match node {
                Node::File(f) => *node = Node::File(Arc::new(FileNode::surviving(survivor(f, model, cut, rng)))),
                Node::Dir(d) => {
                    let names = d.durable.clone();
                    *node = Node::Dir(Arc::new(DirNode { current: names.clone(), durable: names }));
                }
            }
        }
        disk.keep_reachable();
        disk.count_used();
        rng.fill(&mut disk.boot);
        disk.boot[0] |= 1; // all zeros would mean "unknown"
        disk
    }

    /// A place in the order of all unsynced changes of the file system: what comes before it survives.
    fn choose_cut(&self, rng: &mut Rng) -> u64 {
        let mut orders: Vec<u64> = self.names.iter().map(|c| c.order).collect();
        for node in self.nodes.values() {
            if let Node::File(f) = node {
                orders.extend(f.unsynced.in_order().iter().map(|(order, _)| order));
            }
        }
        orders.sort_unstable();
        orders.get(rng.below(orders.len() as u64 + 1) as usize).copied().unwrap_or(u64::MAX)
    }

    /// Indexes of the changes of names that survive.
    fn surviving_names(&self, model: Survival, cut: Option<u64>, rng: &mut Rng) -> Vec<usize> {
        let all = 0..self.names.len();
        match model {
            Survival::AllLost => Vec::new(),
            Survival::AllKept => all.collect(),
            Survival::Torn => {
                let cut = cut.unwrap_or_else(|| match rng.below(all.len() as u64 + 1) as usize {
                    n if n < all.len() => self.names[n].order,
                    _ => u64::MAX,
                });
                all.filter(|&i| self.names[i].order < cut).collect()
            }
            // File systems differ in the order between files, but none forgets a file's creation and remembers that it
            // was renamed. So each file keeps a prefix of its own changes.
            Survival::RandomBlocks | Survival::Pages => {
                let mut total = BTreeMap::<u64, u64>::new();
                self.names.iter().for_each(|c| *total.entry(c.node).or_default() += 1);
                let mut left: BTreeMap<u64, u64> = total.into_iter().map(|(id, n)| (id, pick(n, rng))).collect();
                let mut survives =
                    |id: u64| left.get_mut(&id).is_some_and(|n| n.checked_sub(1).map(|m| *n = m).is_some());
                all.filter(|&i| survives(self.names[i].node)).collect()
            }
        }
    }

    /// Drops what no name leads to, and counts the names of the rest.
    fn keep_reachable(&mut self) {
        let mut seen = BTreeSet::from([ROOT]);
        let mut links = BTreeMap::<u64, u32>::new();
        let mut todo = vec![ROOT];
        while let Some(id) = todo.pop() {
            let Ok(dir) = self.dir(id) else { continue };
            for &child in dir.current.values() {
                *links.entry(child).or_default() += 1;
                if seen.insert(child) {
                    todo.push(child);
                }
            }
        }
        self.nodes.retain(|id, _| seen.contains(id));
        for (id, n) in links {
            if let Some(Node::File(f)) = self.nodes.get_mut(&id) {
                Arc::make_mut(f).links = n;
            }
        }
    }
}

/// How many of `n` ordered changes survive: none, all, or some.
fn pick(n: u64, rng: &mut Rng) -> u64 {
    match rng.below(3) {
        0 => 0,
        1 => n,
        _ => rng.below(n + 1),
    }
}

fn survivor(f: &FileNode, model: Survival, cut: Option<u64>, rng: &mut Rng) -> Content {
    match model {
        Survival::AllLost => f.durable.clone(),
        Survival::AllKept => f.synced(),
        Survival::Torn => torn(f, cut, rng),
        Survival::RandomBlocks => random_blocks(f, rng),
        Survival::Pages => pages(f, rng),
    }
}

fn torn(f: &FileNode, cut: Option<u64>, rng: &mut Rng) -> Content {
    let changes = f.unsynced.in_order();
    let mut content = f.durable.clone();
    let cut = cut.unwrap_or_else(|| {
        let n = rng.below(changes.len() as u64 + 1) as usize;
        changes.get(n).map_or(u64::MAX, |(order, _)| *order)
    });
    for (order, change) in changes {
        if order < cut {
            change.apply(&mut content);
        } else if order == cut {
            let sectors = change.sectors();
            change.apply_torn(&mut content, rng.below(sectors.end.saturating_sub(sectors.start)));
        }
    }
    content
}

/// Each sector holds what some prefix of the changes to it left; the length is one that the file had.
fn random_blocks(f: &FileNode, rng: &mut Rng) -> Content {
    let changes = f.unsynced.in_order();
    let mut left = BTreeMap::<u64, u64>::new();
    let mut lengths = vec![f.durable.len()];
    for (_, change) in &changes {
        change.sectors().for_each(|s| *left.entry(s).or_default() += 1);
        lengths.push(change.len_after(lengths[lengths.len() - 1]));
    }
    left.values_mut().for_each(|n| *n = pick(*n, rng));
    let len = lengths[pick(changes.len() as u64, rng) as usize];
    let mut content = f.durable.clone();
    for (_, change) in &changes {
        for sector in change.sectors() {
            let Some(n) = left.get_mut(&sector).filter(|n| **n > 0) else { continue };
            *n -= 1;
            change.apply_sector(&mut content, sector);
        }
    }
    content.set_len(len);
    content
}

/// What became of the pages of one file: of each, how many changes it held when it was last written back, and whether the
/// next one was half done by then; and the same of an earlier write-back, which some of its sectors still show.
fn pages(f: &FileNode, rng: &mut Rng) -> Content {
    let changes = f.unsynced.in_order();
    let mut of_page = BTreeMap::<u64, Vec<usize>>::new();
    let mut lengths = vec![f.durable.len()];
    for (n, (_, change)) in changes.iter().enumerate() {
        change.pages().for_each(|p| of_page.entry(p).or_default().push(n));
        lengths.push(change.len_after(lengths[n]));
    }
    let mut content = f.durable.clone();
    for (page, touching) in &of_page {
        let last = pick(touching.len() as u64, rng);
        let torn = rng.one_in(2).then(|| rng.next_u64());
        let earlier = if rng.one_in(2) { rng.below(last + 1) } else { last };
        for sector in page * (PAGE / SECTOR)..(page + 1) * (PAGE / SECTOR) {
            let is_old = earlier < last && rng.one_in(3);
            let held = if is_old { earlier } else { last } as usize;
            for n in &touching[..held] {
                changes[*n].1.apply_sector(&mut content, sector);
            }
            if let (false, Some(words), Some(n)) = (is_old, torn, touching.get(held)) {
                changes[*n].1.apply_words(&mut content, sector, words);
            }
        }
    }
    content.set_len(lengths[pick(changes.len() as u64, rng) as usize]);
    content
}
