//! A workload: a Lua chunk that returns a table with a name, a loader, a runner, and what is swept.

use super::kv;
use super::natives;
use super::worker::Shared;
use crate::error::{Error, Result};
use crate::interrupt;
use crate::trace;
use crate::ycsb::{self, Properties};
use kingtide_base::hash::mix64;
use mlua::{Function, HookTriggers, Lua, Table, Value, VmState};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The workloads that are part of this program.
pub const BUNDLED: &[(&str, &str)] = &[
    ("mixed", include_str!("../../workloads/mixed.lua")),
    ("cart", include_str!("../../workloads/cart.lua")),
    ("scan", include_str!("../../workloads/scan.lua")),
    ("batch", include_str!("../../workloads/batch.lua")),
    ("valsize", include_str!("../../workloads/valsize.lua")),
    ("onegig", include_str!("../../workloads/onegig.lua")),
    ("overwrite", include_str!("../../workloads/overwrite.lua")),
    ("ycsb-a", include_str!("../../workloads/ycsb-a.lua")),
    ("ycsb-b", include_str!("../../workloads/ycsb-b.lua")),
    ("ycsb-c", include_str!("../../workloads/ycsb-c.lua")),
    ("ycsb-d", include_str!("../../workloads/ycsb-d.lua")),
    ("ycsb-e", include_str!("../../workloads/ycsb-e.lua")),
    ("ycsb-f", include_str!("../../workloads/ycsb-f.lua")),
];

/// The text of a workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Script {
    /// Where it is from, for messages.
    pub origin: String,
    /// Lua.
    pub source: String,
}

/// A swept parameter's value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Swept {
    /// A whole number.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// Text.
    Text(String),
}

impl Swept {
    /// A value from the command line: a number, one with K, M, G or T behind it, or text.
    pub fn parse(text: &str) -> Result<Swept, String> {
        let text = text.trim();
        let size = || kingtide_base::options::parse_size(text).ok().and_then(|n| i64::try_from(n).ok());
        match (text.parse(), text.parse::<f64>()) {
            _ if text.is_empty() => Err("a swept value is empty".into()),
            _ if text.contains(char::is_control) => {
                Err("a swept value has control characters; use printable text".into())
            }
            (Ok(i), _) => Ok(Swept::Int(i)),
            (_, Ok(x)) => Swept::number(x),
            _ => Ok(size().map_or_else(|| Swept::Text(text.to_owned()), Swept::Int)),
        }
    }

    /// No point is where one that is no number is, and no file of results can hold either.
    fn number(x: f64) -> Result<Swept, String> {
        if x.is_finite() {
            Ok(Swept::Float(x))
        } else {
            Err(format!("a swept value is {x}; use a finite number or text"))
        }
    }
}

impl std::fmt::Display for Swept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Swept::Int(i) => write!(f, "{i}"),
            Swept::Float(x) => write!(f, "{x}"),
            Swept::Text(t) => f.write_str(t),
        }
    }
}

/// Whether a workload's name can only be that of a file.
fn names_a_file(name: &str) -> bool {
    name.contains(std::path::MAIN_SEPARATOR) || Path::new(name).extension().is_some_and(|e| e == "lua")
}

/// What a workload says about itself.
#[derive(Clone, Debug)]
pub struct Outline {
    /// Its name in reports.
    pub name: String,
    /// Whether it works on batches of `ctx.batch`, so that the command line's list applies.
    pub batched: bool,
    /// Parameter and values to sweep.
    pub sweep: Option<(String, Vec<Swept>)>,
    /// Whether the data set depends on the swept value.
    pub seed_per_value: bool,
    /// Entries that it loads at most, where that is not `ctx.items`.
    pub entries: Option<u64>,
    /// What it was recorded as, if it does a trace again.
    pub recorded: Option<Recording>,
}

