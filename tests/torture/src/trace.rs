//! What a process writes for people, in a file beside its journal: everything that the crate logs, and each error that it returns.

use std::error::Error;
use std::fmt::{Debug, Display, Write as _};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::field::{Field, Visit};
use tracing::{Metadata, Subscriber, span};

use crate::{Result, clock};

/// Writes all levels of all targets to this file from now on, a line each.
pub(crate) fn start(file: &Path) -> Result<()> {
    let trace = Trace { file: File::create_new(file)?, spans: AtomicU64::new(1) };
    Ok(tracing::subscriber::set_global_default(trace)?)
}

/// Notes an error that an operation returned, with all its causes: each as `Display` and as `Debug` show it.
pub(crate) fn error(how: &str, error: &(dyn Error + 'static)) {
    let (mut text, mut next) = (String::new(), Some(error));
    while let Some(error) = next {
        let _ = write!(text, " | {error} | {error:?}");
        next = error.source();
    }
    tracing::debug!("{how} returned an error{text}");
}

/// Notes the `Debug` output of a value.
pub(crate) fn show(value: &impl Debug) {
    tracing::debug!("{value:?}");
}

struct Trace {
    file: File,
    spans: AtomicU64,
}

impl Trace {
    fn write(&self, what: impl Display, fields: impl FnOnce(&mut Line)) {
        let mut line = Line(format!("{} {what}", clock::now()));
        fields(&mut line);
        line.0.push('\n');
        // A line that is not written can't be searched for the password.
        if (&self.file).write_all(line.0.as_bytes()).is_err() {
            std::process::abort();
        }
    }
}

impl Subscriber for Trace {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let metadata = event.metadata();
        self.write(format_args!("{} {}", metadata.level(), metadata.target()), |line| event.record(line));
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        self.write(format_args!("span {}", span.metadata().name()), |line| span.record(line));
        span::Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, span: &span::Id, values: &span::Record<'_>) {
        self.write(format_args!("span {}", span.into_u64()), |line| values.record(line));
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }
}
