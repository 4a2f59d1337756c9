//! Copies of databases: backups and checkpoints.

use crate::confirm::Yes;
use crate::error::{Failure, Result};
use crate::open::{check_no_file, open};
use crate::output::{Out, bytes, count, things};
use crate::progress::Progress;
use kingtide::backup::{Backup, BackupInfo, BackupOptions, BackupProgress};
use kingtide_base::clock::unix_ms_of_time;
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Backups.
#[derive(clap::Subcommand)]
pub enum BackupCommand {
    /// Back up a database; stores only files that no earlier backup has
    #[command(after_help = "Example:\n  kt backup create my-database backups")]
    Create {
        /// Directory of the database
        path: PathBuf,
        /// Directory of backups; created if it does not exist
        backups: PathBuf,
        /// Maximum number of bytes to read per second, such as 50M; 0 for no limit
        #[arg(long, default_value = "0", value_name = "BYTES")]
        rate_limit: String,
    },
    /// List backups, oldest first
    #[command(after_help = "Example:\n  kt backup list backups --json")]
    List {
        /// Directory of backups
        backups: PathBuf,
    },
    /// Read all files of a backup and compare them with their checksums
    #[command(after_help = "Examples:\n  kt backup verify backups\n  kt backup verify backups 3")]
    Verify {
        /// Directory of backups
        backups: PathBuf,
        /// Number of the backup [default: all backups]
        id: Option<u64>,
    },
    /// Restore a backup as a database in a directory
    #[command(after_help = "Example:\n  kt backup restore backups 3 restored-database")]
    Restore {
        /// Directory of backups
        backups: PathBuf,
        /// Number of the backup
        id: u64,
        /// Directory of the new database; must be empty or absent
        into: PathBuf,
    },
    /// Delete a backup and the files that no other backup needs; asks first
    #[command(after_help = "Example:\n  kt backup delete backups 3 --yes")]
    Delete {
        /// Directory of backups
        backups: PathBuf,
        /// Number of the backup
        id: u64,
        #[command(flatten)]
        yes: Yes,
    },
}

/// `kt backup`.
pub fn main(command: BackupCommand, out: &mut Out) -> Result<()> {
    match command {
        BackupCommand::Create { path, backups, rate_limit } => {
            let rate_limit = kingtide_base::options::parse_size(&rate_limit)
                .map_err(|e| Failure::usage(format!("--rate-limit: {e}")))?;
            if is_same(&path, &backups) {
                let text = format!("{} is the database itself; give a directory for its backups", path.display());
                return Err(Failure::usage(text));
            }
            check_no_file(&backups)?;
            let db = open(&path)?;
            let info = with_progress("backing up", |told| {
                let options = BackupOptions::new().rate_limit(rate_limit).progress(told);
                Backup::at(&backups).create(&db, options)
            })?;
            db.close()?;
            let (new, all) = (bytes(info.new_bytes), bytes(info.bytes));
            out.answer(&describe(&info), format!("backup {}: {all}, of which {new} are new", info.id))
        }
        BackupCommand::List { backups } => list(&backups, out),
        BackupCommand::Verify { backups, id } => verify(&backups, id, out),
        BackupCommand::Restore { backups, id, into } => {
            let from = existing(&backups)?;
            check_id(&from, id, &backups)?;
            check_no_file(&into)?;
            with_progress("restoring", |told| {
                let options = BackupOptions::new().progress(told);
                from.restore_to(id, &kingtide::vfs::SystemFs::shared(), &into, options)
            })?;
            let into = into.display().to_string();
            out.answer(&json!({ "restored": id, "into": into }), format!("restored backup {id} into {into}"))
        }
        BackupCommand::Delete { backups, id, yes } => {
            let from = existing(&backups)?;
            check_id(&from, id, &backups)?;
            yes.confirm(&format!("Delete backup {id} of {}?", backups.display()))?;
            from.delete(id)?;
            out.answer(&json!({ "deleted": id }), format!("deleted backup {id}"))
        }
    }
}