/// A trace's measured point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recording {
    /// Calls.
    pub operations: u64,
    /// Wall-clock seconds that they took.
    pub seconds: f64,
    /// Threads.
    pub threads: usize,
    /// Entries that were loaded.
    pub entries: u64,
    /// Mean bytes of a value.
    pub value_size: u64,
}

/// A workload in a Lua state of its own.
pub struct Loaded {
    /// The state.
    pub lua: Lua,
    /// What it says about itself.
    pub outline: Outline,
    /// The loader.
    pub load: Option<Function>,
    /// The runner.
    pub run: Function,
    /// Lua's `collectgarbage`, whatever the script has put in its place.
    pub collector: Function,
}

impl Script {
    /// A bundled workload by its name, or a file. A name with a directory or with `.lua` is always a file: a bundled
    /// workload never stands in for one that is missing.
    pub fn find(name: &str) -> Result<Script> {
        let path = Path::new(name);
        if !names_a_file(name)
            && let Some((n, source)) = BUNDLED.iter().find(|(n, _)| *n == name)
        {
            return Ok(Script { origin: (*n).to_owned(), source: (*source).to_owned() });
        }
        if trace::is_trace(path) {
            let full = std::path::absolute(path).map_err(|e| Error::io("find", path, e))?;
            // Its hash is that of this text, which has the file's size in place of the file.
            let bytes = std::fs::metadata(path).map_err(|e| Error::io("read", path, e))?.len();
            let source = format!("-- {bytes} bytes\nreturn kv.replay({:?})", full.display().to_string());
            return Ok(Script { origin: name.to_owned(), source });
        }
        if let Some(text) = Script::properties(name) {
            let source = Properties::parse(path, &text)?.script()?;
            return Ok(Script { origin: name.to_owned(), source });
        }
        if path.is_file() {
            let source = std::fs::read_to_string(path).map_err(|e| Error::io("read", path, e))?;
            return Ok(Script { origin: name.to_owned(), source });
        }
        let names: Vec<&str> = BUNDLED.iter().map(|(n, _)| *n).collect();
        let all = names.join(", ");
        if !names_a_file(name) {
            let hint = kingtide_base::options::nearest(name, &names);
            return Err(Error::usage(format!("no workload '{name}'{hint}: it is neither a file nor one of {all}")));
        }
        let full = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Err(Error::usage(format!(
            "no workload '{name}': there is no file {}; a bundled workload is named without directory and .lua: {all}",
            full.display()
        )))
    }

    /// The text of a file that is a property file of YCSB's rather than a script.
    pub fn properties(name: &str) -> Option<String> {
        let path = Path::new(name);
        let other = path.extension().is_some_and(|e| e == "lua") || !path.is_file() || trace::is_trace(path);
        if other { None } else { std::fs::read_to_string(path).ok().filter(|text| ycsb::is_ycsb(text)) }
    }

    /// Tells texts of scripts apart, in configurations that repeat a run: FNV-1a of 64 bits.
    pub fn hash(&self) -> String {
        let step = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        format!("{:016x}", self.source.bytes().fold(0xcbf2_9ce4_8422_2325, step))
    }

    /// The name under which a configuration in any directory finds the same script.
    pub fn name_anywhere(name: &str) -> String {
        if !names_a_file(name) && BUNDLED.iter().any(|(n, _)| *n == name) {
            return name.to_owned();
        }
        std::path::absolute(name).map_or_else(|_| name.to_owned(), |p| p.display().to_string())
    }

