//! The limit for the sizes of files, `ulimit -f`: a write beyond it is an error like any other.

/// From now on such a write fails with the error `EFBIG`, where its signal would end the process without a word.
pub fn fail_beyond() {
    // It is enough that the signal is caught. Where that fails, it ends the process as before.
    #[cfg(unix)]
    let _ = signal_hook::flag::register(libc::SIGXFSZ, std::sync::Arc::default());
}
