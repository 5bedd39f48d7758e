//! Waits until an endpoint is idle.
//!
//! A script talks faster than the endpoint trains. Between two rounds of conversations it therefore polls `/healthz`
//! until no turn waits for a judge and no training step is due or running. It uses only what an operator can see, and
//! fails with an error after a timeout.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::client::{ChatClient, RequestError};

/// Options of the wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitOptions {
    /// Timeout between two rounds; only an endpoint that makes no progress reaches it, because judging and training run
    /// at a low priority and may take long on a busy machine. Default: 30 min.
    pub timeout: Duration,
    /// Poll interval. Default: 40 ms.
    pub poll_interval: Duration,
    /// Number of queued samples that start a step, for an endpoint that does not report `training.batch_size`. Default: 16.
    pub batch: u64,
}

impl Default for WaitOptions {
    fn default() -> Self {
        WaitOptions {
            timeout: Duration::from_secs(1_800),
            poll_interval: Duration::from_millis(40),
            batch: 16,
        }
    }
}

/// Work reported by an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// Turns waiting to be judged.
    pub ready: u64,
    /// Turns being judged.
    pub judging: u64,
    /// Samples waiting for a step, with adapters of owners those of the owner with most; 0 if training is disabled.
    pub queued: u64,
    /// Whether a training step is running.
    pub training: bool,
    /// Training steps so far, with any outcome.
    pub steps: u64,
    /// Number of samples that start a step, if reported.
    pub batch: Option<u64>,
}

impl Health {
    /// Parses a `/healthz` body. A missing part (the endpoint does not train, or is not clawhost) counts as idle.
    ///
    /// The status of a background loop may be stale: it may not have seen the newest turns yet. The journal's counts
    /// are not, so of the two the larger number counts.
    pub fn read(body: &Value) -> Health {
        let number = |at: &str| body.pointer(at).and_then(Value::as_u64).unwrap_or(0);
        let flag = |at: &str| body.pointer(at).and_then(Value::as_bool);
        let steps = body.pointer("/journal/steps").and_then(Value::as_object);
        let recorded = steps.map_or(0, |by| by.values().filter_map(Value::as_u64).sum());
        // With training disabled, queued samples stay queued and no step is due.
        let trains = flag("/training/enabled").unwrap_or(true);
        let queued = number("/training/queued").max(number("/journal/samples/queued"));
        // A step trains the samples of one owner.
        let longest = body
            .pointer("/training/longest_queue")
            .and_then(Value::as_u64);
        let queued = longest.unwrap_or(queued);
        Health {
            ready: number("/judging/ready").max(number("/journal/judging/ready")),
            judging: number("/judging/running"),
            queued: if trains { queued } else { 0 },
            training: flag("/training/running").unwrap_or(false),
            steps: number("/training/steps").max(recorded),
            batch: body.pointer("/training/batch").and_then(Value::as_u64),
        }
    }

    /// Whether no work is left until the next request.
    pub fn is_idle(&self, batch: u64) -> bool {
        let due = self.queued >= self.batch.unwrap_or(batch).max(1);
        self.ready == 0 && self.judging == 0 && !self.training && !due
    }
}

/// Why an endpoint did not become idle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// It still had work at the timeout.
    #[error(
        "the endpoint is still busy after {waited_s} s ({ready} turns to judge, {judging} being judged, \
         {queued} samples queued, step running: {training}); see its log, or raise the timeout"
    )]
    Timeout {
        /// Seconds waited.
        waited_s: u64,
        /// Turns waiting to be judged.
        ready: u64,
        /// Turns being judged.
        judging: u64,
        /// Samples waiting for a step.
        queued: u64,
        /// Whether a step is running.
        training: bool,
    },
    /// The health check failed.
    #[error("cannot read the health of the endpoint: {0}")]
    Health(#[from] RequestError),
}

/// Polls until the endpoint is idle; returns its last health report and the time waited.
///
/// # Errors
/// [`WaitError`] if it does not become idle before the timeout or does not respond.
pub async fn wait_until_idle(
    client: &ChatClient,
    options: WaitOptions,
) -> Result<(Health, Duration), WaitError> {
    let started = Instant::now();
    loop {
        let health = Health::read(&client.health().await?);
        if health.is_idle(options.batch) {
            return Ok((health, started.elapsed()));
        }
        if started.elapsed() >= options.timeout {
            return Err(WaitError::Timeout {
                waited_s: started.elapsed().as_secs(),
                ready: health.ready,
                judging: health.judging,
                queued: health.queued,
                training: health.training,
            });
        }
        tokio::time::sleep(options.poll_interval).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn idle_means_no_work_left() {
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
            assert_eq!(Health::read(&body).is_idle(16), expected, "{body}");
        }
        let own = json!({"training": {"queued": 9, "running": false, "batch": 8}});
        assert!(
            !Health::read(&own).is_idle(16),
            "the endpoint's own batch counts"
        );
    }

    #[test]
    fn journal_counts_override_stale_loop_status() {
        let unseen = |ready, queued| {
            json!({"judging": {"ready": 0, "running": 0}, "training": {"queued": 0, "running": false, "steps": 2},
                   "journal": {"judging": {"ready": ready, "done": 5}, "samples": {"queued": queued},
                               "steps": {"published": 2, "no_signal": 1}}})
        };
        assert!(Health::read(&unseen(0, 15)).is_idle(16));
        assert!(!Health::read(&unseen(1, 0)).is_idle(16));
        assert!(!Health::read(&unseen(0, 16)).is_idle(16));
        assert_eq!(Health::read(&unseen(0, 0)).steps, 3);
    }

    #[test]
    fn samples_of_several_owners_start_no_step_together() {
        let body = |longest| json!({"training": {"queued": 20, "longest_queue": longest}, "journal": {"samples": {"queued": 20}}});
        assert!(Health::read(&body(15)).is_idle(16));
        assert!(!Health::read(&body(16)).is_idle(16));
    }

    #[test]
    fn queued_samples_are_ignored_when_training_is_disabled() {
        let frozen = json!({"training": {"enabled": false, "queued": 90, "running": false}});
        assert!(Health::read(&frozen).is_idle(16));
    }
}
