//! Fetches and builds the engines that keybench compares with.

/// Runs `cargo xtask peers`.
pub fn run(_args: &[String]) -> Result<(), String> {
    Err("peers: not written yet".to_owned())
}
