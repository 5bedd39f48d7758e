//! Options of the collecting loop.

use std::time::Duration;

/// Session matching and expiry options.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// A session without a request for this long ends. Default: 30 minutes.
    pub idle: Duration,
    /// How long after its reply an identical *opening* request with evidence (request id, trace, a reply that was cut
    /// off) counts as a retry and not as a new conversation. Requests that contain one of our replies need no window.
    /// Default: 10 minutes.
    pub retry_window: Duration,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(30 * 60),
            retry_window: Duration::from_secs(10 * 60),
        }
    }
}
