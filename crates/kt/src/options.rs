//! The reference of all options: `kt options`.

use crate::error::{Failure, Result};
use crate::output::Out;
use kingtide::{DbOptions, FamilyOptions};
use kingtide_base::options::{OptionRow, unknown_option};
use serde_json::{Value, json};

/// List all options with type, default, range and purpose.
#[derive(clap::Args)]
#[command(
    after_help = "Options of a column family are stored in the database: `kt create -o`, `kt cf create -o` and `kt set-option`
set them. Options of the database are not stored: programs pass them each time they open it.

Examples:
  kt options
  kt options value_threshold
  kt options --json | jq '.options[].name'"
)]
pub struct OptionsArgs {
    /// Show only these options, or where there is none of a name, those with it in their names
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

/// An option table: what its options belong to, for JSON and for people, and its rows.
type Table = (&'static str, &'static str, Vec<OptionRow>);

/// `kt options`.
pub fn options(args: &OptionsArgs, out: &mut Out) -> Result<()> {
    let mut tables: [Table; 2] = [
        ("family", "Options of a column family (stored in the database)", FamilyOptions::rows()),
        ("database", "Options of the database (passed at each open)", DbOptions::rows()),
    ];
    let known: Vec<&str> = tables.iter().flat_map(|t| t.2.iter().map(|r| r.name)).collect();
    let meant = |word: &str, name: &str| if known.contains(&word) { name == word } else { name.contains(word) };
    if let Some(word) = args.names.iter().find(|word| !known.iter().any(|name| meant(word, name))) {
        return Err(Failure::from(unknown_option(word)));
    }
    for (_, _, rows) in &mut tables {
        rows.retain(|r| args.names.is_empty() || args.names.iter().any(|word| meant(word, r.name)));
    }
    if out.json {
        let objects = tables.iter().flat_map(|(scope, _, rows)| rows.iter().map(|r| describe(scope, r)));
        return out.object(&json!({ "options": objects.collect::<Vec<_>>() }));
    }
    let mut between = false;
    for (_, title, rows) in tables.iter().filter(|t| !t.2.is_empty()) {
        if between {
            out.line("")?;
        }
        between = true;
        out.line(title)?;
        rows.iter().try_for_each(|row| print(row, out))?;
    }
    Ok(())
}

fn describe(scope: &str, row: &OptionRow) -> Value {
    json!({
        "name": row.name, "scope": scope, "type": row.form, "default": row.default, "range": row.range,
        "min": row.limits.map(|(min, _)| min), "max": row.limits.map(|(_, max)| max), "live": row.live,
        "description": one_line(row.doc),
    })
}

fn print(row: &OptionRow, out: &mut Out) -> Result<()> {
    let default = if row.default.is_empty() { "(empty)" } else { &row.default };
    out.line("")?;
    out.line(format_args!("  {} = {default}", row.name))?;
    let range = row.range.map(|range| format!(", {range}")).unwrap_or_default();
    let live = if row.live { "can be changed while the database is open" } else { "fixed while the database is open" };
    out.line(format_args!("      {}{range}; {live}", row.form))?;
    wrap(&one_line(row.doc), 90).iter().try_for_each(|line| out.line(format_args!("      {line}")))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Breaks text into lines of at most `width` characters, at spaces.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
