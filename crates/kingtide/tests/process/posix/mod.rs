//! What only the operating system's files and processes show: forked children, permissions, planted links, limits of a
//! process.

mod files;
#[cfg(target_os = "linux")]
mod fork;
mod limits_of_options;
mod memory;
