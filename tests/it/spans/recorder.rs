//! Records the spans, and the events in them, of a test whose runtime has one thread.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tracing::level_filters::LevelFilter;
use tracing::subscriber::DefaultGuard;
use tracing::{Level, Metadata, Subscriber, span};
use tracing_core::span::Current;

use crate::support::log::Fields;

/// The last known state of a span.
#[derive(Clone, Debug, Default)]
pub struct Span {
    pub name: String,
    /// Its index among all spans.
    pub parent: Option<usize>,
    pub fields: BTreeMap<String, String>,
    pub is_closed: bool,
    handles: usize,
    metadata: Option<&'static Metadata<'static>>,
}

/// An event, and the index of the span that it happened in.
#[derive(Clone, Debug)]
pub struct Event {
    pub level: Level,
    pub message: String,
    pub span: Option<usize>,
}

/// The recorded spans and events.
#[derive(Clone)]
pub struct Spans {
    most: LevelFilter,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    spans: Vec<Span>,
    events: Vec<Event>,
    /// The indices of the spans that are entered now.
    entered: Vec<usize>,
    panics: bool,
}

/// Records the spans and events of this thread up to the level `most`, until the guard is dropped.
pub fn record(most: LevelFilter) -> (Spans, DefaultGuard) {
    let spans = Spans { most, state: Arc::default() };
    let guard = tracing::subscriber::set_default(spans.clone());
    (spans, guard)
}

impl Spans {
    /// Returns the spans with this name, in the order in which they began.
    pub fn named(&self, name: &str) -> Vec<Span> {
        self.state.lock().unwrap().spans.iter().filter(|span| span.name == name).cloned().collect()
    }

    /// From now on the subscriber panics at each line and when a field is recorded, or no longer does.
    pub fn panics(&self, panics: bool) {
        self.state.lock().unwrap().panics = panics;
    }

    pub fn all(&self) -> Vec<Span> {
        self.state.lock().unwrap().spans.clone()
    }

    pub fn events(&self) -> Vec<Event> {
        self.state.lock().unwrap().events.clone()
    }

    /// Returns the name of the span with this index.
    pub fn name(&self, at: Option<usize>) -> Option<String> {
        at.map(|at| self.state.lock().unwrap().spans[at].name.clone())
    }
}

fn place(id: &span::Id) -> usize {
    id.into_u64() as usize - 1
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let ours = metadata.target() == "nestlock" || metadata.target().starts_with("it::");
        ours && *metadata.level() <= self.most
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.most)
    }

    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        let mut state = self.state.lock().unwrap();
        let current = state.entered.last().copied();
        let parent = if attributes.is_contextual() { current } else { attributes.parent().map(place) };
        let mut fields = Fields(BTreeMap::new());
        attributes.record(&mut fields);
        let (name, metadata) = (attributes.metadata().name().to_owned(), Some(attributes.metadata()));
        state.spans.push(Span { name, parent, fields: fields.0, is_closed: false, handles: 1, metadata });
        span::Id::from_u64(state.spans.len() as u64)
    }

    fn record(&self, id: &span::Id, values: &span::Record<'_>) {
        let mut fields = Fields(BTreeMap::new());
        values.record(&mut fields);
        let panics = self.state.lock().unwrap().panics;
        assert!(!panics, "no field {:?} here", fields.0);
        self.state.lock().unwrap().spans[place(id)].fields.append(&mut fields.0);
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields(BTreeMap::new());
        event.record(&mut fields);
        let message = fields.0.remove("message").unwrap_or_default();
        let mut state = self.state.lock().unwrap();
        let span = state.entered.last().copied();
        state.events.push(Event { level: *event.metadata().level(), message, span });
        let panics = state.panics;
        drop(state);
        assert!(!panics, "no line here");
    }

    fn enter(&self, id: &span::Id) {
        self.state.lock().unwrap().entered.push(place(id));
    }

    fn exit(&self, id: &span::Id) {
        let mut state = self.state.lock().unwrap();
        let at = state.entered.iter().rposition(|entered| *entered == place(id)).expect("it was entered");
        state.entered.remove(at);
    }

    fn clone_span(&self, id: &span::Id) -> span::Id {
        self.state.lock().unwrap().spans[place(id)].handles += 1;
        id.clone()
    }

    fn try_close(&self, id: span::Id) -> bool {
        let mut state = self.state.lock().unwrap();
        let span = &mut state.spans[place(&id)];
        span.handles -= 1;
        span.is_closed = span.handles == 0;
        span.is_closed
    }

    fn current_span(&self) -> Current {
        let state = self.state.lock().unwrap();
        let Some(at) = state.entered.last() else { return Current::none() };
        Current::new(span::Id::from_u64(*at as u64 + 1), state.spans[*at].metadata.expect("it was made"))
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
}
