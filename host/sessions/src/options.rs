//! The few values that an operator may set.

use std::time::Duration;

/// How sessions are told apart and when they end.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// A session with no request for this long is over. Default 30 minutes.
    pub idle: Duration,
    /// How long after its reply an identical *opening* request that is provably the same (its request id, its trace, a
    /// reply that was cut off) still counts as a retry and not as another conversation. Requests that contain one of
    /// our replies need no window. Default 10 minutes.
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
