//! Spans for the crate `tracing`, with the feature of that name; otherwise nothing at all.

use kingtide_base::stats::Stats;

/// A span that ends when this goes.
pub(crate) struct Span {
    #[cfg(feature = "tracing")]
    _entered: tracing::span::EnteredSpan,
}

impl Span {
    /// Ends it.
    #[inline]
    pub fn end(self) {}
}

macro_rules! span {
    ($name:literal $(, $field:ident = $value:expr)?) => {{
        #[cfg(feature = "tracing")]
        let span = Span { _entered: tracing::debug_span!(target: "kingtide", $name $(, $field = $value)?).entered() };
        #[cfg(not(feature = "tracing"))]
        let span = Span {};
        span
    }};
}

/// A flush of a family.
#[inline]
pub(crate) fn flush(_family: &str) -> Span {
    span!("flush", family = _family)
}

/// A compaction of a family.
#[inline]
pub(crate) fn compaction(_family: &str) -> Span {
    span!("compaction", family = _family)
}

/// Recovery at an open.
#[inline]
pub(crate) fn recovery() -> Span {
    span!("recovery")
}

/// A commit, up to the point where it is visible.
#[inline]
pub(crate) fn commit() -> Span {
    span!("commit")
}

/// Has all events of a database become events of `tracing`, in the target `kingtide`.
pub(crate) fn connect(_stats: &Stats) {
    #[cfg(feature = "tracing")]
    _stats.events.connect(
        kingtide_base::events::LogLevel::Debug,
        Box::new(|event| {
            use kingtide_base::events::LogLevel;
            let (name, text) = (event.name(), event.to_string());
            match event.level() {
                LogLevel::Off | LogLevel::Error => tracing::error!(target: "kingtide", event = name, "{text}"),
                LogLevel::Warn => tracing::warn!(target: "kingtide", event = name, "{text}"),
                LogLevel::Info => tracing::info!(target: "kingtide", event = name, "{text}"),
                LogLevel::Debug => tracing::debug!(target: "kingtide", event = name, "{text}"),
            }
        }),
    );
}

#[cfg(all(test, feature = "tracing"))]
mod tests {
    use crate::{Db, Options};
    use kingtide_vfs::MemFs;
    use std::fmt::Debug;
    use std::sync::{Arc, Mutex};
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    /// Remembers the names of spans, and what events say.
    #[derive(Default)]
    struct Seen(Arc<Mutex<Vec<String>>>);

    impl Visit for Seen {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            self.0.lock().unwrap().push(format!("{}={value:?}", field.name()));
        }
    }

    impl Subscriber for Seen {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "kingtide"
        }
        fn new_span(&self, span: &Attributes<'_>) -> Id {
            self.0.lock().unwrap().push(format!("span {}", span.metadata().name()));
            span.record(&mut Seen(self.0.clone()));
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &Event<'_>) {
            event.record(&mut Seen(self.0.clone()));
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn spans_and_events_are_seen_by_a_subscriber() {
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        // While a process has a single subscriber, a span that another thread's test meets first is judged by that thread's
        // subscriber, which it has not got, and stays off everywhere. A second subscriber makes all of them be asked.
        let _second = tracing::Dispatch::new(Seen::default());
        tracing::subscriber::with_default(Seen(seen.clone()), || {
            let options = Options { fs: Some(MemFs::shared()), manual_jobs: true, ..Options::default() };
            let db = Db::open("db", options).unwrap();
            for _ in 0..2 {
                db.put(b"k", b"v").unwrap();
                db.flush().unwrap();
            }
            db.compact().unwrap();
            db.close().unwrap();
        });
        let seen = seen.lock().unwrap();
        for expected in [
            "span recovery",
            "span commit",
            "span flush",
            "span compaction",
            "family=\"default\"",
            "event=\"flush_ended\"",
            "event=\"closed\"",
        ] {
            assert!(seen.iter().any(|s| s == expected), "{expected} in {seen:?}");
        }
    }
}
