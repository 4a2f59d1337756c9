//! Moving data out and in: JSON lines that hold arbitrary bytes exactly.
//!
//! An export begins with a line for each family, its name, order and options, and then has a line for each entry. An
//! entry whose key and value are both UTF-8 is written with encoding `utf8`, any other with `base64`.

use crate::confirm::Yes;
use crate::data::order;
use crate::error::{Failure, Result};
use crate::format::{base64, escape, family_name, parse_base64, parse_hex, show_name};
use crate::info::different_options;
use crate::open::{DEFAULT_FAMILY, family, open_or_create, open_to_read};
use crate::output::{Out, count, things};
use crate::progress::Progress;
use kingtide::internal::put_lasting;
use kingtide::{ColumnFamily, Db, FamilyOptions, KeyOrder, Options, ReadOptions, WriteBatch};
use kingtide_base::clock::{time_of_unix_ms, unix_ms_of_time};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;

/// Write all entries to standard output as JSON lines.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  kt export my-database > my-database.jsonl
  kt export my-database --family cache --entries-only | jq .key")]
pub struct ExportArgs {
    /// Directory of the database
    path: PathBuf,
    /// Only this family
    #[arg(long, alias = "column-family", alias = "cf", value_parser = family_name)]
    family: Option<String>,
    /// Omit the lines that describe families
    #[arg(long)]
    entries_only: bool,
}

/// `kt export`.
pub fn export(args: &ExportArgs, out: &mut Out) -> Result<()> {
    let db = open_to_read(&args.path)?;
    let names = match &args.family {
        Some(name) => vec![db.family(name)?.name()],
        None => db.families(),
    };
    let families = names.iter().map(|n| family(&db, Some(n))).collect::<Result<Vec<_>>>()?;
    if !args.entries_only {
        for family in &families {
            let options: Map<String, Value> =
                different_options(&family.options()).into_iter().map(|(n, v)| (n.to_owned(), v.into())).collect();
            out.object(&json!({ "family": family.name(), "order": family.order().name(), "options": options }))?;
        }
    }
    let snapshot = db.snapshot(); // one moment for all families
    let progress = Progress::beside_output("exporting", "entries");
    let mut done = 0;
    for (name, family) in names.iter().zip(&families) {
        let options = ReadOptions::new().snapshot(&snapshot).fill_cache(false).readahead(true);
        let mut entries = family.cursor_with(options)?;
        entries.seek_to_first();
        while entries.valid() {
            let expires_at = entries.expires_at().map(unix_ms_of_time);
            let (key, value) = entries.entry()?;
            let mut object = Map::new();
            object.insert("family".into(), name.as_str().into());
            insert_bytes(&mut object, key, Some(("value", value)));
            if let Some(at) = expires_at {
                object.insert("expires_at".into(), at.into());
            }
            out.object(&Value::Object(object))?;
            done += 1;
            if done % 4096 == 0 {
                progress.set(done);
            }
            entries.next();
        }
        entries.status()?;
    }
    Ok(())
}

/// Adds a key, a second field if there is one, and the encoding that both are in.
pub fn insert_bytes(object: &mut Map<String, Value>, key: &[u8], second: Option<(&str, &[u8])>) {
    let (name, bytes) = second.unwrap_or(("", b""));
    let (encoding, key, shown) = match (std::str::from_utf8(key), std::str::from_utf8(bytes)) {
        (Ok(key), Ok(text)) => ("utf8", key.to_owned(), text.to_owned()),
        _ => ("base64", base64(key), base64(bytes)),
    };
    object.insert("key".into(), key.into());
    if second.is_some() {
        object.insert(name.into(), shown.into());
    }
    object.insert("encoding".into(), encoding.into());
}

/// Read entries from JSON lines.
#[derive(clap::Args)]
#[command(
    after_help = "A line is {\"family\":..., \"key\":..., \"value\":..., \"encoding\":..., \"expires_at\":...}. The family is the
default family if absent, and the encoding (utf8, base64, hex) is utf8; expires_at is in milliseconds since 1970, and
an entry without it does not expire, in a family with a ttl_ms too. A line with a duplicate field is refused. The
lines at the beginning of an export create missing families.

It asks before it replaces the value of a key that exists. After an error, all lines before the one that it names
are imported: correct the line and continue with --from-line.

