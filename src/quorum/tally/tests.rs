use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn busy(seconds: u32) -> CallResult {
    Ok(Reply::busy(SECOND * seconds))
}

fn failed(outcome: Outcome) -> CallResult {
    Err(Failure { outcome, error: Error::new(ErrorKind::Unavailable, "away") })
}

fn tally(rule: Rule, masters: usize) -> Tally {
    Tally::new(rule, masters, MasterSet::first(masters))
}

/// Counts the answers one by one. Returns how many it took, and the verdict.
fn judge(mut tally: Tally, answers: Vec<CallResult>) -> (usize, Verdict) {
    for (master, answer) in answers.into_iter().enumerate() {
        tally.count(master, false, answer);
        if let Some(verdict) = tally.verdict() {
            return (master + 1, verdict);
        }
    }
    panic!("no verdict: {tally:?}");
}

#[test]
fn one_master_decides_at_once_by_its_own_answer() {
    for rule in [Rule::Fresh, Rule::Standing, Rule::End { repeated: false }] {
        assert_eq!(judge(tally(rule, 1), vec![Ok(Reply::Done)]).1.result.unwrap(), Reply::Done);
        for outcome in [Outcome::NotRun, Outcome::Unknown] {
            let (_, verdict) = judge(tally(rule, 1), vec![failed(outcome)]);
            assert_eq!(verdict.result.unwrap_err().outcome, outcome);
        }
    }
    let (_, refused) = judge(tally(Rule::Fresh, 1), vec![busy(7)]);
    assert_eq!((refused.result.unwrap(), refused.split), (Reply::busy(7 * SECOND), false));
    assert!(refused.spread.remains.is_empty() && refused.spread.unanswered.is_empty());
    let foreign = || Ok(Reply::NotALock("a list".into()));
    assert_eq!(judge(tally(Rule::Fresh, 1), vec![foreign()]).1.result.unwrap(), foreign().unwrap());
    for rule in [Rule::Standing, Rule::End { repeated: true }, Rule::End { repeated: false }] {
        assert_eq!(judge(tally(rule, 1), vec![Ok(Reply::Gone)]).1.result.unwrap(), Reply::Gone);
    }
    let deferred = || Ok(Reply::Deferred("full".into()));
    assert_eq!(judge(tally(Rule::Standing, 1), vec![deferred()]).1.result.unwrap(), deferred().unwrap());
}

#[test]
fn a_longer_ttl_is_a_renewal_and_the_longest_of_a_majority_is_reported() {
    let longer = |seconds, ends| Ok(Reply::Longer(SECOND * seconds, NonZeroU64::new(ends).unwrap()));
    let (asked, verdict) = judge(
        tally(Rule::Standing, 5),
        vec![longer(60, 9), Ok(Reply::Gone), longer(3600, 7), Ok(Reply::Done)],
    );
    assert_eq!((asked, verdict.result.unwrap()), (4, longer(3600, 7).unwrap()));
    assert_eq!(verdict.spread.lacking, MasterSet::one(1));
    let deferred = || Ok(Reply::Deferred("full".into()));
    let (_, verdict) = judge(tally(Rule::Standing, 3), vec![longer(60, 9), deferred()]);
    assert_eq!(verdict.result.unwrap(), deferred().unwrap());
}

#[test]
fn a_grant_is_certain_with_the_majority_and_waits_for_nobody_else() {
    let (asked, verdict) =
        judge(tally(Rule::Fresh, 5), vec![Ok(Reply::Done), busy(9), Ok(Reply::Done), Ok(Reply::Done)]);
    assert_eq!((asked, verdict.result.unwrap()), (4, Reply::Done));
    assert_eq!((verdict.spread.lacking, verdict.spread.unanswered), (MasterSet::one(1), MasterSet::one(4)));
    // Masters that certainly do not have the field.
    let answers = vec![
        failed(Outcome::NotRun),
        Ok(Reply::Done),
        failed(Outcome::Unknown),
        Ok(Reply::Done),
        Ok(Reply::Done),
    ];
    let (_, verdict) = judge(tally(Rule::Fresh, 5), answers);
    assert_eq!((verdict.spread.missing, verdict.spread.lacking), (MasterSet::one(0), MasterSet::NONE));
}

