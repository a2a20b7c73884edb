//! Takes several locks without deadlocks among such requests: a request never holds a name that sorts after one that it waits for.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use scopeguard::ScopeGuard;
use tokio::task::consume_budget;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::base::meter::Sample;
use crate::base::telemetry;
use crate::base::{after, limit};
use crate::client::acquire::{NotGranted, Part};
use crate::client::answer::{Answer, Asks, Granted, Releasing, Sealed, Watching, polled_again};
use crate::client::call::{CallOptions, Times};
use crate::client::guard::Guard;
use crate::client::hold::Hold;
use crate::client::kind::Kind;
use crate::client::request::AskOne;
use crate::client::several::guards::Guards;
use crate::error::{Error, ErrorKind, Loss, Result};
use crate::owner::Owner;
use crate::session::Handle;
use crate::wire::keys::{self, Keys};

/// The locks that are requested, and the options of the call.
struct AllOptions {
    handle: Handle,
    /// Sorted by name, without duplicates.
    keys: Arc<[Arc<Keys>]>,
    call: CallOptions,
}

impl AllOptions {
    fn check(&self) -> Result<()> {
        if self.keys.is_empty() {
            let message =
                "no name was given: `mutexes` takes one or more; name what they guard, such as `account:1`";
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        self.call.times().check(&self.handle.config)?;
        let prefix = &self.handle.config.prefix;
        self.keys
            .iter()
            .try_for_each(|keys| keys::check(&keys.name, prefix).map_err(|error| error.on(&keys.name)))
    }
}

/// The future of a request for several locks.
pub struct AskAll {
    options: AllOptions,
    /// `None` before the first poll, and once the request is ready.
    asking: Option<Box<Gathering>>,
    answered: bool,
}

impl AskAll {
    pub(super) fn new(handle: Handle, keys: Arc<[Arc<Keys>]>, call: CallOptions) -> AskAll {
        AskAll { options: AllOptions { handle, keys, call }, asking: None, answered: false }
    }
}

#[expect(private_interfaces, reason = "as in `Asks`")]
impl Asks for AskAll {
    type Granted = Guards;

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Guards, NotGranted>> {
        if self.answered {
            return Poll::Ready(Err(polled_again().into()));
        }
        let asking = self.asking.get_or_insert_with(|| Box::new(Gathering::new(&self.options)));
        let answer = ready!(asking.poll(&self.options, cx));
        // If the answer is an error, this drops whatever was granted.
        self.asking = None;
        self.answered = true;
        Poll::Ready(answer)
    }

    fn options_mut(&mut self) -> &mut CallOptions {
        self.asking = None;
        &mut self.options.call
    }

    fn describe(&self, out: &mut fmt::DebugStruct<'_, '_>) {
        let names: Vec<&str> = self.options.keys.iter().map(|keys| &*keys.name).collect();
        out.field("names", &names);
    }
}

impl<K: Kind> Sealed for Guards<K> {}

#[expect(private_interfaces, reason = "as in `Asks`")]
impl<K: Kind> Answer for Guards<K> {
    type Hold = Vec<Hold<K>>;
    type Ran<T> = T;
    type Asks = AskAll;

    fn answer(granted: Result<Guards, NotGranted>) -> Result<Guards<K>> {
        granted.map_err(NotGranted::into_error)?.into_kind()
    }

    fn hold(granted: &Guards) -> Result<Vec<Hold<K>>> {
        granted.guards().iter().map(|guard| Hold::of(guard.held())).collect()
    }

