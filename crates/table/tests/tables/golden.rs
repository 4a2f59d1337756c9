//! The bytes of the present formats: a change here is a change of the format, which needs a new version, unless it adds what
//! older builds skip.

use super::common::*;
use kingtide_base::checksum::crc;
use kingtide_base::options::Compression;
use kingtide_base::rng::Rng;
use kingtide_base::{KeyOrder, Kind, Tag};
use kingtide_table::{TableOptions, TableWriter, VlogWriter};
use kingtide_vfs::MemFs;
use std::sync::Arc;

#[test]
fn key_log_bytes_are_frozen() {
    for (restart_interval, version, frozen) in [(1, 1, KLOG_1), (4, 2, KLOG_2)] {
        let file = new_file(&MemFs::new(), "t");
        let opts = TableOptions {
            block_size: 512,
            restart_interval,
            compression: Compression::None,
            ..TableOptions::default()
        };
        let mut w = TableWriter::new(Arc::clone(&file), 7, opts);
        for i in 0..100u32 {
            let key = format!("key{i:05}");
            w.add(key.as_bytes(), Tag::new(900 - i as u64, Kind::Put), &[i as u8; 20]).unwrap();
            w.add(key.as_bytes(), Tag::new(100 - i as u64, Kind::Delete), b"").unwrap();
        }
        w.add_range_tombstone(b"a", b"b", 1000).unwrap();
        w.finish().unwrap();
        let bytes = bytes_of(&*file);
        assert_eq!(bytes[bytes.len() - 16], version);
        assert_eq!((bytes.len(), crc(&bytes)), frozen);
        open(&file, 7, &KeyOrder::Bytewise, 0).unwrap().verify().unwrap();
    }
}

#[test]
fn value_log_bytes_are_frozen() {
    let file = new_file(&MemFs::new(), "v");
    let mut w = VlogWriter::new(Arc::clone(&file), 8, Compression::None, 1000);
    let mut rng = Rng::new(1);
    for len in [0, 10, 999, 1000, 1001, 5000] {
        let mut v = vec![0; len];
        rng.fill(&mut v);
        w.append(&v).unwrap();
    }
    w.finish().unwrap();
    let bytes = bytes_of(&*file);
    assert_eq!((bytes.len(), crc(&bytes)), (VLOG.0, VLOG.1));
}

const KLOG_1: (usize, u32) = (7158, 3_013_118_131);
const KLOG_2: (usize, u32) = (6343, 2_337_732_875);
const VLOG: (usize, u32) = (8236, 706_405_499);
