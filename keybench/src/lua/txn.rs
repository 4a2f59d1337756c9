//! `kv.begin`, `kv.commit` and `kv.rollback`. Between them the verbs of `kv` act inside the transaction.
//!
//! A script need not guard every verb against a conflict: where one comes up before the commit, as it may under locks, the
//! transaction is doomed. Its writes go nowhere from there on, its reads answer what is committed, and `kv.commit`
//! returns false, which is the one place where a script looks and begins again.

use super::worker::{Kind, Shared, State, Worker};
use crate::engine::txn::{Step, Transactions, isolation};
use crate::engine::{Bounds, Cursor, Session};
use crate::error::Result;
use mlua::{Lua, Table};
use std::rc::Rc;

impl Worker {
    /// Whether verbs act inside a transaction.
    pub fn in_txn(&self) -> bool {
        self.txn != State::Outside
    }

    fn begin(&mut self, level: Option<&str>) -> mlua::Result<()> {
        self.may_write()?;
        self.unverifiable("begin")?;
        if self.in_txn() {
            return Err(mlua::Error::runtime("begin: a transaction is already running"));
        }
        let isolation = match level {
            Some(name) => isolation(name).map_err(|e| mlua::Error::runtime(format!("begin: {e}")))?,
            None => self.how.isolation,
        };
        self.session
            .begin(Transactions { isolation, ..self.how })
            .map_err(|e| self.fail(Kind::Commit, e.context("begin")))?;
        (self.txn, self.touches_before) = (State::Running, self.figures.touches);
        Ok(())
    }

    fn commit(&mut self) -> mlua::Result<bool> {
        self.may_end("commit")?;
        if self.txn == State::Running && self.timed(Kind::Commit, 0, |s| s.commit())? == Step::Done(()) {
            self.txn = State::Outside;
            return Ok(true);
        }
        self.figures.aborts += 1;
        self.end().map(|()| false)
    }

    fn rollback(&mut self) -> mlua::Result<()> {
        self.may_end("rollback")?;
        self.end()
    }

    fn may_end(&self, verb: &str) -> mlua::Result<()> {
        self.may_write()?;
        self.inside_only(verb)
    }

    /// Refuses a verb that has no meaning outside a transaction.
    pub fn inside_only(&self, verb: &str) -> mlua::Result<()> {
        if self.in_txn() { Ok(()) } else { Err(mlua::Error::runtime(format!("{verb}: no transaction is running"))) }
    }

    /// Rolls back. What the transaction did is not counted as done.
    fn end(&mut self) -> mlua::Result<()> {
        self.txn = State::Outside;
        self.figures.touches = self.touches_before;
        self.session.rollback().map_err(|e| self.fail(Kind::Commit, e.context("rollback")))
    }

    /// Called when the script returns: a transaction left open is its mistake.
    pub fn no_txn_left(&mut self) -> mlua::Result<()> {
        if !self.in_txn() {
            return Ok(());
        }
        self.end()?;
        Err(mlua::Error::runtime("returned inside a transaction: end it with kv.commit or kv.rollback"))
    }

    /// Writes inside the transaction.
    pub fn txn_write(
        &mut self,
        kind: Kind,
        touches: u64,
        call: impl FnOnce(&mut dyn Session) -> Result<Step<()>>,
    ) -> mlua::Result<()> {
        self.may_write()?;
        if self.txn == State::Running && self.timed(kind, touches, call)? == Step::Conflict {
            self.txn = State::Doomed;
        }
        Ok(())
    }

    /// Gets inside a transaction or outside; `found` is called for a value.
    pub fn look_up(&mut self, key: &[u8], for_update: bool, found: &mut dyn FnMut(&[u8])) -> mlua::Result<bool> {
        if self.txn == State::Running {
            let step = self.timed(Kind::Get, 1, |s| {
                if for_update { s.txn_get_for_update(key, found) } else { s.txn_get(key, found) }
            })?;
            match step {
                Step::Done(answer) => return Ok(answer),
                Step::Conflict => self.txn = State::Doomed,
            }
        }
        self.timed(Kind::Get, 1, |s| s.get(key, found))
    }

    /// Looks keys up inside a transaction or outside.
    pub fn look_up_all(&mut self, keys: &[&[u8]], each: &mut dyn FnMut(usize, Option<&[u8]>)) -> mlua::Result<()> {
        let inside = |s: &mut dyn Session, each: &mut dyn FnMut(usize, Option<&[u8]>)| {
            for (i, key) in keys.iter().enumerate() {
                match s.txn_get(key, &mut |value| each(i, Some(value)))? {
                    Step::Done(true) => {}
                    Step::Done(false) => each(i, None),
                    Step::Conflict => return Ok(Step::Conflict),
                }
            }
            Ok(Step::Done(()))
        };
        if self.txn == State::Running {
            if self.timed(Kind::Mget, keys.len() as u64, |s| inside(s, each))? == Step::Done(()) {
                return Ok(());
            }
            self.txn = State::Doomed;
        }
        self.timed(Kind::Mget, keys.len() as u64, |s| s.multi_get(keys, each))
    }

    /// Refuses a verb that has no meaning inside a transaction.
    pub fn outside_only(&self, verb: &str) -> mlua::Result<()> {
        if self.in_txn() {
            return Err(mlua::Error::runtime(format!("kv.{verb} cannot be used inside a transaction")));
        }
        Ok(())
    }
}

/// A cursor over what verbs see.
pub fn cursor(session: &mut dyn Session, txn: &mut State, bounds: Bounds<'_>) -> Result<Box<dyn Cursor>> {
    if *txn == State::Running {
        if let Step::Done(cursor) = session.txn_cursor(bounds)? {
            return Ok(cursor);
        }
        *txn = State::Doomed;
    }
    session.cursor(bounds)
}

/// Adds the verbs that begin and end transactions to `kv`.
pub fn register(lua: &Lua, shared: &Shared, kv: &Table) -> mlua::Result<()> {
    let s = Rc::clone(shared);
    let begin = move |_: &Lua, level: Option<String>| s.borrow_mut().begin(level.as_deref());
    kv.set("begin", lua.create_function(begin)?)?;
    let s = Rc::clone(shared);
    kv.set("commit", lua.create_function(move |_: &Lua, ()| s.borrow_mut().commit())?)?;
    let s = Rc::clone(shared);
    kv.set("rollback", lua.create_function(move |_: &Lua, ()| s.borrow_mut().rollback())?)
}
