//! Finds and loads peers' shared libraries at run time. `cargo xtask peers` puts them in place.

use crate::error::{Error, Result};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::path::PathBuf;

/// Resolve a library's own symbols before everyone else's, so that two engines that both carry LZ4 keep to their own.
/// The value is Linux's; other systems bind privately without being asked.
const RTLD_DEEPBIND: i32 = if cfg!(target_os = "linux") { 8 } else { 0 };

/// A loaded peer. Never unloaded: engines leave threads and thread-local destructors behind.
pub struct PeerLibrary {
    library: &'static Library,
    path: PathBuf,
    version: String,
}

impl PeerLibrary {
    /// Loads a peer by the name it has in `versions.txt` of the peers' directory.
    pub fn load(peer: &str) -> Result<PeerLibrary> {
        let (path, version) = locate(peer)?;
        // An allocator that the user put in front of the C library's must be the library's too.
        let bind = if std::env::var_os("LD_PRELOAD").is_some() { 0 } else { RTLD_DEEPBIND };
        // SAFETY: loading runs the library's initialisers; these are the released engines that the user asked to
        // measure, in files that the user's own `cargo xtask peers` put there.
        let library = unsafe { Library::open(Some(&path), RTLD_LOCAL | RTLD_NOW | bind) }
            .map_err(|e| Error::Unavailable(format!("{peer}: cannot load {}: {e}", path.display())))?;
        Ok(PeerLibrary { library: Box::leak(Box::new(library)), path, version })
    }

    /// The version that `cargo xtask peers` noted.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// A function of the library.
    ///
    /// # Safety
    /// `F` must be a function pointer type of the C ABI that matches the symbol's declaration.
    pub unsafe fn symbol<F: Copy>(&self, name: &str) -> Result<F> {
        // SAFETY: the caller vouches for the type, and the library is never unloaded.
        unsafe { self.library.get::<F>(name.as_bytes()) }
            .map(|s| *s)
            .map_err(|e| Error::Unavailable(format!("{} has no usable {name}: {e}", self.path.display())))
    }
}

/// Declares a struct of function pointers and how to load it: each field is the symbol's name after the prefix.
macro_rules! peer_symbols {
    ($(#[$doc:meta])* $name:ident, $prefix:literal { $($field:ident: fn($($arg:ty),*) $(-> $ret:ty)?;)* }) => {
        $(#[$doc])*
        pub struct $name { $(pub $field: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)* }

        impl $name {
            pub fn load(library: &$crate::engine::peers::PeerLibrary) -> $crate::error::Result<$name> {
                Ok($name { $(
                    // SAFETY: the field's type is copied from the peer's public C header.
                    $field: unsafe { library.symbol(concat!($prefix, stringify!($field)))? },
                )* })
            }
        }
    };
}
pub(super) use peer_symbols;

/// Where peers may lie, most specific first.
fn directories() -> Vec<PathBuf> {
    if let Some(dir) = std::env::var_os("KEYBENCH_PEERS") {
        return vec![dir.into()];
    }
    let mut dirs = Vec::new();
    // The binary's own target directory: target/release/keybench -> target/peers.
    if let Ok(exe) = std::env::current_exe() {
        dirs.extend(exe.ancestors().skip(2).take(2).map(|d| d.join("peers")));
    }
    dirs.push(PathBuf::from("target/peers"));
    dirs.push(PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/peers")));
    dirs
}

/// The library file and version of a peer, from the first directory whose `versions.txt` names it.
fn locate(peer: &str) -> Result<(PathBuf, String)> {
    let dirs = directories();
    for dir in &dirs {
        let Ok(list) = std::fs::read_to_string(dir.join("versions.txt")) else { continue };
        for line in list.lines() {
            let mut words = line.split_whitespace();
            if words.next() == Some(peer)
                && let (Some(version), Some(file)) = (words.next(), words.next())
            {
                return Ok((dir.join(file), version.to_owned()));
            }
        }
    }
    let looked: Vec<_> = dirs.iter().map(|d| d.display().to_string()).collect();
    Err(Error::Unavailable(format!(
        "{peer} is not on this machine (looked in {}); `cargo xtask peers` fetches and builds it",
        looked.join(", ")
    )))
}
