//! How the masters use a server.

use std::time::Duration;

use crate::backend::connection::Login;
use crate::backend::server::one_vote::OneVote;
use crate::config::{AddressMap, Replicas};

/// How the masters use a server.
#[derive(Clone)]
pub(crate) struct Role {
    /// Whether the server is the only master. A call to one of several masters fails at once if there is no connection. If it
    /// waited: 1. An acquire waits for a connection, and so does the release after it. 2. The connection is made, and they are sent in any
    /// order. 3. The acquire runs last, and sets a field that nobody holds.
    pub(crate) alone: bool,
    /// How long an answer may take.
    pub(crate) node_timeout: Duration,
    /// Whether its age has to be known, and also that it was not a replica in the meantime.
    pub(crate) needs_age: bool,
    /// Whether the backup thread may renew for the runtime. That thread connects to the same server, which therefore has to be identified.
    pub(crate) uses_backup_thread: bool,
    /// How many replicas have to acknowledge a grant.
    pub(crate) replicas: Option<Replicas>,
    /// Which of several masters it is, if it is one of several.
    pub(crate) one_vote: Option<OneVote>,
    /// Where credentials come from, if they are not in the URLs.
    pub(crate) login: Option<Login>,
    /// Where to connect to, given the addresses that sentinels and nodes report.
    pub(crate) address_map: AddressMap,
}
