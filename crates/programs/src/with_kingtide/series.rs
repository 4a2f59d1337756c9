//! A time series: readings of sensors, which disappear after a while.

use kingtide::{Db, Options, Result};
use std::path::Path;
use std::time::Duration;

/// The series of all sensors.
pub struct Series(Db);

fn key(sensor: u32, time: u64) -> Vec<u8> {
    [&sensor.to_be_bytes()[..], &time.to_be_bytes()].concat()
}

impl Series {
    /// Opens the series in a directory. A reading is kept for at least the time given.
    pub fn open(path: &Path, keep: Duration) -> Result<Series> {
        let mut options = Options::default();
        options.family.ttl = Some(keep);
        Ok(Series(Db::open(path, options)?))
    }

    /// Records a reading.
    pub fn record(&self, sensor: u32, time: u64, reading: f64) -> Result<()> {
        self.0.put(key(sensor, time), reading.to_be_bytes()).map(drop)
    }

    /// The readings of a sensor from one time up to another, which is not included.
    pub fn read(&self, sensor: u32, from: u64, to: u64) -> Result<Vec<(u64, f64)>> {
        let entries = self.0.range(key(sensor, from)..key(sensor, to));
        entries.map(|entry| entry.map(|e| (number(&e.key[4..]), f64::from_bits(number(&e.value))))).collect()
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().copied().map_or(0, u64::from_be_bytes)
}
