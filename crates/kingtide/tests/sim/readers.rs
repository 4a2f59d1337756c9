//! Snapshots and iterators that stay open while everything else goes on, and change streams.

use crate::world::World;
use kingtide::Result;

#[derive(Default)]
pub struct Readers {}

impl World {
    pub fn snapshot_step(&mut self) -> Result<()> {
        Ok(())
    }

    pub fn stream_step(&mut self) -> Result<()> {
        Ok(())
    }
}
