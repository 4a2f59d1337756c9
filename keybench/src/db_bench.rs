//! `keybench db_bench`: the flags of RocksDB's db_bench, as those of `keybench micro --phases`.

use crate::error::{Error, Result};
use crate::micro;
use clap::Parser;
use kingtide_base::options::nearest;
use std::path::Path;

/// A flag whose value means the same under another name.
const RENAMED: &[(&str, &str)] = &[
    ("batch_size", "--batch-size"),
    ("benchmarks", "--phases"),
    ("compression_ratio", "--value-entropy"),
    ("csv", "--csv"),
    ("db", "--db-path"),
    ("engine", "--engine"),
    ("key_size", "--key-size"),
    ("num", "--operations"),
    ("num_column_families", "--families"),
    ("reads", "--reads"),
    ("repeat", "--repeat"),
    ("seed", "--seed"),
    ("threads", "--threads"),
    ("value_size", "--value-size"),
    ("write_buffer_size", "--memtable-size"),
];

/// Of the flags that are translated in a way of their own, those with one name each here.
const TRANSLATED: &[(&str, &str)] = &[
    ("bloom_bits", "--bloom-fp"),
    ("cache_size", "--block-cache-size"),
    ("compression_type", "--compression"),
    ("seek_nexts", "--range-size"),
    ("use_existing_db", "--existing"),
];

/// Flags that are translated in a way of their own.
const OTHERS: &[&str] =
    &["bloom_bits", "cache_size", "compression_type", "flagfile", "seek_nexts", "sync", "use_existing_db"];

/// What `seek_nexts` is translated to.
const RANGE_SIZE: &str = "--range-size=";

#[derive(Parser)]
#[command(no_binary_name = true, args_override_self = true)]
struct Line {
    #[command(flatten)]
    args: micro::Args,
}

/// The arguments passed to `keybench micro`.
///
/// # Errors
/// A flag that has no counterpart, and what `keybench micro` says of the others.
pub fn translated(flags: &[String]) -> Result<micro::Args> {
    // db_bench's own defaults, where they are not those of micro.
    let mut words: Vec<String> = ["--phases=fillseq,readrandom", "--threads=1", "--repeat=1"].map(str::to_owned).into();
    add(flags.iter().map(String::as_str), &mut words)?;
    let before = words.len();
    words.retain(|w| w.strip_prefix(RANGE_SIZE).is_none_or(|n| n.parse() != Ok(0)));
    let no_steps = words.len() < before;
    let line = Line::try_parse_from(&words).map_err(|e| Error::usage(first_part(&e.to_string())))?;
    // In db_bench, these phases also step on after each seek.
    let only_seeks = |phase: &&str| matches!(phase.trim(), "seekrandom" | "seekrandomwhilewriting");
    let phases = line.args.phases.as_deref().unwrap_or_default();
    if let (Some(phase), true) = (phases.split(',').find(only_seeks), words.iter().any(|w| w.starts_with(RANGE_SIZE))) {
        let what =
            format!("--seek_nexts: {} only seeks here; rangerandom also reads entries after each seek", phase.trim());
        return Err(Error::usage(what));
    }
    if no_steps && phases.split(',').any(|phase| phase.trim() == "rangerandom") {
        let what = "--seek_nexts=0: rangerandom reads at least one entry after each seek; use seekrandom to seek only";
        return Err(Error::usage(what));
    }
    Ok(line.args)
}

/// Runs what the flags ask for.
///
/// # Errors
/// As [`translated`], and those of the measurement. They name the flags that were given, not those that they are translated to.
pub fn main(flags: &[String]) -> Result<()> {
    translated(flags).and_then(|args| micro::main(&args)).map_err(in_flags_of_db_bench)
}

/// What clap says of a mistake, on one line and without the usage behind it, which is of another command.
fn first_part(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let said = lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let line = said.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    line.trim_start_matches("error: ").to_owned()
}