    /// Runs the chunk in a new Lua state. `shared` is what its verbs act on; without one they may not be called.
    pub fn load(&self, shared: Option<&Shared>, seed: u64) -> Result<Loaded> {
        let lua = Lua::new();
        let wrong = |e: mlua::Error| self.wrong(&e);
        let collector = lua.globals().get("collectgarbage").map_err(wrong)?;
        let prepare = || -> mlua::Result<Value> {
            // A number of LuaJIT's, a double, does not tell neighbours beyond 2^53 apart.
            let doubles = cfg!(feature = "luajit") && seed >> 53 != 0;
            let own = if doubles { mix64(seed) >> 11 } else { seed };
            lua.load(format!("math.randomseed({})", own as i64)).exec()?;
            // In the chunk it would end keybench before anything is measured, and with the exit code of success.
            let exit = |_: &Lua, ()| -> mlua::Result<()> {
                Err(mlua::Error::runtime("os.exit would end keybench itself; use error(...) to end a run"))
            };
            lua.globals().get::<Table>("os")?.set("exit", lua.create_function(exit)?)?;
            if let Some(shared) = shared {
                kv::register(&lua, shared)?;
                kv::replay::register(&lua, shared)?;
            }
            natives::register(&lua, seed)?;
            // Nothing else ends a chunk that does not end by itself: this process runs it, and no engine's process.
            lua.set_hook(HookTriggers::new().every_nth_instruction(100_000), |_, _| match interrupt::requested() {
                true => Err(mlua::Error::runtime("interrupted")),
                false => Ok(VmState::Continue),
            })?;
            lua.load(&self.source).set_name(format!("@{}", self.origin)).eval()
        };
        let value = prepare().map_err(|e| if interrupt::requested() { Error::Interrupted } else { wrong(e) })?;
        lua.remove_hook(); // from here on it would cost what is measured
        let Value::Table(table) = value else {
            return Err(Error::usage(format!("{}: must return a table, returns {}", self.origin, value.type_name())));
        };
        let outline = self.outline(&table)?;
        let load: Option<Function> = table.get("load").map_err(wrong)?;
        let run: Option<Function> = table.get("run").map_err(wrong)?;
        let run = run.ok_or_else(|| Error::usage(format!("{}: has no function `run`", self.origin)))?;
        Ok(Loaded { lua, outline, load, run, collector })
    }

    /// An error of the chunk. What the harness itself says of a file that the chunk names is no matter of Lua's.
    fn wrong(&self, e: &mlua::Error) -> Error {
        let mut cause = e;
        while let mlua::Error::CallbackError { cause: inner, .. } = cause {
            cause = inner;
        }
        match cause.downcast_ref::<Error>() {
            Some(own) => own.clone(),
            None => Error::usage(format!("{}: {}", self.origin, in_a_line(e))),
        }
    }

    fn outline(&self, table: &Table) -> Result<Outline> {
        let wrong = |e: mlua::Error| self.wrong(&e);
        let stem = Path::new(&self.origin).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let name: Option<String> = table.get("name").map_err(wrong)?;
        let sweep: Option<Table> = table.get("sweep").map_err(wrong)?;
        let name = self.printable("name", name.unwrap_or(stem))?;
        let mut outline = Outline {
            name,
            batched: table.get::<Option<bool>>("batched").map_err(wrong)?.unwrap_or(false),
            sweep: None,
            seed_per_value: false,
            entries: table.get("entries").map_err(wrong)?,
            recorded: None,
        };
        if let Some(operations) = table.get("operations").map_err(wrong)? {
            outline.recorded = Some(Recording {
                operations,
                seconds: table.get("seconds").map_err(wrong)?,
                threads: table.get("recorded_threads").map_err(wrong)?,
                entries: table.get("entries").map_err(wrong)?,
                value_size: table.get("value_size").map_err(wrong)?,
            });
        }
        if let Some(sweep) = sweep {
            let param: Option<String> = sweep.get("param").map_err(wrong)?;
            let param = param.ok_or_else(|| Error::usage(format!("{}: `sweep` has no `param`", self.origin)))?;
            let param = self.printable("sweep.param", param)?;
            let values: Option<Vec<Value>> = sweep.get("values").map_err(wrong)?;
            let values = values.unwrap_or_default().into_iter().map(|v| self.swept(v)).collect::<Result<Vec<_>>>()?;
            if values.is_empty() {
                return Err(Error::usage(format!("{}: `sweep` has no `values`", self.origin)));
            }
            // What is loaded rarely depends on how much of it is asked for at once, and on most other parameters.
            let per_value = sweep.get::<Option<bool>>("seed_per_value").map_err(wrong)?;
            outline.seed_per_value = per_value.unwrap_or(param != "batch");
            outline.sweep = Some((param, values));
        }
        Ok(outline)
    }

