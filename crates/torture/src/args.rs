//! The command line.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// What to type.
pub const USAGE: &str = "\
usage: kingtide-torture [--minutes N] [--seed S] [--dir D] [--workers K] [--other-kt PATH] [--full]
       kingtide-torture inspect --dir D

Kills processes that use a database, again and again, and compares what is left with what must be there.

  --minutes N      how long (1)
  --seed S         what kills and options are drawn from (from entropy; it is printed)
  --dir D          where the databases lie (target/torture)
  --workers K      how many databases at once (1)
  --other-kt PATH  kt of another build, which has its turn on the killed databases
  --full           fail if a rare path was never taken

inspect opens a copy of the database that a failed round found, in the directory that the failure named.";

/// Options by name; flags have an empty value.
pub fn parse(args: &[String], flags: &[&str]) -> Result<BTreeMap<String, String>, String> {
    let mut options = BTreeMap::new();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let name = arg.strip_prefix("--").ok_or_else(|| format!("what is '{arg}'?\n{USAGE}"))?;
        let value = if flags.contains(&name) { Some(String::new()) } else { rest.next().cloned() };
        options.insert(name.to_owned(), value.ok_or_else(|| format!("--{name} wants a value\n{USAGE}"))?);
    }
    Ok(options)
}

/// Takes an option that is a number.
pub fn number<T: std::str::FromStr>(options: &mut BTreeMap<String, String>, name: &str) -> Result<Option<T>, String> {
    match options.remove(name) {
        None => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| format!("--{name}: '{text}' is no number\n{USAGE}")),
    }
}

/// What the driver asks of a child: its arguments.
#[derive(Clone, Debug)]
pub struct Orders {
    pub dir: PathBuf,
    pub seed: u64,
    pub session: u64,
    /// Families to have, more or less.
    pub families: u64,
    /// Default durability `None`.
    pub none: bool,
    /// Close after so many milliseconds of work.
    pub close_after: Option<u64>,
    /// End after the contents were verified.
    pub only_verify: bool,
}

/// The arguments of a child.
pub fn of_orders(orders: &Orders) -> Vec<String> {
    let mut args = vec!["child".to_owned()];
    let mut add = |name: &str, value: String| args.extend([format!("--{name}"), value]);
    add("dir", orders.dir.to_string_lossy().into_owned());
    add("seed", orders.seed.to_string());
    add("session", orders.session.to_string());
    add("families", orders.families.to_string());
    if let Some(ms) = orders.close_after {
        add("close-after", ms.to_string());
    }
    args.extend(orders.none.then(|| "--none".to_owned()));
    args.extend(orders.only_verify.then(|| "--only-verify".to_owned()));
    args
}

/// A child's orders from its arguments.
pub fn orders(args: &[String]) -> Result<Orders, String> {
    let mut options = parse(args, &["none", "only-verify"])?;
    Ok(Orders {
        dir: PathBuf::from(options.remove("dir").ok_or("--dir is missing")?),
        seed: number(&mut options, "seed")?.ok_or("--seed is missing")?,
        session: number(&mut options, "session")?.ok_or("--session is missing")?,
        families: number(&mut options, "families")?.unwrap_or(20),
        close_after: number(&mut options, "close-after")?,
        none: options.contains_key("none"),
        only_verify: options.contains_key("only-verify"),
    })
}
