use super::*;
use crate::conformance;

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
    match std::env::var_os("KINGTIDE_WINE") {
        Some(_) => conformance::check_all_else(&SystemFs::shared(), &dir.0),
        None => conformance::check(&SystemFs::shared(), &dir.0),
    }
}
