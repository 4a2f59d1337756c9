//! The global `gen`: generators in native code, so that a script need not spend its time in `string.format`.
//!
//! `gen.key(fmt, ...)`, `gen.value(bytes, compressibility?)`, and numbers from 0 to n-1: `gen.uniform(n)`,
//! `gen.zipf(n, theta?)` (0 is the hottest), `gen.latest(n, theta?)` (n-1 is the hottest),
//! `gen.hotspot(n, hot_share, hot_probability)` (the first share of numbers gets most draws). Without chance:
//! `gen.scatter(i)` (neighbours go far apart, no two numbers below 2^48 to the same place), `gen.share(n, thread, threads)`
//! (first and last number of a thread's share of n).

use crate::data::{cut_from, entropy_pool};
use crate::dist::{Harmonic, Zipf};
use kingtide_base::rng::Rng;
use mlua::{Lua, LuaString, Value, Variadic};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Bytes of the pool that values are cut from.
const POOL: usize = 1 << 20;
/// The skew when a script names none.
const THETA: f64 = 0.99;

/// How many distributions, and how many skews, are remembered: enough for all that a script draws from in turn, while one
/// whose `n` grows with each insert asks for each distribution once.
const REMEMBERED: usize = 8;

/// One thread's generators.
struct State {
    rng: Rng,
    /// The last Zipfian distributions.
    zipfs: VecDeque<Zipf>,
    /// What they are made from: a sum over n for each skew.
    sums: VecDeque<Harmonic>,
    /// Pools by compressibility.
    pools: Vec<(f64, Rc<Vec<u8>>)>,
    text: Vec<u8>,
}

impl State {
    fn zipf(&mut self, name: &str, n: u64, theta: f64) -> mlua::Result<u64> {
        if n == 0 || !(theta > 0.0 && theta < 1.0) {
            return Err(mlua::Error::runtime(format!("{name}: n {n} and theta {theta}; use n >= 1 and 0 < theta < 1")));
        }
        let sums = &mut self.sums;
        let at = recall(
            &mut self.zipfs,
            |z| z.is(n, theta),
            || {
                let of = recall(sums, |s| s.theta() == theta, || Harmonic::new(theta));
                Zipf::of(n, &mut sums[of])
            },
        );
        Ok(self.zipfs[at].sample(&mut self.rng))
    }

    fn pool(&mut self, compressibility: f64) -> mlua::Result<Rc<Vec<u8>>> {
        if !(0.0..=1.0).contains(&compressibility) {
            return Err(mlua::Error::runtime(format!(
                "value: compressibility {compressibility} is not between 0 and 1"
            )));
        }
        let known = self.pools.iter().find(|(c, _)| *c == compressibility).map(|(_, p)| Rc::clone(p));
        Ok(known.unwrap_or_else(|| {
            let made = Rc::new(entropy_pool(POOL, 1.0 - compressibility, 0x676e));
            self.pools.push((compressibility, Rc::clone(&made)));
            made
        }))
    }
}

/// Where the one that is wanted is; it is made, in place of the oldest, if it is not remembered.
fn recall<T>(all: &mut VecDeque<T>, wanted: impl Fn(&T) -> bool, make: impl FnOnce() -> T) -> usize {
    all.iter().position(wanted).unwrap_or_else(|| {
        let made = make();
        all.truncate(REMEMBERED - 1);
        all.push_front(made);
        0
    })
}

/// A bijection of the numbers below 2^48, which every Lua holds exactly: an odd factor, and a shift that brings what it
/// did to the upper half to the lower one.
fn scatter(i: u64) -> u64 {
    const MASK: u64 = (1 << 48) - 1;
    let spread = i.wrapping_mul(0x9E37_79B9_7F4B) & MASK;
    spread ^ (spread >> 24)
}

fn at_least_one(n: u64) -> mlua::Result<u64> {
    if n == 0 { Err(mlua::Error::runtime("n must be at least 1")) } else { Ok(n) }
}

