//! An iterator of the database beside the oracle's idea of where it stands.

use crate::oracle::{Canon, FamilyModel, Moment, Window};
use kingtide::DbIterator;
use std::cell::RefCell;
use std::ops::Bound;
use std::rc::Rc;

/// A move of an iterator.
#[derive(Clone, Debug)]
pub enum Move {
    First,
    Last,
    Seek(Vec<u8>),
    SeekForPrev(Vec<u8>),
    Next,
    Prev,
}

/// The iterator, what it shows, and where it should stand.
pub struct Cursor {
    pub it: DbIterator,
    pub family: Rc<RefCell<FamilyModel>>,
    pub window: Window,
    /// The oracle's time that it reads at.
    pub at: u64,
    position: Option<Canon>,
}

impl Cursor {
    pub fn new(it: DbIterator, family: Rc<RefCell<FamilyModel>>, window: Window, at: u64) -> Cursor {
        Cursor { it, family, window, at, position: None }
    }

    /// Forgets the position, as a refresh does.
    pub fn refreshed(&mut self, at: u64) {
        self.at = at;
        self.position = None;
    }

    /// Moves both and compares them.
    pub fn step(&mut self, step: &Move, now_ms: u64) {
        let family = self.family.borrow();
        let moment = Moment { at: self.at, now_ms };
        let here = self.position.take();
        let expected = match (step, &here) {
            (Move::First, _) => family.first(&self.window, Bound::Unbounded, moment),
            (Move::Last, _) => family.last(&self.window, Bound::Unbounded, moment),
            (Move::Seek(k), _) => family.first(&self.window, Bound::Included(&family.canon(k)), moment),
            (Move::SeekForPrev(k), _) => family.last(&self.window, Bound::Included(&family.canon(k)), moment),
            (_, None) => None,
            (Move::Next, Some(k)) => family.first(&self.window, Bound::Excluded(k), moment),
            (Move::Prev, Some(k)) => family.last(&self.window, Bound::Excluded(k), moment),
        };
        match step {
            Move::First => self.it.seek_to_first(),
            Move::Last => self.it.seek_to_last(),
            Move::Seek(k) => self.it.seek(k),
            Move::SeekForPrev(k) => self.it.seek_for_prev(k),
            Move::Next => self.it.next(),
            Move::Prev => self.it.prev(),
        }
        let context = || format!("iterator of '{}', {step:?} from {here:?}, {:?}", family.name, self.window);
        if let Err(e) = self.it.status() {
            panic!("{}: {e}", context());
        }
        match expected {
            None => assert!(!self.it.valid(), "{}: shows {:?}, expected nothing", context(), self.it.key()),
            Some((canon, key, value)) => {
                assert!(self.it.valid(), "{}: shows nothing, expected {key:?}", context());
                assert_eq!(self.it.key(), &*key, "{}", context());
                let got = self.it.value().unwrap_or_else(|e| panic!("value of {key:?}: {e}"));
                assert!(got == &*value, "{}: another value of {key:?}", context());
                self.position = Some(canon);
            }
        }
    }
}