Examples:
  kt import copy my-database.jsonl --create
  kt export my-database | kt import copy - --create --yes
  kt import copy my-database.jsonl --from-line 8001"
)]
pub struct ImportArgs {
    /// Directory of the database
    path: PathBuf,
    /// The file; standard input if - or absent
    file: Option<PathBuf>,
    /// Create the database if it does not exist
    #[arg(long)]
    create: bool,
    /// Skip entries before this line
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    from_line: u64,
    /// Entries committed together
    #[arg(long, value_name = "N", default_value_t = 1_000, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    batch: u64,
    #[command(flatten)]
    yes: Yes,
}

/// Longest line that is read, so that a file of no lines does not fill the memory.
const MAX_LINE: u64 = 1 << 30;
/// Bytes of a batch past which it is committed before it has all its entries.
const BATCH_BYTES: usize = 8 << 20;

/// `kt import`.
pub fn import(args: &ImportArgs, out: &mut Out) -> Result<()> {
    if args.from_line == 0 {
        return Err(Failure::usage("there is no line 0 to import from: the first line is 1"));
    }
    let mut lines = Lines::open(args)?;
    let head = lines.families()?;
    // A new database gets the default family that the file describes.
    let default = head.iter().map(|(_, f)| f).find(|f| f.name == DEFAULT_FAMILY);
    let options =
        default.map_or_else(Options::new, |f| Options::new().family(f.options.clone()).order(f.order.clone()));
    let done = open_or_create(&args.path, args.create.then_some(options), |db| {
        let mut import = Import {
            args,
            families: HashMap::new(),
            batch: WriteBatch::new(),
            keys: Vec::new(),
            first_line: 0,
            replace: args.yes.yes,
            done: 0,
            db,
        };
        for (line, family) in &head {
            import.add_family(family).map_err(|e| at_line(e, *line))?;
        }
        let progress = Progress::start("importing", "entries", None);
        import.read(&mut lines, &progress)?;
        if args.from_line > lines.number.max(1) {
            let (asked, all) = (count(args.from_line), things(lines.number, "line", "lines"));
            return Err(Failure::usage(format!("there is no line {asked} to import from: the input has {all}")));
        }
        Ok(import.done)
    })?;
    let text = format!("imported {}", things(done, "entry", "entries"));
    out.answer(&json!({ "imported": done, "lines": lines.number }), text)
}

fn at_line(e: Failure, line: u64) -> Failure {
    e.of_data().context(format!("line {line}"))
}

/// A family as its line describes it.
struct FamilyLine {
    name: String,
    order: KeyOrder,
    options: FamilyOptions,
}

struct Lines {
    from: Box<dyn BufRead>,
    /// What is read, for messages.
    name: String,
    number: u64,
    /// Lines before this one are skipped, so they need not be lines of an export.
    from_line: u64,
    /// A line that was read too early.
    kept: Option<Map<String, Value>>,
}

impl Lines {
    fn open(args: &ImportArgs) -> Result<Lines> {
        let (from, name): (Box<dyn BufRead>, _) = match args.file.as_deref().filter(|f| *f != "-") {
            None => (Box::new(std::io::stdin().lock()), "standard input".to_owned()),
            Some(path) => {
                let file = std::fs::File::open(path).map_err(|e| Failure::io("open", path.display(), &e))?;
                (Box::new(BufReader::with_capacity(1 << 16, file)), path.display().to_string())
            }
        };
        Ok(Lines { from, name, number: 0, from_line: args.from_line, kept: None })
    }

    /// The next line that is not empty.
    fn next(&mut self) -> Result<Option<Map<String, Value>>> {
        if let Some(kept) = self.kept.take() {
            return Ok(Some(kept));
        }
        let mut line = Vec::new();
        loop {
            line.clear();
            self.number += 1;
            let read = (&mut self.from).take(MAX_LINE).read_until(b'\n', &mut line);
            match read {
                Err(e) => return Err(at_line(Failure::io("read", &self.name, &e), self.number)),
                Ok(0) => {
                    self.number -= 1;
                    return Ok(None);
                }
                Ok(n) if n as u64 == MAX_LINE => {
                    return Err(at_line(Failure::usage(format!("longer than {} bytes", count(MAX_LINE))), self.number));
                }
                Ok(_) if line.iter().all(u8::is_ascii_whitespace) => {}
                Ok(_) => match serde_json::from_slice(&line).map(|Unambiguous(value)| value) {
                    Ok(Value::Object(object)) => return Ok(Some(object)),
                    _ if self.number < self.from_line => {}
                    // Without the position that follows, which counts from the beginning of this line.
                    Err(e) if e.is_data() => {
                        let text = e.to_string();
                        let text = text.split(" at line ").next().unwrap_or_default();
                        return Err(at_line(Failure::usage(text), self.number));
                    }
                    Ok(_) => return Err(at_line(Failure::usage("not a JSON object"), self.number)),
                    Err(e) => {
                        let text = e.to_string().replace(" at line 1 column", " at column"); // the message names the line of the file
                        return Err(at_line(Failure::usage(format!("not JSON: {text}")), self.number));
                    }
                },
            }
        }
    }

