//! Schedules of the engine's threads on a small database: `cargo xtask shuttle`. [`kingtide_testkit::schedules`] explores them.

mod background;
mod contention;
mod core;
mod durability;
mod followers;
mod models;
mod transactions;
mod world;
