//! One suite for all file systems.
