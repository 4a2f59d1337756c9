//! The first stage of recovery: what the manifest says, and whether it is what this open can work with.

use super::recovery::Recovery;
use crate::options::Options;
use kingtide_base::names::FileName;
use kingtide_base::options::FamilyOptions;
use kingtide_base::{Error, ErrorKind, Result, SeqNo, rare};
use kingtide_versions::{
    DEFAULT_FAMILY, Edit, FamilyState, Manifest, VersionSet, VersionState, read_options, required_log_start,
};
use kingtide_vfs::Fs;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

/// What the manifest describes, before the log is read.
pub(super) struct Described {
    pub versions: VersionSet,
    /// File ids from here on are free.
    pub next_file_id: u64,
    /// The open gives the default family other options than are stored.
    pub default_changed: bool,
    /// The process that had the database open last ran in the machine's present boot.
    pub same_boot: bool,
    /// Files that no edit names: removed once the log was read.
    pub orphans: Vec<String>,
}

impl Described {
    /// From where on the log cannot be done without.
    pub fn log_needed_from(&self) -> SeqNo {
        required_log_start(self.versions.log_start, self.versions.manifest.log_start_is_exact())
    }
}

/// What the manifest has of an open's options.
pub(crate) struct StoredOptions {
    /// The default family's key order, by name.
    pub order: String,
    /// The default family's options.
    pub family: FamilyOptions,
    /// The database's `change_retention`, where a log was begun by a build that stores it.
    pub change_retention: Option<u64>,
}

/// The options that a database has stored. `None`: there is no database. Reads the manifest and changes nothing.
pub(crate) fn stored_options(fs: &Arc<dyn Fs>, dir: &Path) -> Result<Option<StoredOptions>> {
    let (mut default, mut change_retention) = (None, None);
    let loaded = Manifest::load(fs, dir, false, |edits| {
        for edit in edits {
            match (edit, &mut default) {
                (Edit::CreateFamily { id, name, order, options, .. }, None) if name == DEFAULT_FAMILY => {
                    default = Some((id, order, options));
                }
                (Edit::SetOptions { id: of, options: next }, Some((id, _, options))) if of == *id => *options = next,
                (Edit::LogBegun(begun), _) => change_retention = begun.change_retention,
                _ => {}
            }
        }
        Ok(())
    })?;
    if loaded.is_none() {
        return Ok(None);
    }
    let (_, order, options) = default.ok_or_else(no_default)?;
    let family = read_options(DEFAULT_FAMILY, &options)?;
    Ok(Some(StoredOptions { order, family, change_retention }))
}

impl Recovery<'_> {
    /// Reads the manifest, or creates it, and checks it against the open's options.
    pub(super) fn read_manifest(&self) -> Result<Described> {
        let (mut manifest, state) = self.load_manifest()?;
        let on_disk = self.fs.list(self.dir)?;
        // File ids are never reused, not even those of files that a crash left behind.
        let next_file_id = state.next_file_id.max(1 + on_disk.iter().filter_map(|n| own_number(n)).max().unwrap_or(0));
        self.check_default(&state)?;
        manifest.set_limits(self.options.tuning.manifest_limits());
        Ok(Described {
            default_changed: state.families.values().any(|f| self.changes_options(f)),
            same_boot: self.is_same_boot(state.log_begun),
            orphans: orphans(&state, on_disk),
            versions: VersionSet::new(manifest, state),
            next_file_id,
        })
    }

    fn load_manifest(&self) -> Result<(Manifest, VersionState)> {
        let (mut state, orders) = (VersionState::default(), self.options.key_orders());
        let loaded = Manifest::load(self.fs, self.dir, !self.read_only, |edits| {
            edits.into_iter().try_for_each(|e| state.apply(e, &orders))
        })?;
        if let Some(mut manifest) = loaded {
            state.check_orders()?;
            if !self.read_only && self.is_same_boot(state.log_begun) {
                rare!("recovery-wrote-again");
                manifest.write_again()?;
            }
            return Ok((manifest, state));
        }
        if self.read_only {
            return Err(Error::new(ErrorKind::NotFound, "no database here (no CURRENT file)").at_path(self.dir));
        }
        let mut state = VersionState { next_file_id: 2, ..VersionState::default() };
        let options = self.options.family.entries().into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        let edit = Edit::CreateFamily {
            id: 0,
            name: DEFAULT_FAMILY.to_owned(),
            order: self.options.order.name().to_owned(),
            options,
            direct_from: None,
        };
        let id = Options::draw_id(self.options.seed, 0);
        let manifest = Manifest::create(self.fs, self.dir, 1, id, std::slice::from_ref(&edit))?;
        state.apply(edit, &orders)?;
        Ok((manifest, state))
    }

    /// The default family's order is the one given to open; its live options are those given now.
    fn check_default(&self, state: &VersionState) -> Result<()> {
        let Some(f) = state.families.values().find(|f| f.name == DEFAULT_FAMILY) else { return Ok(()) };
        if f.order.name() != self.options.order.name() {
            return Err(Error::new(
                ErrorKind::Incompatible,
                format!(
                    "the default family has key order '{}', but '{}' was requested",
                    f.order.name(),
                    self.options.order.name()
                ),
            )
            .at_path(self.dir));
        }
        Ok(())
    }

    /// Whether this open gives other options to the default family than are stored, and stores them.
    fn changes_options(&self, family: &FamilyState) -> bool {
        !self.read_only && family.name == DEFAULT_FAMILY && family.options != self.options.family
    }
}

/// Tables and value logs that the manifest does not name, and temporary files.
fn orphans(state: &VersionState, on_disk: Vec<String>) -> Vec<String> {
    let tables: HashSet<u64> = state.families.values().flat_map(|f| f.version.files().map(|(_, m)| m.id)).collect();
    let is_orphan = |name: &String| match FileName::parse(name) {
        Some(FileName::Table(id)) => !tables.contains(&id),
        Some(FileName::ValueLog(id)) => state.vlogs.get(id).is_none(),
        Some(FileName::Stats | FileName::Temporary) => true,
        _ => false,
    };
    on_disk.into_iter().filter(is_orphan).collect()
}

#[cold]
pub(super) fn no_default() -> Error {
    Error::corruption("the manifest has no default family")
}

/// The number of a file that is the database's own. No file gets numbers as large as the last ones, which a stranger's
/// file in the directory may have.
fn own_number(name: &str) -> Option<u64> {
    FileName::parse(name)?.number().filter(|n| *n < u64::MAX / 2)
}
