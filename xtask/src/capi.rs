//! Builds and installs the C API: `cargo xtask capi [--prefix DIR] [--profile NAME] [--keep-debug] [--check]`.
//!
//! The libraries have names of their own in Cargo's directory, because `libkingtide` is the engine's there. Installed they are
//! `libkingtide.a` and `libkingtide.so`, with the version in the shared one's name, the headers for C and C++, and files for pkg-config
//! and CMake that may be moved with the rest.

use crate::tree::root;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What changes when programs must be compiled again: the number in the shared library's name.
const ABI: u32 = 0;

const USAGE: &str = "usage: cargo xtask capi [--prefix DIR] [--profile NAME] [--keep-debug] [--check]";

/// Runs it.
pub fn run(args: &[String]) -> Result<(), String> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let (mut prefix, mut profile) = (target.join("capi"), "release".to_owned());
    let (mut keep_debug, mut check) = (false, false);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().cloned().ok_or_else(|| USAGE.to_owned());
        match arg.as_str() {
            "--prefix" => prefix = PathBuf::from(value()?),
            "--profile" => profile = value()?,
            "--keep-debug" => keep_debug = true,
            "--check" => check = true,
            _ => return Err(USAGE.to_owned()),
        }
    }
    build(&profile)?;
    let built = target.join(if profile == "dev" { "debug" } else { &profile });
    // A library for tests keeps what tells their lines.
    install(&built, &prefix, profile == "release" && !keep_debug)?;
    println!("installed in {}", prefix.display());
    if check { try_out(&prefix) } else { Ok(()) }
}

fn build(profile: &str) -> Result<(), String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root()).args(["rustc", "-p", "kingtide-capi", "--lib", "--profile", profile]);
    // Without the library for Rust, which is none of the two, they are optimised across crates.
    cargo.args(["--crate-type", "staticlib,cdylib"]);
    ran(cargo.args(["--", "-C"]).arg(format!("link-arg=-Wl,-soname,libkingtide.so.{ABI}")))
}

fn install(built: &Path, prefix: &Path, strip: bool) -> Result<(), String> {
    let (include, lib) = (prefix.join("include"), prefix.join("lib"));
    for dir in [&include, &lib.join("pkgconfig"), &lib.join("cmake/kingtide")] {
        fs::create_dir_all(dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
    }
    let copy = |from: PathBuf, to: PathBuf| {
        let _ = fs::remove_file(&to); // a program may run the one that is there
        fs::copy(&from, &to).map(drop).map_err(|e| format!("cannot copy {} to {}: {e}", from.display(), to.display()))
    };
    let version = version()?;
    let (full, short) = (format!("libkingtide.so.{version}"), format!("libkingtide.so.{ABI}"));
    copy(root().join("crates/capi/include/kingtide.h"), include.join("kingtide.h"))?;
    copy(root().join("cpp/include/kingtide.hpp"), include.join("kingtide.hpp"))?;
    copy(built.join("libkingtide_c.a"), lib.join("libkingtide.a"))?;
    copy(built.join("libkingtide_c.so"), lib.join(&full))?;
    if strip {
        // Line tables are most of the static library.
        for library in [lib.join("libkingtide.a"), lib.join(&full)] {
            if let Err(e) = ran(Command::new("strip").arg("-S").arg(&library)) {
                println!("{} keeps its debug information: {e}", library.display());
            }
        }
    }
    for (link, to) in [(short.as_str(), full.as_str()), ("libkingtide.so", short.as_str())] {
        let link = lib.join(link);
        let _ = fs::remove_file(&link); // of an earlier install
        symlink(to, &link).map_err(|e| format!("cannot link {}: {e}", link.display()))?;
    }
    for name in ["kingtide-config.cmake", "kingtide-config-version.cmake"] {
        let (from, to) = (root().join("cpp/cmake").join(name), lib.join("cmake/kingtide").join(name));
        let text = fs::read_to_string(&from).map_err(|e| format!("cannot read {}: {e}", from.display()))?;
        let text = text.replace("@VERSION@", &version).replace("@ABI@", &ABI.to_string());
        fs::write(&to, text).map_err(|e| format!("cannot write {}: {e}", to.display()))?;
    }
    let pc = lib.join("pkgconfig/kingtide.pc");
    fs::write(&pc, pkg_config(&version)).map_err(|e| format!("cannot write {}: {e}", pc.display()))
}

/// The version in the workspace's manifest.
fn version() -> Result<String, String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).map_err(|e| format!("Cargo.toml: {e}"))?;
    let line = manifest.lines().find_map(|l| l.strip_prefix("version = \""));
    line.and_then(|l| l.strip_suffix('"')).map(str::to_owned).ok_or_else(|| "Cargo.toml has no version".to_owned())
}

fn pkg_config(version: &str) -> String {
    format!(
        "prefix=${{pcfiledir}}/../..\n\
         includedir=${{prefix}}/include\n\
         libdir=${{prefix}}/lib\n\
         \n\
         Name: Kingtide\n\
         Description: An embeddable, transactional key-value storage engine\n\
         Version: {version}\n\
         Cflags: -I${{includedir}}\n\
         Libs: -L${{libdir}} -lkingtide\n\
         Libs.private: -lpthread -ldl -lm\n"
    )
}

/// Compiles the example as a user would, with the shared library and with the static one, and runs it.
fn try_out(prefix: &Path) -> Result<(), String> {
    let dir = prefix.join("check");
    let _ = fs::remove_dir_all(&dir); // of an earlier check
    fs::create_dir_all(&dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
    let lib = prefix.join("lib");
    let shared = "cc bank.c $(pkg-config --cflags --libs kingtide) -lpthread \
                  -Wl,-rpath,$(pkg-config --variable=libdir kingtide) -o shared && ./shared shared.db";
    let fixed = "cc -static bank.c $(pkg-config --static --cflags --libs kingtide) -o static && ./static static.db";
    let from = root().join("crates/capi/examples/bank.c");
    fs::copy(&from, dir.join("bank.c")).map_err(|e| format!("cannot copy {}: {e}", from.display()))?;
    for line in [shared, fixed] {
        let mut sh = Command::new("sh");
        sh.args(["-ec", line]).current_dir(&dir).env("PKG_CONFIG_PATH", lib.join("pkgconfig"));
        ran(sh.env_remove("LD_LIBRARY_PATH"))?;
    }
    fs::remove_dir_all(&dir).map_err(|e| format!("cannot remove {}: {e}", dir.display()))
}

fn ran(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(e) => Err(format!("{command:?}: {e}")),
    }
}
