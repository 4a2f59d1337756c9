//! Clones: a new family with what another one holds at one moment.
//!
//! Tables never change, so the clone gets them by hard links under ids of its own: a file that has two names goes when the
//! second one does, and neither family need know of the other. A table that points into value logs is rewritten with
//! values of its own, because pointers name the value log. Memtables are written as tables. Nothing is locked meanwhile:
//! a view of the source keeps its files.

use super::Brought;
use super::install::{Failed, Left, NewFamily, exists};
use crate::api::ColumnFamily;
use crate::api::Db;
use crate::compact::run::hand_hidden_on;
use crate::compact::{FlushInput, Lookup, MergeOutput, run_flush, run_merge};
use crate::copy::target::of_named;
use crate::engine::DbInner;
use crate::family::{Family, View, check_name};
use crate::read::hidden::Hidden;
use kingtide_base::names::{klog_path, vlog_path};
use kingtide_base::{Error, ErrorKind, Result, SeqNo};
use kingtide_versions::{CompactionRange, FileMeta, Job, JobKind, VlogMeta};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The files of a family that is being made.
#[derive(Default)]
struct Copied {
    files: Vec<(usize, FileMeta)>,
    vlogs: Vec<VlogMeta>,
}

impl Copied {
    fn take(&mut self, output: MergeOutput, brought: &mut Brought<'_>) {
        let dir = &brought.db.dir;
        brought.created.extend(output.added.iter().map(|(_, f)| klog_path(dir, f.id)));
        brought.created.extend(output.vlogs.iter().map(|v| vlog_path(dir, v.id)));
        self.files.extend(output.added);
        self.vlogs.extend(output.vlogs);
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, f)| f.size).sum::<u64>() + self.vlogs.iter().map(|v| v.size).sum::<u64>()
    }
}

impl DbInner {
    /// See [`Db::clone_family`].
    fn clone_family(self: &Arc<Self>, from: &str, to: &str) -> Result<Arc<Family>> {
        self.check_writable()?;
        self.check_space_to_grow()?;
        let source = {
            let catalog = self.catalog.lock();
            if catalog.by_name(to).is_some() {
                return Err(exists(to));
            }
            let missing = || Error::new(ErrorKind::NotFound, format!("no column family '{from}'"));
            catalog.by_name(from).cloned().ok_or_else(missing)?
        };
        self.begin_log()?;
        let (view, seq) = {
            let mut c = self.commit.lock();
            source.check_alive()?;
            self.seal_memtable(&mut c, &source);
            (source.view.load_full(), c.last_seq)
        };
        let (order, options) = (source.order().clone(), (*source.options()).clone());
        let mut brought = Brought { db: self, created: Vec::new() };
        let copied = self.copy_view(&source, &view, seq, &mut brought)?;
        drop(view);
        self.fs.sync_dir(&self.dir)?;
        let bytes = copied.bytes();
        let Copied { files, vlogs } = copied;
        let made = self.install_family(NewFamily { name: to.to_owned(), order, options, files, vlogs });
        let family = brought.settle(made)?;
        self.count_ingest(bytes);
        Ok(family)
    }

    /// Gives what a view shows at `seq` files of its own.
    fn copy_view(
        self: &Arc<Self>,
        source: &Family,
        view: &View,
        seq: SeqNo,
        brought: &mut Brought<'_>,
    ) -> Result<Copied> {
        let order = source.order();
        let options = source.options();
        // The clone is never read at an earlier moment.
        let (snapshots, version) = (vec![seq], view.version.clone());
        self.surroundings(true).with_context((order, &options), snapshots, version, |context| {
            let mut copied = Copied::default();
            for (level, meta) in view.version.files() {
                self.check_open()?;
                if meta.vlog_refs.is_empty() {
                    let path = klog_path(&self.dir, meta.id);
                    let (id, _) = brought.bring(&path, true).map_err(of_named(&path))?;
                    copied.files.push((level, FileMeta { id, ..FileMeta::clone(meta) }));
                } else {
                    let job = rewriting(level, meta);
                    let mut output = run_merge(context, &job, &CompactionRange::default())?;
                    hand_hidden_on(&job, &mut output);
                    copied.take(output, brought);
                }
            }
            if !view.immutable.is_empty() {
                let hidden = Hidden::of(view, &view.immutable, &options);
                let lookup = hidden.as_ref().map(|h| move |key: &[u8], value| h.bytes(key, value));
                let input = FlushInput::of(&view.immutable, context.new_file_id());
                let input = FlushInput { hidden: lookup.as_ref().map(|f| f as &Lookup<'_>), ..input };
                copied.take(run_flush(context, input)?, brought);
            }
            Ok(copied)
        })
    }
}

/// Rewrites a table in its place, with all values that it points to.
fn rewriting(level: usize, meta: &Arc<FileMeta>) -> Job {
    Job {
        kind: JobKind::VlogGc,
        inputs: vec![(level, meta.clone())],
        output_level: level,
        output_run: meta.run,
        drop_tombstones: false,
        boundaries: Vec::new(),
        relocate_vlogs: meta.vlog_refs.iter().map(|r| r.file_id).collect::<BTreeSet<u64>>(),
        open_ends: BTreeSet::new(),
    }
}

impl Brought<'_> {
    /// Keeps the files if they were installed, or may have been.
    pub(super) fn settle<T>(self, outcome: Result<T, Failed>) -> Result<T> {
        match outcome {
            Ok(done) => {
                self.keep();
                Ok(done)
            }
            Err(Failed { error, left: Left::Nothing }) => Err(error),
            Err(Failed { error, left: Left::Doubt }) => {
                self.keep();
                Err(error.context("whether it was done is known after the next open"))
            }
            Err(Failed { error, left: Left::All }) => {
                self.keep();
                Err(error.context("it was done, but may not survive a power cut"))
            }
        }
    }
}

impl Db {
    /// Creates family `to` with the options, key order and contents of family `from` as of one moment, a commit boundary. From
    /// then on they are apart. Over a crash it is there with all of it or not at all, and when this returns it survives a
    /// power cut.
    ///
    /// Tables are shared by hard links, or copied where that is not possible; those with values in value logs are written
    /// anew. So a clone of a family without value logs costs a link a table and one write of the memtables, and otherwise
    /// reads and writes the family once. Commits, flushes and merges of the source go on meanwhile.
    ///
    /// Transactions in doubt are not cloned. It is undefined what the clone shows at snapshots that were taken before it.
    /// A change stream fails with `TooOld` there, or shows a record without operations
    /// ([`ChangeStreamOptions::show_unlogged`](crate::ChangeStreamOptions::show_unlogged)).
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// db.put("ebb", "low")?;
    /// let copy = db.clone_family("default", "copy")?;
    /// copy.put("ebb", "lower")?;
    /// assert_eq!(db.get("ebb")?.as_deref(), Some(&b"low"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Nothing is then left behind. `NotFound` for `from`; `Exists`, `InvalidArgument` for `to`; `Corruption`, `Io`,
    /// `NoSpace`, `Poisoned`, `Cancelled` (the database closes), `Closed`, `ReadOnly`. Only when the sync of the log fails, the
    /// message says that the clone was made but may not survive a power cut; and when the log fails in the midst of its record,
    /// that the next open decides.
    pub fn clone_family(&self, from: &str, to: &str) -> Result<ColumnFamily> {
        check_name(to)?;
        let family = self.inner().clone_family(from, to)?;
        Ok(ColumnFamily::new(self.inner().clone(), family))
    }
}
