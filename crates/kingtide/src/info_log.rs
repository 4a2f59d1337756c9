//! The file `LOG`: what the database does, a line an event, for people.
//!
//! Lines are written where events are delivered ([`kingtide_base::events`]): on background threads and in calls that wait for
//! background work, never by a thread that reads or writes. They are not synced. A line that cannot be written is counted and
//! forgotten. When the file is as large as `log_file_size`, it becomes `LOG.1`, that one `LOG.2`, and so on.

use kingtide_base::clock::Clock;
use kingtide_base::events::Event;
use kingtide_base::names::log_name;
use kingtide_base::options::DbOptions;
use kingtide_base::stats::{Stat, Stats};
use kingtide_base::{ErrorKind, Result};
use kingtide_vfs::{File, Fs, OpenMode};
use std::path::PathBuf;
use std::sync::{Arc, Weak};

/// The file and what it takes to write it.
pub(crate) struct InfoLog {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    clock: Arc<dyn Clock>,
    stats: Weak<Stats>,
    most_bytes: u64,
    /// Older files that are kept.
    kept: u64,
    /// Open since the first line; its length.
    file: Option<(Arc<dyn File>, u64)>,
}

impl InfoLog {
    /// For the options of a database. Touches no file before the first line.
    pub fn new(
        fs: &Arc<dyn Fs>,
        dir: PathBuf,
        clock: &Arc<dyn Clock>,
        stats: &Arc<Stats>,
        options: &DbOptions,
    ) -> InfoLog {
        InfoLog {
            fs: fs.clone(),
            dir,
            clock: clock.clone(),
            stats: Arc::downgrade(stats), // which owns this
            most_bytes: options.log_file_size,
            kept: options.log_files - 1,
            file: None,
        }
    }

    /// Writes an event. That the level asks for it is its caller's business.
    pub fn write(&mut self, event: &Event) {
        let level = format!("{:?}", event.level()).to_lowercase();
        let text = event.to_string().replace(['\n', '\r'], " ");
        let line = format!("{} {level} {}: {text}\n", utc(self.clock.unix_ms()), event.name());
        if self.append(&line).is_err() {
            self.file = None; // whatever was wrong with it may be over by the next line
            if let Some(stats) = self.stats.upgrade() {
                stats.add(Stat::LogLinesDropped, 1);
            }
        }
    }

    fn append(&mut self, line: &str) -> Result<()> {
        let (mut file, mut len) = match self.file.take() {
            Some(open) => open,
            None => self.open()?,
        };
        if len > 0 && len + line.len() as u64 > self.most_bytes {
            drop(file);
            self.rotate()?;
            (file, len) = self.open()?;
        }
        file.write_at(line.as_bytes(), len)?;
        self.file = Some((file, len + line.len() as u64));
        Ok(())
    }

    fn open(&self) -> Result<(Arc<dyn File>, u64)> {
        let path = self.dir.join(log_name(0));
        let file = match self.fs.open(&path, OpenMode::Write) {
            Err(e) if e.kind() == ErrorKind::NotFound => self.fs.open(&path, OpenMode::Create)?,
            opened => opened?,
        };
        let len = file.len()?;
        Ok((file, len))
    }

    /// Gives each file the next one's name; the oldest goes.
    fn rotate(&self) -> Result<()> {
        if self.kept == 0 {
            return self.fs.remove(&self.dir.join(log_name(0)));
        }
        for n in (0..self.kept).rev() {
            match self.fs.rename(&self.dir.join(log_name(n)), &self.dir.join(log_name(n + 1))) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }
}

/// A moment in UTC, to the millisecond (days to civil date after Howard Hinnant, "chrono-compatible low-level date algorithms").
fn utc(unix_ms: u64) -> String {
    let (seconds, ms) = (unix_ms / 1000, unix_ms % 1000);
    let (days, seconds) = (seconds / 86_400, seconds % 86_400);
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use kingtide_base::clock::ManualClock;
    use kingtide_vfs::{Fault, FaultFs, MemFs, Op, Rule};
    use std::path::Path;

    fn text(fs: &dyn Fs, n: u64) -> String {
        let Ok(file) = fs.open(&Path::new("db").join(log_name(n)), OpenMode::Read) else { return String::new() };
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    fn log(fs: &Arc<dyn Fs>, options: &DbOptions) -> (InfoLog, Arc<Stats>) {
        fs.create_dir_all(Path::new("db")).unwrap();
        let (clock, stats): (Arc<dyn Clock>, _) =
            (ManualClock::at_unix_ms(951_782_400_007), Arc::new(Stats::default()));
        (InfoLog::new(fs, "db".into(), &clock, &stats, options), stats)
    }

    #[test]
    fn lines_have_time_and_level_and_files_are_rotated() {
        let fs: Arc<dyn Fs> = MemFs::shared();
        let options = DbOptions::new().log_file_size(4096).log_files(3);
        let (mut one, _) = log(&fs, &options);
        one.write(&Event::FamilyCreated("a\nb".to_owned()));
        assert_eq!(text(&*fs, 0), "2000-02-29T00:00:00.007Z info family_created: family 'a b' created\n");
        drop(one);
        let (mut again, stats) = log(&fs, &options);
        (0..300).for_each(|i| again.write(&Event::FamilyCreated(format!("f{i}"))));
        let all = [2, 1, 0].map(|n| text(&*fs, n));
        assert!(all.iter().all(|t| !t.is_empty() && t.len() <= 4096 && t.ends_with('\n')), "{all:?}");
        assert!(all[2].ends_with("family 'f299' created\n") && text(&*fs, 3).is_empty());
        let lines: Vec<&str> = all.iter().flat_map(|t| t.lines()).collect();
        assert!(lines.windows(2).all(|w| {
            let number = |l: &str| l.split("'f").nth(1).and_then(|n| n.split('\'').next()?.parse::<u32>().ok());
            number(w[0]).is_none() || number(w[0]).map(|n| n + 1) == number(w[1])
        }));
        assert_eq!(stats.get(Stat::LogLinesDropped), 0);
    }

    #[test]
    fn failures_are_counted_and_the_next_line_tries_again() {
        let faults = Arc::new(FaultFs::new(MemFs::shared(), 1));
        let fs: Arc<dyn Fs> = faults.clone();
        let (mut log, stats) = log(&fs, &DbOptions::default());
        faults.add(Rule::new(Op::Write, Fault::Enospc).sticky());
        log.write(&Event::Closed);
        log.write(&Event::Closed);
        faults.clear();
        log.write(&Event::Closed);
        assert_eq!((stats.get(Stat::LogLinesDropped), text(&*fs, 0).lines().count()), (2, 1));
    }
}