    /// The lines at the beginning that describe families.
    fn families(&mut self) -> Result<Vec<(u64, FamilyLine)>> {
        let mut head = Vec::new();
        while let Some(object) = self.next()? {
            if object.contains_key("key") || !object.contains_key("order") {
                self.kept = Some(object);
                break;
            }
            head.push((self.number, family_line(&object).map_err(|e| at_line(e, self.number))?));
        }
        Ok(head)
    }
}

/// A JSON value in which no object has a duplicate field. Only one of the two could be imported, and JSON parsers disagree which.
struct Unambiguous(Value);

impl<'de> Deserialize<'de> for Unambiguous {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Unambiguous, D::Error> {
        struct AnyValue;

        impl<'de> Visitor<'de> for AnyValue {
            type Value = Value;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a JSON value")
            }

            fn visit_unit<E>(self) -> std::result::Result<Value, E> {
                Ok(Value::Null)
            }

            fn visit_bool<E>(self, value: bool) -> std::result::Result<Value, E> {
                Ok(value.into())
            }

            fn visit_u64<E>(self, value: u64) -> std::result::Result<Value, E> {
                Ok(value.into())
            }

            fn visit_i64<E>(self, value: i64) -> std::result::Result<Value, E> {
                Ok(value.into())
            }

            fn visit_f64<E>(self, value: f64) -> std::result::Result<Value, E> {
                Ok(value.into())
            }

            fn visit_str<E>(self, value: &str) -> std::result::Result<Value, E> {
                Ok(value.into())
            }

            fn visit_string<E>(self, value: String) -> std::result::Result<Value, E> {
                Ok(value.into())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> std::result::Result<Value, A::Error> {
                let mut values = Vec::new();
                while let Some(Unambiguous(value)) = from.next_element()? {
                    values.push(value);
                }
                Ok(values.into())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> std::result::Result<Value, A::Error> {
                let mut object = Map::new();
                while let Some((name, Unambiguous(value))) = from.next_entry::<String, _>()? {
                    if object.contains_key(&name) {
                        return Err(A::Error::custom(format!("the field \"{name}\" occurs twice: remove one of them")));
                    }
                    object.insert(name, value);
                }
                Ok(object.into())
            }
        }

        from.deserialize_any(AnyValue).map(Unambiguous)
    }
}

fn text<'a>(object: &'a Map<String, Value>, name: &str) -> Result<Option<&'a str>> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Failure::usage(format!("\"{name}\" is not a string"))),
    }
}

fn family_line(object: &Map<String, Value>) -> Result<FamilyLine> {
    let name = text(object, "family")?.unwrap_or(DEFAULT_FAMILY).to_owned();
    let order = order(text(object, "order")?.unwrap_or("bytewise"))?;
    let mut options = FamilyOptions::default();
    match object.get("options") {
        None | Some(Value::Null) => {}
        Some(Value::Object(given)) => {
            for (name, value) in given {
                let value = value.as_str().ok_or_else(|| Failure::usage(format!("option {name} is not a string")))?;
                options.set(name, value)?;
            }
        }
        Some(_) => return Err(Failure::usage("\"options\" is not an object")),
    }
    only(object, &["family", "order", "options"])?;
    Ok(FamilyLine { name, order, options })
}

/// Refuses a line with other fields, which it would not mean to be ignored.
fn only(object: &Map<String, Value>, known: &[&str]) -> Result<()> {
    match object.keys().find(|name| !known.contains(&name.as_str())) {
        Some(name) => Err(Failure::usage(format!("unknown field \"{name}\""))),
        None => Ok(()),
    }
}

struct Entry {
    family: String,
    key: Vec<u8>,
    value: Vec<u8>,
    expires_at: Option<u64>,
}

