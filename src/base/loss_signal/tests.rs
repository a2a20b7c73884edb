use super::*;

#[test]
fn a_loss_is_final_and_announced_by_the_next_notice_only() {
    for loss in [Loss::Expired, Loss::Gone, Loss::MaxHold, Loss::Suspended] {
        let signal = LossSignal::default();
        signal.notify();
        assert_eq!((signal.loss(), signal.announced_loss()), (None, None));
        assert!(signal.seal(loss) && !signal.seal(Loss::Gone));
        assert_eq!((signal.loss(), signal.announced_loss()), (Some(loss), None));
        signal.notify();
        assert_eq!((signal.loss(), signal.announced_loss()), (Some(loss), Some(loss)));
        assert!(!signal.seal(Loss::Expired));
    }
}
