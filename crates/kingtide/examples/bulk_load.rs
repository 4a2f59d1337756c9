//! Loads rows in bulk: sorted in memory, written to a sorted file, ingested in one step. Beside it the same rows put in
//! batches.
//!
//! `cargo run --release -p kingtide --example bulk_load -- [rows] [bytes per value]`
#![allow(clippy::disallowed_methods)] // a program may read the clock and make directories

use kingtide::{Db, IngestOptions, Options, Result, SortedFileWriter, WriteBatch};
use kingtide_base::rng::Rng;
use std::path::Path;
use std::time::{Duration, Instant};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<usize>().expect("a number"));
    let (rows, bytes) = (args.next().unwrap_or(200_000), args.next().unwrap_or(100));
    let dir = std::env::temp_dir().join(format!("kingtide-bulk-load-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a directory");

    let mut rng = Rng::new(1);
    let data: Vec<([u8; 16], Vec<u8>)> = (0..rows)
        .map(|_| {
            let (mut key, mut value) = ([0; 16], vec![0; bytes]);
            rng.fill(&mut key);
            rng.fill(&mut value[..bytes / 2]); // half of it shrinks
            (key, value)
        })
        .collect();

    let db = Db::open(dir.join("ingested"), Options::default())?;
    let (took, sorted) = ingest(&db, &dir, data.clone())?;
    println!(
        "sorted file + ingest  {:>9.0} entries/s, {:.2} s to sort them among it",
        rate(rows, took),
        sorted.as_secs_f64()
    );
    assert!(data.iter().step_by(1000).all(|(k, v)| db.get(k).is_ok_and(|got| got.as_deref() == Some(&v[..]))));
    db.close()?;

    let db = Db::open(dir.join("put"), Options::default())?;
    let took = put(&db, &data)?;
    println!("batches of 1000 puts  {:>9.0} entries/s, flushed at the end", rate(rows, took));
    db.close()?;
    let _ = std::fs::remove_dir_all(&dir);
    Ok(())
}

fn ingest(db: &Db, dir: &Path, mut data: Vec<([u8; 16], Vec<u8>)>) -> Result<(Duration, Duration)> {
    let start = Instant::now();
    data.sort_unstable_by_key(|row| row.0);
    let sorted = start.elapsed();
    let family = db.default_family();
    let mut paths = Vec::new();
    let mut rows = data.iter().peekable();
    while rows.peek().is_some() {
        // A file of the size that the family's tables have, so that merges need not take all at once.
        let path = dir.join(format!("{}.sorted", paths.len()));
        let mut file = SortedFileWriter::create(&path, family)?;
        while file.estimated_bytes() < family.options().target_file_size {
            let Some((key, value)) = rows.next() else { break };
            file.put(key, value)?;
        }
        file.finish()?;
        paths.push(path);
    }
    // All of them become visible together, and are durable then.
    family.ingest(&paths, &IngestOptions::new().move_files(true))?;
    Ok((start.elapsed(), sorted))
}

fn put(db: &Db, data: &[([u8; 16], Vec<u8>)]) -> Result<Duration> {
    let start = Instant::now();
    for rows in data.chunks(1000) {
        let mut batch = WriteBatch::new();
        for (key, value) in rows {
            batch.put(db.default_family(), key, value)?;
        }
        db.write(batch)?;
    }
    db.flush()?; // or they would not be where the ingested ones are: in tables, on the disk
    Ok(start.elapsed())
}

fn rate(rows: usize, took: Duration) -> f64 {
    rows as f64 / took.as_secs_f64()
}
