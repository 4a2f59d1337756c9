//! Does what a step says, and tells what came of it in the words of the table.

use crate::conformance::table::Text;
use kingtide::{
    ColumnFamily, Db, Entries, Error, ErrorKind, FamilyOptions, Isolation, KeyOrder, LockMode, Options, PinnedValue,
    ReadOptions, Result, Snapshot, Transaction, TransactionOptions, ValueReader, WriteBatch,
};
use std::collections::HashMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::str::from_utf8;
use std::time::{Duration, UNIX_EPOCH};

type Answer = Vec<Text>;
type Bounds = (Bound<Text>, Bound<Text>);

/// A case's directory, its database, and the handles by name.
pub struct World {
    path: PathBuf,
    db: Option<Db>,
    families: HashMap<String, ColumnFamily>,
    batches: HashMap<String, WriteBatch>,
    snapshots: HashMap<String, Snapshot>,
    transactions: HashMap<String, Transaction>,
}

fn word(text: &[u8]) -> &str {
    from_utf8(text).expect("names are ASCII")
}

fn number<T: std::str::FromStr>(text: &[u8]) -> T {
    word(text).parse().ok().expect("a number")
}

fn words(tag: &str, rest: impl IntoIterator<Item = impl Into<Text>>) -> Answer {
    std::iter::once(tag.into()).chain(rest.into_iter().map(Into::into)).collect()
}

/// A value that may be absent, as `=value` or `-`.
fn optional(value: Option<&[u8]>) -> Text {
    value.map_or(b"-".to_vec(), |v| [b"=", v].concat())
}

fn from_optional(text: &[u8]) -> Option<&[u8]> {
    text.strip_prefix(b"=")
}

fn one(value: Option<PinnedValue>) -> Answer {
    value.map_or(words("none", [""; 0]), |v| words("value", [v.to_vec()]))
}

fn kind(error: &Error) -> String {
    let mut name = String::new();
    for c in format!("{:?}", error.kind()).chars() {
        if c.is_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.push(c.to_ascii_lowercase());
    }
    if error.is_lock_held() { "lock-held".to_owned() } else { name }
}

fn bound(text: &[u8]) -> Bound<Text> {
    match text.split_first() {
        Some((b'[', key)) => Bound::Included(key.to_vec()),
        Some((b'(', key)) => Bound::Excluded(key.to_vec()),
        _ => Bound::Unbounded,
    }
}

fn entries(direction: &[u8], entries: Entries) -> Result<Answer> {
    let all: Result<Vec<_>> = if direction == b"forward" { entries.collect() } else { entries.rev().collect() };
    Ok(words("entries", all?.into_iter().flat_map(|e| [e.key.into_vec(), e.value.into_vec()])))
}

/// The options of a step: `name=value`, where `order` is not one of the table of options.
fn settings<'a>(args: &'a [Text], set: &mut dyn FnMut(&'a str, &'a str) -> Result<()>) -> Result<KeyOrder> {
    let mut order = KeyOrder::Bytewise;
    for arg in args {
        match word(arg).split_once('=').expect("name=value") {
            ("order", name) => {
                let unknown = || Error::new(ErrorKind::NotFound, format!("no key order '{name}'"));
                order = KeyOrder::builtin(name).ok_or_else(unknown)?;
            }
            (name, value) => set(name, value)?,
        }
    }
    Ok(order)
}

/// Positions a cursor of either kind, and tells where it is.
macro_rules! place {
    ($cursor:expr, $how:expr, $key:expr) => {{
        let mut cursor = $cursor?;
        match $how {
            "first" => cursor.seek_to_first(),
            "last" => cursor.seek_to_last(),
            "seek" => cursor.seek($key),
            _ => cursor.seek_for_prev($key),
        }
        cursor.status()?;
        match cursor.valid() {
            true => {
                let (key, value) = cursor.entry()?;
                words("entry", [key, value])
            }
            false => words("none", [""; 0]),
        }
    }};
}

/// Calls a verb that batches and transactions have in common, or that of a family.
macro_rules! write {
    ($world:expr, $args:expr, $verb:ident ( $($arg:expr),* )) => {{
        let (target, family) = (word(&$args[0]), $world.family(&$args[1]));
        if target == "db" {
            family.$verb($($arg),*)?;
        } else if let Some(batch) = $world.batches.get_mut(target) {
            batch.$verb(&family, $($arg),*)?;
        } else {
            $world.transaction(target).$verb(&family, $($arg),*)?;
        }
    }};
}

