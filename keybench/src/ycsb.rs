//! YCSB's property files as workloads: `keybench ycsb workloads/workloada`.
//!
//! A file becomes a script in Lua, which the harness of `keybench run` then knows how to run, and flags for its counts and
//! sizes. What CoreWorkload does is done in terms of a key-value store: a record is one value, so that its fields are as
//! many bytes together, and an update puts all of it.

use crate::error::{Error, Result};
use std::ffi::OsString;
use std::path::Path;

/// A property file.
pub struct Properties<'f> {
    path: &'f Path,
    /// Name, value, line.
    entries: Vec<(String, String, usize)>,
}

/// Whether a text looks like a workload of YCSB's: that it names its class or a share, and is no Lua.
pub fn is_ycsb(text: &str) -> bool {
    let names = |line: &str| {
        let name = line.split(['=', ':']).next().unwrap_or_default().trim();
        line.contains(['=', ':']) && (name == "recordcount" || name == "workload" || name.ends_with("proportion"))
    };
    text.lines().map(str::trim).find(|l| !l.is_empty() && !l.starts_with(['#', '!'])).is_some()
        && text.lines().any(|l| names(l.trim()))
        && !text.lines().any(|l| l.trim_start().starts_with("return"))
}

/// The distributions of keys that are understood.
const DISTRIBUTIONS: [&str; 5] = ["uniform", "zipfian", "latest", "hotspot", "sequential"];

impl<'f> Properties<'f> {
    /// Reads `name=value` lines.
    ///
    /// # Errors
    /// A line that is none, and a value that the workload cannot be run with.
    pub fn parse(path: &'f Path, text: &str) -> Result<Properties<'f>> {
        let mut entries = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with(['#', '!']) {
                continue;
            }
            let Some((name, value)) = line.split_once(['=', ':']) else {
                return Err(Error::usage(format!("{}:{}: not NAME=VALUE: '{line}'", path.display(), at + 1)));
            };
            entries.push((name.trim().to_owned(), value.trim().to_owned(), at + 1));
        }
        Ok(Properties { path, entries })
    }

    /// Of a name given twice the later value counts, as in Java.
    fn get(&self, name: &str) -> Option<(&str, usize)> {
        self.entries.iter().rfind(|(n, _, _)| n == name).map(|(_, value, line)| (value.as_str(), *line))
    }

    fn wrong(&self, line: usize, what: &str) -> Error {
        Error::usage(format!("{}:{line}: {what}", self.path.display()))
    }

    fn number<T: std::str::FromStr + PartialOrd>(&self, name: &str, default: T, least: T, most: T) -> Result<T> {
        let Some((text, line)) = self.get(name) else { return Ok(default) };
        let n = text.parse().ok().filter(|n| (least..=most).contains(n));
        n.ok_or_else(|| self.wrong(line, &format!("{name}: '{text}' is not a number that it can have")))
    }

    fn one_of<'a>(&'a self, name: &str, default: &'a str, known: &[&str]) -> Result<&'a str> {
        match self.get(name) {
            None => Ok(default),
            Some((value, _)) if known.contains(&value) => Ok(value),
            Some((value, line)) => {
                Err(self.wrong(line, &format!("{name}={value} is not supported (known: {})", known.join(", "))))
            }
        }
    }

    /// Bytes of a record.
    fn record(&self) -> Result<u64> {
        let most = 1 << 30;
        Ok(self.number("fieldcount", 10, 1, most)? * self.number("fieldlength", 100, 1, most)?)
    }

    /// What the counts and sizes of the file are in flags of `keybench run`: a flag's name there, and the argument.
    pub fn flags(&self) -> Result<Vec<(&'static str, OsString)>> {
        let records = self.number("recordcount", 1_000, 1, u64::MAX)?;
        let mut flags =
            vec![("items", format!("--items={records}")), ("value_size", format!("--value-size={}", self.record()?))];
        if self.get("operationcount").is_some() {
            flags.push(("ops", format!("--ops={}", self.number("operationcount", 1, 1, u64::MAX)?)));
        }
        let seconds = self.number("maxexecutiontime", 0, 0, 10_000_000)?;
        if seconds > 0 {
            flags.retain(|(name, _)| *name != "ops");
            flags.push(("secs", format!("--secs={seconds}")));
        }
        if self.get("threadcount").is_some() {
            flags.push(("threads", format!("--threads={}", self.number("threadcount", 1, 1, 1024)?)));
        }
        let target = self.number("target", 0, 0, 1_000_000_000)?;
        if target > 0 {
            flags.push(("rate", format!("--rate={target}")));
        }
        Ok(flags.into_iter().map(|(name, flag)| (name, flag.into())).collect())
    }

