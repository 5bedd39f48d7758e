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
    /// Samples that wait for a step; none where nothing trains.
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
    ///
    /// What a loop says of itself can be a moment old: it has not looked yet at what has just arrived.
    /// The counts of the journal cannot, so where both are told, the larger number counts.
    pub fn read(body: &Value) -> Health {
        let number = |at: &str| body.pointer(at).and_then(Value::as_u64).unwrap_or(0);
        let flag = |at: &str| body.pointer(at).and_then(Value::as_bool);
        let steps = body.pointer("/journal/steps").and_then(Value::as_object);
        let recorded = steps.map_or(0, |by| by.values().filter_map(Value::as_u64).sum());
        // Where nothing trains, samples wait for ever and nothing is due.
        let trains = flag("/training/enabled").unwrap_or(true);
        let queued = number("/training/queued").max(number("/journal/samples/queued"));
        Health {
            ready: number("/judging/ready").max(number("/journal/judging/ready")),
            judging: number("/judging/running"),
            queued: if trains { queued } else { 0 },
            training: flag("/training/running").unwrap_or(false),
            steps: number("/training/steps").max(recorded),
            batch: body.pointer("/training/batch").and_then(Value::as_u64),
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

    #[test]
    fn what_the_journal_holds_counts_before_the_loops_have_seen_it() {
        let unseen = |ready, queued| {
            json!({"judging": {"ready": 0, "running": 0}, "training": {"queued": 0, "running": false, "steps": 2},
                   "journal": {"judging": {"ready": ready, "done": 5}, "samples": {"queued": queued},
                               "steps": {"published": 2, "no_signal": 1}}})
        };
        assert!(Health::read(&unseen(0, 15)).is_settled(16));
        assert!(!Health::read(&unseen(1, 0)).is_settled(16));
        assert!(!Health::read(&unseen(0, 16)).is_settled(16));
        assert_eq!(Health::read(&unseen(0, 0)).steps, 3);
    }

    #[test]
    fn samples_that_nobody_trains_on_are_not_waited_for() {
        let frozen = json!({"training": {"enabled": false, "queued": 90, "running": false}});
        assert!(Health::read(&frozen).is_settled(16));
    }
}
