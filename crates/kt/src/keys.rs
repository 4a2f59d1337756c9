//! Keys on the command line.

use crate::error::{Failure, Result};
use crate::format::{Format, show_name};
use kingtide::{ColumnFamily, KeyOrder};

/// A key as it was written.
pub struct Key {
    pub text: String,
    format: Format,
    /// What it stands for.
    pub bytes: Vec<u8>,
}

impl Key {
    /// Reads a key.
    pub fn parse(text: &str, format: Format) -> Result<Key> {
        Ok(Key { text: text.to_owned(), format, bytes: format.parse(text, "key")? })
    }

    /// The bytes, as a key of `family`.
    ///
    /// Refuses text where keys are numbers: the engine would take the bytes of `42`, and sort them after all numbers. A text of eight bytes
    /// may be meant as such, unless it is a decimal number. Any other bytes can be given in another format.
    pub fn of(self, family: &ColumnFamily) -> Result<Vec<u8>> {
        let order = family.order();
        let is_of_numbers = matches!(order, KeyOrder::U64 | KeyOrder::I64);
        let is_text = matches!(self.format, Format::Utf8 | Format::Json);
        if !is_of_numbers || !is_text || (self.bytes.len() == 8 && self.text.parse::<i128>().is_err()) {
            return Ok(self.bytes);
        }
        let (text, name, order) = (&self.text, show_name(&family.name()), order.name());
        Err(Failure::usage(format!(
            "key '{text}': the keys of family '{name}' are numbers of eight bytes, in order {order}; give one with --key-format {order}, or \
             any bytes with --key-format hex"
        )))
    }
}

/// The bytes of `--from` and `--to`.
///
/// Refuses a range whose start sorts after its end: a mistake that is easily made where a family's order is not that of the bytes.
pub fn range_of(family: &ColumnFamily, from: Option<Key>, to: Option<Key>) -> Result<[Option<Vec<u8>>; 2]> {
    let bytes = |key: Option<Key>| key.map(|key| key.of(family)).transpose();
    let (from, to) = (bytes(from)?, bytes(to)?);
    match (&from, &to, family.order()) {
        (Some(from), Some(to), order) if order.compare(from, to).is_gt() => Err(Failure::usage(match order {
            KeyOrder::Bytewise => "--from sorts after --to".to_owned(),
            _ => format!("--from sorts after --to in order {}", order.name()),
        })),
        _ => Ok([from, to]),
    }
}
