//! `--config`: a run written down, and `--save-config`: writing one down.
//!
//! A configuration is the command line in another form: each key of `[bench]` is a flag ([`KEYS`]), each key of an engine's
//! section is an option of that engine (`--opt engine.key=value`). So it becomes flags, checked one by one to tell which
//! line is wrong, and what the command line gives itself takes the place of what the file says.

mod ini;
mod save;

pub use save::Saved;

use crate::engine::{self, Checked};
use crate::error::{Error, Result};
use crate::lua;
use crate::lua::script::Script;
use crate::say::note;
use crate::ycsb::Properties;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args as _, Command, FromArgMatches as _};
use ini::{Entry, FIRST, Ini, Section};
use kingtide_base::options::nearest;
use std::ffi::OsString;
use std::path::Path;

/// A key of `[bench]` and the flag that it stands for.
struct Key {
    /// In the file.
    name: &'static str,
    /// The field of [`lua::Args`], which is clap's name of the flag.
    field: &'static str,
    form: Form,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// `--flag value`.
    Value,
    /// `--flag` or nothing; in the file 1, 0, true, false, on, off, yes, no.
    Switch,
    /// Without a flag; may be repeated.
    Positional,
    /// `--flag value`; may be repeated.
    Repeated,
    /// A number where 0 means that the flag is not given.
    Unless0,
}

const fn key(name: &'static str, form: Form) -> Key {
    Key { name, field: name, form }
}

/// Every key of `[bench]`.
const KEYS: &[Key] = &[
    key("backend", Form::Value),
    key("threads", Form::Value),
    key("batch", Form::Value),
    key("sweep", Form::Value),
    key("seed_threads", Form::Unless0),
    key("seed_once", Form::Switch),
    key("ops", Form::Unless0),
    key("secs", Form::Unless0),
    key("warmup", Form::Unless0),
    key("rate", Form::Unless0),
    key("rate_sweep", Form::Switch),
    key("repeat", Form::Value),
    key("users", Form::Value),
    key("items", Form::Value),
    key("value_size", Form::Value),
    key("speed", Form::Unless0),
    key("seed", Form::Value),
    key("pin", Form::Value),
    key("verify", Form::Switch),
    key("settle", Form::Switch),
    key("equal", Form::Switch),
    key("ignore_free_space", Form::Switch),
    key("timeline", Form::Value),
    key("probe", Form::Value),
    key("report", Form::Value),
    key("report_dir", Form::Value),
    key("auto_plot", Form::Switch),
    key("data_dir", Form::Value),
    key("isolation", Form::Value),
    key("txn_mode", Form::Value),
    key("sync", Form::Switch),
    key("memtable_size", Form::Value),
    key("block_cache_size", Form::Value),
    key("compression", Form::Value),
    key("bloom_fp", Form::Value),
    key("script_hash", Form::Repeated),
    Key { name: "workload", field: "workloads", form: Form::Positional },
];

/// Flags of which a point has one: giving either on the command line takes the place of both in the file.
const EITHER: [&str; 2] = ["ops", "secs"];

/// The arguments of a run. `raw` is the command line behind `run`, of which `args` was made; where it names a configuration,
/// what that says is added.
pub fn complete(args: lua::Args, raw: &[OsString]) -> Result<lua::Args> {
    let (complete, raw) = match &args.config {
        None => (args, raw.to_vec()),
        Some(path) => merge(&Ini::read(path)?, raw)?,
    };
    let complete = with_properties(complete, &raw)?;
    if complete.workloads.is_empty() {
        let what = "no workload: name a Lua file, or one of the bundled ones (keybench run --help)";
        return Err(Error::usage(match &complete.config {
            None => what.to_owned(),
            Some(path) => format!("{what}, or give workload = in [{FIRST}] of {}", path.display()),
        }));
    }
    Ok(complete)
}

/// The same with the counts and sizes of a YCSB property file among the workloads, where no flag gives them.
fn with_properties(args: lua::Args, raw: &[OsString]) -> Result<lua::Args> {
    let mut flags = Vec::new();
    for name in &args.workloads {
        let Some(text) = Script::properties(name) else { continue };
        let own = Properties::parse(Path::new(name), &text)?.flags()?;
        if !flags.is_empty() && flags != own {
            return Err(Error::usage("property files with different counts or sizes: run them one by one"));
        }
        flags = own;
    }
    if flags.is_empty() {
        return Ok(args);
    }
    let given = parse(raw).map_err(|e| Error::usage(first_line(&e)))?;
    let given = |field: &str| given.value_source(field) == Some(ValueSource::CommandLine);
    let replaced = |field: &str| given(field) || EITHER.contains(&field) && EITHER.iter().any(|f| given(f));
    let added = flags.into_iter().filter(|(field, _)| !replaced(field)).map(|(_, flag)| flag);
    let all: Vec<OsString> = added.chain(raw.iter().cloned()).collect();
    let wrong = |e: clap::Error| Error::usage(first_line(&e));
    lua::Args::from_arg_matches(&parse(&all).map_err(wrong)?).map_err(wrong)
}