#[test]
fn a_refusal_is_certain_once_no_majority_is_possible() {
    let (asked, verdict) = judge(tally(Rule::Fresh, 3), vec![busy(9), busy(5)]);
    // The request asks again after 5 s, since the third master may be free by then.
    assert_eq!((asked, verdict.result.unwrap(), verdict.split), (2, Reply::busy(5 * SECOND), false));
    assert_eq!((verdict.spread.remains, verdict.spread.unanswered), (MasterSet::NONE, MasterSet::one(2)));
    // What was granted in vain, or may have been, has to be ended.
    let answers = vec![Ok(Reply::Done), busy(9), failed(Outcome::Unknown), failed(Outcome::NotRun), busy(4)];
    let (asked, verdict) = judge(tally(Rule::Fresh, 5), answers);
    assert_eq!((asked, verdict.spread.unanswered), (5, MasterSet::NONE));
    assert_eq!((verdict.result.unwrap(), verdict.split), (Reply::busy(9 * SECOND), true));
    assert_eq!(verdict.spread.remains, MasterSet::one(0).union(MasterSet::one(2)));
}

#[test]
fn too_few_voters_are_no_refusal() {
    let (asked, verdict) =
        judge(tally(Rule::Fresh, 3), vec![failed(Outcome::NotRun), failed(Outcome::NotRun)]);
    let failure = verdict.result.unwrap_err();
    assert_eq!((asked, failure.outcome, failure.error.kind()), (2, Outcome::NotRun, ErrorKind::Unavailable));
    let counted = "0 of 3 masters gave an answer that counts, but 2 are needed; 2 failed; one failure: ";
    assert!(failure.error.to_string().starts_with(counted), "{}", failure.error);
    // After the first failure the lock can't be granted any more. That no majority answers is certain only
    // with the last answer.
    for last in [Outcome::NotRun, Outcome::Unknown] {
        let answers = vec![busy(9), busy(9), failed(last), failed(last), failed(last)];
        let (asked, verdict) = judge(tally(Rule::Fresh, 5), answers);
        assert_eq!((asked, verdict.result.unwrap_err().error.kind()), (5, ErrorKind::Unavailable));
    }
    let answers = vec![failed(Outcome::NotRun), Ok(Reply::Done), failed(Outcome::NotRun)];
    assert_eq!(judge(tally(Rule::Fresh, 3), answers).1.result.unwrap_err().outcome, Outcome::Unknown);
}

/// One master with a wrong password must not end the requests that only have to wait until another one is back.
#[test]
fn an_error_that_does_not_pass_counts_if_such_errors_alone_keep_a_majority_from_forming() {
    let denied = || Err(Failure::not_run(Error::new(ErrorKind::Denied, "a wrong password")));
    let away = || failed(Outcome::NotRun);
    for (answers, expected) in [
        (vec![denied(), away()], ErrorKind::Unavailable),
        (vec![away(), denied()], ErrorKind::Unavailable),
        (vec![denied(), denied()], ErrorKind::Denied),
        (vec![away(), Ok(Reply::Done), denied()], ErrorKind::Unavailable),
    ] {
        let (_, verdict) = judge(tally(Rule::Fresh, 3), answers);
        assert_eq!(verdict.result.unwrap_err().error.kind(), expected);
    }
    let mut with_a_young_one = tally(Rule::Fresh, 3);
    with_a_young_one.bar(2);
    let (_, verdict) = judge(with_a_young_one, vec![denied(), Ok(Reply::Done)]);
    assert_eq!(verdict.result.unwrap_err().error.kind(), ErrorKind::Unavailable);
    // All of them are counted before the verdict is looked at, if none of them has to be sent.
    for last in 0..3 {
        let mut all = tally(Rule::Fresh, 3);
        for at in [last + 1, last + 2, last].map(|at| at % 3) {
            all.count(at, false, if at == 2 { away() } else { denied() });
        }
        assert_eq!(all.decided().result.unwrap_err().error.kind(), ErrorKind::Denied, "{last}");
    }
    let (_, alone) = judge(tally(Rule::Fresh, 1), vec![denied()]);
    assert_eq!(alone.result.unwrap_err().error.kind(), ErrorKind::Denied);
}

