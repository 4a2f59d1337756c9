//! Every option at its upper end: the database opens and works, or says which option asks for too much; and what it takes of memory
//! and disk goes by what is stored, not by what an option permits.

use kingtide::{Db, DbOptions, ErrorKind, FamilyOptions, Options};
use kingtide_testkit::Scratch;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes on disk that a database of some rows may take.
const DISK: u64 = 256 << 20;

fn bytes_on_disk(dir: &Path) -> u64 {
    std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().metadata().unwrap().blocks() * 512).sum()
}

/// Opens a database with these options, writes and reads some rows, and does it again.
fn works(dir: &Path, options: &Options) -> kingtide::Result<()> {
    let rows = |n: u32| (n.to_be_bytes(), vec![n as u8; if n == 7 { 100_000 } else { 300 }]);
    for _ in 0..2 {
        let db = Db::open(dir, options.clone())?;
        for (key, value) in (0..50).map(rows) {
            db.put(key, value)?;
        }
        db.flush()?;
        db.compact()?;
        for (key, value) in (0..50).map(rows) {
            assert!(db.get(key)?.as_deref() == Some(&value[..]), "another value");
        }
        db.put(b"in the log", b"1")?;
        assert_eq!(db.range(..).count(), 51);
        assert!(bytes_on_disk(dir) < DISK, "{} bytes on disk", bytes_on_disk(dir));
        db.close()?;
    }
    Ok(())
}

#[test]
fn every_option_works_at_its_upper_end_or_is_refused_by_name() {
    let (mut worked, mut refused) = (0, Vec::new());
    for row in DbOptions::rows().into_iter().chain(FamilyOptions::rows()) {
        let Some((_, high)) = row.limits else { continue };
        let dir = Scratch::absent(&format!("upper-{}", row.name));
        let mut options = Options::default();
        let text = high.to_string();
        let done = options.set(row.name, &text).and_then(|()| {
            println!("{} = {text}", row.name);
            works(&dir.0, &options)
        });
        match done {
            Ok(()) => worked += 1,
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{} = {text}: {e}", row.name);
                assert!(e.message().contains(row.name), "{} = {text}: {e}", row.name);
                refused.push(row.name);
            }
        }
    }
    println!("{worked} options work at their upper ends, refused: {refused:?}");
    assert!(worked > 30, "{worked}");
}