/// The arguments that a file and the command line come to, and the flags that mean the same.
fn merge(ini: &Ini, raw: &[OsString]) -> Result<(lua::Args, Vec<OsString>)> {
    let on_line = parse(raw).map_err(|e| Error::usage(first_line(&e)))?;
    let given = |field: &str| on_line.value_source(field) == Some(ValueSource::CommandLine);
    let mut flags = Vec::new();
    for section in ini.sections.iter().filter(|s| s.name == FIRST) {
        for (key, entry) in bench_entries(ini, section)? {
            // Even what the command line replaces must be right.
            let flag = flag(ini, key, entry)?;
            let replaced = given(key.field) || EITHER.contains(&key.field) && EITHER.iter().any(|f| given(f));
            if !replaced {
                flags.extend(flag);
            }
        }
    }
    // What comes later counts where an engine is given an option twice, so the command line comes last.
    let with = |opts: Vec<OsString>| -> Result<(lua::Args, Vec<OsString>)> {
        let all: Vec<OsString> = flags.iter().cloned().chain(opts).chain(raw.iter().cloned()).collect();
        let wrong = |e: clap::Error| Error::usage(format!("{}: {}", ini.path.display(), first_line(&e)));
        Ok((lua::Args::from_arg_matches(&parse(&all).map_err(wrong)?).map_err(wrong)?, all))
    };
    let engines = engine::parse_names(&with(Vec::new())?.0.backend)?;
    with(engine_flags(ini, &engines)?)
}

/// What the engines' sections say, as flags; sections of engines that take no part are only checked.
fn engine_flags(ini: &Ini, engines: &[String]) -> Result<Vec<OsString>> {
    let mut flags = Vec::new();
    for section in ini.sections.iter().filter(|s| s.name != FIRST) {
        let name = engine::canonical_name(&section.name)
            .map_err(|e| ini.wrong(section.line, format!("[{}]: {e}", section.name)))?;
        for (at, entry) in section.entries.iter().enumerate() {
            if let Some(first) = section.entries[..at].iter().rfind(|before| before.key == entry.key) {
                let (path, line, key) = (ini.path.display(), entry.line, &entry.key);
                note!("warning: {path}:{line}: {key} was given in line {} already; this one counts", first.line);
            }
            let place = |e| ini.wrong(entry.line, format!("[{}] {}: {e}", section.name, entry.key));
            match engine::registry::check_option(name, &entry.key, &entry.value).map_err(place)? {
                Checked::Gone(why) => note!("warning: {}", place(Error::usage(why))),
                Checked::Known if engines.iter().any(|e| e == name) => {
                    flags.push(format!("--opt={name}.{}={}", entry.key, entry.value).into());
                }
                Checked::Known => {}
            }
        }
    }
    Ok(flags)
}

/// The entries of `[bench]` with their keys. Of a key given twice the first counts, as ever, but not in silence.
fn bench_entries<'a>(ini: &Ini, section: &'a Section) -> Result<Vec<(&'static Key, &'a Entry)>> {
    let mut out: Vec<(&'static Key, &Entry)> = Vec::new();
    for entry in &section.entries {
        let Some(key) = KEYS.iter().find(|k| k.name == entry.key) else {
            let names: Vec<&str> = KEYS.iter().map(|k| k.name).collect();
            let hint = nearest(&entry.key, &names);
            return Err(ini.wrong(entry.line, format!("[{FIRST}] has no key '{}'{hint}", entry.key)));
        };
        let before =
            out.iter().find(|(k, _)| k.name == key.name && !matches!(k.form, Form::Positional | Form::Repeated));
        if let Some((_, first)) = before {
            let (path, line, name) = (ini.path.display(), entry.line, key.name);
            note!("warning: {path}:{line}: {name} was given in line {} already, which counts", first.line);
            continue;
        }
        out.push((key, entry));
    }
    Ok(out)
}

/// The argument that an entry stands for, if any; checked.
fn flag(ini: &Ini, key: &Key, entry: &Entry) -> Result<Option<OsString>> {
    let wrong = |e: String| ini.wrong(entry.line, format!("{}: {e}", entry.key));
    let long = format!("--{}", key.name.replace('_', "-"));
    let argument = match key.form {
        Form::Value | Form::Repeated => format!("{long}={}", entry.value),
        Form::Positional => entry.value.clone(),
        Form::Unless0 if entry.value.parse() == Ok(0.0) => return Ok(None),
        Form::Unless0 => format!("{long}={}", entry.value),
        Form::Switch => {
            let on = <bool as kingtide_base::options::OptionValue>::parse_value(&entry.value).map_err(wrong)?;
            format!("{long}={on}")
        }
    };
    if entry.value.is_empty() {
        return Err(wrong("has no value".into()));
    }
    match key.name {
        "backend" => drop(engine::parse_names(&entry.value).map_err(|e| wrong(e.to_string()))?),
        "workload" => drop(lua::script::Script::find(&entry.value).map_err(|e| wrong(e.to_string()))?),
        _ => {}
    }
    let argument = OsString::from(argument);
    parse(std::slice::from_ref(&argument)).map_err(|e| wrong(first_line(&e)))?;
    Ok(Some(argument))
}

/// The flags as clap understands them.
fn parse(flags: &[OsString]) -> Result<ArgMatches, clap::Error> {
    let command = lua::Args::augment_args(Command::new("run").no_binary_name(true));
    command.try_get_matches_from(flags)
}

/// What clap says, without its word for errors and without advice on the command line.
fn first_line(e: &clap::Error) -> String {
    let text = e.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

#[cfg(test)]
mod tests;
