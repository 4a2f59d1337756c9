//! `cargo xtask peers [rocksdb] [tidesdb] [--force] [--no-check]`: puts the engines that keybench compares with under
//! `target/peers`, where keybench finds and loads them at run time.
//!
//! RocksDB is not built: its release for the Java virtual machine carries a library that exports the whole C API. Maven
//! fetches it; Debian's older package stands in where there is no Maven. TidesDB is built in some ten seconds from the C
//! sources that its Rust crate carries, which cargo fetches.
//!
//! Running it again changes nothing unless `--force` is given.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The RocksDB release that is measured. A pin, so that two machines compare with the same library.
const ROCKSDB: &str = "11.1.2";
/// The plugin that fetches and unpacks artifacts. A pin, so that its parameters are the ones used below.
const MAVEN_PLUGIN: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1";
/// Debian's RocksDB, where there is no Maven.
const DEBIAN_ROCKSDB: &str = "librocksdb7.8";
/// The TidesDB crate's version requirement; crate 1.x carries TidesDB 10.x.
const TIDESDB_CRATE: &str = "1";
/// What TidesDB's build needs beyond a C compiler: a header or program, and Debian's package of it.
const TIDESDB_NEEDS: &[(&str, &str)] =
    &[("cmake", "cmake"), ("zstd.h", "libzstd-dev"), ("lz4.h", "liblz4-dev"), ("snappy-c.h", "libsnappy-dev")];

/// Runs `cargo xtask peers`.
pub fn run(args: &[String]) -> Result<(), String> {
    let known = ["rocksdb", "tidesdb", "--force", "--no-check"];
    if let Some(odd) = args.iter().find(|a| !known.contains(&a.as_str())) {
        return Err(format!(
            "peers: '{odd}' is unknown\nusage: cargo xtask peers [rocksdb] [tidesdb] [--force] [--no-check]"
        ));
    }
    let has = |name: &str| args.iter().any(|a| a == name);
    let all = !has("rocksdb") && !has("tidesdb");
    let dir = directory();
    std::fs::create_dir_all(&dir).map_err(|e| format!("peers: cannot create {}: {e}", dir.display()))?;
    let (mut ready, mut troubles) = (Vec::new(), Vec::new());
    for (name, prepare) in [("rocksdb", rocksdb as fn(&Path) -> Result<Peer, String>), ("tidesdb", tidesdb)] {
        if !all && !has(name) {
            continue;
        }
        if !has("--force") && noted(&dir, name) {
            println!("{name}: ready already");
            ready.push(name);
            continue;
        }
        match prepare(&dir).and_then(|peer| note(&dir, name, &peer).map(|()| peer)) {
            Ok(peer) => {
                println!("{name}: {} is ready", peer.version);
                ready.push(name);
            }
            Err(e) => troubles.push(format!("{name}: {e}")),
        }
    }
    if !ready.is_empty() && !has("--no-check") {
        check(&dir, &ready)?;
    }
    if troubles.is_empty() { Ok(()) } else { Err(troubles.join("\n")) }
}

/// A library in the peers' directory.
struct Peer {
    version: String,
    file: String,
}

/// `target/peers` of this workspace, or where `KEYBENCH_PEERS` says.
fn directory() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::env::var_os("KEYBENCH_PEERS").map_or_else(|| workspace.join("target/peers"), PathBuf::from)
}

/// The list that keybench reads: a line for each peer with its name, version and file.
fn list(dir: &Path) -> PathBuf {
    dir.join("versions.txt")
}

/// Whether the list names a peer whose file is there.
fn noted(dir: &Path, name: &str) -> bool {
    let text = std::fs::read_to_string(list(dir)).unwrap_or_default();
    let line = text.lines().find(|l| l.split_whitespace().next() == Some(name));
    line.and_then(|l| l.split_whitespace().nth(2)).is_some_and(|file| dir.join(file).is_file())
}

