//! The committed header is the one that the source makes, and every function of it is called by the smoke test.

use std::path::{Path, PathBuf};

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// `KINGTIDE_BLESS=1` writes the header instead of comparing it.
#[test]
fn the_header_is_up_to_date() {
    let mut made = Vec::new();
    let config = cbindgen::Config::from_file(here().join("cbindgen.toml")).unwrap();
    cbindgen::Builder::new().with_crate(here()).with_config(config).generate().unwrap().write(&mut made);
    let (made, path) = (String::from_utf8(made).unwrap(), here().join("include/kingtide.h"));
    if std::env::var_os("KINGTIDE_BLESS").is_some() {
        std::fs::write(&path, made).unwrap();
        return;
    }
    let how = "run KINGTIDE_BLESS=1 cargo test -p kingtide-capi --test header";
    assert!(read(&path) == made, "include/kingtide.h is out of date: {how}");
}
