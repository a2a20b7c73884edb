//! What a request resolves to, and how it is made from the grant: a guard or guards, of either kind, or an option of them.

use std::fmt;
use std::task::{Context, Poll};

use crate::base::Boxed;
use crate::base::telemetry::HeldSpan;
use crate::client::acquire::NotGranted;
use crate::client::call::CallOptions;
use crate::client::guard::Guard;
use crate::error::{Error, ErrorKind, Loss, Result};

pub(super) type Releasing = Boxed<'static, Result<()>>;
pub(super) type Watching = Boxed<'static, Loss>;

/// Makes a request: for one lock, or for several.
#[expect(private_interfaces, reason = "public only because `Answer` has it; nobody else can name it")]
pub trait Asks: Unpin {
    type Granted: Granted;

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Self::Granted, NotGranted>>;

    /// Returns the options of the call, to be changed. A request that is under way is dropped, which undoes it.
    fn options_mut(&mut self) -> &mut CallOptions;

    /// Adds the names and options of the request.
    fn describe(&self, out: &mut fmt::DebugStruct<'_, '_>);
}

/// What was granted, in the form that a run needs.
#[expect(private_interfaces, reason = "as in `Asks`")]
pub trait Granted: Sized {
    /// Returns the guards, in the order of their names.
    fn guards(&self) -> &[Guard];

    /// Resolves when a hold is lost.
    fn watch(&self) -> Watching;

    /// Releases the holds, if that needs no await. Returns whether it did.
    fn ends_here(&mut self) -> bool {
        false
    }

    /// Releases the holds, and logs a release that is not confirmed.
    fn release_done(self) -> Releasing;

    fn is_lost(&self) -> bool {
        self.guards().iter().any(Guard::is_lost)
    }

    /// Returns the span in which the work runs, if somebody records it: that of the first name, since a span has one parent.
    fn span(&self) -> Option<&HeldSpan> {
        self.guards().iter().find_map(Guard::span)
    }

    /// Returns the error of a run that this loss ended.
    fn lost(&self, loss: Loss) -> Error {
        let lost = self.guards().iter().find(|guard| guard.loss() == Some(loss));
        lost.map_or_else(|| Error::lost(loss), |guard| guard.held().lost(loss))
    }
}

/// What a [`Request`](crate::futures::Request) resolves to: a guard or guards, or an option of them. No other type implements it.
#[expect(private_interfaces, reason = "as in `Asks`")]
pub trait Answer: Sealed + Sized {
    /// What the work of a `run` gets: a [`Hold`](crate::Hold), or one for each of several names, sorted by name.
    type Hold;

    /// What a `run` resolves to if its work returns `T`: a `T`, or an option of it.
    type Ran<T>;

    #[doc(hidden)]
    type Asks: Asks;

    #[doc(hidden)]
    fn answer(granted: Result<GrantedTo<Self>, NotGranted>) -> Result<Self>;

    #[doc(hidden)]
    fn hold(granted: &GrantedTo<Self>) -> Result<Self::Hold>;

    #[doc(hidden)]
    fn ran<T>(output: Result<T, NotGranted>) -> Result<Self::Ran<T>>;
}

/// Keeps others from implementing [`Answer`], since its module is private.
pub trait Sealed {}

impl<A: Answer> Sealed for Option<A> {}

pub(super) type GrantedTo<A> = <<A as Answer>::Asks as Asks>::Granted;

#[expect(private_interfaces, reason = "as in `Asks`")]
impl<A: Answer> Answer for Option<A> {
    type Hold = A::Hold;
    type Ran<T> = Option<A::Ran<T>>;
    type Asks = A::Asks;

    fn answer(granted: Result<GrantedTo<A>, NotGranted>) -> Result<Option<A>> {
        match granted {
            Err(NotGranted::Busy { .. }) => Ok(None),
            granted => A::answer(granted).map(Some),
        }
    }

    fn hold(granted: &GrantedTo<A>) -> Result<A::Hold> {
        A::hold(granted)
    }

    fn ran<T>(output: Result<T, NotGranted>) -> Result<Option<A::Ran<T>>> {
        match output {
            Err(NotGranted::Busy { .. }) => Ok(None),
            output => A::ran(output).map(Some),
        }
    }
}

/// Returns the error of a future that is polled after it was ready.
pub(super) fn polled_again() -> Error {
    let message = "the future was polled again after it was ready; make a new request";
    Error::new(ErrorKind::Misuse, message)
}
