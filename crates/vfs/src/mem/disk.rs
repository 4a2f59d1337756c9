//! The simulated disk: a tree of names over numbered nodes, each in two versions, what a running process sees and what
//! is durable.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path};
use std::sync::Arc;

use super::content::Content;
use super::journal::{Change, Journal, PAGE};
use crate::system::Errno;

pub(super) const ROOT: u64 = 0;
/// Longest file; above it a write is refused as a real file system would, instead of asking for the memory.
const MAX_LEN: u64 = 1 << 36;

#[derive(Clone, Debug, Default)]
pub(super) struct FileNode {
    pub(super) written: Content,
    pub(super) durable: Content,
    pub(super) unsynced: Journal,
    /// A failed sync lost changes: `written` is no longer `durable` plus `unsynced`.
    pub(super) diverged: bool,
    /// End of the reserved blocks.
    allocated: u64,
    pub(super) links: u32,
    opens: u32,
}

impl FileNode {
    fn usage(&self) -> u64 {
        self.written.len().max(self.allocated)
    }

    fn alive(&self) -> bool {
        self.links > 0 || self.opens > 0
    }

    /// The durable bytes with all unsynced changes.
    pub(super) fn synced(&self) -> Content {
        if !self.diverged {
            return self.written.clone();
        }
        let mut content = self.durable.clone();
        self.unsynced.in_order().iter().for_each(|(_, c)| c.apply(&mut content));
        content
    }

    /// The change that a write leaves. Where a failed sync marked pages clean that were not stored, a write makes the whole
    /// of its pages dirty again, and what was lost of them comes back with the next sync; with half of the writes here, as
    /// file systems differ in what they keep.
    fn dirtied(&self, data: &[u8], offset: u64, order: u64, mapped: bool) -> Change {
        if !self.diverged || order.is_multiple_of(2) {
            return Change::Write { offset, data: data.into(), mapped };
        }
        let end = (offset + data.len() as u64).div_ceil(PAGE) * PAGE;
        let from = offset / PAGE * PAGE;
        let mut pages = vec![0; (end.min(self.written.len()) - from) as usize];
        self.written.read(&mut pages, from);
        Change::Write { offset: from, data: pages.into(), mapped: false }
    }