/// Puts `gen` into a state.
pub fn register(lua: &Lua, seed: u64) -> mlua::Result<()> {
    let state = Rc::new(RefCell::new(State {
        rng: Rng::new(seed ^ 0x67656e),
        zipfs: VecDeque::new(),
        sums: VecDeque::new(),
        pools: Vec::new(),
        text: Vec::new(),
    }));
    let table = lua.create_table()?;
    let s = Rc::clone(&state);
    table.set(
        "key",
        // Nearly all keys have one argument: it is taken apart from the others, which then need no memory.
        lua.create_function(move |lua, (form, first, more): (LuaString, Value, Variadic<Value>)| {
            let text = &mut s.borrow_mut().text;
            text.clear();
            format_key(&form.as_bytes(), std::iter::once(&first).chain(&*more), text)?;
            lua.create_string(&*text)
        })?,
    )?;
    let s = Rc::clone(&state);
    table.set(
        "value",
        lua.create_function(move |lua, (bytes, compressibility): (usize, Option<f64>)| {
            let mut state = s.borrow_mut();
            let pool = state.pool(compressibility.unwrap_or(0.5))?;
            let from = state.rng.below((POOL - bytes.min(POOL)) as u64 + 1) as usize;
            if bytes <= POOL {
                return lua.create_string(&pool[from..from + bytes]);
            }
            // A failed allocation would end the process, and the report could not name the line of the script.
            let mut text = Vec::new();
            let no_memory = |_| mlua::Error::runtime(format!("value: no memory for {bytes} bytes"));
            text.try_reserve_exact(bytes).map_err(no_memory)?;
            cut_from(&pool, from, bytes, &mut text);
            lua.create_string(text)
        })?,
    )?;
    let s = Rc::clone(&state);
    table.set("uniform", lua.create_function(move |_, n: u64| Ok(s.borrow_mut().rng.below(at_least_one(n)?)))?)?;
    let s = Rc::clone(&state);
    let zipf = move |_: &Lua, (n, theta): (u64, Option<f64>)| s.borrow_mut().zipf("zipf", n, theta.unwrap_or(THETA));
    table.set("zipf", lua.create_function(zipf)?)?;
    let s = Rc::clone(&state);
    let latest = move |_: &Lua, (n, theta): (u64, Option<f64>)| {
        let back = s.borrow_mut().zipf("latest", n, theta.unwrap_or(THETA))?;
        Ok(n - 1 - back)
    };
    table.set("latest", lua.create_function(latest)?)?;
    let s = Rc::clone(&state);
    let hotspot = move |_: &Lua, (n, share, probability): (u64, f64, f64)| {
        let n = at_least_one(n)?;
        if !((0.0..=1.0).contains(&share) && (0.0..=1.0).contains(&probability)) {
            let given = format!("hotspot: hot_share {share} and hot_probability {probability}");
            return Err(mlua::Error::runtime(format!("{given}; both are from 0 to 1")));
        }
        let hot = ((n as f64 * share) as u64).clamp(1, n);
        let rng = &mut s.borrow_mut().rng;
        Ok(if rng.unit() < probability || hot == n { rng.below(hot) } else { hot + rng.below(n - hot) })
    };
    table.set("hotspot", lua.create_function(hotspot)?)?;
    table.set("scatter", lua.create_function(|_, i: u64| Ok(scatter(i)))?)?;
    let share = |_: &Lua, (n, thread, threads): (u64, u64, u64)| {
        let threads = u128::from(at_least_one(threads)?);
        let start = |t: u64| (u128::from(n) * u128::from(t) / threads) as i64;
        Ok((start(thread), start(thread + 1) - 1))
    };
    table.set("share", lua.create_function(share)?)?;
    lua.globals().set("gen", table)
}

/// `string.format` for what keys need: `%d %i %u %x %s %%`, with a width and leading zeros.
fn format_key<'a>(form: &[u8], mut args: impl Iterator<Item = &'a Value>, out: &mut Vec<u8>) -> mlua::Result<()> {
    let bad = |what: String| mlua::Error::runtime(format!("key: {what}"));
    let mut rest = form;
    loop {
        let plain = rest.iter().position(|b| *b == b'%').unwrap_or(rest.len());
        out.extend_from_slice(&rest[..plain]);
        let mut bytes = rest[plain..].iter().copied().skip(1).peekable();
        if plain == rest.len() {
            return Ok(());
        }
        let zero = bytes.next_if_eq(&b'0').is_some();
        let mut width = 0usize;
        while let Some(digit) = bytes.next_if(u8::is_ascii_digit) {
            width = (width * 10 + usize::from(digit - b'0')).min(1024);
        }
        let verb = bytes.next().ok_or_else(|| bad("the format ends in a '%'".into()))?;
        rest = &rest[rest.len() - bytes.len()..];
        if verb == b'%' {
            out.push(b'%');
            continue;
        }
        let arg = args.next().ok_or_else(|| bad("fewer arguments than the format asks for".into()))?;
        match verb {
            b'd' | b'i' | b'u' | b'x' => {
                let number = arg.as_i64().or_else(|| arg.as_f64().filter(|x| x.fract() == 0.0).map(|x| x as i64));
                let number = number.ok_or_else(|| bad(format!("'%{}' needs a whole number", char::from(verb))))?;
                let signed = matches!(verb, b'd' | b'i') && number < 0;
                let magnitude = if signed { number.unsigned_abs() } else { number.cast_unsigned() };
                push_number(signed, magnitude, if verb == b'x' { 16 } else { 10 }, zero, width, out);
            }
            b's' => {
                let start = out.len();
                match arg {
                    Value::String(s) => out.extend_from_slice(&s.as_bytes()),
                    other => out.extend_from_slice(other.to_string()?.as_bytes()),
                }
                let pad = width.saturating_sub(out.len() - start);
                out.splice(start..start, std::iter::repeat_n(b' ', pad));
            }
            other => return Err(bad(format!("'%{}' is not supported; use %d %x %s", char::from(other)))),
        }
    }
}

/// A number of at least `width` characters.
fn push_number(negative: bool, mut magnitude: u64, base: u64, zero: bool, width: usize, out: &mut Vec<u8>) {
    let mut digits = [b'0'; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b"0123456789abcdef"[(magnitude % base) as usize];
        magnitude /= base;
        if magnitude == 0 {
            break;
        }
    }
    let digits = &digits[at..];
    let pad = width.saturating_sub(digits.len() + usize::from(negative));
    if !zero {
        out.extend(std::iter::repeat_n(b' ', pad));
    }
    if negative {
        out.push(b'-');
    }
    if zero {
        out.extend(std::iter::repeat_n(b'0', pad));
    }
    out.extend_from_slice(digits);
}
