//! What scripts may rely on, checked on the reference engine and on one that fails.

use super::args::{Args, Plan};
use super::point::{self, Limit, Measured, Message, Point, Spec};
use super::script::{self, Context, Script, Swept};
use super::truth::Truth;
use super::worker::{KIND_NAMES, Shared, Tracker, Worker};
use crate::clock::Clock;
use crate::engine::faulty::{self, Fault, Faulty};
use crate::engine::txn::{Isolation, Transactions, TxnMode};
use crate::engine::{self, Bounds, Engine, EngineOptions};
use crate::error::{Error, Result};
use crate::pin::Pin;
use clap::Parser;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

fn worker(verify: bool) -> Shared {
    let store = engine::registry::open("memory", Path::new(""), &EngineOptions::default()).unwrap();
    let truth = verify.then(|| Arc::new(Truth::default()));
    Worker::new(store.session().unwrap(), Clock::calibrated(), truth, Arc::<Tracker>::default())
}

/// Runs Lua that asserts things; returns the worker for a look at its figures.
pub fn lua(source: &str, verify: bool) -> mlua::Result<Shared> {
    let shared = worker(verify);
    let script = Script { origin: "test".into(), source: "return { run = function() end }".into() };
    let loaded = script.load(Some(&shared), 1).unwrap();
    loaded.lua.load(source).exec()?;
    Ok(shared)
}

