//! What a master tells by itself.

/// Called from the tasks of a backend, with nothing locked; the callee must not block.
pub(crate) trait Events: Send + Sync + 'static {
    /// What stood on the master may have changed unseen: a new command connection stands in place of one that was lost.
    fn reconnected(&self);
    /// The server answered this very subscription: messages sent from now on arrive.
    fn subscribed(&self, channel: &str);
    /// A message came.
    fn message(&self, channel: &str);
    /// This subscription was refused or failed: nothing may be expected of it until `subscribed` comes.
    fn not_subscribed(&self, channel: &str);
    /// The subscriber connection is lost, with all its subscriptions; messages may have been missed.
    fn subscriptions_lost(&self);
}
