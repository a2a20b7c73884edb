use super::*;

#[test]
fn a_loss_is_final_and_announced_by_the_next_notice_only() {
    for loss in [Loss::Expired, Loss::Gone, Loss::MaxHold, Loss::Suspended] {
        let fate = Fate::default();
        fate.notify();
        assert_eq!((fate.loss(), fate.announced_loss()), (None, None));
        assert!(fate.seal(loss) && !fate.seal(Loss::Gone));
        assert_eq!((fate.loss(), fate.announced_loss()), (Some(loss), None));
        fate.notify();
        assert_eq!((fate.loss(), fate.announced_loss()), (Some(loss), Some(loss)));
        assert!(!fate.seal(Loss::Expired));
    }
}
