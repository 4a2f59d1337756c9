//! Single keys and scans.

use crate::confirm::Yes;
use crate::error::{Failure, Result};
use crate::format::{Formats, family_name, show_name};
use crate::keys::{Key, range_of};
use crate::open::{check_no_file, family, open, open_or_create, open_to_read};
use crate::output::{Out, things};
use crate::progress::Progress;
use kingtide::{ColumnFamily, Cursor, Db, ErrorKind, KeyOrder, Options, ReadOptions, SeqNo, StagedValue, WriteBatch};
use kingtide_base::clock::unix_ms_of_time;
use serde_json::{Map, Value, json};
use std::io::{IsTerminal, Read};
use std::ops::Bound;
use std::path::PathBuf;
use std::time::Duration;

/// Create an empty database.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  kt create my-database
  kt create numbers --order u64 -o value_threshold=4K -o compression=zstd")]
pub struct CreateArgs {
    /// Directory of the database; created if it does not exist
    path: PathBuf,
    /// Key order of the default family
    #[arg(long, default_value = "bytewise", value_name = "ORDER")]
    order: String,
    /// Option of the default family, as name=value
    #[arg(short = 'o', long = "option", value_name = "NAME=VALUE")]
    options: Vec<String>,
}

/// `kt create`.
pub fn create(args: &CreateArgs, out: &mut Out) -> Result<()> {
    check_no_file(&args.path)?;
    let mut options = Options::new().order(order(&args.order)?);
    options.db.error_if_exists = true;
    for option in &args.options {
        let (name, value) = name_value(option)?;
        options.family.set(name, value)?;
    }
    let created = Db::open(&args.path, options);
    created
        .map_err(|e| match e.kind() {
            ErrorKind::Exists if args.path.is_dir() => Failure::from(e).says("a database is here already"),
            _ => e.into(),
        })?
        .close()?;
    let path = args.path.display().to_string();
    out.answer(&json!({ "created": path }), format!("created {path}"))
}

/// The built-in key order of that name.
pub fn order(name: &str) -> Result<KeyOrder> {
    KeyOrder::builtin(name).ok_or_else(|| {
        Failure::usage(format!("unknown key order '{name}'; use bytewise, reverse, u64, i64 or case-insensitive"))
    })
}

/// Splits `name=value`.
pub fn name_value(text: &str) -> Result<(&str, &str)> {
    match text.split_once('=') {
        Some((name, value)) => Ok((name.trim(), value.trim())),
        None => Err(Failure::usage(format!("'{text}' is not of the form name=value"))),
    }
}

/// Print the value of a key.
#[derive(clap::Args)]
#[command(after_help = "Exits with 3 if there is no such key.

Examples:
  kt get my-database tide
  kt get my-database 00ff --key-format hex --value-format hex --family blobs
  kt get my-database photo --raw > photo.jpg")]
pub struct GetArgs {
    /// Directory of the database
    path: PathBuf,
    /// The key
    #[arg(allow_negative_numbers = true)]
    key: String,
    /// Column family [default: default]
    #[arg(long, alias = "column-family", alias = "cf", value_parser = family_name)]
    family: Option<String>,
    /// Print the raw bytes of the value, without a line end
    #[arg(long, conflicts_with = "json")]
    raw: bool,
}

/// `kt get`.
pub fn get(args: &GetArgs, out: &mut Out) -> Result<()> {
    let key = out.parse_key(&args.key)?;
    let db = open_to_read(&args.path)?;
    let family = family(&db, args.family.as_deref())?;
    let key = key.of(&family)?;
    let absent = || Failure::not_found(format!("no key '{}' in family '{}'", args.key, show_name(&family.name())));
    if args.raw {
        return out.copy(&mut family.get_reader(&key)?.ok_or_else(absent)?); // in pieces, however large it is
    }
    let value = family.get(&key)?.ok_or_else(absent)?;
    if out.json {
        let shown = out.formats.value_format.json(&value, "value")?;
        let key = out.formats.key_format.json(&key, "key")?;
        return out.object(&json!({ "family": family.name(), "key": key, "value": shown }));
    }
    out.data(out.formats.value_format.show(&value, "value")?)
}

/// Set a key.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  kt put my-database tide high
  kt put my-database session abc --ttl 30m
  kt put my-database photo < photo.jpg
  kt put numbers 42 forty-two --key-format u64 --create")]
pub struct PutArgs {
    /// Directory of the database
    path: PathBuf,
    /// The key
    #[arg(allow_negative_numbers = true)]
    key: String,
    /// The value; without it, the raw bytes of standard input, which must be a non-empty file or pipe
    #[arg(allow_negative_numbers = true, conflicts_with = "stdin")]
    value: Option<String>,
    /// Read the raw bytes of the value from standard input, even if it is a terminal or empty. The value is
    /// written in pieces, and may be larger than memory
    #[arg(long)]
    stdin: bool,
    /// Column family [default: default]
    #[arg(long, alias = "column-family", alias = "cf", value_parser = family_name)]
    family: Option<String>,
    /// Time to live of the entry, such as 500ms, 90s, 30m, 12h, 7d
    #[arg(long, value_name = "TIME")]
    ttl: Option<String>,
    /// Create the database if it does not exist
    #[arg(long)]
    create: bool,
}

