//! The switch of the planted bugs: `cargo xtask planted` puts this file into its copy of `kingtide_base`, and nowhere else is
//! it compiled.

use std::sync::OnceLock;

/// Whether the environment variable `KINGTIDE_PLANTED` names this bug.
pub fn is_awake(bug: &str) -> bool {
    static AWAKE: OnceLock<Option<String>> = OnceLock::new();
    #[allow(clippy::disallowed_methods)] // not the engine's configuration
    let awake = AWAKE.get_or_init(|| std::env::var("KINGTIDE_PLANTED").ok());
    awake.as_deref() == Some(bug)
}
