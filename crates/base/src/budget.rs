//! Exact byte accounting: arenas, caches, and open tables charge what they hold to a shared [`Budget`].

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A counter of held bytes with a limit that its owner enforces.
pub struct Budget {
    used: AtomicU64,
    /// Of all releases together.
    released: AtomicU64,
    limit: AtomicU64,
    /// Bytes held from which on a charge calls `on_alarm`. Relaxed, as everything here: a number that orders nothing.
    alarm: AtomicU64,
    on_alarm: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Arc<Budget> {
        Arc::new(Budget {
            used: AtomicU64::new(0),
            released: AtomicU64::new(0),
            limit: AtomicU64::new(limit),
            alarm: AtomicU64::new(u64::MAX),
            on_alarm: OnceLock::new(),
        })
    }

    /// Returns the bytes held now. A statistic: Relaxed, it orders nothing.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Adds `bytes` to what is held.
    pub fn charge(&self, bytes: u64) {
        let held = self.used.fetch_add(bytes, Ordering::Relaxed).wrapping_add(bytes);
        if held >= self.alarm.load(Ordering::Relaxed) {
            self.raise_alarm();
        }
    }

    /// Takes `bytes` off what is held.
    pub fn release(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        self.released.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Moves `bytes` from what is held here to what is held of `other`. They are not released: nothing was freed.
    pub fn hand_over(&self, other: &Budget, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed); // first: an alarm of the other would count them twice
        other.charge(bytes);
    }

    /// Bytes of all releases since the budget was made. A statistic, as [`Budget::used`].
    pub fn released(&self) -> u64 {
        self.released.load(Ordering::Relaxed)
    }

    /// Sets what charges call once as many bytes are held as [`Budget::set_alarm`] says. Only the first call has an effect. The
    /// function runs within the charge, under the caller's locks: it must take none under which memory is charged.
    pub fn on_alarm(&self, call: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_alarm.set(Box::new(call));
    }

    /// Sets the number of held bytes from which every charge raises the alarm; `u64::MAX` turns the alarm off.
    pub fn set_alarm(&self, bytes: u64) {
        self.alarm.store(bytes, Ordering::Relaxed);
    }

    #[cold]
    fn raise_alarm(&self) {
        if let Some(call) = self.on_alarm.get() {
            call();
        }
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("used", &self.used()).field("limit", &self.limit()).finish()
    }
}

/// Bytes that are charged to a budget for as long as this value lives.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Charge {
    /// Charges `bytes` to `budget`.
    pub fn new(budget: &Arc<Budget>, bytes: u64) -> Charge {
        budget.charge(bytes);
        Charge { budget: budget.clone(), bytes }
    }

    /// Changes how many bytes are charged.
    pub fn resize(&mut self, bytes: u64) {
        if bytes > self.bytes {
            self.budget.charge(bytes - self.bytes);
        } else {
            self.budget.release(self.bytes - bytes);
        }
        self.bytes = bytes;
    }

    /// The budget that is charged.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Charges another budget from now on. Nothing is released: nothing was freed.
    pub fn charge_to(&mut self, other: &Arc<Budget>) {
        if !Arc::ptr_eq(&self.budget, other) {
            self.budget.hand_over(other, self.bytes);
            self.budget = other.clone();
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn charges_balance() {
        let b = Budget::new(10);
        b.charge(7);
        b.release(3);
        b.set_limit(20);
        assert_eq!((b.used(), b.limit(), b.released()), (4, 20, 3));
        let mut charge = Charge::new(&b, 5);
        charge.resize(9);
        assert_eq!(b.used(), 13);
        charge.resize(2);
        assert_eq!(b.used(), 6);
        drop(charge);
        assert_eq!(b.used(), 4);
        let (other, released) = (Budget::new(0), b.released());
        b.hand_over(&other, 3);
        assert_eq!((b.used(), other.used(), b.released(), other.released()), (1, 3, released, 0));
        let mut charge = Charge::new(&b, 5);
        (0..2).for_each(|_| charge.charge_to(&other));
        assert!(Arc::ptr_eq(charge.budget(), &other));
        charge.resize(7);
        assert_eq!((b.used(), other.used(), b.released(), other.released()), (1, 10, released, 0));
        drop(charge);
        assert_eq!((b.used(), other.used()), (1, 3));
    }

    #[test]
    fn charges_raise_the_alarm_from_the_threshold_on() {
        let (b, raised) = (Budget::new(10), Arc::new(AtomicU32::new(0)));
        let alarms = raised.clone();
        b.on_alarm(move || _ = alarms.fetch_add(1, Ordering::Relaxed));
        let charge = |bytes| {
            b.charge(bytes);
            raised.load(Ordering::Relaxed)
        };
        assert_eq!(charge(100), 0, "no alarm is set");
        b.set_alarm(110);
        assert_eq!((charge(9), charge(1), charge(1)), (0, 1, 2));
        b.release(50);
        assert_eq!(charge(1), 2);
        b.set_alarm(u64::MAX);
        assert_eq!(charge(1000), 2);
    }
}
