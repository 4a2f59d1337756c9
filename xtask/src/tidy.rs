//! Style as a test.

/// Runs `cargo xtask tidy`.
pub fn run(_args: &[String]) -> Result<(), String> {
    Ok(())
}