    /// The workload in Lua.
    pub fn script(&self) -> Result<String> {
        if let Some((class, line)) = self.get("workload").filter(|(class, _)| !class.ends_with("CoreWorkload")) {
            return Err(self.wrong(line, &format!("workload={class} is not supported: only CoreWorkload")));
        }
        let share = |name: &str, default: f64| self.number(name, default, 0.0, 1e9);
        let shares = [
            ("read", share("readproportion", 0.95)?),
            ("update", share("updateproportion", 0.05)?),
            ("insert", share("insertproportion", 0.0)?),
            ("scan", share("scanproportion", 0.0)?),
            ("modify", share("readmodifywriteproportion", 0.0)?),
        ];
        let all: f64 = shares.iter().map(|(_, share)| share).sum();
        if all <= 0.0 {
            return Err(Error::usage(format!("{}: all proportions are 0", self.path.display())));
        }
        let distribution = self.one_of("requestdistribution", "uniform", &DISTRIBUTIONS)?;
        let ordered = self.one_of("insertorder", "hashed", &["hashed", "ordered"])? == "ordered";
        self.one_of("fieldlengthdistribution", "constant", &["constant"])?;
        let lengths = self.one_of("scanlengthdistribution", "uniform", &["uniform", "zipfian"])?;
        let longest = self.number("maxscanlength", 1_000, 1, u64::MAX)?;
        let shortest = self.number("minscanlength", 1, 1, longest)?;
        let padding = self.number("zeropadding", 1, 1, 100)?;
        let (hot, often) =
            (self.number("hotspotdatafraction", 0.2, 0.0, 1.0)?, self.number("hotspotopnfraction", 0.8, 0.0, 1.0)?);
        let key = match ordered {
            true => format!("gen.key(\"user%0{padding}d\", i)"),
            // As scattered as YCSB's hash makes them, and as long.
            false => format!("gen.key(\"user%0{}u\", gen.scatter(i))", padding.max(20)),
        };
        // A Zipfian distribution is made for the records that are loaded: one for each insert would take a sum over all.
        let draw = match distribution {
            "uniform" => "gen.uniform(n)".to_owned(),
            "zipfian" => "gen.zipf(ctx.items)".to_owned(),
            "latest" => "n - 1 - gen.zipf(ctx.items)".to_owned(),
            "hotspot" => format!("gen.hotspot(n, {hot}, {often})"),
            _ => "next_in_order(n)".to_owned(),
        };
        let length = match lengths {
            "zipfian" => format!("{shortest} + gen.zipf({})", longest - shortest + 1),
            _ => format!("{shortest} + gen.uniform({})", longest - shortest + 1),
        };
        let mut bounds = String::new();
        let mut sum = 0.0;
        for (name, share) in shares {
            sum += share / all;
            bounds += &format!("local {name}_below = {sum}\n");
        }
        let name = self.path.file_stem().unwrap_or_default().to_string_lossy();
        Ok(format!(
            "local name = {name:?}\n{bounds}local function key(i) return {key} end\n\
             local function draw(ctx, n) return {draw} end\nlocal function length() return {length} end\n{TEMPLATE}"
        ))
    }
}

/// What all files have in common. A thread knows of the records that it has inserted itself.
const TEMPLATE: &str = r#"
local function record(ctx) return gen.value(ctx.value_size) end

local inserted, turn = 0, 0
local function number(ctx, i)
  if i < ctx.items then return i end
  return ctx.items + (i - ctx.items) * ctx.threads + ctx.thread
end

function next_in_order(n)
  turn = turn + 1
  return (turn - 1) % n
end

local function insert(ctx)
  kv.put(key(number(ctx, ctx.items + inserted)), record(ctx))
  inserted = inserted + 1
end

