//! What the harness says to, and hears from, an engine's transactions.

use crate::error::{Error, Result};
use kingtide_base::options::nearest;
use serde::{Deserialize, Serialize};

pub use kingtide::Isolation;

/// When a transaction learns of a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum TxnMode {
    /// At its commit.
    Optimistic,
    /// At each write and each read for update, which lock their key and wait for the transaction that holds it.
    Locking,
}

impl TxnMode {
    /// The name in flags and reports.
    pub fn name(self) -> &'static str {
        match self {
            TxnMode::Optimistic => "optimistic",
            TxnMode::Locking => "locking",
        }
    }
}

/// How a transaction is begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transactions {
    /// What it may notice of other transactions.
    #[serde(with = "by_name")]
    pub isolation: Isolation,
    /// When it learns of a conflict.
    pub mode: TxnMode,
}

/// What one step of a transaction came to. After a conflict the transaction is only good for being rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<T> {
    /// It was done.
    Done(T),
    /// Another transaction was in the way: of two that clash, this one must give way and start again.
    Conflict,
}

/// An isolation level by its name, for clap.
pub fn isolation(text: &str) -> std::result::Result<Isolation, String> {
    Isolation::from_name(text).ok_or_else(|| {
        let names = Isolation::ALL.map(Isolation::name);
        let hint = nearest(&text.trim().to_ascii_lowercase().replace(['_', ' '], "-"), &names);
        format!("unknown isolation level '{text}'{hint} (known: {})", names.join(", "))
    })
}

/// An engine was asked for a transaction of a kind that it has not.
pub fn unsupported<T>(engine: &str, what: &str) -> Result<T> {
    Err(Error::Unsupported(format!("{engine} has no {what}")))
}

/// Levels cross to child processes by their names.
mod by_name {
    use super::Isolation;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(level: &Isolation, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(level.name())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Isolation, D::Error> {
        super::isolation(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_known_by_name_and_near_misses_are_named() {
        assert_eq!(isolation("Read_Committed"), Ok(Isolation::ReadCommitted));
        for (wrong, meant) in
            [("snapshto", "'snapshot'"), ("serialisable", "'serializable'"), ("REPEATABLE_REED", "'repeatable-read'")]
        {
            let e = isolation(wrong).unwrap_err();
            assert!(e.contains(&format!("did you mean {meant}")), "{e}");
        }
        assert!(isolation("chaos").unwrap_err().contains("known: read-uncommitted, "));
    }

    #[test]
    fn settings_cross_processes() {
        for isolation in Isolation::ALL {
            for mode in [TxnMode::Optimistic, TxnMode::Locking] {
                let t = Transactions { isolation, mode };
                assert_eq!(serde_json::from_str::<Transactions>(&serde_json::to_string(&t).unwrap()).unwrap(), t);
            }
        }
        assert!(serde_json::from_str::<Transactions>(r#"{"isolation":"none","mode":"locking"}"#).is_err());
    }
}