    fn ran<T>(output: Result<T, NotGranted>) -> Result<T> {
        output.map_err(NotGranted::into_error)
    }
}

/// Has `close` wait for a lock that is held already.
type Gathered = ScopeGuard<Handle, fn(Handle)>;

/// The state of one name.
enum Slot {
    /// Neither held nor requested.
    Free,
    Asking(AskOne),
    Held {
        guard: Guard,
        /// Set while a later name is waited for.
        watching: Option<Watching>,
        /// Dropped after the guard.
        counted: Gathered,
    },
    /// It was held, and its release is awaited.
    GoingBack {
        release: Releasing,
        _counted: Gathered,
    },
}

/// How names are asked for. Only a single attempt leaves `AtOnce`.
#[derive(Clone, Copy)]
enum Pass {
    /// Asks for all names at once, like a request that waits.
    AtOnce,
    /// Asks for one name after the other, in order. A busy name is asked for again until `until`, after pauses that double.
    InOrder { until: Instant, pause: Duration },
}

/// The second pass asks for refused names again for at least this long: about four times, after pauses of 1, 2, 4 and 8 ms.
const BRIEF: Duration = Duration::from_millis(15);

/// A request for several locks, from its first poll until it is ready or dropped. Dropping it drops its requests and guards.
///
/// All names are asked for at once. As soon as one of them has to wait for others, the later names are released, and are asked for
/// again once that one is granted. So a request that waits holds only earlier names, and requests never wait in a circle: among
/// all waiting requests, take the one that waits for the last name in the order. The holder of that name waits for none.
///
/// A single attempt that is refused releases what it was granted, and goes through the names once more, one by one. If several
/// begin at once, each may refuse another in the first pass: 1. A is granted `a`, and B `b`. 2. Each is refused the other name.
/// 3. Both release what they have, and nobody is granted both. In the second pass a request is refused only by one that has gone
/// further in the order, and the one that has gone furthest is refused only by one that is still in its first pass. Such a
/// request is done after about the time that this one's first pass took, so a busy name is asked for again for that long.
struct Gathering {
    /// In the order of the names.
    slots: Box<[Slot]>,
    owner: Owner,
    /// When the time that `within` allows is over; `None` means never.
    limit: Option<Instant>,
    /// Whether the request makes a single attempt, and does not wait for others.
    single_attempt: bool,
    pass: Pass,
    started_at: Instant,
    /// Whether the request has asked for all names at once.
    has_asked: bool,
    /// The session's number when the request began.
    began_number: u64,
    /// The name that was waited for or lost last.
    waited: usize,
    /// Why the request is about to end: its options are wrong, or a name was busy for the whole time, or failed. The request first awaits
    /// the answers to commands under way, since dropping them would leave their outcomes unknown: 1. A server refuses all writes. 2. The
    /// first refusal ends the request, and the second one is never read. 3. `close` waits for the end of a hold that never existed, and the
    /// server refuses that end too.
    refused: Option<NotGranted>,
    losses: u32,
    /// Set after a loss, and before a busy name is asked for again: the request goes on when this is over.
    pause: Option<Pin<Box<Sleep>>>,
}

impl Gathering {
    fn new(options: &AllOptions) -> Gathering {
        let started_at = Instant::now();
        Gathering {
            slots: options.keys.iter().map(|_| Slot::Free).collect(),
            // One owner for all names, whichever task polls this later.
            owner: options.call.owner.clone().unwrap_or_else(Owner::current),
            limit: options.call.within.and_then(|within| limit(started_at, within)),
            single_attempt: options.call.within == Some(Duration::ZERO),
            pass: Pass::AtOnce,
            started_at,
            has_asked: false,
            began_number: options.handle.numbers.next(),
            waited: 0,
            refused: options.check().err().map(NotGranted::Failed),
            losses: 0,
            pause: None,
        }
    }

