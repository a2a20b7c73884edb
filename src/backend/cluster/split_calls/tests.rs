use std::time::Duration;

use super::*;
use crate::base::{Drift, Outcome};

/// The renewal confirms the hold and does not change it. The hold may exist whatever fails afterwards.
#[test]
fn a_hold_is_confirmed_by_a_renewal_and_may_stand_if_that_fails() {
    let drift = Drift { factor: 0.0, slack: Duration::ZERO };
    let lease = Lease::new("lease", Duration::from_secs(30), drift).unwrap();
    let acquire = Call::of("stock", "me:1", Action::Acquire { count: 1, lease });
    let confirmation = confirmation(&acquire);
    assert_eq!(confirmation.action, Action::Renew { lease });
    assert_eq!((confirmation.key(), &confirmation.field), (acquire.key(), &acquire.field));
    let error = Error::new(ErrorKind::Unavailable, "not sent");
    let failure = of_unknown_outcome(Failure { outcome: Outcome::NotRun, error });
    assert_eq!(failure.outcome, Outcome::Unknown);
}