/// Puts a peer on the list, in place of an older entry.
fn note(dir: &Path, name: &str, peer: &Peer) -> Result<(), String> {
    let path = list(dir);
    let old = std::fs::read_to_string(&path).unwrap_or_default();
    let others = old.lines().filter(|l| l.split_whitespace().next() != Some(name));
    let mut text: String = others.map(|l| format!("{l}\n")).collect();
    text.push_str(&format!("{name} {} {}\n", peer.version, peer.file));
    std::fs::write(&path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

/// Runs a program to its end; its output is shown when it fails.
fn call<A: AsRef<OsStr>>(program: &str, args: &[A]) -> Result<String, String> {
    let shown: Vec<_> = args.iter().map(|a| a.as_ref().to_string_lossy().into_owned()).collect();
    let shown = format!("{program} {}", shown.join(" "));
    println!("  {shown}");
    let out = Command::new(program).args(args).output().map_err(|e| format!("cannot run {program}: {e}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if out.status.success() {
        return Ok(text(&out.stdout));
    }
    Err(format!("{shown}\nended with {}:\n{}{}", out.status, text(&out.stdout), text(&out.stderr)))
}

fn can_run(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success())
}

/// Installs Debian packages, or says which to install.
fn install(packages: &[&str]) -> Result<(), String> {
    let by_hand = format!("install {} (on Debian: apt-get install {})", packages.join(", "), packages.join(" "));
    let root = call("id", &["-u"]).is_ok_and(|uid| uid.trim() == "0");
    if !root || !can_run("apt-get") {
        return Err(by_hand);
    }
    let args: Vec<&str> = ["install", "-y", "--no-install-recommends"].iter().chain(packages).copied().collect();
    if call("apt-get", &args).is_err() {
        // The package list may be stale or absent, as in a fresh container.
        call("apt-get", &["update"])?;
        call("apt-get", &args).map_err(|e| format!("{e}\n{by_hand}"))?;
    }
    Ok(())
}

/// The official release's library, or Debian's.
fn rocksdb(dir: &Path) -> Result<Peer, String> {
    if !can_run("mvn") {
        println!("rocksdb: no Maven here, using Debian's older library");
        return debian_rocksdb(dir);
    }
    let file = match std::env::consts::ARCH {
        "x86_64" => "librocksdbjni-linux64.so",
        "aarch64" => "librocksdbjni-linux-aarch64.so",
        arch => return Err(format!("the release has no library for {arch} that was tried")),
    };
    // In the peers' directory, because the plugin leaves notes in a folder of the current one.
    let fetched = call(
        "env",
        &[
            format!("--chdir={}", dir.display()),
            "mvn".to_owned(),
            "--batch-mode".to_owned(),
            "--quiet".to_owned(),
            format!("{MAVEN_PLUGIN}:unpack"),
            format!("-Dartifact=org.rocksdb:rocksdbjni:{ROCKSDB}:jar"),
            format!("-DoutputDirectory={}", dir.display()),
            format!("-Dmdep.unpack.includes={file}"),
            format!("-Dincludes={file}"),
            "-Dmdep.overWriteReleases=true".to_owned(),
        ],
    );
    // The plugin's notes, under a name that it leaves unexpanded where there is no project. They may not be there.
    let _ = std::fs::remove_dir_all(dir.join("${project.basedir}"));
    match fetched {
        Ok(_) if dir.join(file).is_file() => Ok(Peer { version: ROCKSDB.to_owned(), file: file.to_owned() }),
        Ok(_) => Err(format!("Maven unpacked no {file}")),
        Err(e) => {
            println!("rocksdb: {e}\nrocksdb: using Debian's older library");
            debian_rocksdb(dir)
        }
    }
}

/// Debian's package, linked to from the peers' directory.
fn debian_rocksdb(dir: &Path) -> Result<Peer, String> {
    let find = || {
        let listed = call("dpkg", &["-L", DEBIAN_ROCKSDB]).ok()?;
        let path = listed.lines().filter(|l| l.contains("/librocksdb.so.")).max_by_key(|l| l.len())?;
        Some(PathBuf::from(path))
    };
    let library = match find() {
        Some(path) => path,
        None => {
            install(&[DEBIAN_ROCKSDB])?;
            find().ok_or_else(|| format!("{DEBIAN_ROCKSDB} holds no librocksdb.so"))?
        }
    };
    let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let version = name.trim_start_matches("librocksdb.so.").to_owned();
    let target = dir.join("librocksdb.so");
    std::fs::copy(&library, &target).map_err(|e| format!("cannot copy {} here: {e}", library.display()))?;
    Ok(Peer { version, file: "librocksdb.so".to_owned() })
}

/// The C sources out of the crate, built into a shared library.
fn tidesdb(dir: &Path) -> Result<Peer, String> {
    let missing: Vec<&str> =
        TIDESDB_NEEDS.iter().filter(|(need, _)| !present(need)).map(|(_, package)| *package).collect();
    if !missing.is_empty() {
        install(&missing)?;
    }
    let work = dir.join("build/tidesdb");
    let source = crate_source(&work)?;
    let build = work.join("out");
    let version = cmake_version(&source)?;
    let path = |p: &Path| p.display().to_string();
    call(
        "cmake",
        &[
            "-S",
            &path(&source),
            "-B",
            &path(&build),
            "-DCMAKE_BUILD_TYPE=Release",
            "-DCMAKE_C_FLAGS_RELEASE=-O3 -DNDEBUG",
            "-DBUILD_SHARED_LIBS=ON",
            "-DTIDESDB_BUILD_TESTS=OFF",
            "-DTIDESDB_BUILD_BENCH=OFF",
            "-DTIDESDB_BUILD_FUZZERS=OFF",
            "-DTIDESDB_WARN_STRICT=OFF",
            "-DTIDESDB_WITH_SNAPPY=ON",
            "-DTIDESDB_WITH_LZ4=ON",
            "-DTIDESDB_WITH_ZSTD=ON",
        ],
    )?;
    let jobs = std::thread::available_parallelism().map_or(2, usize::from).to_string();
    call("cmake", &["--build", &path(&build), "--parallel", &jobs])?;
    let built = build.join("libtidesdb.so");
    std::fs::copy(&built, dir.join("libtidesdb.so")).map_err(|e| format!("cannot copy {}: {e}", built.display()))?;
    Ok(Peer { version, file: "libtidesdb.so".to_owned() })
}

/// Whether a program runs or a header is found by the C compiler.
fn present(need: &str) -> bool {
    if !need.ends_with(".h") {
        return can_run(need);
    }
    let probe = format!("echo '#include <{need}>' | cc -E -x c - > /dev/null 2>&1");
    Command::new("sh").args(["-c", &probe]).status().is_ok_and(|s| s.success())
}

/// Fetches the crate by way of a package made for nothing else, and returns where its C sources are.
fn crate_source(work: &Path) -> Result<PathBuf, String> {
    let io = |doing: &str, e| format!("cannot {doing} {}: {e}", work.display());
    std::fs::create_dir_all(work).map_err(|e| io("create", e))?;
    let manifest = format!(
        "[package]\nname = \"fetch-tidesdb\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\n[lib]\npath = \"lib.rs\"\n\n\
         [workspace]\n\n[dependencies]\ntidesdb = \"{TIDESDB_CRATE}\"\n"
    );
    std::fs::write(work.join("Cargo.toml"), manifest).map_err(|e| io("write into", e))?;
    std::fs::write(work.join("lib.rs"), "").map_err(|e| io("write into", e))?;
    let vendored = work.join("vendored");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let (manifest, target) = (work.join("Cargo.toml"), vendored.as_os_str());
    call(&cargo, &[OsStr::new("vendor"), OsStr::new("--manifest-path"), manifest.as_os_str(), target])?;
    let source = vendored.join("tidesdb/tidesdb");
    if source.join("CMakeLists.txt").is_file() {
        return Ok(source);
    }
    Err(format!("the tidesdb crate has no C sources in {}", source.display()))
}

/// The version in `project(tidesdb VERSION x.y.z ...)`.
fn cmake_version(source: &Path) -> Result<String, String> {
    let path = source.join("CMakeLists.txt");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    // The call may span lines, and comments may speak of project() before it.
    let call = text.lines().skip_while(|l| !l.trim_start().starts_with("project("));
    let mut words = call.flat_map(str::split_whitespace);
    words.find(|w| *w == "VERSION");
    words.next().map(str::to_owned).ok_or_else(|| format!("{} names no version", path.display()))
}

/// Lets keybench write to and read from each peer.
fn check(dir: &Path, peers: &[&str]) -> Result<(), String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let list = peers.join(",");
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    println!("checking with keybench");
    let status = Command::new(cargo)
        .args(["run", "--quiet", "--release", "-p", "keybench", "--manifest-path"])
        .arg(manifest)
        .args(["--", "engines", "--require", &list])
        .env("KEYBENCH_PEERS", dir)
        .status()
        .map_err(|e| format!("cannot run cargo: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("keybench cannot use all of: {list}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_kept_by_name() {
        let dir = std::env::temp_dir().join(format!("peers-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let peer = |version: &str, file: &str| Peer { version: version.into(), file: file.into() };
        assert!(!noted(&dir, "rocksdb"));
        note(&dir, "rocksdb", &peer("1", "a.so")).unwrap();
        note(&dir, "tidesdb", &peer("2", "b.so")).unwrap();
        assert!(!noted(&dir, "rocksdb"), "a listed file that is gone is not ready");
        std::fs::write(dir.join("c.so"), "").unwrap();
        note(&dir, "rocksdb", &peer("3", "c.so")).unwrap();
        assert!(noted(&dir, "rocksdb") && !noted(&dir, "tidesdb"));
        assert_eq!(std::fs::read_to_string(list(&dir)).unwrap(), "tidesdb 2 b.so\nrocksdb 3 c.so\n");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn versions_are_found_and_mistakes_named() {
        let dir = std::env::temp_dir().join(format!("peers-cmake-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(
            dir.join("CMakeLists.txt"),
            "# before project() VERSION 9\ncmake_minimum_required(VERSION 3.1)\nproject(x\n VERSION 10.2.1\n)",
        )
        .unwrap();
        assert_eq!(cmake_version(&dir).unwrap(), "10.2.1");
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(cmake_version(&dir).is_err());
        assert!(run(&["mongodb".to_owned()]).unwrap_err().contains("'mongodb' is unknown"));
    }
}
