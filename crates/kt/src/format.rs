//! How bytes are written and read as text.

use crate::error::{Failure, Result};
use clap::ValueEnum;
use serde_json::Value;

/// A form of keys and values on the command line and in output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text; other bytes as \xHH, a backslash as \\
    #[default]
    Utf8,
    /// Two hexadecimal digits per byte
    Hex,
    /// A JSON document, stored as it is written
    Json,
    /// Base64 with padding
    Base64,
    /// Eight bytes, little-endian, as an unsigned number: the keys of families in order u64
    U64,
    /// Eight bytes, little-endian, as a signed number: the keys of families in order i64
    I64,
    /// Eight bytes, big-endian, as an unsigned number: sorts by number in bytewise order
    U64be,
}

/// The heading of the flags that every command takes, so that its own come first in its help.
pub const EVERYWHERE: &str = "Options of every command";

/// The formats of keys and values, which every command takes. The help of the program itself explains each.
#[derive(Clone, Copy, clap::Args)]
pub struct Formats {
    /// Format of keys, in arguments and in output: utf8, hex, base64, json, u64, i64 or u64be
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT", hide_possible_values = true,
          help_heading = EVERYWHERE)]
    pub key_format: Format,
    /// Format of values, in arguments and in output: one of the same
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT", hide_possible_values = true,
          help_heading = EVERYWHERE)]
    pub value_format: Format,
}

impl Format {
    /// The bytes that `text` stands for; `what` is "key" or "value".
    pub fn parse(self, text: &str, what: &str) -> Result<Vec<u8>> {
        let wrong = |e: String| Failure::usage(format!("{what} '{text}': {e}"));
        match self {
            Format::Utf8 => unescape(text).map_err(wrong),
            Format::Hex => parse_hex(text).map_err(wrong),
            Format::Base64 => parse_base64(text).map_err(wrong),
            Format::Json => match serde_json::from_str::<Value>(text) {
                Ok(_) => Ok(text.as_bytes().to_vec()),
                Err(e) => Err(wrong(format!("not JSON: {e}"))),
            },
            Format::U64 => number(text.parse::<u64>(), "u64").map(|n| n.to_le_bytes().to_vec()).map_err(wrong),
            Format::I64 => number(text.parse::<i64>(), "i64").map(|n| n.to_le_bytes().to_vec()).map_err(wrong),
            Format::U64be => number(text.parse::<u64>(), "u64").map(|n| n.to_be_bytes().to_vec()).map_err(wrong),
        }
    }

    /// The text for `bytes`.
    pub fn show(self, bytes: &[u8], what: &str) -> Result<String> {
        Ok(match self {
            Format::Utf8 => escape(bytes),
            Format::Hex => hex(bytes),
            Format::Base64 => base64(bytes),
            // Not the parsed document: without its spaces, repeated members and long numbers it would be other bytes, and so another key.
            Format::Json => self.json(bytes, what).map(|_| on_one_line(bytes))?,
            _ => self.json(bytes, what)?.to_string(),
        })
    }

    /// In this format, or in the one that every byte string has: for output that must not stop at a key of another format.
    pub fn show_any(self, bytes: &[u8]) -> String {
        self.show(bytes, "key").unwrap_or_else(|_| escape(bytes))
    }

    /// The same for JSON output: numbers and documents as such, the rest as strings.
    pub fn json(self, bytes: &[u8], what: &str) -> Result<Value> {
        let wrong = |form: &str| {
            let text = format!("{what} {} is not {form}; choose another --{what}-format", escape(bytes));
            Failure::failed(text)
        };
        let eight = || <[u8; 8]>::try_from(bytes).map_err(|_| wrong("eight bytes long"));
        Ok(match self {
            Format::Utf8 | Format::Hex | Format::Base64 => self.show(bytes, what)?.into(),
            Format::Json => serde_json::from_slice(bytes).map_err(|_| wrong("JSON"))?,
            Format::U64 => u64::from_le_bytes(eight()?).into(),
            Format::I64 => i64::from_le_bytes(eight()?).into(),
            Format::U64be => u64::from_be_bytes(eight()?).into(),
        })
    }
}

/// Returns a document on one line. It has line feeds, returns and tabs only between its parts, where a space means the same.
fn on_one_line(document: &[u8]) -> String {
    String::from_utf8_lossy(document).replace(['\n', '\r', '\t'], " ")
}

fn number<N, E: std::fmt::Display>(parsed: std::result::Result<N, E>, form: &str) -> Result<N, String> {
    parsed.map_err(|e| format!("not a number of type {form}: {e}"))
}

/// Text with everything that is not plainly printable as `\xHH`, except `\n`, `\r`, `\t` and `\\`. [`unescape`] gives
/// the bytes back, whatever they are.
pub fn escape(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(bytes.len());
    let hex = |out: &mut String, bytes: &[u8]| {
        for b in bytes {
            let _ = write!(out, "\\x{b:02x}"); // a string takes everything
        }
    };
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                // Debug leaves printable characters alone; quotes it need not escape here.
                c if c == '\'' || c == '"' || c.escape_debug().len() == 1 => out.push(c),
                c => hex(&mut out, c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        hex(&mut out, chunk.invalid());
    }
    out
}

