//! Prints the pages of the book that are made from tables in the source: `kingtide-book options|statistics`.
//! `cargo xtask reference` writes them to `docs`.

use kingtide_base::histogram::{FAMILY_MEMORY, Histogram, MEMORY};
use kingtide_base::options::{DbOptions, FamilyOptions, OptionRow};
use kingtide_base::stats::{Stat, StatKind};
use std::fmt::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let page = match std::env::args().nth(1).as_deref() {
        Some("options") => options(),
        Some("statistics") => statistics(),
        _ => {
            eprintln!("usage: kingtide-book <options|statistics>");
            return ExitCode::FAILURE;
        }
    };
    print!("{page}");
    ExitCode::SUCCESS
}

const MADE: &str = "<!-- Made by `cargo xtask reference` from the source; do not edit. -->\n\n";

/// The page of all options.
fn options() -> String {
    let mut page = format!("{MADE}# Options\n\n{OPTIONS_INTRO}\n## Overview\n");
    let tables = [("Database", DbOptions::rows()), ("Column family", FamilyOptions::rows())];
    for (title, rows) in &tables {
        let _ = write!(page, "\n{title}:\n\n| option | default | live |\n|---|---|---|\n");
        for row in rows {
            let live = if row.live { "yes" } else { "no" };
            let _ = writeln!(page, "| [`{}`](#{}) | {} | {live} |", row.name, row.name, value(row, &row.default));
        }
    }
    for (title, rows) in &tables {
        let _ = write!(page, "\n## {title} options\n");
        for row in rows {
            let _ = write!(page, "\n### {}\n\n{}\n\n", row.name, one_line(row.doc));
            let _ = writeln!(page, "* Form: {}", row.form);
            let _ = writeln!(page, "* Default: {}", value(row, &row.default));
            if let Some(range) = row.range {
                let _ = writeln!(page, "* Range: {}", limits(row, range));
            }
            let live = if row.live {
                "Live: can be changed while the database is open"
            } else {
                "Fixed while the database is open"
            };
            let _ = writeln!(page, "* {live}");
        }
    }
    page
}

const OPTIONS_INTRO: &str = "\
Every option has a name, a default and, where one applies, a range. A value outside its range is refused with an error that names the
option and the range. [Tuning](tuning.md) says which options are worth changing, and when.

| where | how to set an option |
|---|---|
| Rust, when opening | the fields of `DbOptions` and `FamilyOptions` in `Options`, or `Options::set(name, text)` |
| Rust, while open | `Db::set_option` and `ColumnFamily::set_option`, for options marked *live* |
| C | `kingtide_options_set`; `kingtide_option_get_info` lists all options |
| `kt` | for options of a family: `-o name=value` with `create` and `cf create`; `kt set-option` for live ones |

**Sizes** are bytes, with an optional suffix K, M, G or T for powers of 1024 (`64M`, `64MiB`). Names that end in `_ms` are
milliseconds, those in `_us` microseconds.

**Stored options.** A family's options are stored in the manifest. Options of the database are not stored; they are passed at each open. An
open for writing replaces the stored options of the *default* family with those in `Options::family`; use `Options::load` to keep
the stored ones. Other families keep the options that they were created with, and later changes.
";

/// The page of all statistics.
fn statistics() -> String {
    let mut page = format!("{MADE}# Statistics\n\n{STATISTICS_INTRO}\n| name | kind | meaning |\n|---|---|---|\n");
    for stat in Stat::ALL {
        let kind = match stat.kind() {
            StatKind::Counter => "counter",
            StatKind::Gauge => "gauge",
        };
        let _ = writeln!(page, "| `{}` | {kind} | {} |", stat.name(), one_line(stat.help()));
    }
    let memory = MEMORY.div_ceil(1024);
    let of_family = FAMILY_MEMORY.div_ceil(1024);
    let _ = write!(page, "\n## Histograms\n\n{HISTOGRAMS_INTRO}\n");
    let _ = writeln!(
        page,
        "They take {memory} KiB for a database, and at most {of_family} KiB for each family that has its own."
    );
    let _ = write!(page, "\n| name | what it measures | of families |\n|---|---|---|\n");
    for h in Histogram::ALL {
        let of_families = if Histogram::OF_FAMILIES.contains(h) { "yes" } else { "" };
        let _ = writeln!(page, "| `{}` | {} | {of_families} |", h.name(), one_line(h.help()));
    }
    page
}

const STATISTICS_INTRO: &str = "\
`Db::stats` returns all of these by name, `Db::prometheus` and `kt stats --prometheus` print them with the prefix `kingtide_`, and the
C API has `kingtide_db_stats`. Counters only grow and begin at 0 with each open; gauges go up and down. [Observability](observability.md)
says which of them to watch, and what changes in them mean.
";