#[test]
fn a_young_master_has_no_vote_on_a_fresh_grant() {
    let mut three = tally(Rule::Fresh, 3);
    three.bar(2);
    assert!(!three.awaits(2));
    let (asked, verdict) = judge(three, vec![Ok(Reply::Done), busy(9)]);
    assert_eq!((asked, verdict.result.unwrap(), verdict.split), (2, Reply::busy(9 * SECOND), true));
    let mut two = tally(Rule::Fresh, 3);
    two.bar(0);
    two.bar(1);
    let error = two.verdict().unwrap().result.unwrap_err().error;
    assert!(error.to_string().contains("restart_delay"), "{error}");
    let mut one = tally(Rule::Fresh, 3);
    one.bar(2);
    let error =
        judge(one, vec![Ok(Reply::Done), failed(Outcome::NotRun)]).1.result.unwrap_err().error.to_string();
    assert!(
        error.starts_with(
            "1 of 3 masters gave an answer that counts, but 2 are needed; 1 failed, 1 has no vote yet; "
        ),
        "{error}"
    );
    // A master restarted while it was asked: its grant is void, and may still be there.
    let mut late = tally(Rule::Fresh, 3);
    late.count(0, false, Ok(Reply::Done));
    late.count(1, true, Ok(Reply::Done));
    assert!(late.verdict().is_none());
    late.count(2, false, busy(9));
    let verdict = late.verdict().unwrap();
    assert_eq!(verdict.spread.remains, MasterSet::one(0).union(MasterSet::one(1)));
    assert!(matches!(verdict.result, Ok(Reply::Busy(..))));
}

#[test]
fn a_hold_stands_on_a_majority_and_what_lacks_it_is_reported() {
    let (asked, verdict) =
        judge(tally(Rule::Standing, 3), vec![Ok(Reply::Gone), Ok(Reply::Done), Ok(Reply::Done)]);
    assert_eq!((asked, verdict.result.unwrap()), (3, Reply::Done));
    assert_eq!(verdict.spread.lacking, MasterSet::one(0));
}

#[test]
fn a_hold_is_lost_once_old_masters_that_lack_it_leave_no_majority() {
    let (asked, verdict) =
        judge(tally(Rule::Standing, 3), vec![Ok(Reply::Done), Ok(Reply::Gone), Ok(Reply::Gone)]);
    assert_eq!((asked, verdict.result.unwrap()), (3, Reply::Gone));
    assert_eq!((verdict.spread.lacking, verdict.spread.remains), (MasterSet::NONE, MasterSet::one(0)));
    assert_eq!(verdict.spread.missing, MasterSet::one(1).union(MasterSet::one(2)));
}

#[test]
fn what_a_young_master_lacks_is_no_loss_and_to_be_given_to_it() {
    let mut tally = tally(Rule::Standing, 3);
    tally.count(0, false, Ok(Reply::Done));
    tally.count(1, true, Ok(Reply::Gone));
    assert!(tally.verdict().is_none());
    tally.count(2, false, failed(Outcome::NotRun));
    let verdict = tally.verdict().unwrap();
    assert_eq!(verdict.result.unwrap_err().outcome, Outcome::Unknown);
    assert_eq!(verdict.spread.lacking, MasterSet::one(1));
}

/// Otherwise: 1. The lock is released by force on two of three masters, one of which is young for this
/// process, and old for another. 2. That process has the lock for a while. 3. The field is repaired on the
/// young master, and the third one still has it. Both confirm a hold that was over.
#[test]
fn without_a_majority_all_answers_show_which_young_and_which_old_masters_lack_a_hold() {
    let mut tally = tally(Rule::Standing, 3);
    tally.count(0, false, failed(Outcome::NotRun));
    tally.count(1, true, Ok(Reply::Gone));
    assert!(tally.verdict().is_none(), "the old one may lack it");
    tally.count(2, false, Ok(Reply::Gone));
    let verdict = tally.verdict().unwrap();
    assert_eq!(verdict.result.unwrap_err().outcome, Outcome::Unknown);
    assert_eq!((verdict.spread.lacking, verdict.spread.missing), (MasterSet::one(1), MasterSet::one(2)));
}

/// If the field were repaired there, that would undo a forced release that one master has not run.
#[test]
fn what_old_masters_lack_is_not_put_back_without_a_majority() {
    let answers = || vec![Ok(Reply::Done), Ok(Reply::Gone), failed(Outcome::Unknown)];
    let (_, verdict) = judge(tally(Rule::Standing, 3), answers());
    assert_eq!(verdict.result.unwrap_err().outcome, Outcome::Unknown);
    assert_eq!((verdict.spread.lacking, verdict.spread.remains), (MasterSet::NONE, MasterSet::NONE));
}

