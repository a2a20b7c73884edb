//! `Effects`: what a visit of an entry leaves to be done once nothing is locked.

use std::sync::Arc;
use std::task::Waker;

use crate::base::Fate;
use crate::base::meter::{self, Sample};
use crate::base::telemetry::Context;
use crate::error::Loss;
use crate::owner::Owner;
use crate::table::waits::LongWait;

/// What is to be done once no lock is held any more.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) wake: Vec<Waker>,
    pub(crate) resolve: Vec<Arc<Fate>>,
    pub(crate) log: Vec<LogEvent>,
}

/// The effects of the visit that an entry has now. Mostly there are none, and never between two visits: it is a pointer then.
#[derive(Debug, Default)]
pub(super) struct Out(Option<Box<Effects>>);

impl Out {
    /// `None`, as mostly: there is nothing to do.
    pub(super) fn take(&mut self) -> Option<Box<Effects>> {
        self.0.take()
    }

    /// Made for the first of them.
    pub(super) fn made(&mut self) -> &mut Effects {
        self.0.get_or_insert_default()
    }

    pub(super) fn wake(&mut self, wakers: impl IntoIterator<Item = Waker>) {
        for waker in wakers {
            self.made().wake.push(waker);
        }
    }

    pub(super) fn resolve(&mut self, fates: impl IntoIterator<Item = Arc<Fate>>) {
        for fate in fates {
            self.made().resolve.push(fate);
        }
    }

    pub(super) fn log(&mut self, event: LogEvent) {
        self.made().log.push(event);
    }

    pub(super) fn measure(&mut self, sample: Sample) {
        if meter::ON {
            self.log(LogEvent::Measured(sample));
        }
    }
}

/// What is logged, or counted.
#[derive(Debug)]
pub(crate) enum LogEvent {
    Lost {
        field: Arc<str>,
        loss: Loss,
    },
    OutOfOrder {
        field: Arc<str>,
    },
    SelfWait {
        asks: Owner,
        holds: Owner,
    },
    Settled {
        field: Arc<str>,
    },
    RenewedLate {
        field: Arc<str>,
        failures: u32,
    },
    Waits(Box<LongWait>),
    /// A request that waited has left its line. To be dropped where nothing is locked.
    WaitEnded(#[allow(dead_code, reason = "its drop is what counts")] Arc<Context>),
    Measured(Sample),
}