const HISTOGRAMS_INTRO: &str = "\
`Db::histogram` returns how long operations of one kind took, `Db::prometheus` and `kt stats --prometheus` print all of them as
`kingtide_NAME_seconds`, and the C API has `kingtide_db_histogram`. They cover the entire database. Families have some of them, too
(`ColumnFamily::histogram`, `kingtide_family_NAME_seconds` with the label `family`, `kingtide_family_histogram`); the option
[`family_histograms`](options.md#family_histograms) limits how many families.
A quantile is off by at most 5.9 %. The option [`histograms`](options.md#histograms) turns them off.";

/// Text of a table's row: one line, with nothing that ends a cell.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// A value as code; sizes in units that people read.
fn value(row: &OptionRow, text: &str) -> String {
    if text.is_empty() {
        return "empty".to_owned();
    }
    let is_time = row.name.ends_with("_ms") || row.name.ends_with("_us");
    let is_size = !is_time && (text == "0" || !text.starts_with('0')); // a file mode is octal
    match text.parse::<u64>() {
        Ok(n) if is_size => format!("`{}`", size(n)),
        _ => format!("`{text}`"),
    }
}

/// The allowed values as the table has them, such as `0 or 32768 to 1099511627776`, each value as [`value`] shows it.
fn limits(row: &OptionRow, range: &str) -> String {
    let word = |word: &str| match word {
        "or" | "to" => word.to_owned(),
        number => value(row, number),
    };
    range.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// Numbers from 4096 on that are whole KiB, or one less than that, with a unit.
fn size(n: u64) -> String {
    const UNITS: [&str; 5] = ["", " KiB", " MiB", " GiB", " TiB"];
    let units = |mut n: u64| {
        let mut unit = 0;
        while n >= 1024 && n.is_multiple_of(1024) && unit < UNITS.len() - 1 {
            (n, unit) = (n / 1024, unit + 1);
        }
        (n, UNITS[unit])
    };
    if n < 4095 {
        return n.to_string();
    }
    match (units(n), units(n + 1)) {
        ((_, ""), (_, "")) => n.to_string(),
        ((_, ""), (m, unit)) => format!("{m}{unit} - 1"),
        ((m, unit), _) => format!("{m}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_are_what_the_tables_say() {
        for (name, made) in [("options", options()), ("statistics", statistics())] {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/");
            #[allow(clippy::disallowed_methods)] // a page of the book
            let page = std::fs::read_to_string(format!("{path}{name}.md")).unwrap_or_default();
            assert!(page == made, "docs/{name}.md differs from the table in the source; run `cargo xtask reference`");
        }
    }

    #[test]
    fn every_kind_of_error_has_a_section() {
        let source = include_str!("../../base/src/error.rs");
        let page = include_str!("../../../docs/errors.md");
        let body = source.split("pub enum ErrorKind {").nth(1).and_then(|s| s.split('}').next()).expect("the enum");
        let kinds = body.lines().map(str::trim).filter_map(|l| l.strip_suffix(','));
        let mut sections: Vec<&str> = page.lines().filter_map(|l| l.strip_prefix("### ")).collect();
        for kind in kinds {
            let at = sections.iter().position(|s| *s == kind);
            sections.remove(at.unwrap_or_else(|| panic!("docs/errors.md has no section on {kind}")));
        }
        assert!(sections.is_empty(), "docs/errors.md has sections on kinds that are no more: {sections:?}");
    }

    #[test]
    fn sizes_have_units_where_they_are_whole() {
        assert_eq!(
            [0, 1000, 1024, 4095, 4096, 65_536, 64 << 20].map(size),
            ["0", "1000", "1024", "4 KiB - 1", "4 KiB", "64 KiB", "64 MiB"]
        );
        assert_eq!([1_000_000, 4_294_967_295, 1 << 40].map(size), ["1000000", "4 GiB - 1", "1 TiB"]);
    }

    #[test]
    fn times_are_no_sizes() {
        let rows = DbOptions::rows();
        for (name, most) in [("lock_timeout_ms", "86400000"), ("slow_operation_threshold_us", "3600000000")] {
            let row = rows.iter().find(|r| r.name == name).expect("the option");
            assert_eq!(value(row, most), format!("`{most}`"));
        }
    }

    /// What the page gives as the range of an option is what the option accepts.
    #[test]
    fn a_range_leaves_out_what_is_refused() {
        let rows = DbOptions::rows();
        let row = rows.iter().find(|r| r.name == "stats_interval_ms").expect("the option");
        assert!(DbOptions::default().set(row.name, "99").is_err());
        assert!(options().contains("* Range: `0` or `100` to `86400000`\n"));
        assert!(options().contains("* Range: `0` or `32 KiB` to `1 TiB`\n"));
    }
}