#[test]
fn an_end_is_confirmed_by_a_majority_and_owed_to_those_that_failed() {
    let end = Rule::End { repeated: false };
    let (asked, verdict) =
        judge(tally(end, 3), vec![failed(Outcome::Unknown), Ok(Reply::Done), Ok(Reply::Done)]);
    assert_eq!((asked, verdict.result.unwrap(), verdict.spread.remains), (3, Reply::Done, MasterSet::one(0)));
    let (asked, verdict) = judge(tally(end, 3), vec![Ok(Reply::Gone), Ok(Reply::Gone)]);
    assert_eq!(
        (asked, verdict.result.unwrap(), verdict.spread.missing),
        (2, Reply::Gone, MasterSet::first(2))
    );
    // One master has ended it, one lacks it, one is away: it is unknown whether a majority had it.
    let answers = || vec![Ok(Reply::Done), Ok(Reply::Gone), failed(Outcome::NotRun)];
    assert_eq!(judge(tally(end, 3), answers()).1.result.unwrap_err().outcome, Outcome::Unknown);
    // On a repeat, "not there" may be the effect of the first try, whose answer was lost.
    assert_eq!(judge(tally(Rule::End { repeated: true }, 3), answers()).1.result.unwrap(), Reply::Done);
}

#[test]
fn what_answers_after_the_verdict_is_no_straggler_any_more() {
    let mut tally = tally(Rule::End { repeated: false }, 3);
    tally.count(0, false, Ok(Reply::Done));
    tally.count(1, false, Ok(Reply::Done));
    assert_eq!(tally.verdict().unwrap().spread.unanswered, MasterSet::one(2));
    tally.count(2, false, failed(Outcome::Unknown));
    let verdict = tally.verdict().unwrap();
    assert_eq!((verdict.result.unwrap(), verdict.spread.unanswered), (Reply::Done, MasterSet::NONE));
    assert_eq!(verdict.spread.remains, MasterSet::one(2));
}

#[test]
fn a_lock_is_free_where_a_majority_is_and_else_until_it_may_be() {
    let free = || Ok(Reply::Free);
    assert_eq!(judge(tally(Rule::IsHeld, 3), vec![busy(9), free(), free()]).1.result.unwrap(), Reply::Free);
    // A frozen master is not waited for.
    let (asked, verdict) = judge(tally(Rule::IsHeld, 3), vec![busy(9), busy(4), free()]);
    assert_eq!((asked, verdict.result.unwrap()), (2, Reply::busy(9 * SECOND)));
    let (_, verdict) = judge(tally(Rule::IsHeld, 3), vec![busy(9), free(), busy(4)]);
    assert_eq!(verdict.result.unwrap(), Reply::busy(4 * SECOND));
    let (_, verdict) =
        judge(tally(Rule::IsHeld, 3), vec![failed(Outcome::NotRun), failed(Outcome::NotRun), free()]);
    verdict.result.unwrap_err();
}

/// In this order: 1. A full master defers a renewal. 2. On another one the key is no lock. 3. The third one
/// has renewed the hold, which stands.
#[test]
fn a_hold_stands_on_a_majority_though_a_third_master_has_no_lock_there() {
    let foreign = || Ok(Reply::NotALock("a list".into()));
    let deferred = || Ok(Reply::Deferred("full".into()));
    for answers in [vec![deferred(), foreign(), Ok(Reply::Done)], vec![foreign(), deferred(), deferred()]] {
        assert_eq!(judge(tally(Rule::Standing, 3), answers).1.result.unwrap(), deferred().unwrap());
    }
}

/// A full server defers a count, and writes it later. If the others have written it, nothing more has to be
/// done.
#[test]
fn a_command_that_a_minority_defers_is_done() {
    let deferred = || Ok(Reply::Deferred("full".into()));
    for masters in [3, 5] {
        for deferring in 0..=masters {
            let mut tally = tally(Rule::Standing, masters);
            for master in 0..masters {
                tally.count(
                    master,
                    false,
                    if master < masters - deferring { Ok(Reply::Done) } else { deferred() },
                );
            }
            let verdict = tally.verdict().unwrap();
            let expected = if deferring <= masters / 2 { Reply::Done } else { deferred().unwrap() };
            assert_eq!((verdict.result.unwrap(), verdict.spread.lacking), (expected, MasterSet::NONE));
        }
    }
    let (asked, verdict) = judge(tally(Rule::Standing, 3), vec![deferred(), Ok(Reply::Done)]);
    assert_eq!((asked, verdict.result.unwrap()), (2, deferred().unwrap()), "the third one is not waited for");
}

