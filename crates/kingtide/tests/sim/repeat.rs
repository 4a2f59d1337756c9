//! A run can be repeated to the byte: the same scenario and seed do the same to the disk and get the same answers.

use crate::sim::cases;
use crate::sim::plan::Plan;
use crate::sim::trace::Trace;
use crate::sim::world::World;
use kingtide::vfs::{Fs, MemFs, OpenMode};
use kingtide_base::hash::hash64;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Puts every file of the disk into the digest.
fn note_disk(disk: &MemFs, dir: &Path, trace: &Trace) {
    for name in disk.list(dir).expect("list") {
        let path: PathBuf = dir.join(&name);
        let Ok(file) = disk.open(&path, OpenMode::Read) else {
            note_disk(disk, &path, trace);
            continue;
        };
        let mut bytes = vec![0; file.len().expect("length") as usize];
        file.read_exact_at(&mut bytes, 0).expect("read");
        trace.note(format!("{} {} {:x}", path.display(), bytes.len(), hash64(&bytes)).as_bytes());
    }
}

fn run(plan: &Arc<Plan>, seed: u64, steps: u64) -> (u64, Vec<String>) {
    kingtide_base::rng::fix_entropy_on_this_thread(Some(seed)); // sorted files have identities
    let mut world = World::new(plan, seed);
    let trace = Arc::new(Trace::default());
    world.trace = Some(trace.clone());
    world.mount(MemFs::new());
    world.open();
    (0..steps).for_each(|_| world.step());
    world.check_reads();
    note_disk(&world.disk, Path::new("/"), &trace);
    trace.pause(true);
    drop(world);
    kingtide_base::rng::fix_entropy_on_this_thread(None);
    trace.digest()
}

#[test]
fn the_same_seed_does_the_same_to_the_byte() {
    let (seeds, steps) = if crate::sim::full() { (10, 400) } else { (1, 80) };
    let (mut runs, mut notes) = (0, 0);
    for (plan, seed) in cases(seeds) {
        let _watched = crate::sim::watchdog::watch(format!("KINGTIDE_SCENARIO={} KINGTIDE_SEED={seed}", plan.name));
        let ((first, lines), (second, again)) = (run(&plan, seed, steps), run(&plan, seed, steps));
        if let Some(at) = lines.iter().zip(&again).position(|(a, b)| a != b) {
            panic!("{} seed {seed} differs at {at}: {} and {}", plan.name, lines[at], again[at]);
        }
        assert_eq!(first, second, "{} seed {seed}", plan.name);
        assert_ne!(first, run(&plan, seed + 1000, steps).0, "{} seed {seed}: the seed has no effect", plan.name);
        (runs, notes) = (runs + 3, notes + lines.len());
    }
    println!("{runs} runs, {notes} notes compared");
}
