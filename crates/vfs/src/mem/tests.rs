use super::*;

#[test]
fn conforms() {
    let fs = MemFs::new();
    let dir = Path::new("/suite");
    fs.create_dir_all(dir).unwrap();
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    crate::conformance::check(&shared, dir);
}