/// What a master may answer about a lock.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    Ttl(Duration),
    Foreign,
    Fails,
}

const ANSWERS: [Answer; 6] = [
    Answer::Ttl(Duration::ZERO),
    Answer::Ttl(Duration::from_secs(20)),
    // A later answer about the same hold.
    Answer::Ttl(Duration::from_millis(20_005)),
    Answer::Ttl(Duration::from_secs(600)),
    Answer::Foreign,
    Answer::Fails,
];

impl Answer {
    fn answer(self) -> CallResult {
        match self {
            Answer::Ttl(Duration::ZERO) => Ok(Reply::Free),
            Answer::Ttl(left) => Ok(Reply::busy(left)),
            Answer::Foreign => Ok(Reply::NotALock("a list".into())),
            Answer::Fails => failed(Outcome::NotRun),
        }
    }
}

/// Returns all answers that this many masters may give, in all orders.
fn all_answers(masters: usize) -> impl Iterator<Item = Vec<Answer>> {
    let number = ANSWERS.len().pow(masters as u32);
    (0..number).map(move |number| {
        let digit = |at| number / ANSWERS.len().pow(at as u32) % ANSWERS.len();
        (0..masters).map(|at| ANSWERS[digit(at)]).collect()
    })
}

/// Returns when a majority may be free, if it ever may be.
fn free_after(given: &[Answer]) -> Option<Duration> {
    let mut left: Vec<Duration> = given
        .iter()
        .filter_map(|given| if let Answer::Ttl(left) = given { Some(*left) } else { None })
        .collect();
    left.sort_unstable();
    left.get(given.len() / 2).copied()
}

fn answers(given: &[Answer]) -> Vec<CallResult> {
    given.iter().map(|given| given.answer()).collect()
}

#[test]
fn how_long_a_lock_is_held_is_when_a_majority_may_be_free_in_whatever_order_they_answer() {
    for masters in [1, 2, 3, 4, 5] {
        for given in all_answers(masters) {
            let (_, verdict) = judge(tally(Rule::HeldFor, masters), answers(&given));
            match (verdict.result, free_after(&given)) {
                (Ok(Reply::Free), Some(Duration::ZERO)) => {}
                (Ok(Reply::Busy(ttl, _)), Some(left)) => {
                    let apart = ttl.max(left) - ttl.min(left);
                    assert!(apart <= Duration::from_millis(10).max(left / 100), "{given:?}: {ttl:?}");
                }
                (Ok(Reply::NotALock(_)) | Err(_), None) => {}
                (other, left) => panic!("{given:?}: {other:?} instead of {left:?}"),
            }
        }
    }
}

#[test]
fn how_long_a_lock_is_held_waits_only_for_those_that_may_change_it() {
    let asked = |given: &[Answer]| judge(tally(Rule::HeldFor, given.len()), answers(given)).0;
    let [free, short, same, long, ..] = ANSWERS;
    assert_eq!(asked(&[short, same, long]), 2);
    assert_eq!(asked(&[short, long, same]), 3);
    assert_eq!(asked(&[free, long, free]), 3);
    assert_eq!(asked(&[long, long, long, short, short]), 3);
    assert_eq!(asked(&[long, short, short, short, free]), 4);
}

#[test]
fn whether_a_lock_is_held_is_certain_with_a_majority() {
    for masters in [1, 3, 5] {
        for given in all_answers(masters) {
            let (asked, verdict) = judge(tally(Rule::IsHeld, masters), answers(&given));
            let free = |given: &&Answer| **given == Answer::Ttl(Duration::ZERO);
            match (verdict.result, free_after(&given)) {
                (Ok(Reply::Free), Some(Duration::ZERO)) => {}
                (Ok(Reply::Busy(..)), Some(left)) => assert!(!left.is_zero(), "{given:?}"),
                (Ok(Reply::NotALock(_)) | Err(_), None) => {}
                (other, left) => panic!("{given:?}: {other:?}, and {left:?}"),
            }
            let before = &given[..asked - 1];
            let busy = before.iter().filter(|given| matches!(given, Answer::Ttl(_)) && !free(given)).count();
            let majority = masters / 2 + 1;
            assert!(busy < majority && before.iter().filter(free).count() < majority, "{given:?}: {asked}");
        }
    }
}