    /// Text that goes into tables and file names: a tab or a line feed would break the lines of `points.tsv`.
    fn printable(&self, what: &str, text: String) -> Result<String> {
        let wrong = match () {
            () if text.is_empty() => "is empty",
            () if text.contains(char::is_control) => "has control characters",
            () => return Ok(text),
        };
        Err(Error::usage(format!("{}: `{what}` {wrong}; use printable text", self.origin)))
    }

    fn swept(&self, value: Value) -> Result<Swept> {
        match value {
            Value::Integer(i) => Ok(Swept::Int(i)),
            Value::Number(x) => Swept::number(x).map_err(|e| Error::usage(format!("{}: {e}", self.origin))),
            Value::String(s) => self.printable("sweep.values", s.to_string_lossy()).map(Swept::Text),
            other => {
                let (origin, kind) = (&self.origin, other.type_name());
                Err(Error::usage(format!("{origin}: a swept value must be a number or text, not {kind}")))
            }
        }
    }
}

/// An error of a script on one line: what is wrong, behind the place in the script where Lua does not say that itself.
pub fn in_a_line(e: &mlua::Error) -> String {
    let text = e.to_string();
    let (said, trace) = text.split_once("\nstack traceback:").unwrap_or((&text, ""));
    let said = said.trim().trim_start_matches("runtime error: ").replace('\n', " ");
    // Places in C have no line: `[C]: in function 'error'`. Those of the script are `name.lua:3: in ...`.
    let place = trace.lines().map(str::trim).filter(|line| !line.starts_with("[C]")).find_map(|line| {
        let (place, _) = line.split_once(": in ")?;
        place.rsplit_once(':').is_some_and(|(_, n)| n.parse::<u32>().is_ok()).then_some(place)
    });
    match place {
        Some(place) if !said.contains(place) => format!("{place}: {said}"),
        _ => said,
    }
}

/// What `ctx` holds, apart from `thread`, `threads` and `iter`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Context {
    /// `ctx.users`.
    pub users: u64,
    /// `ctx.items`.
    pub items: u64,
    /// `ctx.ops`: units of the point over all threads; 0 when time ends it.
    pub ops: u64,
    /// `ctx.seed`.
    pub seed: u64,
    /// `ctx.batch`.
    pub batch: u64,
    /// `ctx.value_size`.
    pub value_size: u64,
    /// `ctx.speed`: how many times as fast as recorded a trace is done again; 0 for as fast as possible.
    #[serde(default)]
    pub speed: f64,
    /// The swept parameter and its value.
    pub swept: Option<(String, Swept)>,
}

impl Context {
    /// The table that `load` and `run` are given.
    pub fn table(&self, lua: &Lua) -> mlua::Result<Table> {
        let t = lua.create_table()?;
        t.set("users", self.users)?;
        t.set("items", self.items)?;
        t.set("ops", self.ops)?;
        t.set("seed", self.seed as i64)?;
        t.set("batch", self.batch)?;
        t.set("value_size", self.value_size)?;
        t.set("speed", self.speed)?;
        t.set("iter", 0)?;
        match &self.swept {
            Some((name, Swept::Int(i))) => t.set(name.as_str(), *i)?,
            Some((name, Swept::Float(x))) => t.set(name.as_str(), *x)?,
            Some((name, Swept::Text(s))) => t.set(name.as_str(), s.as_str())?,
            None => {}
        }
        Ok(t)
    }
}
