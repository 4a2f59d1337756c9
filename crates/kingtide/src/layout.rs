//! What the edits of a manifest add up to.

use crate::options::Options;
use crate::version::DEFAULT_FAMILY;
use crate::version::VlogMeta;
use crate::version::{Edit, FamilyId, LogBegun, Version};
use kingtide_base::options::FamilyOptions;
use kingtide_base::{Error, ErrorKind, KeyOrder, Result, SeqNo};
use std::collections::BTreeMap;

/// A family as the manifest describes it.
#[derive(Debug)]
pub(crate) struct FamilyLayout {
    pub name: String,
    pub order: KeyOrder,
    pub options: FamilyOptions,
    pub version: Version,
    pub flushed: SeqNo,
}

/// Everything that the manifest describes: the sum of its edits.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    pub families: BTreeMap<FamilyId, FamilyLayout>,
    pub vlogs: BTreeMap<u64, VlogMeta>,
    pub next_family: FamilyId,
    pub next_file_id: u64,
    pub last_seq: SeqNo,
    /// Operations below this are in tables.
    pub log_start: SeqNo,
    pub log_begun: Option<LogBegun>,
}

impl Layout {
    /// Asserts that a rewritten manifest adds up to what the one before did, and `edits`. `number` is the first file id that
    /// the new one may name as free.
    pub fn assert_became(mut self, after: &Layout, edits: &[Edit], number: u64, orders: &Options) {
        for e in edits {
            if let Err(e) = self.apply(e.clone(), orders) {
                panic!("an edit does not fit what the manifest held: {e}");
            }
        }
        // One by one, so that a message names what differs and not all that there is.
        let ids = |l: &Layout| l.families.keys().copied().collect::<Vec<_>>();
        assert_eq!(ids(&self), ids(after), "a rewritten manifest has other families");
        for (id, f) in &self.families {
            let other = &after.families[id];
            let told = |f: &FamilyLayout| (f.name.clone(), f.order.name().to_owned(), f.flushed);
            assert_eq!(told(f), told(other), "a rewritten manifest says something else of family {id}");
            // Those of the default family are given by each open, which stores them last: a manifest that is rewritten before
            // that has them already.
            let same = f.name == DEFAULT_FAMILY || f.options == other.options;
            assert!(same, "a rewritten manifest has other options of family {id}");
        }
        assert!(self.vlogs == after.vlogs, "a rewritten manifest has other value logs");
        assert_eq!(
            (self.next_family, self.log_begun),
            (after.next_family, after.log_begun),
            "a rewritten manifest counts families, or names the log's first segment, in another way"
        );
        for (id, f) in &self.families {
            assert_eq!(f.version, after.families[id].version, "a rewritten manifest has other files of family {id}");
        }
        assert!(after.next_file_id >= self.next_file_id.max(number), "the next file id fell");
        assert!(after.last_seq >= self.last_seq, "the last sequence number fell");
        assert!(after.log_start >= self.log_start, "the log start fell");
    }

    pub fn apply(&mut self, edit: Edit, options: &Options) -> Result<()> {
        let unknown =
            |id: FamilyId| Error::corruption(format!("the manifest changes family {id}, which does not exist"));
        self.last_seq = self.last_seq.max(edit.last_seq());
        match edit {
            Edit::CreateFamily { id, name, order, options: stored } => {
                let Some(order) = options.resolve_order(&order) else {
                    return Err(Error::new(
                        ErrorKind::Incompatible,
                        format!(
                            "column family '{name}' is ordered by '{order}', which this open was not given: hand the \
                                 order in `Options::custom_orders`"
                        ),
                    ));
                };
                let options = read_options(&name, &stored)?;
                self.next_family = self.next_family.max(id + 1);
                let family = FamilyLayout { name, order, options, version: Version::default(), flushed: 0 };
                self.families.insert(id, family);
            }
            Edit::DropFamily { id } => {
                self.families.remove(&id).ok_or_else(|| unknown(id))?;
                self.next_family = self.next_family.max(id + 1);
            }
            Edit::RenameFamily { id, name } => self.families.get_mut(&id).ok_or_else(|| unknown(id))?.name = name,
            Edit::SetOptions { id, options } => {
                let f = self.families.get_mut(&id).ok_or_else(|| unknown(id))?;
                f.options = read_options(&f.name, &options)?;
            }
            Edit::AddFile { family, level, meta } => {
                let f = self.families.get_mut(&family).ok_or_else(|| unknown(family))?;
                if level as usize >= f.version.levels.len() {
                    return Err(Error::corruption(format!("the manifest puts file {} into level {level}", meta.id)));
                }
                f.version.add(&f.order, level as usize, meta);
            }
            Edit::RemoveFile { family, level, id } => {
                let f = self.families.get_mut(&family).ok_or_else(|| unknown(family))?;
                if level as usize >= f.version.levels.len() || !f.version.remove(level as usize, id) {
                    return Err(Error::corruption(format!(
                        "the manifest removes file {id}, which level {level} lacks"
                    )));
                }
            }
            Edit::Flushed { family, seq } => {
                let f = self.families.get_mut(&family).ok_or_else(|| unknown(family))?;
                f.flushed = f.flushed.max(seq);
            }
            Edit::AddVlog { id, family, size, stored_bytes, values } => {
                self.vlogs.insert(id, VlogMeta { family, size, stored_bytes, values });
            }
            Edit::RemoveVlog { id } => {
                self.vlogs.remove(&id);
            }
            Edit::NextFileId(id) => self.next_file_id = self.next_file_id.max(id),
            Edit::LastSeq(_) => {}
            Edit::NextFamilyId(id) => self.next_family = self.next_family.max(id),
            Edit::LogStart(seq) => self.log_start = self.log_start.max(seq),
            Edit::LogBegun(begun) => self.log_begun = Some(begun),
        }
        Ok(())
    }
}

pub(crate) fn read_options(family: &str, stored: &[(String, String)]) -> Result<FamilyOptions> {
    let mut options = FamilyOptions::default();
    for (name, value) in stored {
        options.set(name, value).map_err(|e| {
            Error::new(ErrorKind::NewerFormat, format!("stored option of column family '{family}': {}", e.message()))
        })?;
    }
    Ok(options)
}