#[test]
fn a_refused_request_asks_again_no_later_than_a_majority_may_be_free_in_whatever_order_they_answer() {
    for masters in [1, 2, 3, 4, 5] {
        // A free master would grant the lock.
        let free = |given: &Answer| *given == Answer::Ttl(Duration::ZERO);
        for given in all_answers(masters).filter(|given| !given.iter().any(free)) {
            let (_, verdict) = judge(tally(Rule::Fresh, masters), answers(&given));
            if let (Ok(Reply::Busy(ttl, _)), Some(left)) = (verdict.result, free_after(&given)) {
                assert!(ttl <= left + Duration::from_millis(10).max(left / 100), "{given:?}: {ttl:?}");
                assert!(!ttl.is_zero(), "{given:?}");
            }
        }
    }
    // A master that has granted the lock counts as free: its grant is ended.
    let (_, verdict) = judge(tally(Rule::Fresh, 3), vec![Ok(Reply::Done), busy(600), busy(20)]);
    assert_eq!((verdict.result.unwrap(), verdict.split), (Reply::busy(20 * SECOND), true));
}

#[test]
fn the_token_is_the_highest_of_the_majority_and_agreed_on_where_a_majority_is_as_high() {
    let token = |n| Ok(Reply::Token(n));
    let voted = |answers| judge(tally(Rule::Fresh, 5), answers).1;
    let agreed = voted(vec![token(7), token(7), busy(1), token(7)]);
    assert_eq!(agreed.token, Some(Token { highest: 7, agreed: true }));
    assert_eq!(agreed.result.unwrap(), Reply::Done);
    let differ = voted(vec![token(7), token(9), failed(Outcome::NotRun), token(9)]);
    assert_eq!(differ.token, Some(Token { highest: 9, agreed: false }));
    // Nothing was granted, so there is no token.
    assert_eq!(voted(vec![token(7), busy(1), busy(1), busy(1)]).token, None);
}

#[test]
fn a_grant_whose_token_could_not_be_made_known_may_have_run_and_is_none() {
    let grant = || Verdict {
        token: Some(Token { highest: 9, agreed: false }),
        ..judge(tally(Rule::Fresh, 1), vec![Ok(Reply::Token(9))]).1
    };
    let renewal = |answer| judge(tally(Rule::Standing, 1), vec![answer]).1;
    for stands in [Reply::Done, Reply::Longer(SECOND, NonZeroU64::MIN)] {
        assert_eq!(grant().acknowledged(renewal(Ok(stands))).result.unwrap(), Reply::Done);
    }
    for answer in [
        Ok(Reply::Gone),
        Ok(Reply::Deferred("full".into())),
        failed(Outcome::NotRun),
        failed(Outcome::Unknown),
    ] {
        let failure = grant().acknowledged(renewal(answer)).result.unwrap_err();
        assert_eq!((failure.outcome, failure.error.kind()), (Outcome::Unknown, ErrorKind::Unavailable));
    }
}

#[test]
fn a_forced_release_counts_once_one_master_had_a_hold_and_a_majority_has_answered() {
    let force = |answers| judge(tally(Rule::Force, 3), answers);
    let free = || Ok(Reply::Free);
    let (asked, verdict) = force(vec![Ok(Reply::Done), Ok(Reply::Done)]);
    assert_eq!(
        (asked, verdict.result.unwrap(), verdict.spread.unanswered),
        (2, Reply::Done, MasterSet::one(2))
    );
    let (asked, verdict) = force(vec![free(), free()]);
    assert_eq!((asked, verdict.result.unwrap()), (2, Reply::Free));
    let (asked, verdict) = force(vec![Ok(Reply::Done), free(), failed(Outcome::Unknown)]);
    assert_eq!((asked, verdict.result.unwrap()), (3, Reply::Done));
    let (_, verdict) = force(vec![free(), failed(Outcome::NotRun), failed(Outcome::NotRun)]);
    assert_eq!(verdict.result.unwrap_err().outcome, Outcome::Unknown, "the others may have one");
    let foreign = || Ok(Reply::NotALock("a list".into()));
    let (asked, verdict) = force(vec![foreign(), foreign()]);
    assert_eq!((asked, verdict.result.unwrap()), (2, foreign().unwrap()));
}