/// A message about flags of `keybench micro`, with the names that they have in db_bench.
fn in_flags_of_db_bench(e: Error) -> Error {
    let Error::Usage(text) = e else { return e };
    let in_a_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let mut said = String::new();
    for part in text.split_inclusive(|c| !in_a_name(c)) {
        let flag = part.trim_end_matches(|c| !in_a_name(c));
        match RENAMED.iter().chain(TRANSLATED).find(|(_, ours)| *ours == flag) {
            Some((theirs, ours)) => said.push_str(&format!("--{theirs}{}", &part[ours.len()..])),
            None => said.push_str(part),
        }
    }
    Error::Usage(said)
}

fn add<'f>(flags: impl Iterator<Item = &'f str>, words: &mut Vec<String>) -> Result<()> {
    let mut flags = flags.map(str::trim).filter(|f| !f.is_empty() && !f.starts_with('#')).peekable();
    while let Some(flag) = flags.next() {
        if flag == "-e" {
            words.push(format!("--engine={}", flags.next().unwrap_or_default()));
            continue;
        }
        let Some(bare) = flag.strip_prefix("--").or_else(|| flag.strip_prefix('-')) else {
            return Err(Error::usage(format!("'{flag}' is no flag of db_bench: use --NAME=VALUE")));
        };
        let (name, value) = match bare.split_once('=') {
            Some((name, value)) => (name, value),
            // gflags take a value behind a space too, and none for true.
            None => (bare, flags.next_if(|next| !next.starts_with('-')).unwrap_or("true")),
        };
        if let Some((_, ours)) = RENAMED.iter().find(|(theirs, _)| *theirs == name) {
            words.push(format!("{ours}={value}"));
            continue;
        }
        let on = matches!(value, "1" | "true" | "t" | "yes" | "y");
        match name {
            "sync" => words.push(format!("--sync={on}")),
            "use_existing_db" if on => words.push("--existing".to_owned()),
            "use_existing_db" => {}
            // The last flag counts.
            "seek_nexts" => {
                words.retain(|w| !w.starts_with(RANGE_SIZE));
                words.push(format!("{RANGE_SIZE}{value}"));
            }
            "compression_type" => words.push(format!("--compression={}", value.to_ascii_lowercase())),
            // There 0 is no cache, and a negative size the engine's own default.
            "cache_size" => words.push(match value {
                "0" => "--block-cache-size=none".to_owned(),
                size if size.starts_with('-') => "--block-cache-size=0".to_owned(),
                size => format!("--block-cache-size={size}"),
            }),
            "bloom_bits" => words.extend(filter(value)?),
            "flagfile" => {
                let path = Path::new(value);
                let text = std::fs::read_to_string(path).map_err(|e| Error::io("read", path, e))?;
                add(text.lines(), words)?;
            }
            _ => {
                let known: Vec<&str> = RENAMED.iter().map(|(name, _)| *name).chain(OTHERS.iter().copied()).collect();
                let hint = nearest(name, &known);
                let what = "has no counterpart here; options of an engine are set with keybench micro --opt";
                return Err(Error::usage(format!("db_bench's --{name} {what}{hint}")));
            }
        }
    }
    Ok(())
}

