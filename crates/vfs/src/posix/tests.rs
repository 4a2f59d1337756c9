use super::*;
use std::cell::Cell;

/// A directory of its own, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("kingtide-vfs-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn conforms() {
    let dir = Scratch::new("conforms");
    crate::conformance::check(&PosixFs::shared(), &dir.0);
}

#[test]
fn conforms_on_a_memory_file_system() {
    if !Path::new("/dev/shm").is_dir() {
        return;
    }
    let dir = Scratch(PathBuf::from(format!("/dev/shm/kingtide-vfs-{}", std::process::id())));
    fs::create_dir_all(&dir.0).unwrap();
    crate::conformance::check(&PosixFs::shared(), &dir.0);
}

#[test]
fn interrupted_and_partial_calls_are_continued() {
    let file: Vec<u8> = (0..100).collect();
    for seed in 0..50 {
        let rng = Cell::new(seed);
        let draw = |n: u64| {
            let mut r = kingtide_base::rng::Rng::new(rng.get());
            rng.set(r.next_u64());
            r.below(n)
        };
        let mut got = [0; 150];
        let n = read_fully(&mut got, |b, at| {
            if draw(3) == 0 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let rest = &file[at as usize..];
            let n = rest.len().min(b.len()).min(1 + draw(20) as usize);
            b[..n].copy_from_slice(&rest[..n]);
            Ok(n)
        });
        assert_eq!((n.unwrap(), &got[..100]), (100, &file[..]));
        let out = Cell::new(Vec::new());
        write_fully(&file, |b, at| {
            if draw(3) == 0 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let mut o = out.take();
            assert_eq!(o.len() as u64, at);
            let n = b.len().min(1 + draw(20) as usize);
            o.extend_from_slice(&b[..n]);
            out.set(o);
            Ok(n)
        })
        .unwrap();
        assert_eq!(out.take(), file);
    }
    let e = write_fully(b"x", |_, _| Ok(0)).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::WriteZero, "a write that takes nothing must not loop");
}

#[test]
fn boot_ids() {
    let id = parse_boot_id("b9e9f7a4-4a0c-4c7e-8a55-0123456789ab\n").unwrap();
    assert_eq!((id[0], id[15]), (0xb9, 0xab));
    for bad in ["", "b9", "b9e9f7a4-4a0c-4c7e-8a55-0123456789abc", "z9e9f7a4-4a0c-4c7e-8a55-0123456789ab"] {
        assert_eq!(parse_boot_id(bad), None, "{bad}");
    }
}
