//! Records what the crate logs while a test runs in one thread.

use std::fmt::{Debug, Write};
use std::sync::{Arc, LazyLock, Mutex};

use tracing::field::{Field, Visit};
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Event, Metadata, Subscriber, span};

use crate::base::lock;

/// Records the messages that this thread logs while it lives, with their fields.
pub(crate) struct Recorder {
    lines: Arc<Mutex<Vec<String>>>,
    _until: DefaultGuard,
}

impl Recorder {
    pub(crate) fn start() -> Recorder {
        // A second subscriber has to exist: 1. A test records, with the only subscriber that there is. 2. Another test, in its own
        // thread, is the first to log some message. While there is a single subscriber, `tracing` asks that of the current thread,
        // which has none, and notes that nobody wants the message. 3. The first test misses it. With one more subscriber, `tracing`
        // asks all of them.
        static ANOTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Lines(Arc::default())));
        LazyLock::force(&ANOTHER);
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        Recorder { lines: lines.clone(), _until: tracing::subscriber::set_default(Lines(lines)) }
    }

    /// Returns how many of the messages contain this text.
    pub(crate) fn count(&self, text: &str) -> usize {
        lock(&*self.lines).iter().filter(|line| line.contains(text)).count()
    }
}

struct Lines(Arc<Mutex<Vec<String>>>);

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        lock(&*self.0).push(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, "{field}={value:?} ");
    }
}