fn unescape(text: &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&b, tail)) = rest.split_first() {
        if b != b'\\' {
            out.push(b);
            rest = tail;
            continue;
        }
        let (byte, used) = match tail {
            [b'\\', ..] => (b'\\', 1),
            [b'n', ..] => (b'\n', 1),
            [b'r', ..] => (b'\r', 1),
            [b't', ..] => (b'\t', 1),
            [b'x', a, b, ..] => match (digit(*a), digit(*b)) {
                (Some(a), Some(b)) => (a << 4 | b, 3),
                _ => return Err("\\x takes two hexadecimal digits".into()),
            },
            _ => return Err("a backslash is written \\\\; \\n, \\r, \\t and \\xHH are the escapes".into()),
        };
        out.push(byte);
        rest = &tail[used..];
    }
    Ok(out)
}

/// A family's name as text: [`family_name`] reads it.
pub fn show_name(name: &str) -> String {
    escape(name.as_bytes())
}

/// Reads a family's name on the command line.
pub fn family_name(text: &str) -> Result<String, String> {
    String::from_utf8(unescape(text)?).map_err(|_| "a family name must be valid UTF-8".to_owned())
}

fn digit(b: u8) -> Option<u8> {
    (b as char).to_digit(16).map(|d| d as u8)
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Reads hexadecimal of either case.
pub fn parse_hex(text: &str) -> Result<Vec<u8>, String> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(2) {
        return Err("hexadecimal has two digits for each byte, this has an odd number".into());
    }
    let pair = |p: &[u8]| Some(digit(p[0])? << 4 | digit(p[1])?);
    let bad = |i: usize| format!("not hexadecimal at digit {}", 2 * i + 1);
    text.chunks_exact(2).enumerate().map(|(i, p)| pair(p).ok_or_else(|| bad(i))).collect()
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 of RFC 4648, section 4, with padding.
pub fn base64(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |i: usize| chunk.get(i).copied().unwrap_or(0) as u32;
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let sextet = (word >> (18 - 6 * i) & 63) as usize;
            out.push(if i <= chunk.len() { ALPHABET[sextet] as char } else { '=' });
        }
    }
    out
}

/// Reads [`base64`]'s form, and no other: each byte string has one text.
pub fn parse_base64(text: &str) -> Result<Vec<u8>, String> {
    let wrong = || Err("not base64 with padding".into());
    if !text.len().is_multiple_of(4) {
        return wrong();
    }
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let quads = text.len() / 4;
    for (n, quad) in text.as_bytes().chunks_exact(4).enumerate() {
        let padding = if n + 1 == quads { quad.iter().rev().take_while(|b| **b == b'=').count() } else { 0 };
        if padding > 2 {
            return wrong();
        }
        let mut word = 0u32;
        for b in &quad[..4 - padding] {
            let Some(sextet) = ALPHABET.iter().position(|a| a == b) else { return wrong() };
            word = word << 6 | sextet as u32;
        }
        word <<= 6 * padding;
        let bytes = word.to_be_bytes();
        let (kept, cut) = bytes[1..].split_at(3 - padding);
        if cut.iter().any(|b| *b != 0) {
            return wrong();
        }
        out.extend_from_slice(kept);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kingtide_base::rng::Rng;

    #[test]
    fn every_byte_string_survives_every_text_form() {
        let mut rng = Rng::new(5);
        for n in 0..2000u64 {
            let mut bytes = vec![0; rng.below(20) as usize];
            rng.fill(&mut bytes);
            if n % 2 == 0 {
                bytes.iter_mut().for_each(|b| {
                    *b = *b"a\\x0\n\t\"\xc3\xa4\0".get(*b as usize % 10).unwrap_or(b"?".first().unwrap())
                });
            }
            for format in [Format::Utf8, Format::Hex, Format::Base64] {
                let text = format.show(&bytes, "key").unwrap();
                assert_eq!(format.parse(&text, "key").unwrap(), bytes, "{format:?} {text}");
                assert!(!text.contains(['\n', '\t', '\0']), "{text:?}");
            }
        }
    }

    #[test]
    fn forms_are_the_usual_ones() {
        assert_eq!(escape("ä\u{202e}\0\"\\\n".as_bytes()), "ä\\xe2\\x80\\xae\\x00\"\\\\\\n");
        assert_eq!(base64(b"Kingtide"), "S2luZ3RpZGU=");
        assert_eq!(Format::U64.parse("258", "key").unwrap(), [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Format::U64be.parse("258", "key").unwrap(), [0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(Format::I64.show(&(-5i64).to_le_bytes(), "key").unwrap(), "-5");
        assert_eq!(Format::Json.json(b"{\"a\": 1}", "value").unwrap(), serde_json::json!({"a": 1}));
        assert_eq!(Format::Json.show(b"{\n\t\"a\": 1.0\r\n}", "value").unwrap(), "{  \"a\": 1.0  }");
    }

    #[test]
    fn other_text_is_refused() {
        for (format, text) in [
            (Format::Utf8, "\\q"),
            (Format::Utf8, "\\x0"),
            (Format::Hex, "abc"),
            (Format::Hex, "zz"),
            (Format::Base64, "abc"),
            (Format::Base64, "ab=="), // bits that no byte has
            (Format::Base64, "=bcd"),
            (Format::Json, "{"),
            (Format::U64, "-1"),
            (Format::I64, "9223372036854775808"),
        ] {
            let e = format.parse(text, "key").unwrap_err();
            assert_eq!(e.code(), crate::error::USAGE, "{format:?} {text}");
        }
        assert!(Format::U64.show(b"1234567", "key").is_err());
        assert!(Format::Json.show(b"\xff", "value").is_err());
    }
}