/// `kt put`.
pub fn put(args: &PutArgs, out: &mut Out) -> Result<()> {
    let key = out.parse_key(&args.key)?;
    let value = args.value.as_deref().map(|text| out.formats.value_format.parse(text, "value")).transpose()?;
    let ttl = args.ttl.as_deref().map(parse_time).transpose()?;
    let is_implied = value.is_none() && !args.stdin;
    if is_implied && std::io::stdin().is_terminal() {
        return Err(no_value());
    }
    let (family, sequence) = open_or_create(&args.path, args.create.then(Options::default), |db| {
        let family = family(db, args.family.as_deref())?;
        let sequence = put_in(db, &family, key, value, (ttl, is_implied))?;
        Ok((family.name(), sequence))
    })?;
    if out.json { out.object(&json!({ "family": family, "sequence": sequence })) } else { Ok(()) }
}

/// Puts `value`, or if there is none, what standard input holds. The input may be empty unless it is implied.
fn put_in(
    db: &Db,
    family: &ColumnFamily,
    key: Key,
    value: Option<Vec<u8>>,
    (ttl, is_implied): (Option<Duration>, bool),
) -> Result<SeqNo> {
    let key = key.of(family)?;
    let mut batch = WriteBatch::new();
    match (&value, ttl) {
        (Some(value), Some(ttl)) => batch.put_ttl(family, &key, value, ttl)?,
        (Some(value), None) => batch.put(family, &key, value)?,
        (None, ttl) => {
            let value = from_stdin(family)?;
            if is_implied && value.is_empty() {
                return Err(no_value()); // standard input may be nothing at all, as in a job of cron's
            }
            match ttl {
                Some(ttl) => batch.put_staged_ttl(family, &key, &value, ttl)?,
                None => batch.put_staged(family, &key, &value)?,
            }
        }
    }
    Ok(db.write(batch)?)
}

fn no_value() -> Failure {
    Failure::usage(
        "no value: give it after the key, or as a file or pipe on standard input (an empty one with --stdin)",
    )
}

/// What standard input holds, as a value that waits to be put: in bounded memory.
fn from_stdin(family: &ColumnFamily) -> Result<StagedValue> {
    let mut writer = family.value_writer()?;
    let (mut from, mut buf) = (std::io::stdin().lock(), vec![0; 256 << 10]);
    loop {
        match from.read(&mut buf) {
            Ok(0) => return Ok(writer.finish()?),
            Ok(n) => writer.append(buf.get(..n).unwrap_or_default())?,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Failure::io("read", "standard input", &e)),
        }
    }
}

/// Reads a time with its unit.
fn parse_time(text: &str) -> Result<Duration> {
    let wrong = || Failure::usage(format!("'{text}' is not a time; write 500ms, 90s, 30m, 12h or 7d"));
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let scale = match unit.trim() {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(scale).map(Duration::from_millis).ok_or_else(wrong)
}

/// Delete a key, a range or all keys of a prefix.
#[derive(clap::Args)]
#[command(after_help = "Asks before it deletes; --yes confirms. Deleting an absent key is not an error.

Examples:
  kt delete my-database tide --yes
  kt delete my-database --from a --to b
  kt delete my-database --prefix session: --family cache -y")]
pub struct DeleteArgs {
    /// Directory of the database
    path: PathBuf,
    /// The key
    #[arg(allow_negative_numbers = true, required_unless_present_any = ["from", "prefix"],
          conflicts_with_all = ["from", "to", "prefix"])]
    key: Option<String>,
    /// Delete all keys from this one on
    #[arg(long, value_name = "KEY", requires = "to", conflicts_with = "prefix", allow_negative_numbers = true)]
    from: Option<String>,
    /// Delete all keys before this one
    #[arg(long, value_name = "KEY", requires = "from", allow_negative_numbers = true)]
    to: Option<String>,
    /// Delete all keys with this prefix
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    prefix: Option<String>,
    /// Column family [default: default]
    #[arg(long, alias = "column-family", alias = "cf", value_parser = family_name)]
    family: Option<String>,
    #[command(flatten)]
    yes: Yes,
}

