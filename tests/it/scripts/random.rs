//! Random sequences of scripts, compared with a model of the rules.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

const FIELDS: [&str; 3] = [OURS, THEIRS, "web@one:5be5fd9c-8a3d-4c17-9d0e-0d8f8f1c2b3a:7"];

/// The state of the lock according to the rules: its holder, if any, and the count.
type Model = Option<(usize, u32)>;

#[derive(Debug)]
enum Step {
    Acquire(usize, u32, u64),
    Release(usize, u32),
    Renew(usize, u64),
    Settle(usize, u32, u64),
    Force,
    Look,
}

impl Step {
    fn random(random: &mut StdRng) -> Step {
        let field = random.random_range(0..FIELDS.len());
        let count = random.random_range(0..4);
        let lease = random.random_range(100_000..=1_000_000);
        match random.random_range(0..20) {
            0..=7 => Step::Acquire(field, count.max(1), lease),
            8..=11 => Step::Release(field, count),
            12..=14 => Step::Renew(field, lease),
            15..=17 => Step::Settle(field, count, lease),
            18 => Step::Force,
            _ => Step::Look,
        }
    }

    async fn run(&self, wire: &mut Wire) -> Value {
        match *self {
            Step::Acquire(field, count, lease) => wire.acquire(FIELDS[field], count, lease).await,
            Step::Release(field, count) => wire.release(FIELDS[field], count).await,
            Step::Renew(field, lease) => wire.renew(FIELDS[field], lease).await,
            Step::Settle(field, count, lease) => wire.settle(FIELDS[field], count, lease).await,
            Step::Force => wire.force().await,
            Step::Look => wire.look().await,
        }
    }

    /// Returns the state after this step, and its answer; `None` means busy.
    fn by_the_rules(&self, before: Model) -> (Model, Option<Value>) {
        let mine = |field| before.filter(|&(holder, _)| holder == field).map(|(_, count)| count);
        match *self {
            Step::Acquire(field, count, _) => match (mine(field), before) {
                (Some(stands), _) => (Some((field, stands.max(count))), Some(DONE)),
                (None, None) if count == 1 => (Some((field, 1)), Some(DONE)),
                (None, Some(_)) if count == 1 => (before, None),
                _ => (before, Some(GONE)),
            },
            Step::Release(field, 0) if mine(field).is_some() => (None, Some(ENDED)),
            Step::Settle(field, 0, _) if mine(field).is_some() => (None, Some(DONE)),
            Step::Release(field, count) => match mine(field) {
                Some(stands) => (Some((field, stands.min(count))), Some(DONE)),
                None => (before, Some(GONE)),
            },
            Step::Settle(field, count, _) => match mine(field) {
                Some(_) => (Some((field, count)), Some(DONE)),
                None => (before, Some(GONE)),
            },
            Step::Renew(field, _) => (before, Some(if mine(field).is_some() { DONE } else { GONE })),
            Step::Force => (None, Some(if before.is_some() { DONE } else { FREE })),
            Step::Look => (before, before.is_none().then_some(FREE)),
        }
    }

    /// Returns the lease that the hold has at least after this step, if the step was granted.
    fn lease(&self) -> Option<u64> {
        match *self {
            Step::Acquire(.., lease) | Step::Renew(_, lease) | Step::Settle(_, _, lease) => Some(lease),
            _ => None,
        }
    }
}

#[tokio::test]
async fn random_sequences_keep_to_the_rules_and_never_shorten_a_ttl() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let seed: u64 = rand::random();
    let mut random = StdRng::seed_from_u64(seed);
    for sequence in 0..40 {
        wire.clear().await;
        let mut model: Model = None;
        let mut steps = Vec::new();
        for _ in 0..60 {
            let step = Step::random(&mut random);
            steps.push(format!("{step:?}"));
            let at = || format!("seed {seed}, sequence {sequence}: {steps:#?}");
            let earlier = wire.end().await;
            let (seconds, micros): (i64, i64) = wire.ask(&["TIME"]).await;
            let answer = step.run(&mut wire).await;
            let (after, rule) = step.by_the_rules(model);
            match rule {
                Some(DONE) if matches!(step, Step::Renew(..)) && is_longer(&answer) => {}
                Some(rule) => assert_eq!(answer, rule, "{}", at()),
                None => assert!(is_busy(&answer), "{answer:?} {}", at()),
            }
            let fields = wire.fields().await;
            let wanted = after.map(|(field, count)| held(&[(FIELDS[field], &count.to_string())]));
            assert_eq!(fields, wanted.unwrap_or_default(), "{}", at());
            let end = wire.end().await;
            if after.is_some() {
                assert!(end > 0 && end >= earlier, "{end} after {earlier}, {}", at());
                if let (DONE, Some(lease)) = (answer, step.lease()) {
                    assert!(end >= seconds * 1000 + micros / 1000 + lease as i64, "{}", at());
                } else {
                    assert_eq!(end, earlier, "{}", at());
                }
            }
            model = after;
        }
    }
}