    fn poll(&mut self, options: &AllOptions, cx: &mut Context<'_>) -> Poll<Result<Guards, NotGranted>> {
        loop {
            self.poll_requests(cx);
            if let Some(why) = self.refused.take() {
                let is_busy = matches!(why, NotGranted::Busy { .. });
                if is_busy && self.schedules_repeat() {
                    continue;
                }
                let has_second_pass = is_busy && self.has_second_pass();
                let gives_back = self.give_back(0, has_second_pass);
                if gives_back || self.is_asking() {
                    self.refused = Some(why);
                    if gives_back {
                        continue; // The releases have not been polled yet.
                    }
                    return Poll::Pending;
                }
                if has_second_pass {
                    self.go_in_order();
                    continue;
                }
                // As in `acquire`: a loop of requests that fail lets others run.
                if pin!(consume_budget()).poll(cx).is_pending() {
                    self.refused = Some(why);
                    return Poll::Pending;
                }
                let within = options.call.within.unwrap_or_default();
                return Poll::Ready(Err(match why {
                    NotGranted::Busy { name, by, .. } => {
                        if options.call.counts_timeout() {
                            options.handle.measure(&name, Sample::TimedOut);
                        }
                        NotGranted::Busy { name, within, by }
                    }
                    failed => failed,
                }));
            }
            if let Some(first) = self.first_that_waits() {
                self.waited = first;
                self.give_back(first + 1, false);
                match self.watch(cx) {
                    Some((at, loss)) => self.begin_again(at, loss, options),
                    None => return Poll::Pending,
                }
            } else if self.is_in_order() && self.is_asking() {
                return Poll::Pending;
            } else if self.slots.iter().any(|slot| matches!(slot, Slot::Free)) {
                if let Some(pause) = &mut self.pause {
                    ready!(pause.as_mut().poll(cx));
                    self.pause = None;
                }
                self.ask(options);
            } else if self.is_asking() {
                return Poll::Pending;
            } else if let Some((at, loss)) = self.lost() {
                // Not all are held any more: 1. The first name is granted. 2. Its hold is lost while the answer about the last name is
                // on its way.
                if self.single_attempt {
                    return Poll::Ready(Err(Error::lost(loss).on(&options.keys[at].name).into()));
                }
                self.begin_again(at, loss, options);
            } else {
                let guards = self.held();
                // The minimum time is set only now. If each grant set it: 1. The first name is granted. 2. The second one is not, and
                // all are released. 3. The first one would be kept from everybody for no reason.
                if let Some(time) = options.call.times().at_least {
                    guards.keep(time);
                }
                return Poll::Ready(Ok(guards));
            }
        }
    }

    /// Asks for all names that are neither held nor asked for, in order, or finds that the time is over. In the second pass it asks
    /// only for the first of them.
    fn ask(&mut self, options: &AllOptions) {
        let now = Instant::now();
        let within = match self.limit {
            Some(limit) if self.has_asked && !self.single_attempt => {
                let left = limit.saturating_duration_since(now);
                if left.is_zero() {
                    let name = options.keys[self.waited].name.clone();
                    self.refused = Some(NotGranted::Busy { name, within: left, by: None });
                    return;
                }
                Some(left)
            }
            _ => options.call.within,
        };
        self.has_asked = true;
        let (busy_is_error, in_order) =
            (options.call.busy_is_error && !self.has_second_pass(), self.is_in_order());
        // `at_least` begins only once all are granted.
        let times = options.call.times.as_ref().map(|times| Box::new(Times { at_least: None, ..**times }));
        for (slot, keys) in self.slots.iter_mut().zip(&*options.keys) {
            if matches!(slot, Slot::Free) {
                let part = Some(Arc::new(Part::new(self.began_number)));
                let call = CallOptions {
                    within,
                    times: times.clone(),
                    owner: Some(self.owner.clone()),
                    busy_is_error,
                    ..options.call.clone()
                };
                *slot = Slot::Asking(AskOne::new(options.handle.clone(), keys.clone(), call, part));
                if in_order {
                    break;
                }
            }
        }
    }

    /// Polls each request, and each release. The first error of a request ends all of them.
    fn poll_requests(&mut self, cx: &mut Context<'_>) {
        for slot in &mut self.slots {
            match slot {
                Slot::Asking(request) => match request.poll(cx) {
                    Poll::Pending => {}
                    Poll::Ready(Ok(guard)) => {
                        let counted = guard.held().handle.count_gathered();
                        *slot = Slot::Held { guard, watching: None, counted };
                    }
                    Poll::Ready(Err(why)) => {
                        *slot = Slot::Free;
                        match (&self.refused, &why) {
                            (Some(NotGranted::Failed(_)), _) | (Some(_), NotGranted::Busy { .. }) => {}
                            _ => self.refused = Some(why),
                        }
                    }
                },
                Slot::GoingBack { release, .. } => {
                    if let Poll::Ready(released) = release.as_mut().poll(cx) {
                        *slot = Slot::Free;
                        if released.is_err() {
                            // No other pass follows, since the lost hold may still exist on a master, and would block others for
                            // as long as this request goes on. So this sets a second pass that has no time left.
                            self.pass = Pass::InOrder { until: self.started_at, pause: BRIEF };
                        }
                    }
                }
                Slot::Free | Slot::Held { .. } => {}
            }
        }
    }

    /// Returns whether a request or a release is under way.
    fn is_asking(&self) -> bool {
        self.slots.iter().any(|slot| matches!(slot, Slot::Asking(_) | Slot::GoingBack { .. }))
    }