    pub(super) fn surviving(content: Content) -> FileNode {
        let allocated = content.len();
        FileNode { durable: content.clone(), written: content, allocated, ..FileNode::default() }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct DirNode {
    pub(super) current: BTreeMap<String, u64>,
    pub(super) durable: BTreeMap<String, u64>,
}

#[derive(Clone, Debug)]
pub(super) enum Node {
    File(Arc<FileNode>),
    Dir(Arc<DirNode>),
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    dir: u64,
    name: String,
}

/// A change of names that no directory sync has made durable. Each survives whole or not at all.
#[derive(Clone, Debug)]
pub(super) struct NameChange {
    pub(super) order: u64,
    pub(super) node: u64,
    removed: Option<Entry>,
    added: Option<Entry>,
}

impl NameChange {
    fn touches(&self, dir: u64) -> bool {
        self.removed.iter().chain(&self.added).any(|e| e.dir == dir)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub(super) nodes: BTreeMap<u64, Node>,
    pub(super) names: Vec<NameChange>,
    next_node: u64,
    next_order: u64,
    pub(super) capacity: Option<u64>,
    used: u64,
    pub(super) boot: [u8; 16],
}

impl Disk {
    pub(super) fn new() -> Disk {
        let root = Node::Dir(Arc::new(DirNode::default()));
        Disk {
            nodes: BTreeMap::from([(ROOT, root)]),
            names: Vec::new(),
            next_node: ROOT + 1,
            next_order: 0,
            capacity: None,
            used: 0,
            boot: *b"kingtide boot #1",
        }
    }

    // ---- names ----

    pub(super) fn dir(&self, id: u64) -> io::Result<&DirNode> {
        match self.nodes.get(&id) {
            Some(Node::Dir(d)) => Ok(d),
            Some(Node::File(_)) => Err(Errno::NOTDIR.into()),
            None => Err(Errno::NOENT.into()),
        }
    }

    pub(super) fn dir_mut(&mut self, id: u64) -> Option<&mut DirNode> {
        match self.nodes.get_mut(&id) {
            Some(Node::Dir(d)) => Some(Arc::make_mut(d)),
            _ => None,
        }
    }

    pub(super) fn find(&self, path: &Path) -> io::Result<u64> {
        let mut at = ROOT;
        for name in names(path) {
            at = *self.dir(at)?.current.get(&name).ok_or(Errno::NOENT)?;
        }
        Ok(at)
    }

    /// The directory that holds `path`, which must be there, and the name in it, which need not.
    fn entry(&self, path: &Path) -> io::Result<Entry> {
        let mut parts = names(path);
        let name = parts.pop().ok_or(Errno::ISDIR)?;
        let mut dir = ROOT;
        for part in parts {
            dir = *self.dir(dir)?.current.get(&part).ok_or(Errno::NOENT)?;
        }
        self.dir(dir)?;
        Ok(Entry { dir, name })
    }

    fn lookup(&self, e: &Entry) -> Option<u64> {
        self.dir(e.dir).ok()?.current.get(&e.name).copied()
    }

    /// Carries out a change of names in what the process sees, and remembers it as not durable.
    fn change_names(&mut self, node: u64, removed: Option<Entry>, added: Option<Entry>) {
        if let Some(e) = &removed
            && let Some(dir) = self.dir_mut(e.dir)
        {
            dir.current.remove(&e.name);
            self.add_links(node, -1);
        }
        if let Some(e) = &added {
            let replaced = self.dir_mut(e.dir).and_then(|d| d.current.insert(e.name.clone(), node));
            self.add_links(node, 1);
            if let Some(old) = replaced {
                self.add_links(old, -1);
            }
        }
        let order = self.next_order();
        self.names.push(NameChange { order, node, removed, added });
    }

    fn add_links(&mut self, node: u64, by: i32) {
        self.adjust(node, |f| f.links = f.links.saturating_add_signed(by));
    }

    pub(super) fn create(&mut self, path: &Path) -> io::Result<u64> {
        let entry = self.entry(path)?;
        if self.lookup(&entry).is_some() {
            return Err(Errno::EXIST.into());
        }
        let id = self.add_node(Node::File(Arc::default()));
        self.change_names(id, None, Some(entry));
        Ok(id)
    }

    fn add_node(&mut self, node: Node) -> u64 {
        let id = self.next_node;
        self.next_node += 1;
        self.nodes.insert(id, node);
        id
    }

    pub(super) fn create_dir_all(&mut self, path: &Path) -> io::Result<()> {
        let mut at = ROOT;
        for name in names(path) {
            at = match self.dir(at)?.current.get(&name) {
                Some(&next) => next,
                None => {
                    let id = self.add_node(Node::Dir(Arc::default()));
                    self.change_names(id, None, Some(Entry { dir: at, name }));
                    id
                }
            };
        }
        self.dir(at).map(|_| ()).map_err(|_| Errno::EXIST.into())
    }

    pub(super) fn remove(&mut self, path: &Path, want_dir: bool) -> io::Result<()> {
        let entry = self.entry(path)?;
        let id = self.lookup(&entry).ok_or(Errno::NOENT)?;
        match (self.dir(id), want_dir) {
            (Ok(_), false) => return Err(Errno::ISDIR.into()),
            (Err(_), true) => return Err(Errno::NOTDIR.into()),
            (Ok(d), true) if !d.current.is_empty() => return Err(Errno::NOTEMPTY.into()),
            _ => {}
        }
        self.change_names(id, Some(entry), None);
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let (from_entry, to_entry) = (self.entry(from)?, self.entry(to)?);
        let id = self.lookup(&from_entry).ok_or(Errno::NOENT)?;
        let is_dir = self.dir(id).is_ok();
        if is_dir && names(to).starts_with(&names(from)) && from_entry != to_entry {
            return Err(Errno::INVAL.into());
        }
        if let Some(old) = self.lookup(&to_entry) {
            if old == id {
                return Ok(()); // two names of one file: nothing happens, as POSIX says
            }
            match (is_dir, self.dir(old)) {
                (false, Ok(_)) => return Err(Errno::ISDIR.into()),
                (true, Err(_)) => return Err(Errno::NOTDIR.into()),
                (true, Ok(d)) if !d.current.is_empty() => return Err(Errno::NOTEMPTY.into()),
                _ => {}
            }
        }
        self.change_names(id, Some(from_entry), Some(to_entry));
        Ok(())
    }

    pub(super) fn hard_link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let (id, entry) = (self.find(from)?, self.entry(to)?);
        if self.dir(id).is_ok() {
            return Err(Errno::PERM.into());
        }
        if self.lookup(&entry).is_some() {
            return Err(Errno::EXIST.into());
        }
        self.change_names(id, None, Some(entry));
        Ok(())
    }

    pub(super) fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        let id = self.find(path)?;
        self.dir(id)?;
        let (settled, open) = std::mem::take(&mut self.names).into_iter().partition(|c| c.touches(id));
        self.names = open;
        for change in settled {
            self.make_durable(&change);
        }
        self.collect();
        Ok(())
    }

    /// A failed sync of a directory: the changes of its names are forgotten, later syncs succeed without them.
    pub(super) fn lose_names(&mut self, path: &Path) -> io::Result<()> {
        let id = self.find(path)?;
        self.dir(id)?;
        self.names.retain(|c| !c.touches(id));
        Ok(())
    }

    /// Applies one change of names to the durable tree.
    pub(super) fn make_durable(&mut self, change: &NameChange) {
        if let Some(e) = &change.removed
            && let Some(dir) = self.dir_mut(e.dir)
            && dir.durable.get(&e.name) == Some(&change.node)
        {
            dir.durable.remove(&e.name);
        }
        if let Some(e) = &change.added
            && let Some(dir) = self.dir_mut(e.dir)
        {
            dir.durable.insert(e.name.clone(), change.node);
        }
    }

    /// Forgets the nodes that neither a process nor a crash can reach any more.
    fn collect(&mut self) {
        let mut reachable = BTreeSet::from([ROOT]);
        for node in self.nodes.values() {
            if let Node::Dir(d) = node {
                reachable.extend(d.current.values().chain(d.durable.values()));
            }
        }
        reachable.extend(self.names.iter().map(|c| c.node));
        self.nodes.retain(|id, node| reachable.contains(id) || matches!(node, Node::File(f) if f.opens > 0));
    }

    // ---- files ----

    pub(super) fn file(&self, id: u64) -> io::Result<&FileNode> {
        match self.nodes.get(&id) {
            Some(Node::File(f)) => Ok(f),
            Some(Node::Dir(_)) => Err(Errno::ISDIR.into()),
            None => Err(Errno::NOENT.into()),
        }
    }

    /// Changes a file node and keeps the count of used bytes right.
    fn adjust<T>(&mut self, id: u64, change: impl FnOnce(&mut FileNode) -> T) -> Option<T> {
        let Some(Node::File(f)) = self.nodes.get_mut(&id) else { return None };
        let f = Arc::make_mut(f);
        let before = if f.alive() { f.usage() } else { 0 };
        let result = change(f);
        let after = if f.alive() { f.usage() } else { 0 };
        self.used = self.used + after - before;
        Some(result)
    }

    pub(super) fn opened(&mut self, id: u64) {
        self.adjust(id, |f| f.opens += 1);
    }

    pub(super) fn closed(&mut self, id: u64) {
        self.adjust(id, |f| f.opens = f.opens.saturating_sub(1));
    }

    pub(super) fn free(&self) -> u64 {
        self.capacity.unwrap_or(1 << 50).saturating_sub(self.used)
    }

    fn next_order(&mut self) -> u64 {
        self.next_order += 1;
        self.next_order
    }

    /// On a full disk stores what fits, and says that the rest did not. `mapped`: a store into a mapped page.
    pub(super) fn write(&mut self, id: u64, data: &[u8], offset: u64, mapped: bool) -> io::Result<()> {
        let end = offset.checked_add(data.len() as u64).filter(|&e| e <= MAX_LEN).ok_or(Errno::FBIG)?;
        if data.is_empty() {
            return Ok(());
        }
        let room = self.file(id)?.usage() + self.free();
        let fits = &data[..room.saturating_sub(offset).min(data.len() as u64) as usize];
        if !fits.is_empty() {
            let order = self.next_order();
            self.adjust(id, |f| {
                f.written.write(fits, offset);
                f.unsynced.push(order, f.dirtied(fits, offset, order, mapped));
            });
        }
        if end > room { Err(Errno::NOSPC.into()) } else { Ok(()) }
    }

    pub(super) fn truncate(&mut self, id: u64, len: u64) -> io::Result<()> {
        // A longer file is a hole, which takes no space on a real disk; it is charged here all the same.
        if len > MAX_LEN {
            return Err(Errno::FBIG.into());
        }
        let file = self.file(id)?;
        if len > file.usage() && len - file.usage() > self.free() {
            return Err(Errno::NOSPC.into());
        }
        let from = file.written.len();
        let order = self.next_order();
        self.adjust(id, |f| {
            f.written.set_len(len);
            f.allocated = f.allocated.min(len);
            f.unsynced.push(order, Change::SetLen { from, to: len });
        });
        Ok(())
    }

    pub(super) fn allocate(&mut self, id: u64, offset: u64, len: u64) -> io::Result<()> {
        let end = offset.checked_add(len).filter(|&e| e <= MAX_LEN).ok_or(Errno::FBIG)?;
        if self.file(id)?.written.len() < end {
            self.truncate(id, end)?;
        }
        self.adjust(id, |f| f.allocated = f.allocated.max(end));
        Ok(())
    }

    pub(super) fn sync(&mut self, id: u64) {
        self.adjust(id, |f| {
            f.durable = f.synced();
            f.unsynced = Journal::default();
        });
    }

    /// A failed sync as common file systems do it: the changes are forgotten, later syncs succeed without them.
    pub(super) fn lose_unsynced(&mut self, id: u64) {
        self.adjust(id, |f| {
            f.unsynced = Journal::default();
            f.diverged = true;
        });
    }

    /// As left by the death of the process: no open handles.
    pub(super) fn kill(&self) -> Disk {
        let mut disk = self.clone();
        for node in disk.nodes.values_mut() {
            if let Node::File(f) = node
                && f.opens > 0
            {
                Arc::make_mut(f).opens = 0;
            }
        }
        disk.collect();
        disk.count_used();
        disk
    }

    pub(super) fn count_used(&mut self) {
        let files = self.nodes.values().filter_map(|n| if let Node::File(f) = n { Some(f) } else { None });
        self.used = files.filter(|f| f.alive()).map(|f| f.usage()).sum();
    }
}

/// The names on the way from the root; relative paths start there too.
fn names(path: &Path) -> Vec<String> {
    let mut out = Vec::new();
    for c in path.components() {
        match c {
            Component::Normal(n) => out.push(n.to_string_lossy().into_owned()),
            Component::ParentDir => {
                out.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    out
}
