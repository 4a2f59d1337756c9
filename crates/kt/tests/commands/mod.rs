//! `kt` as its users start it: every command, its output and its exit code.

mod backup;
mod basics;
mod book;
mod common;
mod dashboards;
mod dump;
#[cfg(unix)]
mod file_limit;
#[cfg(unix)]
mod huge;
#[cfg(target_os = "linux")] // elsewhere the limit of the address space is not kept
mod memory;
mod mistakes;
mod orders;
mod readers;
mod readme;
mod serve;
mod sorted;
mod transfer;
