//! `Quorum`: the masters of a `Locks`, asked as one. The layers above don't know how many there are.

use std::future::{Future, poll_fn, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::backend::{Backend, BoxFuture, Spare};
use crate::base::{Failure, MasterSet, boxed};
use crate::error::{Error, ErrorKind};
use crate::quorum::tally::{Tally, Verdict};
use crate::wire::keys::Keys;
use crate::wire::{Action, Call, CallResult, Line, Pending, Reply, Rule};

/// The masters that vote on a lock.
#[derive(Debug)]
pub(crate) struct Quorum {
    masters: Box<[Arc<dyn Backend>]>,
    /// How long after its start a master has no vote on fresh grants. With `None` it has a vote at once.
    probation: Option<Duration>,
    /// The process that made the connections. `None` if there are no connections.
    process: Option<u32>,
    /// Whether the first attempts to connect may be under way and have to be waited for.
    opening: AtomicBool,
    #[cfg(test)]
    copied: AtomicBool,
}

/// Calls in flight. Once there is a verdict, the remaining ones are stragglers.
pub(crate) struct Stragglers<T = CallResult>(Vec<(usize, BoxFuture<T>)>);

impl Quorum {
    pub(crate) fn new(masters: Vec<Arc<dyn Backend>>, probation: Option<Duration>) -> Quorum {
        let is_portable = masters.iter().all(|master| master.is_portable());
        let process = (!is_portable).then(std::process::id);
        Quorum {
            masters: masters.into(),
            probation,
            process,
            opening: false.into(),
            #[cfg(test)]
            copied: false.into(),
        }
    }

    /// Marks the first attempts to connect as under way, since nothing has waited for them. Only set for several masters: a call
    /// to a single one waits for its connection by itself.
    pub(crate) fn opening(self) -> Quorum {
        Quorum { opening: (self.masters.len() > 1).into(), ..self }
    }

    /// Returns whether the first attempts to connect may be under way.
    pub(crate) fn is_opening(&self) -> bool {
        self.opening.load(Relaxed)
    }

    /// Waits for the first attempts to connect, until a majority can be asked or it is certain that none can.
    pub(crate) async fn first_attempts(&self) {
        let masters = self.masters.iter().cloned().enumerate();
        let mut attempts =
            Stragglers(masters.map(|(index, master)| (index, master.first_attempt())).collect());
        let mut there = 0;
        poll_fn(|cx| {
            attempts.poll(cx, |_, is_there| there += usize::from(is_there));
            let is_certain = self.is_majority(there) || !self.is_majority(there + attempts.0.len());
            if is_certain { Poll::Ready(()) } else { Poll::Pending }
        })
        .await
    }

    /// Ends the wait for the first attempts to connect.
    pub(crate) fn opened(&self) {
        self.opening.store(false, Relaxed);
    }

    /// Returns whether this is a copy in the child of a `fork`, which sends nothing, since it has the ids of its parent:
    ///
    /// 1. The parent takes a lock with the field `uuid:6`.
    /// 2. The next id of the child is 6 too, so it asks for the lock with the same field.
    /// 3. The server takes that for the hold that is there, and both have the lock.
    pub(crate) fn is_copied(&self) -> bool {
        #[cfg(test)]
        if self.copied.load(std::sync::atomic::Ordering::SeqCst) {
            return true;
        }
        self.process.is_some_and(|process| process != std::process::id())
    }

    /// Marks this as a copy.
    #[cfg(test)]
    pub(crate) fn becomes_a_copy(&self) {
        self.copied.store(true, std::sync::atomic::Ordering::SeqCst);
    }

    /// Checks that this is not a copy, before a decision that sends no command. Otherwise:
    ///
    /// 1. The parent holds a lock, and forks.
    /// 2. In the child a request waits for the copy of that hold.
    /// 3. The child's copy of the guard is dropped, and the hold passes to the request.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if self.is_copied() { Err(of_the_parent()) } else { Ok(()) }
    }

    fn is_young(&self, index: usize) -> bool {
        self.probation.is_some_and(|probation| self.masters[index].is_younger_than(probation))
    }

    fn is_majority(&self, count: usize) -> bool {
        2 * count > self.masters.len()
    }

    /// Returns the number of masters.
    pub(crate) fn size(&self) -> usize {
        self.masters.len()
    }

    /// Returns the masters that can't be asked now. They report when they are back.
    pub(crate) fn away(&self) -> MasterSet {
        let away = self.masters.iter().enumerate().filter(|(_, master)| master.is_away());
        away.fold(MasterSet::NONE, |masters, (index, _)| masters.union(MasterSet::one(index)))
    }

    /// Returns whether a majority of the masters is connected, as far as is known. Without a majority a hold may end unnoticed,
    /// until a new connection reports it.
    #[inline]
    pub(crate) fn is_connected(&self, keys: &Keys) -> bool {
        let connected = self.masters.iter().filter(|master| master.is_connected(keys)).count();
        self.is_majority(connected)
    }

    /// Sends one command of a hold to all masters that it is meant for, and returns as soon as the verdict is certain.
    pub(crate) fn ask(&self, pending: &Pending) -> impl Future<Output = (Verdict, Stragglers)> + Send {
        self.put(pending.rule(), pending.masters, &pending.call)
    }

    /// Returns whether a command about this lock would be written at once to the sockets of all masters, except those that can't be
    /// asked now.
    pub(crate) fn is_unused(&self, keys: &Keys) -> bool {
        let mut some = false;
        let mut is_free = |master: &Arc<dyn Backend>| {
            let is_unused = master.is_unused(keys);
            some |= is_unused;
            is_unused || master.is_away()
        };
        self.masters.iter().all(&mut is_free) && some && !self.is_copied()
    }

    /// Sends one command of a hold, as far as that is possible without waiting. [`ask_begun`](Quorum::ask_begun) does the rest.
    pub(crate) fn begin(&self, pending: &Pending) -> Stragglers {
        let is_copied = self.is_copied();
        let begin = |(index, master): (usize, &Arc<dyn Backend>)| {
            let begun = if is_copied { None } else { master.clone().begin(&pending.call) };
            (index, begun.unwrap_or_else(|| run(master, &pending.call, is_copied)))
        };
        let asked = self.masters.iter().enumerate().filter(|(index, _)| pending.masters.contains(*index));
        Stragglers(asked.map(begin).collect())
    }

    /// Returns whether answers of a master are unread.
    pub(crate) fn is_unread(&self) -> bool {
        self.masters.iter().any(|master| master.is_unread())
    }

    /// Returns how to connect once more to the servers that keep this lock, with the numbers of their masters.
    pub(crate) fn spares(&self, keys: &Keys) -> impl Iterator<Item = (usize, Spare)> {
        // In the child of a `fork` it would renew the holds of its parent.
        let masters = if self.is_copied() { &[] } else { &*self.masters };
        masters.iter().enumerate().filter_map(|(index, master)| Some((index, master.spare(keys)?)))
    }

    /// Waits for the verdict on a command whose sending has begun.
    pub(crate) async fn ask_begun(&self, pending: &Pending, begun: Stragglers) -> (Verdict, Stragglers) {
        self.put_to_all(pending.rule(), pending.masters, &pending.call, Some(begun)).await
    }

    /// Lets the masters end their connections. Called when the runtime ends or has ended, and no hold is left to be ended.
    pub(crate) fn end_with_runtime(&self) {
        self.masters.iter().for_each(|master| master.end_with_runtime());
    }

    /// Writes commands, whose answers nobody gets, to the sockets of the masters that they are meant for. Called when the runtime
    /// ends or has ended.
    pub(crate) fn run_last(&self, commands: &[Pending]) {
        // A copy writes nothing. Otherwise: 1. A process that holds a lock forks. 2. The child ends, and with it its copies of runtime
        // and guard. 3. That ends the hold of the parent.
        if self.is_copied() || commands.is_empty() {
            return;
        }
        for (index, master) in self.masters.iter().enumerate() {
            let calls: Vec<_> = asked(commands, index).map(|(_, pending)| pending.call.clone()).collect();
            if !calls.is_empty() {
                master.run_last(calls);
            }
        }
    }

    async fn put(&self, rule: Rule, masters: MasterSet, call: &Call) -> (Verdict, Stragglers) {
        match &*self.masters {
            [master] if masters.contains(0) && !(rule == Rule::Fresh && self.is_young(0)) => {
                let answer = run(master, call, self.is_copied()).await;
                (self.of_one(rule, call, answer), Stragglers(Vec::new()))
            }
            // Boxed: otherwise the future of each call would be as large as the one for several masters.
            _ => boxed(self.put_to_all(rule, masters, call, None)).await,
        }
    }

    /// Returns the verdict of the only master. If it did as asked, no votes are counted, since there is nobody else to wait for.
    fn of_one(&self, rule: Rule, call: &Call, answer: CallResult) -> Verdict {
        let is_young = self.is_young(0);
        match answer {
            Ok(reply @ (Reply::Done | Reply::Ended(_))) if !is_young => {
                Verdict { result: Ok(reply), ..Verdict::DONE }
            }
            answer => {
                let mut tally = Tally::new(rule, 1, MasterSet::one(0));
                tally.count(0, is_young, answer);
                tally.decided().on(&call.keys)
            }
        }
    }

    /// Sends a command to several masters and waits for the verdict. `begun` has the calls that were sent already.
    async fn put_to_all(
        &self,
        rule: Rule,
        masters: MasterSet,
        call: &Call,
        begun: Option<Stragglers>,
    ) -> (Verdict, Stragglers) {
        let mut tally = self.tally(rule, masters);
        let mut asking = begun.unwrap_or_else(|| {
            let is_copied = self.is_copied();
            let asked = (0..self.masters.len()).filter(|index| tally.awaits(*index));
            Stragglers(asked.map(|index| (index, run(&self.masters[index], call, is_copied))).collect())
        });
        let verdict = poll_fn(|cx| {
            asking.poll(cx, |index, answer| tally.count(index, self.is_young(index), answer));
            tally.verdict().map_or(Poll::Pending, Poll::Ready)
        });
        (verdict.await.on(&call.keys), asking)
    }

    /// Sends commands of many holds in pipelines. Returns the verdicts in the order of the commands, once all are certain.
    pub(crate) async fn ask_all(&self, commands: &[Pending]) -> (Vec<Verdict>, Stragglers<Vec<CallResult>>) {
        let is_for_all =
            |pending: &Pending| pending.rule() == Rule::Standing && pending.masters == MasterSet::ALL;
        if let [master] = &*self.masters
            && commands.iter().all(is_for_all)
        {
            let calls = commands.iter().map(|pending| pending.call.clone()).collect();
            let answers = run_all(master, calls, self.is_copied()).await.into_iter().zip(commands);
            let verdicts =
                answers.map(|(answer, pending)| self.of_one(Rule::Standing, &pending.call, answer));
            return (verdicts.collect(), Stragglers(Vec::new()));
        }
        let tally = |pending: &Pending| self.tally(pending.rule(), pending.masters);
        let mut tallies: Vec<Tally> = commands.iter().map(tally).collect();
        let is_copied = self.is_copied();
        let mut asking = Stragglers(Vec::with_capacity(self.masters.len()));
        for (index, master) in self.masters.iter().enumerate() {
            let calls: Vec<Call> = asked(commands, index).map(|(_, pending)| pending.call.clone()).collect();
            if !calls.is_empty() {
                asking.0.push((index, run_all(master, calls, is_copied)));
            }
        }
        // The verdict on a repair is certain before any master has answered.
        let mut verdicts: Vec<Option<Verdict>> = tallies.iter().map(Tally::verdict).collect();
        poll_fn(|cx| {
            asking.poll(cx, |index, answers| {
                for ((at, _), answer) in asked(commands, index).zip(answers) {
                    tallies[at].count(index, self.is_young(index), answer);
                    // Counted even if the verdict is certain already: other masters are still waited for, and this one is no
                    // longer a straggler.
                    verdicts[at] = tallies[at].verdict();
                }
            });
            if verdicts.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let about = |(verdict, pending): (Verdict, &Pending)| verdict.on(&pending.call.keys);
        (verdicts.into_iter().flatten().zip(commands).map(about).collect(), asking)
    }

    fn tally(&self, rule: Rule, masters: MasterSet) -> Tally {
        let all = MasterSet::first(self.masters.len());
        let mut tally = Tally::new(rule, self.masters.len(), masters.within(all));
        if rule == Rule::Fresh {
            // Its vote would not count, and its grant would have to be undone.
            (0..self.masters.len()).filter(|index| self.is_young(*index)).for_each(|index| tally.bar(index));
        }
        tally
    }

    /// Frees the lock, whoever holds it.
    pub(crate) async fn force(&self, keys: &Arc<Keys>, line: Option<Line>) -> (CallResult, Stragglers) {
        let call = Call { line, ..Call::of_lock(keys, Action::Force) };
        let (verdict, stragglers) = self.put(Rule::Force, MasterSet::ALL, &call).await;
        (verdict.result, stragglers)
    }

    /// Frees the lock if it was handed to this field, and no process has taken it.
    pub(crate) async fn decline(&self, keys: &Arc<Keys>, field: Arc<str>, line: Option<Line>) {
        let call = Call { field, line, ..Call::of_lock(keys, Action::Decline) };
        drop(self.put(Rule::Remains, MasterSet::ALL, &call).await);
    }

    /// Looks at the lock's line.
    pub(crate) async fn waiters(&self, keys: &Arc<Keys>, line: Line) -> CallResult {
        let call = Call { line: Some(line), ..Call::of_lock(keys, Action::Waiters) };
        self.put(Rule::Waiters, MasterSet::ALL, &call).await.0.result
    }

    /// Looks at the lock. `rule` says what the look is for.
    pub(crate) async fn look(&self, keys: &Arc<Keys>, rule: Rule) -> CallResult {
        let action = if rule == Rule::Who { Action::Who } else { Action::Look };
        let call = Call { report_holder: true, ..Call::of_lock(keys, action) };
        self.put(rule, MasterSet::ALL, &call).await.0.result
    }

    /// Begins or ends the subscription to a channel, at each master.
    pub(crate) fn subscribe(&self, channel: &str, on: bool) {
        for master in &self.masters {
            match on {
                true => master.subscribe(channel),
                false => master.unsubscribe(channel),
            }
        }
    }

    /// Reports that a waiter found its lock free only because it polled.
    pub(crate) fn doubt_messages(&self) {
        self.masters.iter().for_each(|master| master.doubt_messages());
    }

    /// Returns whether tokens may begin at the master's own time. Several masters are all given the client's time instead, since
    /// their counters would rarely agree otherwise.
    pub(crate) fn has_time(&self) -> bool {
        self.masters.len() == 1 && !self.is_portable()
    }

    /// Returns whether every master works on any runtime.
    pub(crate) fn is_portable(&self) -> bool {
        self.masters.iter().all(|master| master.is_portable())
    }

    pub(crate) fn close(&self) {
        self.masters.iter().for_each(|master| master.close());
    }
}

/// Asks one master.
fn run(master: &Arc<dyn Backend>, call: &Call, is_copied: bool) -> BoxFuture<CallResult> {
    match is_copied {
        true => Box::pin(ready(Err(Failure::not_run(of_the_parent())))),
        false => master.clone().run(call.clone()),
    }
}

/// Sends many calls to one master.
fn run_all(master: &Arc<dyn Backend>, calls: Vec<Call>, is_copied: bool) -> BoxFuture<Vec<CallResult>> {
    match is_copied {
        true => Box::pin(ready(calls.iter().map(|_| Err(Failure::not_run(of_the_parent()))).collect())),
        false => master.clone().run_all(calls),
    }
}

#[cold]
fn of_the_parent() -> Error {
    let message = "this `Locks` was connected before the process forked, and is its parent's; connect a new one in the child";
    Error::new(ErrorKind::Misuse, message)
}

/// Returns the commands that are meant for a master, with their indices.
fn asked(commands: &[Pending], index: usize) -> impl Iterator<Item = (usize, &Pending)> {
    commands.iter().enumerate().filter(move |(_, pending)| pending.masters.contains(index))
}

impl<T> Stragglers<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn poll(&mut self, cx: &mut Context<'_>, mut each: impl FnMut(usize, T)) {
        self.0.retain_mut(|(index, asking)| match asking.as_mut().poll(cx) {
            Poll::Ready(answer) => {
                each(*index, answer);
                false
            }
            Poll::Pending => true,
        });
    }

    /// Polls the calls until all masters have answered.
    pub(crate) async fn poll_all(mut self, mut each: impl FnMut(usize, T)) {
        poll_fn(|cx| {
            self.poll(cx, &mut each);
            if self.0.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Returns the masters that have not answered.
    pub(crate) fn masters(&self) -> MasterSet {
        self.0.iter().fold(MasterSet::NONE, |masters, (index, _)| masters.union(MasterSet::one(*index)))
    }
}

#[cfg(test)]
mod tests;
