//! `Events`: what a master reports by itself.

/// Receives what a master reports. The tasks of a backend call it with nothing locked; it must not block.
pub(crate) trait Events: Send + Sync + 'static {
    /// A lost command connection was replaced. Locks may have changed on the master in between.
    fn reconnected(&self);
    /// Another server keeps some locks now, whose keys are concerned. They may have changed in between.
    fn moved(&self, _is_concerned: &dyn Fn(&str) -> bool) {
        self.reconnected();
    }
    /// The server confirmed this subscription: messages that are published from now on arrive.
    fn subscribed(&self, channel: &str);
    /// A message was received, with this text.
    fn message(&self, channel: &str, text: &str);
    /// This subscription was refused or failed: no message arrives until `subscribed` is called.
    fn not_subscribed(&self, channel: &str);
    /// The server refused a subscription, for this reason. Returns whether the subscription is made elsewhere instead; if so, the
    /// refusal is neither logged nor retried here.
    fn refused(&self, _channel: &str, _why: &str) -> bool {
        false
    }
    /// The subscriber connection was lost, with all its subscriptions. Messages may have been missed.
    fn subscriptions_lost(&self);
}
