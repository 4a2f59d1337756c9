//! Every verb of the public API, by what a caller sees of it.
#![allow(clippy::disallowed_methods, missing_docs)] // tests use threads, files and clocks of the machine

mod backup;
mod bad_input;
mod changes;
mod checkpoint;
mod commit_hooks;
mod compressed_values;
mod current_reads;
mod delete_prefix;
mod direct;
mod durability;
mod entries;
mod estimates;
mod ingest;
mod many_families;
mod memory_limit;
mod observe;
mod read_only;
mod reclaim;
mod repair;
mod small_database;
mod small_log;
mod staged_values;
mod stored_options;
mod transact;
mod typed;
mod value_reader;
mod value_writer;
mod verify;
mod whole_contents;
mod written;
