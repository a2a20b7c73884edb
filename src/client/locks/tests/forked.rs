//! The copy of a `Locks` in the child of a fork.

use std::pin::pin;
use std::task::{Context, Waker};

use crate::{BareReentry, ErrorKind, Locks, Memory, Owner};

/// Such a grant would send no command, so nothing else would refuse it in the copy.
#[tokio::test]
async fn nothing_is_granted_without_a_command_in_a_copy_of_the_process() {
    let builder = Locks::builder(Memory::new()).bare_reentry(BareReentry::Local);
    let locks = builder.connect().await.unwrap();
    let stock = locks.mutex("stock");
    let guard = stock.lock().await.unwrap();
    stock.run(async |_| {}).await.unwrap();
    let mut waiting = pin!(stock.lock().owner(&Owner::new()));
    let mut context = Context::from_waker(Waker::noop());
    assert!(Future::poll(waiting.as_mut(), &mut context).is_pending());
    locks.handle.quorum.becomes_a_copy();
    assert_eq!(stock.run(async |_| {}).await.unwrap_err().kind(), ErrorKind::Misuse);
    assert_eq!(stock.lock().await.unwrap_err().kind(), ErrorKind::Misuse);
    // In the original process, its hold would pass on.
    drop(guard);
    assert_eq!(waiting.await.unwrap_err().kind(), ErrorKind::Misuse);
}