    fn is_in_order(&self) -> bool {
        matches!(self.pass, Pass::InOrder { .. })
    }

    /// Returns whether a second pass follows if a name is busy. With one name it would not help, since a refusal means that
    /// somebody holds it.
    fn has_second_pass(&self) -> bool {
        self.single_attempt && self.slots.len() > 1 && !self.is_in_order()
    }

    fn go_in_order(&mut self) {
        let now = Instant::now();
        let until = after(now, now.saturating_duration_since(self.started_at).max(BRIEF));
        self.pass = Pass::InOrder { until, pause: Duration::from_millis(1) };
    }

    /// Called if a name is busy. In the second pass, asks for it again after a pause while all earlier names stay held. Returns
    /// whether there is such a pause.
    fn schedules_repeat(&mut self) -> bool {
        let Pass::InOrder { until, pause } = &mut self.pass else { return false };
        let next = after(Instant::now(), *pause);
        let pauses = next <= *until;
        if pauses {
            *pause *= 2;
            self.pause = Some(Box::pin(sleep_until(next)));
        }
        pauses
    }

    fn first_that_waits(&self) -> Option<usize> {
        self.slots.iter().position(|slot| matches!(slot, Slot::Asking(request) if request.is_waiting()))
    }

    /// Releases the holds from index `from` on, and stops asking for the other names. A request that waits is dropped. A request whose first
    /// answer is still to come is awaited, since dropping it would leave its outcome unknown, and its hold is released when `poll` gets here
    /// again. With `awaited`, the releases are awaited too, since a second pass begins when nothing is held. Returns whether there are
    /// releases to be polled.
    fn give_back(&mut self, from: usize, awaited: bool) -> bool {
        let mut begun = false;
        for slot in self.slots.iter_mut().skip(from) {
            match slot {
                Slot::Asking(request) if request.is_waiting() => *slot = Slot::Free,
                Slot::Held { .. } => {
                    let held = std::mem::replace(slot, Slot::Free);
                    if let (Slot::Held { guard, counted, .. }, true) = (held, awaited) {
                        *slot = Slot::GoingBack { release: Box::pin(guard.release()), _counted: counted };
                        begun = true;
                    }
                }
                Slot::Free | Slot::Asking(_) | Slot::GoingBack { .. } => {}
            }
        }
        begun
    }

    /// Returns the first name that was lost while another one is waited for. This task is woken at the next loss.
    fn watch(&mut self, cx: &mut Context<'_>) -> Option<(usize, Loss)> {
        self.slots.iter_mut().enumerate().find_map(|(at, slot)| {
            let Slot::Held { guard, watching, .. } = slot else { return None };
            let watching = watching.get_or_insert_with(|| Box::pin(guard.held().watch()));
            match watching.as_mut().poll(cx) {
                Poll::Ready(loss) => Some((at, loss)),
                Poll::Pending => None,
            }
        })
    }

    fn lost(&self) -> Option<(usize, Loss)> {
        self.slots.iter().enumerate().find_map(|(at, slot)| match slot {
            Slot::Held { guard, .. } => guard.loss().map(|loss| (at, loss)),
            _ => None,
        })
    }

    /// Called if a name is lost before all are granted: it and the later names are asked for again after a pause. Without a pause a
    /// lease that is too short for the wait would be asked for again and again. Commands under way are dropped here, and undone in
    /// the background during the pause.
    fn begin_again(&mut self, from: usize, loss: Loss, options: &AllOptions) {
        self.waited = from;
        self.slots.iter_mut().skip(from).for_each(|slot| *slot = Slot::Free);
        telemetry::attempt_failed(&options.keys[from].name, &Error::lost(loss));
        let until = after(Instant::now(), options.handle.pause(self.losses));
        self.losses = self.losses.saturating_add(1);
        let until = self.limit.map_or(until, |limit| until.min(limit));
        self.pause = Some(Box::pin(sleep_until(until)));
    }

    fn held(&mut self) -> Guards {
        let slots = std::mem::take(&mut self.slots).into_iter();
        Guards::new(slots.filter_map(|slot| match slot {
            Slot::Held { guard, .. } => Some(guard),
            _ => None,
        }))
    }
}
