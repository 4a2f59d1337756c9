//! What a lane has at hand when it draws units, runs them and reads.

use crate::model::Lane;
use crate::world::{Handle, World};
use kingtide_base::rng::Rng;
use std::sync::Arc;

/// One lane of a child.
pub struct Writer<'w> {
    pub world: &'w World,
    pub number: usize,
    pub lane: Lane,
    pub rng: Rng,
}

impl<'w> Writer<'w> {
    pub fn new(world: &'w World, number: usize, lane: Lane) -> Writer<'w> {
        let rng = Rng::new(world.orders.seed ^ (world.orders.session << 8 | number as u64).rotate_left(24));
        Writer { world, number, lane, rng }
    }

    /// A family, the first ones often, the last ones hardly ever.
    pub fn pick(&mut self) -> Arc<Handle> {
        let handles = self.world.handles();
        let at = self.rng.unit().powi(4) * handles.len() as f64;
        handles[(at as usize).min(handles.len() - 1)].clone()
    }

    /// Whether a unit may be drawn that uses this number for a prepared transaction.
    pub fn is_in_doubt(&self, number: u8) -> bool {
        self.lane.prepared.contains_key(&number)
    }
}
