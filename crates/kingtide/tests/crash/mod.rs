//! What goes wrong below the engine: damage, failed syncs, clocks that go back, old formats, and the bugs of others.

mod clocks;
mod damage;
mod direct;
mod golden;
mod left_behind;
mod names;
mod others_bugs;
mod prepared_values;
mod recovered_log;
mod stopped;