#[test]
fn where_old_masters_do_not_agree_the_error_names_no_young_ones() {
    let answers = vec![Ok(Reply::Done), Ok(Reply::Gone), Ok(Reply::Gone), Ok(Reply::Done), busy(1)];
    let (_, verdict) = judge(tally(Rule::End { repeated: false }, 5), answers);
    let error = verdict.result.unwrap_err().error.to_string();
    assert!(error.contains("do not agree"), "{error}");
}

/// Masters report slightly different ends of one hold. The later end counts if the third master can hardly
/// change it.
#[test]
fn a_refused_request_asks_again_at_the_later_end_of_one_hold() {
    let ends = [20_000, 20_005].map(|millis| Ok(Reply::busy(Duration::from_millis(millis))));
    let (asked, verdict) = judge(tally(Rule::Fresh, 3), ends.into());
    assert_eq!((asked, verdict.result.unwrap()), (2, Reply::busy(Duration::from_millis(20_005))));
}

/// The acquire may still run on that master: a grant, a refusal and an unknown outcome all name it. A master
/// that has answered is not named.
#[test]
fn who_was_given_up_before_the_verdict_is_named() {
    let unknown = || failed(Outcome::Unknown);
    let cases = [
        vec![unknown(), Ok(Reply::Done), Ok(Reply::Done)],
        vec![unknown(), busy(1), busy(1)],
        vec![unknown(), Ok(Reply::Done), failed(Outcome::NotRun)],
    ];
    for answers in cases {
        let (_, verdict) = judge(tally(Rule::Fresh, 3), answers);
        assert_eq!(verdict.spread.given_up, MasterSet::one(0));
    }
}

/// A renewal, or the move of a claim, may still run there after the end of its hold.
#[test]
fn who_was_given_up_before_a_hold_is_found_gone_is_named() {
    for rule in [Rule::Standing, Rule::Claim] {
        let answers = vec![failed(Outcome::Unknown), Ok(Reply::Gone), Ok(Reply::Gone)];
        let (_, verdict) = judge(tally(rule, 3), answers);
        assert_eq!((verdict.result.unwrap(), verdict.spread.given_up), (Reply::Gone, MasterSet::one(0)));
    }
}

#[test]
fn a_master_is_awaited_until_it_has_answered() {
    let mut tally = tally(Rule::Standing, 3);
    assert!((0..3).all(|master| tally.awaits(master)) && !tally.awaits(3));
    tally.count(1, false, Ok(Reply::Done));
    assert!(tally.awaits(0) && !tally.awaits(1) && tally.awaits(2));
}

mod orders;

fn held_by(field: &str, count: usize, seconds: u32) -> CallResult {
    Ok(Reply::held_by(Holder::new(field, count, SECOND * seconds)))
}

/// Returns the holder of a verdict: its field, its count, its lease in seconds.
fn holder(verdict: &Verdict) -> Option<(&str, usize, u64)> {
    let Ok(Reply::Busy(_, holder)) = &verdict.result else { return None };
    let holder = holder.as_deref()?;
    Some((holder.hold_id(), holder.count(), holder.remaining_lease().as_secs()))
}

#[test]
fn a_holder_is_certain_with_a_majority_and_waits_for_nobody_else() {
    let answers = vec![held_by("a", 1, 9), held_by("b", 5, 99), held_by("a", 3, 7), held_by("a", 2, 5)];
    let (asked, verdict) = judge(tally(Rule::Who, 5), answers);
    // Three of five masters have at least this: a count of one, for five seconds.
    assert_eq!((asked, holder(&verdict)), (4, Some(("a", 1, 5))));
    let (asked, verdict) = judge(tally(Rule::Who, 1), vec![held_by("a", 2, 9)]);
    assert_eq!((asked, holder(&verdict)), (1, Some(("a", 2, 9))));
}

#[test]
fn without_a_majority_for_one_field_nobody_holds_it() {
    let split = vec![held_by("a", 1, 9), held_by("b", 1, 9), Ok(Reply::Free)];
    let (asked, verdict) = judge(tally(Rule::Who, 3), split);
    assert_eq!((asked, verdict.result.unwrap()), (3, Reply::Free));
    let (asked, verdict) = judge(tally(Rule::Who, 3), vec![Ok(Reply::Free), Ok(Reply::Free)]);
    assert_eq!((asked, verdict.result.unwrap()), (2, Reply::Free));
    let away = vec![held_by("a", 1, 9), failed(Outcome::NotRun), failed(Outcome::Unknown)];
    judge(tally(Rule::Who, 3), away).1.result.unwrap_err();
    // A majority answers, and one of these masters has the field of a minority.
    let away = vec![held_by("a", 1, 9), held_by("b", 1, 9), failed(Outcome::NotRun)];
    assert_eq!(judge(tally(Rule::Who, 3), away).1.result.unwrap(), Reply::Free);
    let foreign = || Ok(Reply::NotALock("a string".into()));
    let (_, verdict) = judge(tally(Rule::Who, 3), vec![held_by("a", 1, 9), foreign(), foreign()]);
    assert_eq!(verdict.result.unwrap(), foreign().unwrap());
}