/// `kt delete`.
pub fn delete(args: &DeleteArgs, out: &mut Out) -> Result<()> {
    let [key, from, to, prefix] = [&args.key, &args.from, &args.to, &args.prefix].map(|t| out.parse_key_if(t.as_ref()));
    let (key, from, to, prefix) = (key?, from?, to?, prefix?);
    let db = open(&args.path)?;
    let family = family(&db, args.family.as_deref())?;
    let name = show_name(&family.name());
    let mut batch = WriteBatch::new();
    let question = match (key, prefix) {
        (Some(key), _) => {
            let question = format!("Delete key '{}' from family '{name}'?", key.text);
            batch.delete(&family, &key.of(&family)?)?;
            question
        }
        (_, Some(prefix)) => {
            batch.delete_prefix(&family, &prefix.bytes)?;
            format!("Delete all keys with prefix '{}' from family '{name}'?", prefix.text)
        }
        _ => {
            let text = |key: &Option<Key>| key.as_ref().map_or(String::new(), |key| key.text.clone());
            let question = format!("Delete all keys from '{}' up to '{}' of family '{name}'?", text(&from), text(&to));
            if let [Some(from), Some(to)] = range_of(&family, from, to)? {
                batch.delete_range(&family, &from..&to)?;
            }
            question
        }
    };
    args.yes.confirm(&question)?;
    let sequence = db.write(batch)?;
    db.close()?;
    if out.json { out.object(&json!({ "family": family.name(), "sequence": sequence })) } else { Ok(()) }
}

/// Print entries in key order.
#[derive(clap::Args)]
#[command(
    after_help = "A line is key, tab, value. In the utf8 format, a tab inside either is written \\t, so the first tab separates them.

Examples:
  kt scan my-database --limit 10
  kt scan my-database --prefix user: --keys-only
  kt scan numbers --from 10 --to 20 --key-format u64 --reverse
  kt scan my-database --count --json"
)]
pub struct ScanArgs {
    /// Directory of the database
    path: PathBuf,
    /// Only keys with this prefix
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    prefix: Option<String>,
    /// Start at this key
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    from: Option<String>,
    /// Stop before this key
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    to: Option<String>,
    /// Stop after this many entries
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    limit: Option<u64>,
    /// Print from the last key to the first
    #[arg(long)]
    reverse: bool,
    /// Print no values
    #[arg(long)]
    keys_only: bool,
    /// Print only the number of entries
    #[arg(long)]
    count: bool,
    /// Column family [default: default]
    #[arg(long, alias = "column-family", alias = "cf", value_parser = family_name)]
    family: Option<String>,
}

/// `kt scan`.
pub fn scan(args: &ScanArgs, out: &mut Out) -> Result<()> {
    let [from, to, prefix] = [&args.from, &args.to, &args.prefix].map(|t| out.parse_key_if(t.as_ref()));
    let (from, to, prefix) = (from?, to?, prefix?);
    let db = open_to_read(&args.path)?;
    let family = family(&db, args.family.as_deref())?;
    let [from, to] = range_of(&family, from, to)?;
    let mut options = ReadOptions::new();
    options.lower = from.map_or(Bound::Unbounded, Bound::Included);
    options.upper = to.map_or(Bound::Unbounded, Bound::Excluded);
    options.prefix = prefix.map(|prefix| prefix.bytes);
    let mut entries = family.cursor_with(options)?;
    if args.reverse {
        entries.seek_to_last();
    } else {
        entries.seek_to_first();
    }
    let progress = args.count.then(|| Progress::start("counting", "entries", None));
    let mut found = 0;
    while entries.valid() && args.limit.is_none_or(|limit| found < limit) {
        found += 1;
        match &progress {
            Some(bar) if found.is_multiple_of(4096) => bar.set(found),
            Some(_) => {}
            None => print_entry(&family, &mut entries, args, out)?,
        }
        if args.reverse {
            entries.prev();
        } else {
            entries.next();
        }
    }
    entries.status()?;
    drop(progress);
    match (args.count, out.json) {
        (false, _) => Ok(()),
        (true, true) => out.object(&json!({ "family": family.name(), "count": found })),
        (true, false) => out.line(things(found, "entry", "entries")),
    }
}

fn print_entry(family: &ColumnFamily, entries: &mut Cursor, args: &ScanArgs, out: &mut Out) -> Result<()> {
    let Formats { key_format, value_format } = out.formats;
    if !out.json {
        if args.keys_only {
            return out.data(key_format.show(entries.key(), "key")?);
        }
        let (key, value) = entries.entry()?;
        return out.data(format_args!("{}\t{}", key_format.show(key, "key")?, value_format.show(value, "value")?));
    }
    let mut object = Map::new();
    object.insert("family".into(), family.name().into());
    object.insert("key".into(), key_format.json(entries.key(), "key")?);
    if !args.keys_only {
        object.insert("value".into(), value_format.json(entries.value()?, "value")?);
    }
    if let Some(at) = entries.expires_at().map(unix_ms_of_time) {
        object.insert("expires_at".into(), at.into());
    }
    out.object(&Value::Object(object))
}
