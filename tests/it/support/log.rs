//! Records what the crate logs with `tracing`.
//!
//! Tests run side by side in one process, so one subscriber records the events of all of them. A test finds its own events by a lock name
//! that no other test uses.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{LazyLock, Mutex, OnceLock};

use tokio::sync::watch;
use tracing::field::{Field, Visit};
use tracing::{Level, Metadata, Subscriber, span};

use super::soon;

/// One event of the crate.
#[derive(Clone, Debug)]
pub struct Event {
    pub level: Level,
    pub target: String,
    pub message: String,
    /// The other fields of the event, by name.
    pub fields: BTreeMap<String, String>,
}

impl Event {
    /// Returns whether the text is in the message or in one of the fields.
    pub fn mentions(&self, text: &str) -> bool {
        self.message.contains(text) || self.fields.values().any(|value| value.contains(text))
    }
}

static EVENTS: LazyLock<Mutex<Vec<Event>>> = LazyLock::new(Default::default);
static NEWS: LazyLock<watch::Sender<()>> = LazyLock::new(|| watch::channel(()).0);

/// Records events from now on. Servers and proxies call this; a test over `in_memory` has to call it first.
pub fn capture() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| tracing::subscriber::set_global_default(Capture).expect("the only subscriber"));
}

/// Returns all matching events so far.
pub fn all(matches: impl Fn(&Event) -> bool) -> Vec<Event> {
    EVENTS.lock().unwrap().iter().filter(|event| matches(event)).cloned().collect()
}

/// Returns the first matching event so far.
pub fn find(matches: impl Fn(&Event) -> bool) -> Option<Event> {
    EVENTS.lock().unwrap().iter().find(|event| matches(event)).cloned()
}

/// Waits until there is a matching event, and returns it.
pub async fn recorded(matches: impl Fn(&Event) -> bool) -> Event {
    let mut news = NEWS.subscribe();
    soon("an event in the log", async {
        loop {
            if let Some(event) = find(&matches) {
                return event;
            }
            let _ = news.changed().await;
        }
    })
    .await
}

struct Capture;

impl Subscriber for Capture {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "nestlock" || metadata.target().starts_with("it::")
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields(BTreeMap::new());
        event.record(&mut fields);
        let message = fields.0.remove("message").unwrap_or_default();
        let metadata = event.metadata();
        let event = Event {
            level: *metadata.level(),
            target: metadata.target().to_owned(),
            message,
            fields: fields.0,
        };
        EVENTS.lock().unwrap().push(event);
        NEWS.send_replace(());
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// Collects the fields of an event or a span.
#[derive(Default)]
pub struct Fields(pub BTreeMap<String, String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}