#[test]
fn a_refusal_names_the_holder_that_a_majority_has() {
    let (asked, verdict) = judge(tally(Rule::Fresh, 3), vec![held_by("a", 1, 9), held_by("a", 2, 8)]);
    assert_eq!((asked, holder(&verdict)), (2, Some(("a", 1, 8))));
    let (asked, verdict) = judge(tally(Rule::Fresh, 3), vec![held_by("a", 1, 9), held_by("b", 2, 8)]);
    assert_eq!((asked, holder(&verdict)), (2, None), "no further answer is waited for");
    let hidden = vec![Ok(Reply::Nameless(SECOND)), Ok(Reply::Nameless(SECOND))];
    let (asked, verdict) = judge(tally(Rule::Fresh, 3), hidden);
    assert_eq!((asked, verdict.result.unwrap()), (2, Reply::busy(SECOND)));
}

/// A replica that took over may still have the field of a claim that was used on its master.
#[test]
fn what_a_young_master_has_moved_is_no_vote_and_is_ended_without_a_majority() {
    let done = || Ok(Reply::Done);
    let mut claim = tally(Rule::Claim, 3);
    claim.count(0, true, done());
    claim.count(1, false, done());
    assert!(claim.verdict().is_none());
    claim.count(2, false, done());
    let verdict = claim.verdict().unwrap();
    assert_eq!((verdict.result.unwrap(), verdict.spread.lacking), (Reply::Done, MasterSet::NONE));

    let mut claim = tally(Rule::Claim, 3);
    claim.count(0, true, done());
    claim.count(1, false, Ok(Reply::Gone));
    claim.count(2, false, Ok(Reply::Gone));
    let verdict = claim.verdict().unwrap();
    assert_eq!((verdict.result.unwrap(), verdict.spread.remains), (Reply::Gone, MasterSet::one(0)));

    let mut claim = tally(Rule::Claim, 3);
    claim.count(0, true, done());
    claim.count(1, false, done());
    claim.count(2, false, Ok(Reply::Gone));
    let failure = claim.verdict().unwrap().result.unwrap_err();
    assert_eq!(failure.outcome, Outcome::Unknown);
    assert!(
        ["1 of 3 masters have no vote yet: they were started a short while ago", "have been replicas"]
            .iter()
            .all(|part| failure.error.to_string().contains(part)),
        "{}",
        failure.error
    );
}

#[test]
fn only_one_master_alone_knows_how_many_are_subscribed() {
    for (masters, expected) in [(1, Reply::Ended(crate::wire::Notice::Sent(2))), (3, Reply::Done)] {
        let answers = (0..masters).map(|_| Ok(Reply::Ended(crate::wire::Notice::Sent(2)))).collect();
        let (_, verdict) = judge(tally(Rule::End { repeated: false }, masters), answers);
        assert_eq!(verdict.result.unwrap(), expected);
    }
    let gone = judge(tally(Rule::End { repeated: false }, 1), vec![Ok(Reply::Gone)]).1;
    assert_eq!(gone.result.unwrap(), Reply::Gone);
}

/// By that answer its entry knows that no message comes back.
#[test]
fn an_end_of_what_remains_on_one_master_is_answered_by_how_many_are_subscribed_too() {
    for (masters, expected) in [(1, Reply::Ended(crate::wire::Notice::Sent(0))), (3, Reply::Done)] {
        let answers = (0..masters).map(|_| Ok(Reply::Ended(crate::wire::Notice::Sent(0)))).collect();
        assert_eq!(judge(tally(Rule::Remains, masters), answers).1.result.unwrap(), expected);
    }
    assert_eq!(judge(tally(Rule::Remains, 1), vec![Ok(Reply::Gone)]).1.result.unwrap(), Reply::Done);
}
