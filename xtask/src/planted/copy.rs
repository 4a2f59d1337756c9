//! The copy of the source that has the bugs in it.

use super::bugs::{self, Bug, FOLDER};
use super::plant::plant;
use crate::report::Report;
use crate::tree::{self, root};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The switch, and where it goes.
const SWITCH: (&str, &str) = ("planted/awake.rs", "crates/base/src/planted.rs");

/// What makes the switch a module there, and reachable by one path from everywhere, that crate included.
const MODULE: (&str, &str) = ("crates/base/src/lib.rs", "pub mod planted;\nextern crate self as kingtide_base;\n");

const MANIFEST: &str = "Cargo.toml";

/// The workspace's manifest with a version that only the copy has.
fn with_version_of_its_own(manifest: &str) -> Result<String, String> {
    let version = manifest.lines().find(|line| line.starts_with("version = \""));
    let version = version.ok_or_else(|| format!("{MANIFEST} has no version"))?;
    Ok(manifest.replacen(version, &format!("{}+planted\"", version.trim_end_matches('"')), 1))
}

/// All bugs, if every one of them fits the source.
pub fn all_bugs() -> Result<Vec<Bug>, String> {
    let mut report = Report::default();
    let texts = tree::texts(&root())?;
    let bugs = bugs::read(&texts, &mut report);
    plant(&bugs, &map(&texts), &mut report);
    if report.problems.is_empty() { Ok(bugs) } else { Err(report.problems.join("\n")) }
}

/// Makes `to` a copy of the source with the bugs in it. A file that is there and right is not touched, so that cargo
/// compiles what changed and no more.
pub fn make(bugs: &[Bug], to: &Path) -> Result<(), String> {
    let root = root();
    let texts = tree::texts(&root)?;
    let texts = map(&texts);
    let mut planted = plant(bugs, &texts, &mut Report::default());
    let text = |path: &str| texts.get(path).ok_or_else(|| format!("{path} is missing"));
    planted.insert(SWITCH.1.to_owned(), (*text(SWITCH.0)?).to_owned());
    let base = planted.entry(MODULE.0.to_owned()).or_insert((*text(MODULE.0)?).to_owned());
    base.push_str(MODULE.1);
    // Cargo tells packages of two workspaces apart by their versions, and not by where the workspaces are. Without this, builds of the source
    // would take the copy's packages for their own, and find them newer than every edit.
    planted.insert(MANIFEST.to_owned(), with_version_of_its_own(text(MANIFEST)?)?);

    let mut files = tree::list_files(&root)?;
    files.retain(|f| !f.starts_with(FOLDER) && root.join(f).is_file());
    files.extend(planted.keys().cloned());
    for file in &files {
        let target = to.join(file);
        let failed = |e: std::io::Error| format!("cannot write {}: {e}", target.display());
        let contents = match planted.get(file) {
            Some(text) => text.clone().into_bytes(),
            None => std::fs::read(root.join(file)).map_err(|e| format!("cannot read {file}: {e}"))?,
        };
        if std::fs::read(&target).is_ok_and(|there| there == contents) {
            continue;
        }
        std::fs::create_dir_all(target.parent().unwrap_or(to)).map_err(failed)?;
        std::fs::write(&target, contents).map_err(failed)?;
        if let Ok(original) = std::fs::metadata(root.join(file)) {
            std::fs::set_permissions(&target, original.permissions()).map_err(failed)?;
        }
    }
    remove_others(to, to, &files)
}

/// Removes what an earlier copy had and the source no longer has.
fn remove_others(folder: &Path, top: &Path, files: &BTreeSet<String>) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("cannot tidy up {}: {e}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path: PathBuf = entry.map_err(failed)?.path();
        if path.is_dir() {
            remove_others(&path, top, files)?;
        } else if !path.strip_prefix(top).is_ok_and(|p| files.contains(&p.to_string_lossy().replace('\\', "/"))) {
            std::fs::remove_file(&path).map_err(failed)?;
        }
    }
    Ok(())
}

/// Texts by their paths.
pub fn map(texts: &[(String, String)]) -> BTreeMap<&str, &str> {
    texts.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect()
}
