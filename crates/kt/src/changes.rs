//! Commits in commit order, read from the log.

use crate::error::{LOCKED, Result};
use crate::open::{open, options_for};
use crate::output::Out;
use crate::transfer::insert_bytes;
use kingtide::{Change, ChangeKind, ChangeRecord, ChangeStreamOptions};
use kingtide_base::clock::unix_ms_of_time;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// Print commits in order as JSON lines.
#[derive(clap::Args)]
#[command(
    after_help = "Without --since it begins with the oldest commit that the log still has. To continue later, pass the
last_sequence of the last line. The option change_retention of the program that writes the database determines how
far back the log goes.

With --follow it checks repeatedly and prints new commits, even while another process opens and closes the
database; it waits while another process has the database open.

Examples:
  kt changes my-database
  kt changes my-database --since 1042 | tail -n 1"
)]
pub struct ChangesArgs {
    /// Directory of the database
    path: PathBuf,
    /// Only commits after this sequence number
    #[arg(long, value_name = "SEQ", allow_negative_numbers = true)]
    since: Option<u64>,
    /// Continue until stopped
    #[arg(long)]
    follow: bool,
    /// Milliseconds between checks for new commits
    #[arg(long, value_name = "MS", default_value_t = 1_000, requires = "follow", value_parser = interval,
          allow_negative_numbers = true)]
    interval: u64,
}

/// Each check opens the database, which keeps other processes from opening it.
const SHORTEST_INTERVAL: u64 = 10;

fn interval(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(ms) if ms >= SHORTEST_INTERVAL => Ok(ms),
        _ => Err(format!("must be at least {SHORTEST_INTERVAL} (milliseconds), because each check opens the database")),
    }
}

/// `kt changes`.
pub fn main(args: &ChangesArgs, out: &mut Out) -> Result<()> {
    options_for(&args.path)?; // a mistyped path is no database to wait for
    let mut position = args.since;
    loop {
        match print_new(args, &mut position, out) {
            Err(e) if args.follow && e.code() == LOCKED => {}
            other => other?,
        }
        out.finish()?;
        if !args.follow {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(args.interval));
    }
}

/// Prints the commits after `position`, and moves it.
fn print_new(args: &ChangesArgs, position: &mut Option<u64>, out: &mut Out) -> Result<()> {
    let db = open(&args.path)?; // what is opened for reading only has no stream
    let since = position.unwrap_or_else(|| db.oldest_change_sequence());
    let options = ChangeStreamOptions::new().show_unlogged(true);
    let mut stream = db.changes_with(since, options)?;
    while let Some(record) = stream.next()? {
        out.object(&describe(&record))?;
        *position = Some(record.last_sequence);
    }
    position.get_or_insert(since);
    Ok(())
}

fn describe(record: &ChangeRecord) -> Value {
    json!({
        "first_sequence": record.first_sequence,
        "last_sequence": record.last_sequence,
        "unlogged": record.is_unlogged(),
        "operations": record.operations().map(|op| describe_change(&op)).collect::<Vec<_>>(),
    })
}

fn describe_change(op: &Change<'_>) -> Value {
    let mut object = Map::new();
    let (kind, second) = match op.kind {
        ChangeKind::Put => ("put", Some("value")),
        ChangeKind::Delete => ("delete", None),
        ChangeKind::SingleDelete => ("single_delete", None),
        ChangeKind::DeleteRange => ("delete_range", Some("end")),
    };
    object.insert("kind".into(), kind.into());
    object.insert("family".into(), op.family_name.into());
    object.insert("family_id".into(), op.family.into());
    let second = second.map(|name| (name, op.value));
    insert_bytes(&mut object, op.key, second);
    if let Some(at) = op.expires_at.map(unix_ms_of_time) {
        object.insert("expires_at".into(), at.into());
    }
    Value::Object(object)
}
