//! Every fault against every verb: `--verify` must find it wherever a script can meet it.

use super::point::{self, Message};
use super::tests::spec;
use super::truth::Answers;
use crate::engine;
use crate::engine::faulty::{Fault, Faulty, struck};

/// For each verb a script that answers wrongly if the verb does. Keys are `k0` to `k2999`; 3,000 units a run.
const VERBS: [(&str, &str); 8] = [
    ("put", "return { run = function(ctx) local k = mine(ctx); kv.put(k, 'old'); kv.put(k, 'new') end }"),
    ("get", "return { load = load, run = function(ctx) kv.get(mine(ctx)) end }"),
    ("del", "return { run = function(ctx) local k = mine(ctx); kv.put(k, 'v'); kv.del(k); kv.get(k) end }"),
    ("mput", "return { run = function(ctx) for _ = 1, 2 do kv.mput(rows(ctx)) end end }"),
    ("mget", "return { load = load, run = function(ctx) kv.mget(keys(ctx)) end }"),
    (
        "mdel",
        "return { run = function(ctx) local all = keys(ctx); \
     kv.mput(rows(ctx)); kv.mget(all); kv.mdel(all); kv.mget(all) end }",
    ),
    ("range", "return { load = load, run = function(ctx) kv.range(mine(ctx), 'k9', 10) end }"),
    ("scan", "return { load = load, run = function(ctx) kv.scan(mine(ctx), nil, function() end, 10) end }"),
];

const COMMON: &str = "
local function mine(ctx) return 'k' .. ((ctx.iter - 1) * ctx.threads + ctx.thread) end
local function load(ctx) for i = 0, 2999 do kv.put('k' .. i, 'v' .. i) end end
local function keys(ctx)
  local all = {}
  for i = 0, 7 do all[i + 1] = mine(ctx) .. '-' .. i end
  all[8] = mine(ctx)
  return all
end
local function rows(ctx)
  local all = keys(ctx)
  for i, k in ipairs(all) do all[i] = { key = k, val = 'v' } end
  return all
end
";

/// What `verb` found in its own answers, and what the closing scan found.
fn found(verb: &str, fault: Option<Fault>, threads: usize) -> (Answers, Answers) {
    let (_, script) = VERBS.iter().find(|(name, _)| *name == verb).unwrap();
    let mut s = spec(&format!("{COMMON}{script}"), threads);
    s.limit = point::Limit::Units(3_000);
    let open = |dir: &std::path::Path| {
        let store = engine::registry::open("memory", dir, &s.options)?;
        Ok(match fault {
            Some(fault) => Faulty::engine(store, fault),
            None => store,
        })
    };
    let (mut own, mut closing) = (Answers::default(), Answers::default());
    point::run(&s, &open, &mut |message| {
        match message {
            Message::Done { measured: m, .. } => {
                own = Answers { verified: m.verified, wrong: m.wrong, examples: m.examples }
            }
            Message::Checked(answers) => closing = answers,
            _ => {}
        }
        Ok(())
    })
    .unwrap();
    (own, closing)
}

#[test]
fn a_right_engine_is_found_right_by_every_verb() {
    assert!((0..3_000).filter(|i| struck(format!("k{i}").as_bytes())).count() >= 3, "keys that faults are about");
    for (verb, _) in VERBS {
        for threads in [1, 3] {
            let (own, closing) = found(verb, None, threads);
            assert_eq!((own.wrong, closing.wrong), (0, 0), "{verb}: {own:?} {closing:?}");
            assert!(own.verified > 0 || ["put", "mput"].contains(&verb), "{verb}: nothing was checked");
            assert!(closing.verified > 0, "{verb}");
        }
    }
}

#[test]
fn every_fault_is_found_by_every_verb_that_meets_it() {
    use Fault::*;
    let reads = &["get", "mget", "range", "scan"][..];
    let ranges = &["range", "scan"][..];
    let mut checked = 0;
    for (fault, verbs, leaves_a_trace) in [
        (LosesKeys, reads, &["put", "mput"][..]),
        (DamagesValues, reads, &["put", "mput"]),
        (DamagesMiddles, reads, &["put", "mput"]),
        (SwapsValues, reads, &["put", "mput"]),
        (CutsValues, reads, &["put", "mput"]),
        (KeepsOldValues, &[], &["put", "mput"]),
        (HalvesBatches, &["mdel"], &["mput"]),
        (MissesGets(7), &["get", "mget"], &[]),
        (SwapsAnswers, &["mget"], &[]),
        (SkipsAnswers, &["mget"], &[]),
        (RepeatsAnswers, &["mget"], &[]),
        (SeeksShort, ranges, &[]),
        (SeeksLong, ranges, &[]),
        (DropsRows, ranges, &["put", "get"]),
        (MixesRows, ranges, &["put", "get"]),
        (RepeatsRows, ranges, &["put", "get"]),
        (EndsEarly, ranges, &["put", "get"]),
        (ForgetsDeletes, &["del", "mdel"], &["del", "mdel"]),
        // A script's ranges and scans have a new cursor each, so only native seeks and ranges meet `SeekStays`.
    ] {
        for (verb, _) in VERBS {
            let (finds, leaves) = (verbs.contains(&verb), leaves_a_trace.contains(&verb));
            if !finds && !leaves {
                continue;
            }
            let (own, closing) = found(verb, Some(fault), 2);
            assert!(own.wrong < own.verified || own.verified == 0, "{fault:?} {verb}: {own:?}");
            assert!(own.wrong > 0 || !finds, "{fault:?} is not found by {verb}: {} checked", own.verified);
            assert!(closing.wrong > 0 || !leaves, "{fault:?} after {verb} is not found by the closing scan");
            assert_eq!(own.wrong > 0, !own.examples.is_empty());
            checked += usize::from(finds) + usize::from(leaves);
        }
    }
    println!("{checked} pairs of a fault and a verb");
}
