//! Transactions in doubt: prepared, and neither committed nor rolled back.

use crate::confirm::Yes;
use crate::error::{Failure, Result};
use crate::format::{Format, escape, hex};
use crate::open::{open, open_to_read};
use crate::output::{Out, count};
use kingtide::{Isolation, PreparedInfo};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Transactions in doubt.
#[derive(clap::Subcommand)]
pub enum TxnCommand {
    /// List transactions in doubt, oldest first
    #[command(after_help = "Example:\n  kt txn list my-database --json")]
    List {
        /// Directory of the database
        path: PathBuf,
    },
    /// Commit a transaction; asks first
    #[command(after_help = "Example:\n  kt txn commit my-database order-17 --yes")]
    Commit(Decision),
    /// Roll back a transaction; asks first
    #[command(after_help = "Example:\n  kt txn rollback my-database 00a1ff --xid-format hex --yes")]
    Rollback(Decision),
}

/// What a decision takes.
#[derive(clap::Args)]
pub struct Decision {
    /// Directory of the database
    path: PathBuf,
    /// Name of the transaction, as `kt txn list` prints it
    xid: String,
    /// Format of the name
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    xid_format: Format,
    #[command(flatten)]
    yes: Yes,
}

/// `kt txn`.
pub fn main(command: TxnCommand, out: &mut Out) -> Result<()> {
    match command {
        TxnCommand::List { path } => {
            let prepared = open_to_read(&path)?.recover_prepared();
            if out.json {
                return out.object(&json!({ "prepared": prepared.iter().map(describe).collect::<Vec<_>>() }));
            }
            if prepared.is_empty() {
                return out.line("no transaction is in doubt");
            }
            let mut rows = vec![["xid", "sequence", "isolation", "operations"].map(str::to_owned).to_vec()];
            for p in &prepared {
                rows.push(vec![escape(&p.xid), count(p.sequence), isolation(p.isolation).into(), count(p.operations)]);
            }
            out.table("", &rows)
        }
        TxnCommand::Commit(decision) => decide(&decision, true, out),
        TxnCommand::Rollback(decision) => decide(&decision, false, out),
    }
}

fn decide(decision: &Decision, commit: bool, out: &mut Out) -> Result<()> {
    let xid = decision.xid_format.parse(&decision.xid, "xid")?;
    let db = open(&decision.path)?;
    let Some(found) = db.recover_prepared().into_iter().find(|p| p.xid == xid) else {
        return Err(Failure::not_found(format!("no transaction '{}' is in doubt", decision.xid)));
    };
    let verb = if commit { "Commit" } else { "Roll back" };
    decision.yes.confirm(&format!(
        "{verb} transaction '{}' with {} operations? Its coordinator must have decided so.",
        decision.xid, found.operations
    ))?;
    let sequence = if commit { Some(db.commit_prepared(&xid)?) } else { None };
    if !commit {
        db.rollback_prepared(&xid)?;
    }
    db.close()?;
    let outcome = if commit { "committed" } else { "rolled_back" };
    let object = json!({ "xid": escape(&xid), "outcome": outcome, "sequence": sequence });
    out.answer(&object, format!("{} transaction '{}'", outcome.replace('_', " "), decision.xid))
}

/// The object of a transaction in doubt.
pub fn describe(p: &PreparedInfo) -> Value {
    json!({
        "xid": escape(&p.xid),
        "xid_hex": hex(&p.xid),
        "sequence": p.sequence,
        "isolation": isolation(p.isolation),
        "operations": p.operations,
    })
}

/// The name of an isolation level.
pub fn isolation(level: Isolation) -> &'static str {
    match level {
        Isolation::ReadUncommitted => "read-uncommitted",
        Isolation::ReadCommitted => "read-committed",
        Isolation::RepeatableRead => "repeatable-read",
        Isolation::Snapshot => "snapshot",
        Isolation::Serializable => "serializable",
    }
}