return {
  name = name,

  load = function(ctx)
    kv.fill(ctx, ctx.items, key, function() return record(ctx) end)
  end,

  run = function(ctx)
    local what = gen.uniform(1000000) / 1000000
    if what >= update_below and what < insert_below then return insert(ctx) end
    local k = key(number(ctx, draw(ctx, ctx.items + inserted)))
    if what < read_below then
      kv.get(k)
    elseif what < update_below then
      kv.put(k, record(ctx))
    elseif what < scan_below then
      kv.range(k, nil, length())
    else
      kv.get(k)
      kv.put(k, record(ctx))
    end
  end,
}
"#;

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "# Yahoo! Cloud System Benchmark\nrecordcount=1000\noperationcount=2000\n\
                     workload=site.ycsb.workloads.CoreWorkload\n\nreadallfields=true\n\nreadproportion=0.5\n\
                     updateproportion=0.5\nscanproportion=0\ninsertproportion=0\n\nrequestdistribution=zipfian\n";

    fn script(text: &str) -> Result<String> {
        Properties::parse(Path::new("w/workloada"), text)?.script()
    }

    #[test]
    fn a_property_file_is_told_from_a_script() {
        assert!(is_ycsb(A) && is_ycsb("readproportion: 1"));
        assert!(
            !is_ycsb("-- recordcount=1000\nreturn { run = function() end }")
                && !is_ycsb("")
                && !is_ycsb("# recordcount=1\n")
        );
    }

    #[test]
    fn counts_and_sizes_become_flags() {
        let more = "threadcount=4\ntarget=500\nfieldcount=5\nfieldlength=20\n";
        let text = format!("{A}{more}");
        let flags = Properties::parse(Path::new("a"), &text).unwrap().flags().unwrap();
        let flags: Vec<String> = flags.into_iter().map(|(_, flag)| flag.into_string().unwrap()).collect();
        assert_eq!(flags, ["--items=1000", "--value-size=100", "--ops=2000", "--threads=4", "--rate=500"]);
    }

    #[test]
    fn what_cannot_be_run_is_told_with_its_line() {
        for (line, wanted) in [
            (
                "requestdistribution=exponential",
                ":14: requestdistribution=exponential is not supported (known: uniform",
            ),
            ("readproportion=half", ":14: readproportion: 'half'"),
            ("workload=site.ycsb.workloads.TimeSeriesWorkload", "only CoreWorkload"),
            ("fieldlengthdistribution=zipfian", "fieldlengthdistribution=zipfian"),
            ("nonsense", ":14: not NAME=VALUE"),
            ("readproportion=0\nupdateproportion=0", "all proportions are 0"),
        ] {
            let e = script(&format!("{A}{line}\n")).unwrap_err();
            assert!(e.exit_code() == 2 && e.to_string().contains(wanted), "{line}: {e}");
        }
    }

    #[test]
    fn keys_are_as_long_as_the_file_says() {
        for (more, form) in
            [("", "%020u"), ("zeropadding=30\n", "%030u"), ("insertorder=ordered\nzeropadding=30\n", "%030d")]
        {
            let script = script(&format!("{A}{more}")).unwrap();
            assert!(script.contains(form), "{more}: {script}");
        }
    }

    #[test]
    fn the_script_does_what_the_file_says() {
        let shares = |text: &str, verbs: &[&str]| {
            let counts = crate::lua::calls_of(&script(text).unwrap(), 50, 4_000);
            verbs.iter().map(|v| counts.get(*v).copied().unwrap_or_default() as f64 / 4_000.0).collect::<Vec<f64>>()
        };
        let near = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 0.04);
        assert!(near(&shares(A, &["get", "put"]), &[0.5, 0.5]));
        let e = "readproportion=0\nupdateproportion=0\nscanproportion=0.95\ninsertproportion=0.05\nmaxscanlength=10\n";
        for distribution in DISTRIBUTIONS {
            let text = format!("{e}requestdistribution={distribution}\ninsertorder=ordered\n");
            assert!(near(&shares(&text, &["range", "put", "get"]), &[0.95, 0.05, 0.0]), "{distribution}");
        }
        let f = "readproportion=0.5\nreadmodifywriteproportion=0.5\nupdateproportion=0\nrequestdistribution=zipfian\n";
        assert!(near(&shares(f, &["get", "put"]), &[1.0, 0.5]));
    }
}