impl World {
    pub fn new(path: &Path) -> World {
        World {
            path: path.join("db"),
            db: None,
            families: HashMap::new(),
            batches: HashMap::new(),
            snapshots: HashMap::new(),
            transactions: HashMap::new(),
        }
    }

    /// Moves everything to tables, where that is possible.
    pub fn flush(&self) {
        if let Some(db) = &self.db {
            let _ = db.flush(); // it may be closed
        }
    }

    /// Does a step.
    pub fn answer(&mut self, step: &[Text]) -> Answer {
        let (verb, args) = (word(&step[0]).to_owned(), &step[1..]);
        let read = self.read(&verb, args).or_else(|| self.write(&verb, args));
        let done = read.or_else(|| self.manage(&verb, args)).or_else(|| self.transact(&verb, args));
        match done.unwrap_or_else(|| panic!("no operation `{verb}`")) {
            Ok(answer) => answer,
            Err(e) => words("error", [kind(&e)]),
        }
    }

    fn db(&self) -> &Db {
        self.db.as_ref().expect("the case opened its database")
    }

    fn family(&self, name: &[u8]) -> ColumnFamily {
        self.families.get(word(name)).cloned().unwrap_or_else(|| panic!("no family {}", word(name)))
    }

    fn transaction(&mut self, name: &str) -> &mut Transaction {
        self.transactions.get_mut(name).unwrap_or_else(|| panic!("no transaction {name}"))
    }

    fn read(&mut self, verb: &str, args: &[Text]) -> Option<Result<Answer>> {
        Some(match verb {
            "get" | "contains" | "multi_get" | "range" | "prefix" | "first" | "last" | "seek" | "seek_for_prev" => {
                self.look(verb, args)
            }
            "length" | "read_at" => self.stream(verb, args),
            _ => return None,
        })
    }

    fn look(&mut self, verb: &str, args: &[Text]) -> Result<Answer> {
        let (view, family) = (word(&args[0]), self.family(&args[1]));
        let snapshot = self.snapshots.get(view);
        let key = args.get(2).map_or(&[][..], |k| k);
        let all = ReadOptions::default();
        Ok(match verb {
            "get" => one(match snapshot {
                Some(s) => s.of(&family).get(key)?,
                None if view == "db" => family.get(key)?,
                None => self.transaction(view).get(&family, key)?,
            }),
            "contains" => {
                let found = match snapshot {
                    Some(s) => s.of(&family).contains_key(key)?,
                    None if view == "db" => family.contains_key(key)?,
                    None => self.transaction(view).contains_key(&family, key)?,
                };
                words(if found { "true" } else { "false" }, [""; 0])
            }
            "multi_get" => {
                let keys = &args[2..];
                let values = match snapshot {
                    Some(s) => s.of(&family).multi_get(keys),
                    None if view == "db" => family.multi_get(keys),
                    None => self.transaction(view).multi_get(&family, keys),
                };
                let values = values.into_iter().collect::<Result<Vec<_>>>()?;
                words("values", values.iter().map(|v| optional(v.as_deref())))
            }
            "range" => {
                let bounds: Bounds = (bound(&args[3]), bound(&args[4]));
                let found = match snapshot {
                    Some(s) => s.of(&family).range(bounds),
                    None if view == "db" => family.range(bounds),
                    None => self.transaction(view).range(&family, bounds),
                };
                entries(key, found)?
            }
            "prefix" => {
                let found = match snapshot {
                    Some(s) => s.of(&family).prefix(&args[3]),
                    None if view == "db" => family.prefix(&args[3]),
                    None => self.transaction(view).prefix(&family, &args[3]),
                };
                entries(key, found)?
            }
            place => match snapshot {
                None if view != "db" => place!(self.transaction(view).cursor(&family, ..), place, key),
                snapshot => place!(family.cursor_with(all.snapshot(snapshot)), place, key),
            },
        })
    }

