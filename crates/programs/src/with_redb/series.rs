//! A time series: readings of sensors, which disappear after a while.

use redb::{Database, Error, ReadableDatabase, TableDefinition};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// For each sensor and time the reading, and until when it is kept.
const READINGS: TableDefinition<(u32, u64), (u64, f64)> = TableDefinition::new("readings");

/// The series of all sensors.
pub struct Series {
    db: Database,
    keep: Duration,
}

impl Series {
    /// Opens the series in a directory. A reading is kept for at least the time given.
    pub fn open(path: &Path, keep: Duration) -> Result<Series, Error> {
        let db = Database::create(path.join("series.redb"))?;
        let txn = db.begin_write()?;
        txn.open_table(READINGS)?; // a reader would find no table
        txn.commit()?;
        Ok(Series { db, keep })
    }

    /// Records a reading, and removes those of the sensor that were kept long enough.
    pub fn record(&self, sensor: u32, time: u64, reading: f64) -> Result<(), Error> {
        let until = now() + self.keep.as_millis() as u64;
        let txn = self.db.begin_write()?;
        {
            let mut readings = txn.open_table(READINGS)?;
            readings.retain_in((sensor, 0)..=(sensor, u64::MAX), |_, (until, _)| until > now())?;
            readings.insert((sensor, time), (until, reading))?;
        }
        Ok(txn.commit()?)
    }

    /// The readings of a sensor from one time up to another, which is not included.
    pub fn read(&self, sensor: u32, from: u64, to: u64) -> Result<Vec<(u64, f64)>, Error> {
        let readings = self.db.begin_read()?.open_table(READINGS)?;
        let mut kept = Vec::new();
        for entry in readings.range((sensor, from)..(sensor, to))? {
            let (key, value) = entry?;
            let (until, reading) = value.value();
            if until > now() {
                kept.push((key.value().1, reading));
            }
        }
        Ok(kept)
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
