//! What figures depend on besides the engines' versions: two runs are comparable where it is the same.

use super::Results;
use crate::measure::{show_bytes, show_count};
use std::collections::BTreeMap;

/// Every condition of a run by its name, in words.
fn conditions(results: &Results) -> BTreeMap<String, String> {
    let (meta, s) = (&results.meta, &results.meta.settings);
    let count = |n: u64| show_count(n as f64);
    let optimised = if meta.optimised { "release" } else { "unoptimised" };
    let mut all: Vec<(&str, String)> = vec![
        ("items", count(s.items)),
        ("users", count(s.users)),
        ("value size", show_bytes(s.value_size as f64)),
        ("seed", s.seed.to_string()),
        ("loading threads", s.seed_threads.to_string()),
        ("end of a point", s.limit.map_or("none".into(), |l| l.to_string())),
        ("warm-up", format!("{} s", s.warmup)),
        ("loop", s.open_loop().unwrap_or_else(|| "closed".into())),
        ("fsync of every write", if s.sync { "yes" } else { "no" }.into()),
        ("verification", if s.verify { "on" } else { "off" }.into()),
        ("build", optimised.into()),
    ];
    all.extend(meta.machine.as_ref().map(|m| ("machine", m.description.clone())));
    let mut named: BTreeMap<String, String> = all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    for engine in results.engines.iter().filter(|e| e.took_part()) {
        named.insert(format!("durability of {}", engine.name), engine.durability.clone());
        named.extend(engine.options.iter().map(|(option, v)| (format!("{option} of {}", engine.name), v.clone())));
    }
    let scripts = meta.replay.lines().filter_map(|l| l.strip_prefix("script_hash = ")?.split_once(':'));
    named.extend(scripts.map(|(hash, name)| (format!("script of {name}"), hash.to_owned())));
    named
}

/// The conditions that two runs both tell and that are not the same: `value size differs: 4.00 KiB before, 100 B after`.
pub fn unlike(before: &Results, after: &Results) -> Vec<String> {
    let (before, after) = (conditions(before), conditions(after));
    let both = before.iter().filter_map(|(name, b)| after.get(name).map(|a| (name, b, a)));
    both.filter(|(_, b, a)| b != a).map(|(name, b, a)| format!("{name} differs: {b} before, {a} after")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;
    use crate::lua::point::Limit;

    #[test]
    fn each_condition_that_differs_is_named_with_both_values() {
        let before = run(&[("kingtide", &[100; 3])]);
        assert_eq!(unlike(&before, &run(&[("kingtide", &[300; 3]), ("rocksdb", &[1])])), Vec::<String>::new());
        let mut after = before.clone();
        after.meta.replay = "[bench]\nscript_hash = 00ff:mixed\nworkload = mixed\n".into();
        assert_eq!(unlike(&before, &after), Vec::<String>::new(), "what only one side tells is not compared");
        let mut before = before;
        before.meta.replay = "script_hash = 0a0a:mixed\n".into();
        (before.meta.settings.items, after.meta.settings.items) = (100_000, 5_000);
        (before.meta.settings.value_size, after.meta.settings.value_size) = (4096, 100);
        after.meta.settings.limit = Some(Limit::Units(7_000));
        after.meta.settings.rate = Some(500.0);
        after.meta.settings.sync = true;
        after.engines[0].options[0].1 = "4096".into();
        let expected = [
            "end of a point differs: 1 s a point before, 7,000 units a point after",
            "fsync of every write differs: no before, yes after",
            "items differs: 100,000 before, 5,000 after",
            "loop differs: closed before, 500 units/s are due after",
            "memtable_size of kingtide differs: 1048576 before, 4096 after",
            "script of mixed differs: 0a0a before, 00ff after",
            "value size differs: 4.00 KiB before, 100 B after",
        ];
        assert_eq!(unlike(&before, &after), expected);
    }
}