    fn stream(&mut self, verb: &str, args: &[Text]) -> Result<Answer> {
        let (view, family, key) = (word(&args[0]), self.family(&args[1]), &args[2]);
        let reader: Option<ValueReader> = match self.snapshots.get(view) {
            Some(s) => s.of(&family).get_reader(key)?,
            None => family.get_reader(key)?,
        };
        let Some(mut reader) = reader else { return Ok(words("none", [""; 0])) };
        if verb == "length" {
            return Ok(words("count", [reader.len().to_string()]));
        }
        let mut piece = vec![0; number(&args[4])];
        let read = reader.read_at(number(&args[3]), &mut piece)?;
        piece.truncate(read);
        Ok(words("value", [piece]))
    }

    fn write(&mut self, verb: &str, args: &[Text]) -> Option<Result<Answer>> {
        let done = (|| {
            match verb {
                "put" => write!(self, args, put(&args[2], &args[3])),
                "put_repeated" => write!(self, args, put(&args[2], &args[3].repeat(number(&args[4])))),
                "put_ttl" => {
                    write!(self, args, put_ttl(&args[2], &args[3], Duration::from_millis(number(&args[4]))));
                }
                "put_until" => {
                    let (target, family, ms) = (word(&args[0]), self.family(&args[1]), number(&args[4]));
                    let at = UNIX_EPOCH + Duration::from_millis(ms);
                    match self.batches.get_mut(target) {
                        Some(batch) => batch.put_until(&family, &args[2], &args[3], at)?,
                        None => self.transaction(target).put_until(&family, &args[2], &args[3], at)?,
                    }
                }
                "delete" => write!(self, args, delete(&args[2])),
                "single_delete" => write!(self, args, single_delete(&args[2])),
                "delete_range" => write!(self, args, delete_range(&args[2]..&args[3])),
                "delete_prefix" => write!(self, args, delete_prefix(&args[2])),
                "compare_and_swap" => {
                    let (expected, desired) = (from_optional(&args[2]), from_optional(&args[3]));
                    return Ok(Some(match self.family(&args[0]).compare_and_swap(&args[1], expected, desired)? {
                        Ok(()) => words("swapped", [""; 0]),
                        Err(found) => words("found", [optional(found.as_deref())]),
                    }));
                }
                "batch" => drop(self.batches.insert(word(&args[0]).to_owned(), WriteBatch::new())),
                "batch_clear" => self.batches.get_mut(word(&args[0])).expect("a batch").clear(),
                "batch_count" => {
                    return Ok(Some(words("count", [self.batches[word(&args[0])].len().to_string()])));
                }
                "write" => {
                    let db = self.db().clone();
                    let batch = self.batches.get_mut(word(&args[0])).expect("a batch");
                    db.write_with(batch, &kingtide::WriteOptions::default())?;
                }
                _ => return Ok(None),
            }
            Ok(Some(words("ok", [""; 0])))
        })();
        done.transpose()
    }

    fn open(&mut self, args: &[Text]) -> Result<()> {
        self.transactions.clear();
        self.snapshots.clear();
        self.batches.clear();
        self.families.clear();
        self.db = None;
        let mut options = Options::default();
        options.order = settings(args, &mut |name, value| options.set(name, value))?;
        let db = Db::open(&self.path, options)?;
        self.families.insert("default".to_owned(), db.default_family().clone());
        self.db = Some(db);
        Ok(())
    }

    fn bind_family(&mut self, handle: &[u8], family: ColumnFamily) {
        self.families.insert(word(handle).to_owned(), family);
    }

    fn manage(&mut self, verb: &str, args: &[Text]) -> Option<Result<Answer>> {
        let name = |n: usize| word(&args[n]);
        let done = (|| {
            match verb {
                "open" => self.open(args)?,
                "close" => self.db().close()?,
                "flush" => self.db().flush()?,
                "compact" => self.db().compact()?,
                "sync" => self.db().sync()?,
                "create_family" => {
                    let mut options = FamilyOptions::default();
                    let order = settings(&args[2..], &mut |name, value| options.set(name, value))?;
                    let family = self.db().create_family_ordered(name(1), options, order)?;
                    self.bind_family(&args[0], family);
                }
                "family" => {
                    let family = self.db().family(name(1))?;
                    self.bind_family(&args[0], family);
                }
                "clone_family" => {
                    let family = self.db().clone_family(name(1), name(2))?;
                    self.bind_family(&args[0], family);
                }
                "drop_family" => self.db().drop_family(name(0))?,
                "rename_family" => self.db().rename_family(name(0), name(1))?,
                "families" => return Ok(Some(words("names", self.db().families()))),
                "family_name" => return Ok(Some(words("text", [self.family(&args[0]).name()]))),
                "family_order" => return Ok(Some(words("text", [self.family(&args[0]).order().name()]))),
                "set_option" => self.db().set_option(name(0), name(1))?,
                "set_family_option" => self.family(&args[0]).set_option(name(1), name(2))?,
                "family_option" => {
                    let unknown = || Error::new(ErrorKind::NotFound, "no such option");
                    let text = self.family(&args[0]).options().get(name(1)).ok_or_else(unknown)?;
                    return Ok(Some(words("text", [text])));
                }
                _ => return self.snapshots(verb, args),
            }
            Ok(Some(words("ok", [""; 0])))
        })();
        done.transpose()
    }

