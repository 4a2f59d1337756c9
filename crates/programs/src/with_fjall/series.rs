//! A time series: readings of sensors, which disappear after a while.

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Result};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The series of all sensors.
pub struct Series {
    db: Database,
    readings: Keyspace,
    keep: Duration,
}

fn key(sensor: u32, time: u64) -> Vec<u8> {
    [&sensor.to_be_bytes()[..], &time.to_be_bytes()].concat()
}

impl Series {
    /// Opens the series in a directory. A reading is kept for at least the time given.
    pub fn open(path: &Path, keep: Duration) -> Result<Series> {
        let db = Database::builder(path).open()?;
        let readings = db.keyspace("readings", KeyspaceCreateOptions::default)?;
        Ok(Series { db, readings, keep })
    }

    /// Records a reading, with the time until which it is kept, and removes those of the sensor that are past theirs.
    pub fn record(&self, sensor: u32, time: u64, reading: f64) -> Result<()> {
        let until = now() + self.keep.as_millis() as u64;
        let mut batch = self.db.batch().durability(Some(PersistMode::Buffer));
        for guard in self.readings.prefix(sensor.to_be_bytes()) {
            let (key, value) = guard.into_inner()?;
            if number(&value) > now() {
                break;
            }
            batch.remove(&self.readings, key);
        }
        batch.insert(&self.readings, key(sensor, time), [until.to_be_bytes(), reading.to_be_bytes()].concat());
        batch.commit()
    }

    /// The readings of a sensor from one time up to another, which is not included.
    pub fn read(&self, sensor: u32, from: u64, to: u64) -> Result<Vec<(u64, f64)>> {
        let entries = self.readings.range(key(sensor, from)..key(sensor, to)).map(|guard| guard.into_inner());
        let kept = entries.filter(|entry| entry.as_ref().map_or(true, |(_, value)| number(value) > now()));
        kept.map(|entry| entry.map(|(key, value)| (number(&key[4..]), f64::from_bits(number(&value[8..]))))).collect()
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().copied().map_or(0, u64::from_be_bytes)
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
