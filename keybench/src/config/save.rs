//! Writing a run down so that it can be run again: `--save-config`, and `replay.cnf` in a report's directory.

use crate::error::{Error, Result};
use crate::lua;
use crate::lua::script::Script;
use crate::options::parse_opt;
use std::fmt;
use std::path::Path;

/// A configuration: sections of keys and values.
pub struct Saved(Vec<(String, Vec<(String, String)>)>);

impl Saved {
    /// What `args` comes to, defaults included, so that a later program with other defaults runs the same.
    ///
    /// # Errors
    /// A value that the format has no form for: one with a line break or what would be read as a comment.
    pub fn of(args: &lua::Args) -> Result<Saved> {
        let mut sections = vec![(super::FIRST.to_owned(), bench(args)?)];
        for opt in &args.engine_flags.opts {
            let (engine, key, value) = parse_opt(opt)?;
            match sections.iter_mut().skip(1).find(|(name, _)| *name == engine) {
                // Of two the engine takes the last, a reader of the file the first.
                Some((_, keys)) => {
                    keys.retain(|(k, _)| *k != key);
                    keys.push((key, value));
                }
                None => sections.push((engine, vec![(key, value)])),
            }
        }
        for (name, keys) in &sections {
            for (key, value) in keys {
                if value.contains(['\n', '\r']) || super::ini::without_comment(value) != value {
                    return Err(Error::usage(format!(
                        "[{name}] {key}: '{value}' cannot be written into a configuration"
                    )));
                }
            }
        }
        Ok(Saved(sections))
    }
}

/// A path that means the same in every directory.
fn anywhere(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

fn bench(args: &lua::Args) -> Result<Vec<(String, String)>> {
    let list = |values: &mut dyn Iterator<Item = String>| values.collect::<Vec<_>>().join(",");
    let engine = &args.engine_flags;
    let mut keys: Vec<(&str, String)> = vec![("backend", args.backend.clone())];
    if !args.threads.is_empty() {
        keys.push(("threads", list(&mut args.threads.iter().map(usize::to_string))));
    }
    if !args.batch.is_empty() {
        keys.push(("batch", list(&mut args.batch.iter().map(u64::to_string))));
    }
    let optional = [
        ("sweep", (!args.sweep.is_empty()).then(|| list(&mut args.sweep.iter().map(ToString::to_string)))),
        ("seed_threads", args.seed_threads.map(|n| n.to_string())),
        ("ops", args.ops.map(|n| n.to_string())),
        ("secs", args.secs.map(|s| s.to_string())),
        ("speed", args.speed.map(|s| s.to_string())),
        ("rate", args.rate.map(|r| r.to_string())),
        ("settle", args.settle.map(|on| u8::from(on).to_string())),
        ("isolation", args.txn_flags.isolation.map(|i| i.name().to_owned())),
        ("txn_mode", args.txn_flags.txn_mode.map(|m| m.name().to_owned())),
        ("report", (!args.report.is_empty()).then(|| list(&mut args.report.iter().map(ToString::to_string)))),
    ];
    keys.extend(optional.into_iter().filter_map(|(k, v)| v.map(|v| (k, v))));
    let switch = |on: bool| u8::from(on).to_string();
    keys.extend([
        ("seed_once", switch(args.seed_once)),
        ("rate_sweep", switch(args.rate_sweep)),
        ("warmup", args.warmup.to_string()),
        ("repeat", args.repeat.to_string()),
        ("users", args.users.to_string()),
        ("items", args.items.to_string()),
        ("value_size", args.value_size.to_string()),
        ("seed", args.seed.to_string()),
        ("pin", args.pin.to_string()),
        ("verify", switch(args.verify)),
        ("equal", switch(args.equal)),
        ("ignore_free_space", switch(args.ignore_free_space)),
        ("timeline", args.timeline.to_string()),
        ("probe", args.probe.to_string()),
        ("report_dir", anywhere(&args.report_dir)),
        ("auto_plot", switch(args.auto_plot)),
        ("data_dir", anywhere(&args.data_dir)),
        ("sync", switch(engine.sync)),
        ("memtable_size", engine.memtable_size.to_string()),
        ("block_cache_size", engine.block_cache_size.to_string()),
        ("compression", engine.compression.to_string()),
        ("bloom_fp", engine.bloom_fp.to_string()),
    ]);
    let mut keys: Vec<(String, String)> = keys.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
    for workload in &args.workloads {
        let (name, hash) = (Script::name_anywhere(workload), Script::find(workload)?.hash());
        keys.push(("workload".to_owned(), name.clone()));
        keys.push(("script_hash".to_owned(), format!("{hash}:{name}")));
    }
    Ok(keys)
}

impl fmt::Display for Saved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# keybench run --config THIS_FILE")?;
        for (name, keys) in &self.0 {
            writeln!(f, "\n[{name}]")?;
            for (key, value) in keys {
                writeln!(f, "{key} = {value}")?;
            }
        }
        Ok(())
    }
}