    fn snapshots(&mut self, verb: &str, args: &[Text]) -> Result<Option<Answer>> {
        let name = |n: usize| word(&args[n]);
        let snapshot = match verb {
            "snapshot" => self.db().snapshot(),
            "name_snapshot" => self.db().create_named_snapshot(name(1))?,
            "named_snapshot" => self.db().named_snapshot(name(1))?,
            "snapshot_names" => {
                let names = self.db().named_snapshots().into_iter().map(|(name, _)| name);
                return Ok(Some(words("names", names)));
            }
            "drop_named_snapshot" => {
                self.db().drop_named_snapshot(name(0))?;
                return Ok(Some(words("ok", [""; 0])));
            }
            "free_snapshot" => {
                self.snapshots.remove(name(0)).expect("a snapshot");
                return Ok(Some(words("ok", [""; 0])));
            }
            _ => return Ok(None),
        };
        self.snapshots.insert(name(0).to_owned(), snapshot);
        Ok(Some(words("ok", [""; 0])))
    }

    fn transact(&mut self, verb: &str, args: &[Text]) -> Option<Result<Answer>> {
        let done = (|| {
            match verb {
                "begin" => self.begin(args)?,
                "commit_prepared" => drop(self.db().commit_prepared(&args[0])?),
                "rollback_prepared" => self.db().rollback_prepared(&args[0])?,
                "prepared" => {
                    return Ok(words("names", self.db().recover_prepared().into_iter().map(|p| p.xid)));
                }
                "free_transaction" => drop(self.transactions.remove(word(&args[0])).expect("a transaction")),
                _ => return self.verb(verb, args),
            }
            Ok(words("ok", [""; 0]))
        })();
        Some(done)
    }

    fn begin(&mut self, args: &[Text]) -> Result<()> {
        let level = Isolation::from_name(word(&args[1])).expect("a level");
        let has = |flag: &str| args[2..].iter().any(|a| a == flag.as_bytes());
        let options = TransactionOptions::new(level)
            .locking(has("locking"))
            .read_only(has("read_only"))
            .lock_timeout(has("no_wait").then_some(Duration::ZERO));
        let txn = self.db().begin_with(options)?;
        self.transactions.insert(word(&args[0]).to_owned(), txn);
        Ok(())
    }

    /// The verbs of a transaction.
    fn verb(&mut self, verb: &str, args: &[Text]) -> Result<Answer> {
        let name = args.get(1).map_or("", |a| word(a)).to_owned();
        let family = self.families.get(&name).cloned();
        let txn = self.transaction(word(&args[0]));
        match verb {
            "commit" => drop(txn.commit()?),
            "rollback" => txn.rollback()?,
            "reset" => txn.reset()?,
            "savepoint" => txn.set_savepoint(&name)?,
            "rollback_to" => txn.rollback_to_savepoint(&name)?,
            "release" => txn.release_savepoint(&name)?,
            "refresh" => txn.refresh_snapshot()?,
            "prepare" => txn.prepare(&args[1])?,
            "get_for_update" => return Ok(one(txn.get_for_update(&family.expect("a family"), &args[2])?)),
            "get_for_share" => return Ok(one(txn.get_for_share(&family.expect("a family"), &args[2])?)),
            "lock" => {
                let mode = if args[3] == b"shared" { LockMode::Shared } else { LockMode::Exclusive };
                txn.lock(&family.expect("a family"), &args[2], mode)?;
            }
            _ => panic!("no operation `{verb}`"),
        }
        Ok(words("ok", [""; 0]))
    }
}
