//! Whether the engines of a comparison were set up alike: their effective settings in common terms, side by side.

use crate::error::{Error, Result};
use kingtide_base::options::parse_size;
use serde::{Deserialize, Serialize};

/// An engine as it was opened: its name, its effective options, and its durability in words.
pub type Opened<'a> = (&'a str, &'a [(String, String)], &'a str);

/// A setting that is not the same for all engines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// `compression`, `block cache`, `memtable`, `durability`, `filter` or `background threads`.
    pub setting: String,
    /// Each engine that has such a setting, and its value.
    pub values: Vec<(String, String)>,
}

/// `compression differs: kingtide lz4, rocksdb none`.
impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let values: Vec<String> = self.values.iter().map(|(engine, value)| format!("{engine} {value}")).collect();
        write!(f, "{} differs: {}", self.setting, values.join(", "))
    }
}

/// The names that engines have for a setting, and its value in common terms.
type Setting = (&'static str, &'static [&'static str], fn(&str, &str) -> String);

const SETTINGS: [Setting; 5] = [
    ("compression", &["compression", "compression_type", "encoding_pipeline", "compression_algo"], compression),
    ("block cache", &["block_cache_size", "block_cache", "cache_size", "no_block_cache"], cache),
    ("memtable", &["memtable_size", "write_buffer_size", "memtable_write_buffer_size", "max_memtable_size"], size),
    ("filter", &["filter_fp", "bloom_fpr", "bloom_bits_per_key", "filter_policy"], filter),
    (
        "background threads",
        &["background_threads", "max_background_jobs", "num_compaction_threads", "worker_threads"],
        |_, v| v.to_owned(),
    ),
];

/// `kLZ4Compression` and `LZ4` are `lz4`.
fn compression(_: &str, value: &str) -> String {
    let value = value.to_lowercase();
    let bare = value.trim_start_matches('k').trim_end_matches("compression").to_owned();
    match bare.as_str() {
        "no" | "" => "none".into(),
        "zstdnotfinal" => "zstd".into(),
        _ => bare,
    }
}

fn size(_: &str, value: &str) -> String {
    parse_size(value).map_or_else(|_| value.to_owned(), |n| crate::measure::show_bytes(n as f64))
}

/// A block cache by its size; none where it is of no bytes, or switched off.
fn cache(name: &str, value: &str) -> String {
    let off = name == "no_block_cache" || parse_size(value) == Ok(0);
    if off { "none".into() } else { size(name, value) }
}

/// Filters in bits a key: a false-positive rate of 0.01 takes ten.
fn filter(name: &str, value: &str) -> String {
    let number = value.split(':').find_map(|part| part.parse::<f64>().ok());
    let bits = match (name, number) {
        (_, None) => return value.to_owned(),
        ("filter_fp" | "bloom_fpr", Some(fp)) if fp > 0.0 => {
            -fp.ln() / (std::f64::consts::LN_2 * std::f64::consts::LN_2)
        }
        (_, Some(bits)) => bits,
    };
    if bits <= 0.0 { "none".into() } else { format!("{bits:.0} bits a key") }
}

/// Options in order, those inside RocksDB's nested `{name=value;...}` too.
fn flat(options: &[(String, String)]) -> Vec<(&str, &str)> {
    let mut out = Vec::new();
    for (name, value) in options {
        match value.strip_prefix('{').and_then(|v| v.strip_suffix('}')) {
            Some(inner) => out.extend(inner.split(';').filter_map(|part| part.split_once('='))),
            None => out.push((name.as_str(), value.as_str())),
        }
    }
    let trimmed = out.into_iter().map(|(name, value)| (name.trim(), value.trim()));
    // A switch that is off says nothing.
    let says = |(name, value): &(&str, &str)| *name != "no_block_cache" || matches!(*value, "true" | "1");
    let mut out: Vec<(&str, &str)> = trimmed.filter(says).collect();
    // And one that is on goes before the size of a cache that there would be.
    out.sort_by_key(|(name, _)| *name == "no_block_cache");
    out
}

/// Options with one value each: where an option was given again, the later value is the one in force.
pub fn in_force(options: Vec<(String, String)>) -> Vec<(String, String)> {
    let mut out: Vec<(String, String)> = Vec::new();
    for (name, value) in options {
        match out.iter_mut().find(|(known, _)| *known == name) {
            Some((_, before)) => *before = value,
            None => out.push((name, value)),
        }
    }
    out
}

/// What an acknowledged write survives, in a word or two.
fn durability(words: &str) -> String {
    let told = [
        ("last acknowledged writes are lost", "less than the end of the process"),
        ("survive a power cut", "power cut"),
        ("survive the process", "end of the process"),
        ("lost when the process ends", "closing only"),
    ];
    told.iter()
        .find(|(part, _)| words.contains(part))
        .map_or_else(|| words.to_owned(), |(_, short)| (*short).to_owned())
}

/// The settings that differ among engines that have them. An engine without such a setting is not compared.
pub fn differences(engines: &[Opened<'_>]) -> Vec<Difference> {
    let mut out = Vec::new();
    let mut compare = |setting: &str, values: Vec<(String, String)>| {
        if values.windows(2).any(|pair| pair[0].1 != pair[1].1) {
            out.push(Difference { setting: setting.to_owned(), values });
        }
    };
    // Engines in memory have nothing to set.
    let real: Vec<&Opened<'_>> = engines.iter().filter(|(name, ..)| crate::engine::keeps_files(name)).collect();
    for (setting, names, value) in SETTINGS {
        let of = |(engine, options, _): &&Opened<'_>| {
            // Of an option given twice the later one is in force.
            let last = flat(options).into_iter().rfind(|(name, _)| names.contains(name));
            last.map(|(name, v)| ((*engine).to_owned(), value(name, v)))
        };
        compare(setting, real.iter().filter_map(of).collect());
    }
    compare("durability", real.iter().map(|(engine, _, words)| ((*engine).to_owned(), durability(words))).collect());
    out
}

/// Bytes of a memtable by an engine's effective options, if it has any.
pub fn memtable(options: &[(String, String)]) -> Option<u64> {
    let (_, names, _) = SETTINGS.iter().find(|(setting, ..)| *setting == "memtable")?;
    let last = flat(options).into_iter().rfind(|(name, _)| names.contains(name));
    last.and_then(|(_, value)| parse_size(value).ok())
}

/// `--equal`: differences are a mistake of the user's.
pub fn require(differences: &[Difference]) -> Result<()> {
    if differences.is_empty() {
        return Ok(());
    }
    let all: Vec<String> = differences.iter().map(ToString::to_string).collect();
    Err(Error::usage(format!("--equal: {}; make them equal, or omit --equal", all.join("; "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Vec<(String, String)> {
        text.split_whitespace().filter_map(|o| o.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    }

    const PROCESS: &str = "acknowledged writes survive the process: the log is written";

    #[test]
    fn settings_of_one_meaning_are_equal_whatever_their_names() {
        let kingtide =
            options("memtable_size=67108864 filter_fp=0.01 compression=none block_cache_size=64M background_threads=2");
        let rocksdb = options(
            "write_buffer_size=1 block_cache=8 compression=lz4 bloom_bits_per_key=10.0 max_background_jobs=2 \
             write_buffer_size=64M compression=kNoCompression block_based_table_factory={block_cache=64M;filter_policy=bloomfilter:10:false}",
        );
        let tidesdb =
            options("memtable_write_buffer_size=64M block_cache_size=64M encoding_pipeline=lz4 compression=none");
        let all: [Opened<'_>; 3] =
            [("kingtide", &kingtide, PROCESS), ("rocksdb", &rocksdb, PROCESS), ("tidesdb", &tidesdb, PROCESS)];
        assert_eq!(differences(&all), []);
        require(&differences(&all)).unwrap();
    }

    #[test]
    fn an_option_given_twice_is_shown_once() {
        let shown = in_force(options("compression=lz4 memtable_size=64M compression=none"));
        assert_eq!(shown, options("compression=none memtable_size=64M"));
    }

    #[test]
    fn differences_name_each_engine_and_its_value() {
        let kingtide = options("memtable_size=64M filter_fp=0.01 compression=lz4 block_cache_size=64M");
        let rocksdb = options("write_buffer_size=32M bloom_bits_per_key=0.0 compression=none block_cache=8M");
        let synced = "acknowledged writes survive a power cut: the log is fsynced";
        let found =
            differences(&[("kingtide", &kingtide, PROCESS), ("rocksdb", &rocksdb, synced), ("memory", &[], "")]);
        let told: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "compression differs: kingtide lz4, rocksdb none",
                "block cache differs: kingtide 64.0 MiB, rocksdb 8.00 MiB",
                "memtable differs: kingtide 64.0 MiB, rocksdb 32.0 MiB",
                "filter differs: kingtide 10 bits a key, rocksdb none",
                "durability differs: kingtide end of the process, rocksdb power cut",
            ]
        );
        let e = require(&found).unwrap_err();
        assert!(e.exit_code() == 2 && e.to_string().contains("--equal: compression differs"), "{e}");
        assert_eq!(differences(&[("kingtide", &kingtide, PROCESS)]), []);
    }
}