const VERBS: &str = r#"
    assert(kv.get("a") == nil)
    kv.put("a", "1"); kv.put("b", "2"); kv.put("c", ""); kv.put("d", "4")
    assert(kv.get("a") == "1" and kv.get("c") == "")
    kv.put("a", "11")
    assert(kv.get("a") == "11")
    assert(kv.del("b") == true and kv.get("b") == nil)
    assert(kv.del("never") == true)
    local rows = kv.range("a", "d")                 -- half-open
    assert(#rows == 2 and rows[1].key == "a" and rows[1].val == "11" and rows[2].key == "c" and rows[2].val == "")
    assert(#kv.range("a", "z", 2) == 2 and #kv.range("a", nil) == 3 and #kv.range("b", "b") == 0)
    assert(#kv.range("a", "z", 0) == 3 and #kv.range("a", "z", -1) == 3)   -- no limit
    kv.mput({ { key = "m1", val = "x" }, { key = "m2", val = "y" } })
    local got = kv.mget({ "m2", "absent", "m1" })
    assert(got[1] == "y" and got[2] == nil and got[3] == "x")
    assert(kv.mdel({ "m1", "absent" }) == 2 and kv.mdel({}) == 0)
    assert(kv.get("m1") == nil and kv.get("m2") == "y")
    kv.mput({}); kv.mdel({}); kv.mget({})
    local seen = {}
    assert(kv.scan("a", "z", function(k, v) seen[#seen + 1] = k .. "=" .. v end) == 4)
    assert(table.concat(seen, " ") == "a=11 c= d=4 m2=y")
    assert(kv.scan("a", "z", function() return true end) == 1)   -- a true answer stops
    assert(kv.scan("a", "z", function() return false end, 2) == 2)
    assert(kv.scan("x", nil, function() error("nothing here") end) == 0)
    local binary = string.char(0, 255, 10, 0)
    kv.put(binary, binary)
    assert(kv.get(binary) == binary)
"#;

#[test]
fn verbs_do_what_scripts_rely_on() {
    for verify in [false, true] {
        let shared = lua(VERBS, verify).unwrap_or_else(|e| panic!("verify {verify}: {e}"));
        let w = shared.borrow();
        let count = |name: &str| w.figures.latencies[KIND_NAMES.iter().position(|k| *k == name).unwrap()].count();
        assert_eq!((count("put"), count("del"), count("mput"), count("mget"), count("mdel")), (6, 2, 1, 2, 1));
        assert_eq!(count("range"), 10, "a scan is a range");
        assert_eq!(w.figures.hits + w.figures.misses, count("get") + 3);
        assert_eq!(w.figures.answers.wrong, 0, "{:?}", w.figures.answers.examples);
        assert_eq!(w.figures.answers.verified > 0, verify);
    }
}

#[test]
fn scans_forbid_writing_and_allow_reading() {
    let shared = lua(
        r#"
        kv.put("a", "1"); kv.put("b", "2")
        for _, write in ipairs({
            function() kv.put("x", "1") end, function() kv.del("a") end, function() kv.mput({ { key = "x", val = "" } }) end,
            function() kv.mdel({ "a" }) end, function() kv.delete_range("a", "z") end,
        }) do
            local ok, e = pcall(kv.scan, "a", "z", write)
            assert(not ok and tostring(e):find("inside a scan"), tostring(e))
        end
        assert(kv.scan("a", "z", function(k, v) assert(kv.get(k) == v); assert(#kv.range(k, nil, 1) == 1) end) == 2)
        kv.put("c", "3")   -- and it is over afterwards
        kv.delete_range("a", "c")
        assert(kv.get("a") == nil and kv.get("c") == "3")
        "#,
        false,
    )
    .unwrap();
    assert!(shared.borrow().failure.is_none(), "a script's mistake is not the engine's");
}

#[test]
fn what_cannot_be_verified_says_so() {
    for call in ["kv.put_ttl('a', 'b', 5)", "kv.delete_range('a', 'b')"] {
        assert!(lua(call, true).map(|_| ()).unwrap_err().to_string().contains("--verify"), "{call}");
    }
    let e = lua("kv.put_ttl('a', 'b', 5)", false).map(|_| ()).unwrap_err().to_string();
    assert!(e.contains("no put_ttl"), "{e}");
}

#[test]
fn shares_cover_all_and_scattered_numbers_stay_apart() {
    let check = r#"
        for _, threads in ipairs({ 1, 3, 7 }) do
          local next = 0
          for thread = 0, threads - 1 do
            local first, last = gen.share(100, thread, threads)
            assert(first == next and last >= first)
            next = last + 1
          end
          assert(next == 100)
        end
        local first, last = gen.share(2, 0, 5)
        assert(last < first, "nothing is left for some")
        local seen, near = {}, 0
        for i = 0, 20000 do
          local at = gen.scatter(i)
          assert(not seen[at] and at >= 0 and at < 2 ^ 48)
          seen[at] = true
          if math.abs(at - gen.scatter(i + 1)) < 2 ^ 40 then near = near + 1 end
        end
        assert(near < 400, near)
        kv.fill({ thread = 1, threads = 2 }, 300, function(i) return gen.key("k%03d", i) end, tostring)
        assert(#kv.range("k", "l") == 150 and kv.get("k150") == "150" and kv.get("k299") == "299")
    "#;
    lua(check, false).unwrap();
}

#[test]
fn generators_stay_within_their_bounds() {
    lua(
        r#"
        assert(gen.key("k%05d-%x-%s%%", 42, 255, "z") == "k00042-ff-z%")
        assert(gen.key("%3d|%03d", 7, -7) == "  7|-07")
        assert(gen.key("%d", 3.0) == "3")
        for _, bad in ipairs({ "%d %d", "%q", "%" }) do assert(not pcall(gen.key, bad, 1), bad) end
        assert(not pcall(gen.key, "%d", "x"))
        assert(#gen.value(0) == 0 and #gen.value(100) == 100 and #gen.value(3000000) == 3000000)
        assert(gen.value(100, 1) == gen.value(100, 1), "all compressible means all alike")
        assert(not pcall(gen.value, 10, 2))
        local zeros = 0
        for _ = 1, 2000 do
            assert(gen.uniform(10) < 10 and gen.latest(10) < 10)
            local z, h = gen.zipf(1000), gen.hotspot(100, 0.1, 1)
            assert(z >= 0 and z < 1000 and h < 10)
            if z == 0 then zeros = zeros + 1 end
        end
        assert(zeros > 150, zeros)
        assert(not pcall(gen.zipf, 10, 1.5))
        local function refused(hint, f, ...)
            local ok, e = pcall(f, ...)
            assert(not ok and tostring(e):find(hint, 1, true), tostring(e))
        end
        for _, f in ipairs({ gen.uniform, gen.zipf, gen.latest }) do refused("n", f, 0) end
        refused("latest: n 0", gen.latest, 0)
        refused("value: no memory for 1000000000000000 bytes", gen.value, 1000000000000000)
        for _, bad in ipairs({ -0.1, 1.1, 0 / 0 }) do
            refused("hotspot", gen.hotspot, 10, bad, 0.5)
            refused("hotspot", gen.hotspot, 10, 0.5, bad)
        end
        "#,
        false,
    )
    .unwrap();
}

/// Each insert makes the numbers more by one: a sum over all of them at each draw would take the better part of a minute here.
#[test]
fn draws_from_numbers_that_grow_cost_no_sum_over_all() {
    let start = std::time::Instant::now();
    lua(
        r#"
        local hot = 0
        for n = 300000, 304000 do
            if gen.latest(n) >= n - 1000 then hot = hot + 1 end
            assert(gen.zipf(n, 0.5) < n)
        end
        assert(hot > 1800 and hot < 3000, hot)
        "#,
        false,
    )
    .unwrap();
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

/// Lua ends a list at the first nil: the keys behind it would not be asked for, and the call would be counted as a whole one.
#[test]
fn lists_with_holes_are_refused() {
    lua(
        r#"
        local row = { key = "k", val = "v" }
        for _, call in ipairs({
            function() kv.mget({ "a", nil, "b" }) end,
            function() kv.mdel({ "a", nil, "b" }) end,
            function() kv.mput({ row, nil, row }) end,
        }) do
            local ok, e = pcall(call)
            assert(not ok and tostring(e):find("element 2 is nil", 1, true), tostring(e))
        end
        "#,
        false,
    )
    .unwrap();
}

#[test]
fn names_that_would_break_a_table_are_refused() {
    for table in [
        "name = 'a\\tb'",
        "name = 'a\\nb'",
        "name = ''",
        "sweep = { param = 'a\\tb', values = { 1 } }",
        "sweep = { param = 'a', values = { 'x\\ty' } }",
    ] {
        let source = format!("return {{ run = function() end, {table} }}");
        let script = Script { origin: "test".into(), source };
        let e = script.load(None, 1).map(|_| ()).unwrap_err().to_string();
        assert!(e.contains("control characters") || e.contains("is empty"), "{table}: {e}");
    }
}

const TRANSACTIONS: &str = r#"
    kv.mput({ { key = "a", val = "1" }, { key = "b", val = "2" }, { key = "c", val = "3" } })
    kv.begin()
    kv.put("a", "10"); kv.del("b"); kv.mput({ { key = "d", val = "4" } }); kv.mdel({ "c" })
    assert(kv.get("a") == "10" and kv.get("b") == nil)
    local got = kv.mget({ "a", "b", "d" })
    assert(got[1] == "10" and got[2] == nil and got[3] == "4")
    local rows = kv.range("a", "z")
    assert(#rows == 2 and rows[1].val == "10" and rows[2].key == "d")
    local seen = {}
    assert(kv.scan("a", nil, function(k, v) seen[#seen + 1] = k .. v end) == 2 and table.concat(seen, " ") == "a10 d4")
    kv.rollback()
    assert(kv.get("a") == "1" and kv.get("b") == "2" and kv.get("d") == nil)
    kv.begin("Repeatable_Read")
    kv.put("a", "11")
    assert(kv.get_for_update("a") == "11")
    assert(kv.commit() == true and kv.get("a") == "11")

    -- What cannot be said where, and why.
    local function refused(hint, f, ...)
        local ok, e = pcall(f, ...)
        assert(not ok and tostring(e):find(hint, 1, true), tostring(e))
    end
    refused("no transaction is running", kv.commit)
    refused("no transaction is running", kv.rollback)
    refused("no transaction is running", kv.get_for_update, "a")
    refused("did you mean 'serializable'", kv.begin, "serialisable")
    kv.begin("serializable")
    refused("is already running", kv.begin)
    refused("inside a transaction", kv.put_ttl, "a", "b", 5)
    refused("inside a transaction", kv.delete_range, "a", "b")
    refused("inside a scan", kv.scan, "a", "z", function() kv.commit() end)
    kv.rollback()
"#;

#[test]
fn verbs_act_inside_the_transaction() {
    let shared = lua(TRANSACTIONS, false).unwrap();
    let w = shared.borrow();
    assert!(w.failure.is_none(), "a script's mistakes are not the engine's");
    let commits = KIND_NAMES.iter().position(|n| *n == "commit").unwrap();
    assert_eq!((w.figures.latencies[commits].count(), w.figures.aborts), (1, 0));
    let e = lua("kv.begin()", true).map(|_| ()).unwrap_err().to_string();
    assert!(e.contains("--verify"), "{e}");
}

/// Counters that threads add to, in transactions that retry.
const COUNTERS: &str = r#"
    local function add(key)
        for _ = 1, 100000 do
            kv.begin(LEVEL)
            local n = READ(key)
            kv.put(key, tostring(tonumber(n) + 1))
            if kv.commit() then return end
        end
        error("refused for ever")
    end
    return {
        load = function(ctx) for i = 0, 2 do kv.put("n" .. i, "0") end end,
        run = function(ctx)
            add("n" .. gen.uniform(3))
            if ctx.iter == 1 then kv.begin(); kv.put("n0", "-1000000"); kv.rollback() end
        end,
    }"#;

/// What the counters hold in the end.
fn counted(spec: &Spec) -> Result<i64> {
    let dir = std::env::temp_dir().join(format!("keybench-lua-txn-{}-{}", std::process::id(), spec.engine));
    crate::process::fresh_dir(&dir)?;
    let store = std::cell::RefCell::new(None);
    let opened = |_: &Path| {
        let e = engine::registry::open(&spec.engine, &dir, &spec.options)?;
        *store.borrow_mut() = Some(e.session()?);
        Ok(e)
    };
    let mut sum = 0;
    let done = point::run(spec, &opened, &mut |m| {
        if let Message::Done { .. } = m {
            // Gone again before the store is closed.
            let Some(mut session) = store.borrow_mut().take() else { return Ok(()) };
            for i in 0..3 {
                let mut text = String::new();
                session.get(format!("n{i}").as_bytes(), &mut |v| text = String::from_utf8_lossy(v).into_owned())?;
                sum += text.parse::<i64>().unwrap();
            }
        }
        Ok(())
    });
    crate::process::remove_dir(&dir).unwrap();
    done.map(|()| sum)
}

#[test]
fn transactions_of_scripts_lose_no_updates() {
    for engine in ["memory", "kingtide"] {
        for (level, read) in [
            ("nil", "kv.get"),
            ("'serializable'", "kv.get"),
            ("'read-committed'", "kv.get_for_update"),
            ("'read uncommitted'", "kv.get_for_update"),
        ] {
            for mode in [TxnMode::Optimistic, TxnMode::Locking] {
                let source = COUNTERS.replace("LEVEL", level).replace("READ", read);
                let mut s = Spec { engine: engine.into(), verify: false, ..spec(&source, 3) };
                s.options.transactions = Some(Transactions { isolation: Isolation::Snapshot, mode });
                let sum = counted(&s).unwrap_or_else(|e| panic!("{engine} {level} {mode:?}: {e}"));
                assert_eq!(sum, 500, "{engine} {level} {mode:?}");
            }
        }
    }
}

#[test]
fn a_conflict_shows_at_the_commit_and_the_script_goes_on() {
    let source = r#"
        local refusals = 0
        for _ = 1, 3 do
            kv.put("k", "0")
            kv.begin()
            assert(kv.get("k") == "0")
            kv.put("k", "1")
            meddle("k")
            if not kv.commit() then refusals = refusals + 1 end
            assert(kv.get("k") == "meddled")
        end
        assert(refusals == 3)
    "#;
    let store = engine::registry::open("memory", Path::new(""), &EngineOptions::default()).unwrap();
    let shared = Worker::new(store.session().unwrap(), Clock::calibrated(), None, Arc::<Tracker>::default());
    let script = Script { origin: "test".into(), source: "return { run = function() end }".into() };
    let loaded = script.load(Some(&shared), 1).unwrap();
    let other = std::cell::RefCell::new(store.session().unwrap());
    let meddle = move |_: &mlua::Lua, key: String| {
        other.borrow_mut().put(key.as_bytes(), b"meddled").map_err(|e| mlua::Error::runtime(e.to_string()))
    };
    loaded.lua.globals().set("meddle", loaded.lua.create_function(meddle).unwrap()).unwrap();
    loaded.lua.load(source).exec().unwrap();
    let w = shared.borrow();
    // Puts and gets of refused transactions were not done: three puts and three gets outside remain.
    assert_eq!((w.figures.aborts, w.figures.touches), (3, 6));
}

#[test]
fn an_open_transaction_is_the_scripts_mistake() {
    for source in [
        "return { run = function() kv.begin(); kv.put('k', 'v') end }",
        "return { load = function() kv.begin() end, run = function() end }",
    ] {
        let e = on_memory(&Spec { verify: false, ..spec(source, 2) }).unwrap_err();
        assert!(e.to_string().contains("returned inside a transaction"), "{source}: {e}");
    }
}

pub fn spec(source: &str, threads: usize) -> Spec {
    Spec {
        script: Script { origin: "test".into(), source: source.into() },
        workload: "test".into(),
        engine: "memory".into(),
        dir: PathBuf::from("no-such-directory"),
        options: EngineOptions::default(),
        seed_threads: threads,
        points: vec![Point { threads, batch: 3, swept: Some(("depth".into(), Swept::Float(0.5))), rate: None }],
        context: Context { users: 5, items: 1_000, seed: 9, value_size: 10, ..Context::default() },
        limit: Limit::Units(500),
        warmup: 0.0,
        rate: None,
        timeline: 1.0,
        verify: true,
        settle: Some(false), // settling waits until the whole process is idle, which a process that runs tests hardly ever is
        pin: Pin::No,
        trace: None,
    }
}

#[test]
fn bytes_are_counted_as_scripts_see_them() {
    let bytes = |source: &str, verify| {
        let shared = lua(&format!("kv.put('a', '12'); kv.put('b', '345'); {source}"), verify).unwrap();
        let figures = &shared.borrow().figures;
        (figures.put_bytes - 7, figures.got_bytes)
    };
    for verify in [false, true] {
        for (source, expected) in [
            ("kv.get('a'); kv.get('none')", (0, 3)),
            ("kv.del('a'); kv.mdel({'a', 'bc'})", (4, 0)),
            ("kv.mput({{key='c', val='1'}, {key='de', val=''}}); kv.mget({'c', 'none', 'a'})", (4, 5)),
            ("kv.range('a', 'z'); kv.scan('a', 'z', function() return true end)", (0, 10)),
        ] {
            assert_eq!(bytes(source, verify), expected, "{source}");
        }
    }
    assert_eq!(bytes("kv.begin(); kv.put('c', '1'); kv.get('c'); kv.commit()", false), (2, 2));
    assert_eq!(bytes("kv.begin(); kv.get_for_update('a'); kv.get_for_update('no'); kv.commit()", false), (0, 3));
    let source = "return { load = function(ctx) for i = 1, 10 do kv.put('k' .. i, 'value') end end, run = function() kv.get('k1') end }";
    let one = Spec { verify: false, ..spec(source, 1) };
    let (seeded, done) = on_memory(&one).unwrap();
    assert_eq!((seeded.put_bytes, done.got_bytes), (71, 500 * 7));
    let mut closed = None;
    point::run(&one, &|dir| engine::registry::open("memory", dir, &one.options), &mut |m| {
        if let Message::Closed(c) = m {
            closed = Some(c);
        }
        Ok(())
    })
    .unwrap();
    let closed = closed.unwrap();
    assert_eq!((closed.put_bytes, closed.live_bytes), (71, Some(71)));
}

/// Runs a specification; returns what seeding and the last point measured.
fn run(spec: &Spec, open: &dyn Fn(&Path) -> Result<Box<dyn Engine>>) -> Result<(Measured, Measured)> {
    let (mut seeded, mut done) = (Measured::default(), Measured::default());
    point::run(spec, open, &mut |m| {
        match m {
            Message::Seeded(m) => seeded = m,
            Message::Done { measured, .. } => done = measured,
            _ => {}
        }
        Ok(())
    })?;
    Ok((seeded, done))
}

pub fn on_memory(spec: &Spec) -> Result<(Measured, Measured)> {
    run(spec, &|dir| engine::registry::open("memory", dir, &spec.options))
}

/// How many calls of each verb a script makes in so many units over so many items, two threads together; its answers are
/// verified.
pub fn calls_of(source: &str, items: u64, units: u64) -> std::collections::HashMap<String, u64> {
    let s = spec(source, 2);
    let context = Context { items, ..s.context.clone() };
    let s = Spec { context, limit: Limit::Units(units), ..s };
    let (seeded, done) = on_memory(&s).unwrap();
    assert!(seeded.touches == items && done.units == units && done.wrong == 0, "{:?}", done.examples);
    done.ops.into_iter().map(|op| (op.name, op.latency.count)).collect()
}

#[test]
fn a_trace_is_recorded_and_replayed_as_it_was() {
    let dir = std::env::temp_dir().join(format!("keybench-replay-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("mixed.trace");
    let source = r#"return {
        load = function(ctx) kv.fill(ctx, 100, function(i) return gen.key("k%03d", i) end, function() return "value" end) end,
        run = function(ctx)
            local k = gen.key("k%d%02d", ctx.thread, gen.uniform(100))
            kv.put(k, gen.value(20)); kv.get(k); kv.range(k, nil, 5); kv.mget({ k, "none" }); kv.del(k)
        end,
    }"#;
    // Values would be recorded with what verification puts behind them.
    let recorded = Spec { trace: Some(path.clone()), limit: Limit::Units(60), verify: false, ..spec(source, 2) };
    let (seeded, done) = on_memory(&recorded).unwrap();
    let counts = |m: &Measured| m.ops.iter().map(|op| (op.name.clone(), op.latency.count)).collect::<Vec<_>>();

    let script = Script::find(path.to_str().unwrap()).unwrap();
    assert!(script.source.contains("kv.replay("), "{}", script.source);
    for (threads, speed) in [(2, 0.0), (1, 0.0), (3, 0.0), (2, 1.0)] {
        let context = Context { speed, ..recorded.context.clone() };
        let points = vec![Point { threads, ..recorded.points[0].clone() }];
        let limit = Limit::Trace(5 * 60);
        let again =
            Spec { script: script.clone(), trace: None, verify: true, context, points, limit, ..recorded.clone() };
        let (seeded_again, done_again) = on_memory(&again).unwrap();
        assert_eq!((seeded_again.touches, seeded_again.put_bytes), (seeded.touches, seeded.put_bytes));
        assert_eq!(counts(&done_again), counts(&done), "{threads} threads");
        assert_eq!((done_again.units, done_again.wrong), (5 * 60, 0), "{:?}", done_again.examples);
        assert_eq!((done_again.hits, done_again.misses), (done.hits, done.misses));
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_trace_keeps_its_pace() {
    let dir = std::env::temp_dir().join(format!("keybench-pace-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("slow.trace");
    std::fs::write(&path, "keybench trace 1\nl 0 1 put a 3\nr 0 0 get a\nr 0 300000000 get a\n").unwrap();
    let script = Script::find(path.to_str().unwrap()).unwrap();
    let seconds = |speed| {
        let s = spec("", 1);
        let context = Context { speed, ..s.context.clone() };
        on_memory(&Spec { script: script.clone(), context, limit: Limit::Trace(2), ..s }).unwrap().1.seconds
    };
    assert!(seconds(1.0) >= 0.3 && seconds(3.0) >= 0.1);
    assert!(seconds(0.0) < 0.3, "as fast as possible");
    let line = |flags: &str| format!("{} {flags}", path.display());
    let doubled = plan(&line("--speed 2")).unwrap();
    assert!(
        doubled.limit == Limit::Trace(2) && doubled.context.speed == 2.0 && doubled.groups[0].points[0].threads == 1
    );
    assert!(doubled.rate.is_some_and(|r| (r - 2.0 / 0.3 * 2.0).abs() < 0.1), "{:?}", doubled.rate);
    for (flags, wanted) in [("--rate 5", "at its own rate"), ("--ops 5", "to its end"), ("mixed", "replayed alone")] {
        let e = plan(&line(flags)).unwrap_err();
        assert!(e.exit_code() == 2 && e.to_string().contains(wanted), "{e}");
    }
    assert!(plan("mixed --speed 2").unwrap_err().to_string().contains("no trace"));
    assert!(plan("mixed --trace x --backend lmdb,memory").unwrap_err().to_string().contains("--trace records one"));
    assert_eq!(plan("mixed --trace x --threads 1").unwrap().repeat, 1);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn bundled_workloads_run_and_verify() {
    for (name, _) in script::BUNDLED {
        let script = Script::find(name).unwrap();
        let points =
            vec![Point { threads: 2, batch: 3, swept: Some(("valuebytes".into(), Swept::Int(100))), rate: None }];
        let s = Spec { script, points, ..spec("", 2) };
        let (seeded, done) = on_memory(&s).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(seeded.touches > 0 && done.units == 500, "{name}: {done:?}");
        assert!(done.verified > 0 && done.wrong == 0, "{name}: {:?}", done.examples);
        let expected = match *name {
            // 3 to 8 lines for each of five users.
            "cart" => seeded.touches.clamp(15, 40),
            "onegig" => 4,
            _ => 1_000,
        };
        assert_eq!(seeded.touches, expected, "{name}: every entry is loaded exactly once");
        let gets = done.hits + done.misses;
        // Nothing is deleted, and what is asked for was put.
        assert!(!name.starts_with("ycsb") || done.misses == 0, "{name}: {} of {gets} gets found nothing", done.misses);
    }
}

/// What the harness costs is measured so: no workload may go on for ever there.
#[test]
fn bundled_workloads_end_on_the_engine_that_does_nothing() {
    for (name, source) in script::BUNDLED {
        let points =
            vec![Point { threads: 1, batch: 3, swept: Some(("valuebytes".into(), Swept::Int(100))), rate: None }];
        let s = Spec { engine: "null".into(), seed_threads: 0, points, verify: false, ..spec(source, 1) };
        let s = Spec { limit: Limit::Units(30), ..s };
        let mut done = None;
        point::run(&s, &|dir| engine::registry::open("null", dir, &s.options), &mut |m| {
            if let Message::Done { measured, .. } = m {
                done = Some(measured);
            }
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{name}: {e}"));
        let measured = done.unwrap();
        assert!(measured.units == 30 && measured.touches > 0 && measured.callers_cpu_ns > 0, "{name}");
    }
}

#[test]
fn a_missing_file_is_an_error_and_no_bundled_workload() {
    assert_eq!(Script::find("mixed").unwrap().origin, "mixed");
    for name in ["workloads/mixed", "elsewhere/mixed.lua", "mixed.lua", "./mixed"] {
        let e = Script::find(name).unwrap_err();
        assert!(e.exit_code() == 2 && e.to_string().contains("there is no file"), "{name}: {e}");
    }
}

#[test]
fn seconds_go_before_a_number_of_calls() {
    let limit = |words: &str| plan(&format!("mixed {words}")).unwrap().limit;
    assert!(matches!(limit("--ops 7"), Limit::Units(7)));
    assert!(matches!(limit("--ops 7 --secs 2"), Limit::Seconds(s) if s == 2.0));
    assert!(matches!(limit(""), Limit::Seconds(s) if s == 5.0));
}

#[test]
fn a_replay_refuses_another_script() {
    let file = std::env::temp_dir().join(format!("keybench-replayed-{}.lua", std::process::id()));
    let write =
        |verb: &str| std::fs::write(&file, format!("return {{ run = function() kv.{verb}('k') end }}")).unwrap();
    write("get");
    let name = file.display().to_string();
    let noted = format!("--script-hash={}:{name}", Script::find(&name).unwrap().hash());
    plan(&format!("{name} {noted}")).unwrap();
    write("del");
    let e = plan(&format!("{name} {noted}")).err().unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(e.exit_code() == 2 && e.to_string().contains("is not the script that was run"), "{e}");
}

#[test]
fn context_holds_what_the_grid_says() {
    let source = r#"return {
        load = function(ctx) assert(ctx.users == 5 and ctx.items == 1000 and ctx.seed == 9 and ctx.batch == 3) end,
        run = function(ctx)
            assert(ctx.ops == 500 and ctx.threads == 3 and ctx.thread >= 0 and ctx.thread < 3)
            assert(ctx.depth == 0.5 and ctx.iter >= 1 and ctx.iter <= 167 and ctx.value_size == 10)
            kv.put("t" .. ctx.thread .. "-" .. ctx.iter, "")
        end }"#;
    let (_, done) = on_memory(&spec(source, 3)).unwrap();
    assert_eq!((done.units, done.touches), (500, 500));
}

#[test]
fn a_loader_that_ignores_its_share_runs_once() {
    let ignores =
        "return { load = function(ctx) for i = 1, 10 do kv.put('k' .. i, 'v') end end, run = function() end }";
    assert_eq!(on_memory(&spec(ignores, 4)).unwrap().0.touches, 10);
    let shares = "return { load = function(ctx) local n = ctx.threads; kv.put('k' .. ctx.thread, 'v') end, run = function() end }";
    assert_eq!(on_memory(&spec(shares, 4)).unwrap().0.touches, 4);
    assert_eq!(on_memory(&spec("return { run = function() end }", 4)).unwrap().0.touches, 0);
}

#[test]
fn threads_draw_different_numbers_and_repeat_with_the_seed() {
    let source = "return { run = function(ctx) kv.put('k' .. math.random(1 << 60), '') end }";
    let count = |seed: u64| {
        let context = Context { seed, ..spec("", 1).context };
        let store = std::cell::RefCell::new(None);
        let s = Spec { context, ..spec(source, 2) };
        run(&s, &|dir| {
            let e = engine::registry::open("memory", dir, &s.options)?;
            *store.borrow_mut() = Some(e.session()?.cursor(Bounds::default())?);
            Ok(e)
        })
        .unwrap();
        let mut cursor = store.into_inner().unwrap();
        let mut keys = Vec::new();
        let mut valid = cursor.first().unwrap();
        while valid {
            keys.push(cursor.key().unwrap().to_vec());
            valid = cursor.next().unwrap();
        }
        keys
    };
    let first = count(1);
    assert_eq!(first.len(), 500, "two threads never drew the same");
    assert_eq!(first, count(1));
    assert_ne!(first, count(2));
}

/// What is measured must not meet the keys that loading, warming up or the point before has just brought into the caches.
#[test]
fn each_phase_draws_other_numbers_than_those_before() {
    let source = "
    local function draw() kv.put('g' .. gen.uniform(1000000000), ''); kv.put('m' .. math.random(1000000000), '') end
    return { load = draw, run = function(ctx) if ctx.iter == 1 then draw() end end }";
    for (loads, warmup, points, phases) in
        [(0, 0.0, 1, 1), (1, 0.0, 1, 2), (0, 0.01, 1, 2), (0, 0.0, 3, 3), (1, 0.01, 2, 5)]
    {
        let s = spec(source, 1);
        let s = Spec { seed_threads: loads, warmup, points: vec![s.points[0].clone(); points], ..s };
        let mut found = 0;
        point::run(&s, &|dir| engine::registry::open("memory", dir, &s.options), &mut |m| {
            if let Message::Checked(answers) = m {
                found = answers.verified;
            }
            Ok(())
        })
        .unwrap();
        let what = format!("{loads} loading threads, warming up for {warmup} s, {points} points");
        assert_eq!(found, 2 * phases + 1, "{what}: each key, and that there is no other");
    }
}

#[test]
fn mistakes_in_scripts_are_told_with_their_place() {
    for (source, hint) in [
        ("return 5", "must return a table"),
        ("return {}", "no function `run`"),
        ("this is not lua", "test:1"),
        ("return { run = function() end, sweep = {} }", "no `param`"),
        ("return { run = function() end, sweep = { param = 'x', values = {} } }", "no `values`"),
        ("return { run = function() end, sweep = { param = 'x', values = { {} } } }", "number or text"),
        ("return { run = function() end, sweep = { param = 'x', values = { 0 / 0 } } }", "finite"),
        ("return { run = function() end, sweep = { param = 'x', values = { 1, math.huge } } }", "finite"),
        ("return { run = 5 }", "test"),
    ] {
        let script = Script { origin: "test".into(), source: source.into() };
        let e = script.load(Some(&worker(false)), 0).map(|_| ()).unwrap_err();
        assert!(e.exit_code() == 2 && e.to_string().contains(hint), "{source}: {e}");
    }
    let e = on_memory(&spec("return { run = function() error('boom') end }", 2)).unwrap_err();
    assert!(e.to_string().contains("test:1: boom"), "{e}");
    let third = "return {\nrun = function(ctx)\n  kv.put(ctx.nothing, 'v')\nend }";
    let e = on_memory(&spec(third, 2)).unwrap_err().to_string();
    assert!(e.contains("the script failed: test:3: ") && e.lines().count() == 1, "{e}");
    for source in ["local x = nothing.at", "return { run = nothing() }"] {
        let e = Script { origin: "test".into(), source: source.into() }.load(Some(&worker(false)), 0).map(drop);
        let e = e.unwrap_err().to_string();
        assert!(e.starts_with("test: test:1: attempt to") && e.lines().count() == 1, "{e}");
    }
}

fn broken(spec: &Spec, fault: Fault) -> Result<(Measured, Measured)> {
    run(spec, &|dir| Ok(Faulty::engine(engine::registry::open("memory", dir, &spec.options)?, fault)))
}

/// An engine that stops for a moment: a client that waits for each answer before the next request sees one slow operation, one
/// that sends requests on schedule sees all that were due meanwhile (coordinated omission, after Gil Tene).
#[test]
fn an_open_loop_shows_the_stall_that_a_closed_loop_hides() {
    let source = "return { run = function(ctx) kv.put('k' .. ctx.iter, 'v') end }";
    let pause = Duration::from_millis(300);
    let stalled = |rate| {
        let s = Spec { verify: false, rate, ..spec(source, 1) };
        broken(&s, Fault::Pauses(100, pause)).unwrap().1.ops[0].latency
    };
    let (closed, open) = (stalled(None), stalled(Some(1_000.0)));
    assert!(closed.count == 500 && open.count == 500);
    assert!(closed.max >= 3e8 && open.max >= 3e8, "both have the operation that stalled");
    // 300 of 500 were due during the stall, so half of all began 50 ms late at least.
    assert!(open.p50 >= 2.5e7 && closed.p50 < open.p50, "closed {closed:?}, open {open:?}");
}

/// One that stops when the time of a point is nearly over: what was due until then is made, late.
#[test]
fn an_open_loop_makes_what_was_due_before_its_end() {
    let source = "return { run = function(ctx) kv.put('k' .. ctx.iter, 'v') end }";
    let limit = Limit::Seconds(0.2);
    let s = Spec { verify: false, rate: Some(1_000.0), limit, timeline: 0.0, ..spec(source, 1) };
    let put = broken(&s, Fault::Pauses(100, Duration::from_millis(150))).unwrap().1.ops[0].latency;
    // 200 are due. The 100th returns when all of them are, 50 ms late.
    assert_eq!(put.count, 200);
    assert!(put.p95 >= 5e7, "a tenth waited for 100 ms at least: {put:?}");
}

/// At 4 calls a second, half a second has 2 of them, and lasts half a second.
#[test]
fn an_open_loop_of_few_calls_lasts_its_time() {
    let source = "return { run = function(ctx) kv.put('k' .. ctx.iter, 'v') end }";
    let s = Spec { verify: false, rate: Some(4.0), limit: Limit::Seconds(0.5), ..spec(source, 1) };
    let (_, done) = on_memory(&s).unwrap();
    assert!(done.units == 2 && done.seconds >= 0.5, "{} units in {} s", done.units, done.seconds);
}

#[test]
fn units_before_the_measured_ones_are_not_counted() {
    let source = "return { run = function(ctx) kv.put('k' .. ctx.iter, 'v') end }";
    let (_, done) = on_memory(&Spec { warmup: 0.05, ..spec(source, 2) }).unwrap();
    assert_eq!((done.units, done.touches), (500, 500));
}

/// A reading may come between the writes of a transaction and its end, which takes them back.
#[test]
fn readings_around_a_rollback_are_no_absurd_rates() {
    let source =
        "return { run = function() kv.begin(); for i = 1, 3000 do kv.put('k' .. i, 'v') end; kv.rollback() end }";
    let s = Spec { verify: false, timeline: 0.001, limit: Limit::Units(60), ..spec(source, 1) };
    let mut rates = Vec::new();
    point::run(&s, &|dir| engine::registry::open("memory", dir, &s.options), &mut |m| {
        if let Message::Sample { metrics, .. } = m {
            rates.extend(metrics.into_iter().filter(|(name, _)| name == "ops_per_s").map(|(_, rate)| rate));
        }
        Ok(())
    })
    .unwrap();
    assert!(rates.len() > 5 && rates.iter().all(|r| (0.0..1e9).contains(r)), "{rates:?}");
}

#[test]
fn a_failed_write_ends_the_run_unless_the_script_catches_it_and_counts_in_no_case() {
    let honest = "return { run = function(ctx) kv.put('k' .. ctx.iter, 'v') end }";
    assert_eq!(broken(&spec(honest, 2), Fault::FailsWritesAfter(100)).unwrap_err(), Error::failed("put: disk on fire"));
    let again = "return { run = function(ctx) pcall(kv.put, 'k', 'v'); kv.put('k', 'v') end }";
    assert_eq!(broken(&spec(again, 2), Fault::FailsWritesAfter(100)).unwrap_err(), Error::failed("put: disk on fire"));
    let catches = "return { run = function(ctx) pcall(kv.put, 'k' .. ctx.iter, 'v'); kv.get('never') end }";
    let (_, done) = broken(&Spec { verify: false, ..spec(catches, 2) }, Fault::FailsWritesAfter(100)).unwrap();
    let counts: Vec<_> = done.ops.iter().map(|o| (o.name.as_str(), o.latency.count, o.failed)).collect();
    assert_eq!(counts, [("put", 100, 400), ("get", 500, 0)]);
    assert_eq!((done.units, done.touches, done.hits, done.misses), (500, 600, 0, 500), "a failed put is no miss");
    assert_eq!(done.first_failure.as_deref(), Some("put: disk on fire"));
    let in_load =
        "return { load = function(ctx) for i = 1, 200 do kv.put('k' .. i, 'v') end end, run = function() end }";
    assert_eq!(
        broken(&spec(in_load, 2), Fault::FailsWritesAfter(100)).unwrap_err(),
        Error::failed("put: disk on fire")
    );
}

#[test]
fn verify_finds_an_engine_that_answers_wrongly() {
    let gets = "return { load = function(ctx) kv.put('k', 'v') end, run = function(ctx) kv.get('k') end }";
    let (_, done) = broken(&spec(gets, 1), Fault::MissesGets(10)).unwrap();
    assert_eq!((done.verified, done.wrong), (500, 50));
    assert!(done.examples[0].contains("lost"), "{:?}", done.examples);
    let both = "return { run = function(ctx) for i = 1, 10 do \
                local k = 'k' .. ctx.iter * 10 + i; kv.put(k, 'v'); kv.get(k) end end }";
    let struck = (11..=5_010).filter(|i| faulty::struck(format!("k{i}").as_bytes())).count() as u64;
    assert!(struck > 0);
    for fault in [Fault::LosesKeys, Fault::DamagesValues, Fault::SwapsValues] {
        let (_, done) = broken(&spec(both, 1), fault).unwrap();
        assert_eq!((done.verified, done.wrong), (5_000, struck), "{fault:?}");
    }
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn plan(words: &str) -> Result<Plan> {
    let all = std::iter::once("run").chain(words.split_whitespace());
    let args = Cli::try_parse_from(all).map_err(|e| Error::usage(e.to_string()))?.args;
    crate::config::complete(args, &[])?.plan()
}

#[test]
fn grids_follow_the_flags() {
    let p = plan("mixed --backend kingtide,rocksdb --threads 1,8 --secs 2 --seed-once").unwrap();
    assert_eq!((p.engines.len(), p.groups.len(), p.groups[0].points.len(), p.repeat), (2, 1, 2, 3));
    let p = plan("mixed scan --threads 1,8").unwrap();
    assert_eq!(p.groups.len(), 4, "a fresh store for each point");
    let p = plan("batch --threads 1,2").unwrap();
    assert_eq!(p.groups.iter().map(|g| g.points[0].batch).collect::<Vec<_>>(), [1, 1, 64, 64, 256, 256]);
    let p = plan("valsize --threads 1 --sweep 64K,100,0.5,lz4").unwrap();
    let swept: Vec<String> = p.groups.iter().map(|g| g.swept().unwrap().1.to_string()).collect();
    assert_eq!(swept, ["65536", "100", "0.5", "lz4"]);
    let p = plan("valsize --threads 1 --items 10").unwrap();
    assert_eq!(p.groups[3].bytes(&p.context), 10 * (262_144 + 32), "the largest value that is swept");
    let p = plan("onegig --threads 1").unwrap();
    assert_eq!(p.groups[0].bytes(&p.context), 4 * ((1 << 30) + 32), "as many as it says, not --items");
    let p = plan("batch --threads 1,2 --seed-once --batch 7,9").unwrap();
    assert_eq!(p.groups.len(), 1);
    assert_eq!(
        p.groups[0].points.iter().map(|p| (p.batch, p.threads)).collect::<Vec<_>>(),
        [(7, 1), (7, 2), (9, 1), (9, 2)]
    );
}

#[test]
fn mistakes_on_the_command_line_are_refused() {
    for (words, hint) in [
        ("", "no workload"),
        ("mixd", "did you mean 'mixed'"),
        ("mixed --backend rockdb", "did you mean 'rocksdb'"),
        ("mixed --threads 0", "--threads"),
        ("mixed --threads 1,0", "--threads"),
        ("mixed --threads 1025", "use 1 to 1024"),
        ("mixed --threads one", "--threads"),
        ("mixed --seed-threads 0", "--seed-threads"),
        ("mixed --batch 0", "--batch"),
        ("mixed --repeat 0", "--repeat"),
        ("mixed --repeat 1001", "use 1 to 1000"),
        ("mixed --ops 0", "--ops"),
        ("mixed --secs=-1", "--secs"),
        ("mixed --secs 0", "--secs"),
        ("mixed --secs nan", "--secs"),
        ("mixed --warmup=-1", "--warmup"),
        ("mixed --timeline 0.001", "--timeline"),
        ("mixed --rate 0", "--rate"),
        ("mixed --rate 0.1 --secs 2", "less than one unit is due in a point of 2 s; use a higher rate, or --secs 10"),
        ("mixed --value-size 4Q", "suffix 'q'"),
        ("mixed --value-size 5G", "--value-size"),
        ("mixed --items 0", "--items"),
        ("mixed --users 0", "--users"),
        ("mixed --seed x", "--seed"),
        ("mixed --seed-once=maybe", "--seed-once"),
        ("mixed --verify=maybe", "--verify"),
        ("mixed --ignore-free-space=maybe", "--ignore-free-space"),
        ("mixed --auto-plot=maybe", "--auto-plot"),
        ("mixed --sync=maybe", "--sync"),
        ("mixed --report tvs", "did you mean 'tsv'"),
        ("mixed --probe cpu", "no probe 'cpu'"),
        ("mixed --compression zip", "--compression"),
        ("mixed --bloom-fp 1.5", "--bloom-fp"),
        ("mixed --memtable-size 4Q", "--memtable-size"),
        ("mixed --block-cache-size x", "--block-cache-size"),
        ("mixed --sweep 1,2", "none of the workloads sweeps"),
        ("valsize --sweep 1,nan", "use a finite number"),
        ("valsize --sweep inf", "use a finite number"),
        ("valsize --sweep 1,", "a swept value is empty"),
        ("mixed --thread 1", "--threads"),
        ("no/such/file.lua", "mixed, cart, scan, batch, valsize, onegig, overwrite"),
        ("mixed --opt tidesdb.min_levels=1", "not among the engines"),
        ("mixed --isolation snapshit", "did you mean 'snapshot'"),
        ("mixed --txn-mode hopeful", "possible values: optimistic, locking"),
    ] {
        let e = plan(words).err().unwrap_or_else(|| panic!("'{words}' was accepted"));
        assert!(e.to_string().contains(hint), "{words}: {e}");
        assert_eq!(e.exit_code(), 2, "{words}");
    }
}