fn entry(object: &Map<String, Value>) -> Result<Entry> {
    if !object.contains_key("key") && object.contains_key("order") {
        let text = "a line that describes a family comes after entries: such lines are read only at the beginning, so import each export by \
                    itself";
        return Err(Failure::usage(text));
    }
    let encoding = text(object, "encoding")?.unwrap_or("utf8");
    let bytes = |name: &str| {
        let text = text(object, name)?.ok_or_else(|| Failure::usage(format!("no \"{name}\"")))?;
        let wrong = |e: String| Failure::usage(format!("\"{name}\": {e}"));
        match encoding {
            "utf8" => Ok(text.as_bytes().to_vec()),
            "base64" => parse_base64(text).map_err(wrong),
            "hex" => parse_hex(text).map_err(wrong),
            other => Err(Failure::usage(format!("unknown encoding '{other}'; use utf8, base64 or hex"))),
        }
    };
    let expires_at = match object.get("expires_at") {
        None | Some(Value::Null) => None,
        Some(at) => Some(at.as_u64().ok_or_else(|| Failure::usage("\"expires_at\" is not a number of milliseconds"))?),
    };
    only(object, &["family", "key", "value", "encoding", "expires_at"])?;
    let family = text(object, "family")?.unwrap_or(DEFAULT_FAMILY).to_owned();
    Ok(Entry { family, key: bytes("key")?, value: bytes("value")?, expires_at })
}

/// An import under way.
struct Import<'a> {
    args: &'a ImportArgs,
    db: &'a Db,
    families: HashMap<String, ColumnFamily>,
    batch: WriteBatch,
    /// What the batch puts, until replacing existing keys is confirmed: line, family, key.
    keys: Vec<(u64, ColumnFamily, Vec<u8>)>,
    /// The line of the batch's first entry.
    first_line: u64,
    /// Whether keys that exist may be replaced.
    replace: bool,
    done: u64,
}

impl Import<'_> {
    fn add_family(&mut self, line: &FamilyLine) -> Result<()> {
        match self.db.family(&line.name) {
            Ok(family) if family.order().name() == line.order.name() => Ok(()),
            Ok(family) => {
                let (have, want) = (family.order().name(), line.order.name());
                let name = show_name(&line.name);
                Err(Failure::failed(format!("family '{name}' is in key order {have}, not {want}")))
            }
            Err(e) if e.kind() == kingtide::ErrorKind::NotFound => {
                self.db.create_family_ordered(&line.name, line.options.clone(), line.order.clone())?;
                Ok(())
            }
            Err(e) => Err(e.into()),
        }
    }

    fn read(&mut self, lines: &mut Lines, progress: &Progress) -> Result<()> {
        loop {
            let object = match lines.next() {
                Ok(Some(object)) => object,
                Ok(None) => return self.commit(),
                Err(e) => return self.commit().and(Err(e)),
            };
            if lines.number < self.args.from_line {
                continue;
            }
            if let Err(e) = self.add(&object, lines.number) {
                // What comes before the line is imported, as the message says.
                return self.commit().and(Err(at_line(e, lines.number)));
            }
            if self.batch.len() as u64 >= self.args.batch || self.batch.bytes() >= BATCH_BYTES {
                self.commit()?;
                progress.set(self.done);
            }
        }
    }

    fn add(&mut self, object: &Map<String, Value>, line: u64) -> Result<()> {
        let Entry { family: name, key, value, expires_at } = entry(object)?;
        if !self.families.contains_key(&name) {
            let family = self.db.family(&name)?;
            self.families.insert(name.clone(), family);
        }
        let family = &self.families[&name];
        if self.batch.is_empty() {
            self.first_line = line;
        }
        match expires_at {
            Some(at) => self.batch.put_until(family, &key, &value, time_of_unix_ms(at))?,
            // An entry that does not expire must not begin to, whatever the family's `ttl_ms` is.
            None => put_lasting(&mut self.batch, family, &key, &value)?,
        }
        if !self.replace {
            self.keys.push((line, family.clone(), key));
        }
        Ok(())
    }

    /// Commits the batch, once it is known that no key exists or that it may be replaced.
    fn commit(&mut self) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.commit_batch().map_err(|e| match self.done {
            0 => e.then("nothing is imported"),
            _ => e.then(format!("lines before {} are imported: continue with --from-line {0}", self.first_line)),
        })
    }

    fn commit_batch(&mut self) -> Result<()> {
        for (line, family, key) in std::mem::take(&mut self.keys) {
            if self.replace || family.get(&key)?.is_none() {
                continue;
            }
            let question = format!(
                "Line {line}: key '{}' of family '{}' exists already; replace it and all others that exist?",
                escape(&key),
                show_name(&family.name())
            );
            self.args.yes.confirm(&question)?;
            self.replace = true;
        }
        self.db.write_with(&mut self.batch, &kingtide::WriteOptions::default())?;
        self.done += self.batch.len() as u64;
        self.batch.clear();
        Ok(())
    }
}
