//! Where in a tree a file belongs that is newer than all of it.

use kingtide_base::KeyOrder;
use kingtide_base::options::FamilyOptions;
use kingtide_versions::{FileMeta, Footprint, Version, levels_of_rest};

/// The place of a file: a level, and the run of it that the file joins; level 0 gets a run of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Level 0, newer than all else.
    Top,
    /// A deeper level, between the files of a run there.
    Run { level: usize, run: u64 },
}

/// The deepest level down to which no file overlaps the new one in keys: there it hides nothing that is newer and nothing
/// older lies above it, so the order of versions over the runs holds although its sequence number is the highest of all.
/// No running merge may be about to put a file across its keys into that level. Only levels count where data may rest.
pub(crate) fn place(
    version: &Version,
    order: &KeyOrder,
    options: &FamilyOptions,
    running: &[Footprint],
    file: &FileMeta,
) -> Place {
    let (dividing, largest) = levels_of_rest(version, options);
    let (lo, hi) = (file.min_key.as_slice(), file.max_key.as_slice());
    let meets = |l: &usize| version.levels[*l].iter().any(|r| r.overlapping(order, lo, hi).next().is_some());
    let free = (0..=largest).take_while(|l| !meets(l)).last().unwrap_or(0);
    let in_the_way = |level: usize| {
        let own = Footprint { top: level, bottom: level, lo: lo.to_vec(), hi: hi.to_vec(), hi_open: false };
        running.iter().any(|r| r.conflicts(order, &own))
    };
    let rests = |level: &usize| *level == largest || *level <= dividing;
    match (1..=free).rev().filter(rests).find(|level| !in_the_way(*level)) {
        Some(level) => Place::Run { level, run: version.levels[level].first().map_or(level as u64, |r| r.id) },
        None => Place::Top,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn file(id: u64, run: u64, lo: &str, hi: &str) -> FileMeta {
        FileMeta {
            id,
            run,
            size: 1 << 20,
            entries: 10,
            tombstones: 0,
            range_tombstones: 0,
            raw_bytes: 1 << 20,
            min_key: lo.into(),
            max_key: hi.into(),
            min_seq: 1,
            max_seq: 1,
            min_expiry_ms: 0,
            created_ms: 0,
            vlog_refs: Vec::new(),
            written_as: id,
            sequence: 0,
            hides: 0,
        }
    }

    fn tree(files: &[(usize, u64, u64, &str, &str)]) -> Version {
        let mut version = Version::default();
        for (level, run, id, lo, hi) in files {
            version.add(&KeyOrder::Bytewise, *level, Arc::new(file(*id, *run, lo, hi)));
        }
        version
    }

    fn placed(version: &Version, running: &[Footprint], lo: &str, hi: &str) -> Place {
        place(version, &KeyOrder::Bytewise, &FamilyOptions::default(), running, &file(99, 0, lo, hi))
    }

    #[test]
    fn a_file_goes_as_deep_as_nothing_overlaps_it() {
        assert_eq!(placed(&tree(&[]), &[], "a", "z"), Place::Run { level: 1, run: 1 });
        let version = tree(&[(0, 20, 1, "c", "d"), (1, 9, 2, "g", "h"), (1, 9, 3, "m", "n")]);
        assert_eq!(placed(&version, &[], "i", "j"), Place::Run { level: 1, run: 9 });
        assert_eq!(placed(&version, &[], "h", "j"), Place::Top, "the bound of another file");
        assert_eq!(placed(&version, &[], "a", "c"), Place::Top);
        assert_eq!(placed(&version, &[], "e", "f"), Place::Run { level: 1, run: 9 });
    }

    #[test]
    fn a_running_merge_keeps_its_level_to_itself() {
        let version = tree(&[(0, 20, 1, "c", "d"), (0, 20, 2, "x", "y")]);
        let merge = Footprint { top: 0, bottom: 1, lo: "c".into(), hi: "y".into(), hi_open: false };
        assert_eq!(placed(&version, std::slice::from_ref(&merge), "m", "n"), Place::Top);
        assert_eq!(placed(&version, &[merge], "a", "b"), Place::Run { level: 1, run: 1 });
    }

    #[test]
    fn levels_between_the_dividing_and_the_largest_stay_empty() {
        let version = tree(&[(6, 6, 1, "c", "d")]);
        let (dividing, largest) = levels_of_rest(&version, &FamilyOptions::default());
        assert!(dividing < largest);
        assert_eq!(placed(&version, &[], "e", "f"), Place::Run { level: 6, run: 6 });
        assert_eq!(placed(&version, &[], "c", "f"), Place::Run { level: dividing, run: dividing as u64 });
    }
}