/// Bits for each key as a rate of false positives: `-1` is the engine's default, which is that of all engines here.
fn filter(bits: &str) -> Result<Option<String>> {
    let bits: f64 = bits.parse().map_err(|_| Error::usage(format!("--bloom_bits={bits}: not a number")))?;
    let rate = (-bits * std::f64::consts::LN_2 * std::f64::consts::LN_2).exp();
    Ok(match bits {
        b if b < 0.0 => None,
        0.0 => Some("--bloom-fp=0".to_owned()),
        _ => Some(format!("--bloom-fp={rate}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Result<micro::Args> {
        let flags: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        translated(&flags)
    }

    #[test]
    fn flags_mean_what_they_mean_to_db_bench() {
        let a = args(
            "--benchmarks=fillrandom,readrandom --num=1000000 --key_size=20 --value_size 400 -threads=4 --sync \
             --bloom_bits=10 --cache_size=8388608 --write_buffer_size=4194304 --compression_type=none --db=/x \
             --use_existing_db=0 -e lmdb",
        )
        .unwrap();
        assert_eq!(a.phases.as_deref(), Some("fillrandom,readrandom"));
        assert_eq!((a.operations, a.key_size, a.value_size, a.threads), (1_000_000, 20, 400, 4));
        let e = &a.engine_flags;
        assert!(e.sync && !a.existing && e.block_cache_size.0 == Some(8 << 20) && e.memtable_size.0 == Some(4 << 20));
        assert!((e.bloom_fp - 0.0082).abs() < 0.0001 && e.compression == crate::engine::Compression::None);
        assert_eq!((a.engine.as_str(), a.db_path.as_path(), a.repeat), ("lmdb", Path::new("/x"), 1));
        a.plan().unwrap();
    }

    /// A phase that would ignore the flag is refused with it.
    #[test]
    fn entries_behind_a_seek_are_read_or_refused() {
        let a = args("--benchmarks=fillseq,rangerandom --seek_nexts=10").unwrap();
        assert_eq!(a.range_size, 10);
        for phase in ["seekrandom", "seekrandomwhilewriting"] {
            let e = args(&format!("--benchmarks=fillseq,{phase} --seek_nexts=10")).err().unwrap();
            assert!(e.exit_code() == 2 && e.to_string().contains(&format!("{phase} only seeks")), "{e}");
            args(&format!("--benchmarks=fillseq,{phase} --seek_nexts=10 --seek_nexts=0")).unwrap().plan().unwrap();
        }
        // Without a number it reads 100 entries.
        let e = args("--benchmarks=fillseq,rangerandom --seek_nexts=0").err().unwrap();
        assert!(e.exit_code() == 2 && e.to_string().contains("rangerandom reads at least one entry"), "{e}");
    }

    #[test]
    fn a_file_of_flags_is_read() {
        let path = std::env::temp_dir().join(format!("keybench-flagfile-{}", std::process::id()));
        std::fs::write(&path, "# a comment\n--num=500\n\n--benchmarks=fillseq\n").unwrap();
        let a = args(&format!("--flagfile={} --num=700", path.display())).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!((a.operations, a.phases.as_deref()), (700, Some("fillseq")), "the later counts");
    }

    #[test]
    fn errors_name_the_flags_that_were_given() {
        for (flags, wanted) in [
            ("--benchmarks=fillseq,readsec", "--benchmarks"),
            ("--benchmarks=,", "--benchmarks: the list is empty"),
            ("--benchmarks=readseq,fillseq", "--benchmarks: readseq finds nothing"),
            ("--benchmarks=fillseq --use_existing_db=1", "--use_existing_db: "),
            ("--num=many", "'--num <"),
            ("--num=0", "0 entries: use 1 to"),
            ("--key_size=70000", "--key_size 70000: use at most"),
            ("--compression_type=lzma", "'--compression_type <"),
            ("--cache_size=x", "'--cache_size <"),
            ("-e nosuch", "engine"),
        ] {
            let e = main(&flags.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).unwrap_err();
            let text = e.to_string();
            assert!(e.exit_code() == 2 && text.contains(wanted), "{flags}: {text}");
            let ours = ["--phases", "--operations", "--key-size", "--block-cache", "--compression ", "--existing"];
            assert!(!ours.iter().any(|flag| text.contains(flag)) && text.lines().count() == 1, "{flags}: {text}");
        }
    }

    #[test]
    fn what_has_no_counterpart_is_refused() {
        let e = args("--num_levels=7").err().unwrap();
        assert!(e.exit_code() == 2 && e.to_string().contains("--num_levels has no counterpart"), "{e}");
        assert!(args("--nmu=7").err().unwrap().to_string().contains("did you mean 'num'"));
        assert!(args("fillseq").err().unwrap().to_string().contains("is no flag"));
        assert!(args("--flagfile=/nowhere").is_err() && args("--bloom_bits=many").is_err());
    }
}
