//! Kingtide through its Rust API.

use super::{Engine, EngineOptions};
use crate::error::{Error, Result};
use std::path::Path;

/// Opens or creates a database in `dir`.
pub fn open(_dir: &Path, _options: &EngineOptions) -> Result<Box<dyn Engine>> {
    Err(Error::Unavailable("kingtide's database is not part of this build yet".into()))
}
