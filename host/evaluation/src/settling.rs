//! Waiting until an endpoint has learned what it can from what was said.
//!
//! People talk more slowly than the trainer learns; a script does not. Between two rounds of
//! conversations the script therefore asks `/healthz` until nothing waits for a judge and no step is
//! due or running. It asks only what any operator can ask, and it gives up loudly.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::client::{ChatClient, RequestError};

/// How long to wait and what counts as settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// The longest wait between two rounds. Default: 120 s.
    pub limit: Duration,
    /// Time between two questions. Default: 40 ms.
    pub every: Duration,
    /// How many queued samples start a step, for an endpoint that does not report `training.batch`.
    /// Default: 16.
    pub batch: u64,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            limit: Duration::from_secs(120),
            every: Duration::from_millis(40),
            batch: 16,
        }
    }
}

/// What an endpoint says about its own work.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// Turns that wait for a judge.
    pub ready: u64,
    /// Turns that a judge is looking at.
    pub judging: u64,
    /// Samples that wait for a step.
    pub queued: u64,
    /// Whether a step is running.
    pub training: bool,
    /// Steps done so far, of whatever outcome.
    pub steps: u64,
    /// Samples that start a step, where the endpoint says so.
    pub batch: Option<u64>,
}

impl Health {
    /// Reads a `/healthz` body. A part that an endpoint does not have (it does not train, or is no
    /// clawhost at all) counts as idle.
    pub fn read(body: &Value) -> Health {
        let number = |at: &str| body.pointer(at).and_then(Value::as_u64);
        Health {
            ready: number("/judging/ready").unwrap_or(0),
            judging: number("/judging/running").unwrap_or(0),
            queued: number("/training/queued").unwrap_or(0),
            training: body
                .pointer("/training/running")
                .and_then(Value::as_bool)
                .unwrap_or(false),
            steps: number("/training/steps").unwrap_or(0),
            batch: number("/training/batch"),
        }
    }

    /// Whether nothing is left to do before somebody says more.
    pub fn is_settled(&self, batch: u64) -> bool {
        let due = self.queued >= self.batch.unwrap_or(batch).max(1);
        self.ready == 0 && self.judging == 0 && !self.training && !due
    }
}

/// Why an endpoint did not settle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettleError {
    /// It had work left when the patience was used up.
    #[error(
        "the endpoint was still at work after {waited_s} s ({ready} turns to judge, {judging} being judged, \
         {queued} samples queued, step running: {training}); see its log, or raise the waiting limit"
    )]
    StillAtWork {
        /// How long was waited.
        waited_s: u64,
        /// Turns that wait for a judge.
        ready: u64,
        /// Turns that a judge is looking at.
        judging: u64,
        /// Samples that wait for a step.
        queued: u64,
        /// Whether a step is running.
        training: bool,
    },
    /// It does not say how it is.
    #[error("cannot tell whether the endpoint has settled: {0}")]
    Silent(#[from] RequestError),
}

/// Asks until the endpoint has settled; returns what it said last and how long that took.
///
/// # Errors
/// [`SettleError`] when it does not settle within the limit or does not answer.
pub async fn settle(
    client: &ChatClient,
    patience: Patience,
) -> Result<(Health, Duration), SettleError> {
    let begun = Instant::now();
    loop {
        let health = Health::read(&client.health().await?);
        if health.is_settled(patience.batch) {
            return Ok((health, begun.elapsed()));
        }
        if begun.elapsed() >= patience.limit {
            return Err(SettleError::StillAtWork {
                waited_s: begun.elapsed().as_secs(),
                ready: health.ready,
                judging: health.judging,
                queued: health.queued,
                training: health.training,
            });
        }
        tokio::time::sleep(patience.every).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn settled_means_nothing_left_to_do() {
        let body = |ready, running, queued, step| {
            json!({"judging": {"ready": ready, "running": running},
                   "training": {"queued": queued, "running": step, "steps": 3}})
        };
        let cases = [
            (body(0, 0, 0, false), true),
            (body(0, 0, 15, false), true),
            (body(0, 0, 16, false), false),
            (body(1, 0, 0, false), false),
            (body(0, 1, 0, false), false),
            (body(0, 0, 0, true), false),
            (json!({"status": "ok"}), true),
            (json!([]), true),
        ];
        for (body, expected) in cases {
            assert_eq!(Health::read(&body).is_settled(16), expected, "{body}");
        }
        let own = json!({"training": {"queued": 9, "running": false, "batch": 8}});
        assert!(
            !Health::read(&own).is_settled(16),
            "the endpoint's own batch counts"
        );
    }
}
