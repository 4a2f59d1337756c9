//! Kingtide: an embeddable, transactional LSM key-value storage engine.

pub mod rangedel;
pub mod version;