/// Whether both paths lead to one directory.
fn is_same(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// Fails unless there is a backup of that number.
fn check_id(backups: &Backup, id: u64, path: &Path) -> Result<()> {
    match backups.ids()?.contains(&id) {
        true => Ok(()),
        false => Err(Failure::not_found(format!("no backup {id} in {}", path.display()))),
    }
}

/// The backups of a directory that is there.
fn existing(path: &Path) -> Result<Backup> {
    crate::open::check_place(path)?;
    let backups = Backup::at(path);
    if path.join(kingtide_base::names::CURRENT).exists() && backups.ids()?.is_empty() {
        let text = format!("no backups in {}: it is a database, not a directory of backups", path.display());
        return Err(Failure::not_found(text));
    }
    Ok(backups)
}

fn with_progress<T>(
    what: &str,
    run: impl FnOnce(&mut dyn FnMut(BackupProgress) -> ControlFlow<()>) -> kingtide::Result<T>,
) -> Result<T> {
    let progress = Progress::bytes(what);
    let mut told = |p: BackupProgress| {
        progress.set_of(p.done_bytes, p.total_bytes);
        ControlFlow::Continue(())
    };
    Ok(run(&mut told)?)
}

fn list(path: &Path, out: &mut Out) -> Result<()> {
    let backups = existing(path)?.list()?;
    if out.json {
        return out.object(&json!({ "backups": backups.iter().map(describe).collect::<Vec<_>>() }));
    }
    if backups.is_empty() {
        return out.line("no backups");
    }
    let mut rows = vec![["id", "created", "sequence", "files", "bytes", "new"].map(str::to_owned).to_vec()];
    for b in &backups {
        let (id, created) = (b.id.to_string(), utc(unix_ms_of_time(b.created)));
        rows.push(vec![id, created, count(b.sequence), count(b.files), bytes(b.bytes), bytes(b.new_bytes)]);
    }
    out.table("", &rows)
}

fn verify(path: &Path, id: Option<u64>, out: &mut Out) -> Result<()> {
    let backups = existing(path)?;
    if let Some(id) = id {
        check_id(&backups, id, path)?;
    }
    let ids = id.map_or_else(|| backups.ids(), |id| Ok(vec![id]))?;
    if ids.is_empty() {
        return Err(Failure::not_found(format!("no backups in {}", path.display())));
    }
    let (mut sound, mut failed) = (Vec::new(), Vec::new());
    for id in &ids {
        let verified = with_progress(&format!("verifying backup {id}"), |told| {
            backups.verify(*id, BackupOptions::new().progress(told))
        });
        match verified {
            Ok(()) => sound.push(*id),
            Err(e) if ids.len() == 1 => return Err(e.context(format!("backup {id}"))),
            Err(e) => failed.push((*id, e)), // go on: the others may be all that can be restored
        }
    }
    let text = format!("{} verified, no problems found", things(sound.len() as u64, "backup", "backups"));
    if failed.is_empty() {
        return out.answer(&json!({ "verified": sound }), text);
    }
    let printed = if out.json {
        let errors: Vec<_> = failed.iter().map(|(id, e)| json!({ "id": id, "error": e.object() })).collect();
        out.object(&json!({ "verified": sound, "failed": errors }))
    } else {
        let lines = failed.iter().try_for_each(|(id, e)| out.line(format_args!("backup {id}: {}", e.text())));
        lines.and_then(|()| out.line(text))
    };
    let which: Vec<_> = failed.iter().map(|(id, _)| format!("backup {id}")).collect();
    let message = format!("{} of {} failed verification: {}", failed.len(), ids.len(), which.join(", "));
    let failure = match failed.iter().any(|(_, e)| e.is_damage()) {
        true => Failure::damaged(message),
        false => Failure::failed(message),
    };
    Err(failure.printed(printed))
}

fn describe(b: &BackupInfo) -> Value {
    json!({
        "id": b.id, "created": unix_ms_of_time(b.created), "sequence": b.sequence, "files": b.files, "bytes": b.bytes,
        "new_files": b.new_files, "new_bytes": b.new_bytes,
    })
}

/// A moment in milliseconds since 1970 as `2026-01-31 12:00:00Z`. The date by Howard Hinnant's `civil_from_days`.
fn utc(ms: u64) -> String {
    let (days, seconds) = (ms / 86_400_000, ms / 1000 % 86_400);
    let z = days + 719_468; // days since 0000-03-01
    let (era, day) = (z / 146_097, z % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let (year, day) = (era * 400 + year + u64::from(month <= 2), of_year - (153 * from_march + 2) / 5 + 1);
    let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {h:02}:{m:02}:{s:02}Z")
}

/// Make a copy of a database that shares its files.
#[derive(clap::Args)]
#[command(after_help = "Tables and value logs are hard-linked where possible, so this takes little time and space.

Example:
  kt checkpoint my-database my-copy")]
pub struct CheckpointArgs {
    /// Directory of the database
    path: PathBuf,
    /// Directory of the copy; must be empty or absent
    into: PathBuf,
}

/// `kt checkpoint`.
pub fn checkpoint(args: &CheckpointArgs, out: &mut Out) -> Result<()> {
    check_no_file(&args.into)?;
    let db = open(&args.path)?;
    let info = db.checkpoint(&args.into)?;
    db.close()?;
    let object = json!({
        "into": args.into.display().to_string(), "sequence": info.sequence,
        "linked_files": info.linked_files, "linked_bytes": info.linked_bytes,
        "copied_files": info.copied_files, "copied_bytes": info.copied_bytes,
    });
    let (linked, copied) = (bytes(info.linked_bytes), bytes(info.copied_bytes));
    let text = format!("checkpoint at sequence {}: {linked} shared, {copied} copied", count(info.sequence));
    out.answer(&object, text)
}

#[cfg(test)]
mod tests {
    #[test]
    fn moments_are_dates() {
        assert_eq!(super::utc(0), "1970-01-01 00:00:00Z");
        assert_eq!(super::utc(951_782_400_000), "2000-02-29 00:00:00Z");
        assert_eq!(super::utc(1_735_689_599_999), "2024-12-31 23:59:59Z");
    }
}
