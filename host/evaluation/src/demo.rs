//! The demo: a student talks to an endpoint that trains and, with the same seeds, to one that does not, and the results
//! are compared.
//!
//! Knows only the two URLs, not what serves them.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};

use crate::arms::{ArmEvent, ArmOptions, ArmRecord, run_arm};
use crate::client::{ChatClient, Endpoint, RequestError};
use crate::conversation::ConversationOptions;
use crate::idle::{WaitError, WaitOptions};
use crate::persona::Persona;
use crate::statistics::{Estimate, count_until_streak, estimate, first, last, mean};

/// Endpoints of the two arms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DemoEndpoints {
    /// Base URL of the server that trains.
    pub trained: String,
    /// Base URL of the server that does not train.
    pub control: String,
    /// `model` field of requests to both.
    pub model: String,
    /// Bearer token for both, if required.
    pub api_key: Option<String>,
}

/// Options of the demo.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DemoOptions {
    /// Seed of the persona and the requests. Default: 1.
    pub seed: u64,
    /// Conversations per arm. Default: 60.
    pub conversations: usize,
    /// Concurrent conversations. Default: 4.
    pub concurrency: usize,
    /// First replies sampled and averaged per conversation of the control arm. The frozen model does not change, so its
    /// first and last conversations differ only by chance; more samples keep that below the tolerance. Default: 8.
    pub control_draws: u32,
    /// `temperature` of requests. Default: none, the endpoint decides.
    pub temperature: Option<f32>,
    /// `max_tokens` of requests. Default: 256, so that an endless reply cannot block a round.
    pub max_tokens: Option<u32>,
    /// Timeout of one request. Default: 120 s.
    pub request_timeout: Duration,
    /// Waiting between rounds.
    pub wait: WaitOptions,
    /// Pass criteria.
    pub bounds: Bounds,
}

impl Default for DemoOptions {
    fn default() -> Self {
        DemoOptions {
            seed: 1,
            conversations: 60,
            concurrency: 4,
            control_draws: 8,
            temperature: None,
            max_tokens: Some(256),
            request_timeout: Duration::from_secs(120),
            wait: WaitOptions::default(),
            bounds: Bounds::default(),
        }
    }
}

/// Pass criteria of the demo.
///
/// Chance in a window of twelve conversations must neither fail a run that learned nor pass one that did not: a start
/// above its bound must be significant, and so must the gain. The start of the *trained* arm is not checked: an arm
/// that learns within its first window starts high.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// The lower end of the 95 % interval of the control arm's first window is at most this, so there is something to
    /// learn. Default: 0.35.
    pub start_at_most: f64,
    /// The paired gain (trained minus control over the last window) is at least this, and its 95 % interval lies above
    /// 0. Default: 0.3.
    pub gain_at_least: f64,
}

/// Means of scores are sums of fractions; tolerates rounding of the last bit.
const EPSILON: f64 = 1e-9;

impl Default for Bounds {
    fn default() -> Self {
        Bounds {
            start_at_most: 0.35,
            gain_at_least: 0.3,
        }
    }
}

/// Figures of one arm.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ArmSummary {
    /// Mean score of the first window.
    pub first12: f64,
    /// Mean score of the last window.
    pub last12: f64,
    /// The first window with its interval.
    pub first_window: Option<Estimate>,
    /// The last window with its interval.
    pub last_window: Option<Estimate>,
    /// All conversations with their interval.
    pub all: Option<Estimate>,
    /// Conversations until three in a row matched the persona's preference (value of at least 0.8).
    pub until_three: Option<usize>,
}

impl ArmSummary {
    /// Summarises an arm; `seed` seeds the bootstrap of the intervals.
    pub fn new(arm: &ArmRecord, seed: u64) -> ArmSummary {
        let values = arm.values();
        ArmSummary {
            first12: mean(first(&values)).unwrap_or(0.0),
            last12: mean(last(&values)).unwrap_or(0.0),
            first_window: estimate(first(&values), seed),
            last_window: estimate(last(&values), seed),
            all: estimate(&values, seed),
            until_three: count_until_streak(&values, 3, 0.8),
        }
    }
}

/// Result of the demo.
#[derive(Debug, Clone, PartialEq)]
pub struct DemoOutcome {
    /// Name of the persona.
    pub persona: &'static str,
    /// Options of the run.
    pub options: DemoOptions,
    /// The arm that trains.
    pub trained: ArmRecord,
    /// The control arm.
    pub control: ArmRecord,
    /// Figures of the trained arm.
    pub trained_summary: ArmSummary,
    /// Figures of the control arm.
    pub control_summary: ArmSummary,
    /// Trained minus control over the last window, paired by conversation; None without a pair.
    pub gain: Option<Estimate>,
    /// Wall time of the demo in seconds.
    pub seconds: f64,
}

/// Whether the model learned, and if not, why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The failed criteria, one sentence each; empty if it learned.
    pub failed: Vec<String>,
}

impl Verdict {
    /// Whether all criteria are met.
    pub fn has_learned(&self) -> bool {
        self.failed.is_empty()
    }
}

impl DemoOutcome {
    /// Failed requests of both arms.
    pub fn failed_requests(&self) -> usize {
        self.trained.failed_requests() + self.control.failed_requests()
    }

    /// Checks the pass criteria.
    pub fn verdict(&self) -> Verdict {
        let bounds = self.options.bounds;
        let mut failed = Vec::new();
        let mut require = |met: bool, sentence: String| {
            if !met {
                failed.push(sentence);
            }
        };
        match self.control_summary.first_window {
            Some(start) => require(
                start.low <= bounds.start_at_most,
                format!(
                    "the frozen model already starts at {:.2} ({:.2} … {:.2}), above {:.2}, so there is little to learn",
                    start.mean, start.low, start.high, bounds.start_at_most
                ),
            ),
            None => require(false, "the control arm has no reply".to_owned()),
        }
        match self.gain {
            Some(gain) => require(
                gain.mean + EPSILON >= bounds.gain_at_least && gain.low > 0.0,
                format!(
                    "the gain of the trained arm over the control arm in the last conversations is {:+.2} ({:+.2} … {:+.2}), not at least {:+.2} and significantly above 0",
                    gain.mean, gain.low, gain.high, bounds.gain_at_least
                ),
            ),
            None => require(false, "no conversation has replies of both arms".to_owned()),
        }
        require(
            self.trained.steps > 0,
            "the server reported no training step".to_owned(),
        );
        // That the control arm is frozen is checked by its adapters; its scores vary by chance.
        let (steps, served) = (self.control.steps, self.control.adapters().len());
        require(
            steps == 0 && served <= 1,
            format!(
                "the control arm is not frozen: {steps} training steps, {served} adapter versions served"
            ),
        );
        let requests = self.failed_requests();
        require(requests == 0, format!("{requests} requests failed"));
        Verdict { failed }
    }

    /// The result as a JSON object.
    pub fn json(&self) -> Value {
        let verdict = self.verdict();
        json!({
            "trained": self.trained_summary,
            "control": self.control_summary,
            "gain": self.gain,
            "curves": { "trained": self.trained.curve(), "control": self.control.curve() },
            "failed_requests": self.failed_requests(),
            "steps": self.trained.steps,
            "seconds": (self.seconds * 10.0).round() / 10.0,
            "seed": self.options.seed,
            "learned": verdict.has_learned(),
            "failed": verdict.failed,
            "persona": self.persona,
            "conversations": self.options.conversations,
            "control_draws": self.options.control_draws,
            "adapters": self.trained.adapters(),
        })
    }
}

/// Trained minus control over the last window of conversations with replies of both arms. Both arms had the same
/// problems with the same seeds, so pairing removes the variance between problems.
pub(crate) fn gain(trained: &ArmRecord, control: &ArmRecord, seed: u64) -> Option<Estimate> {
    let differences: Vec<f64> = trained
        .curve()
        .into_iter()
        .zip(control.curve())
        .filter_map(|(trained, control)| Some(trained? - control?))
        .collect();
    estimate(last(&differences), seed)
}

/// Why there is no outcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DemoError {
    /// The trained arm did not become idle.
    #[error("the trained arm stopped: {0}")]
    Trained(WaitError),
    /// The control arm did not become idle.
    #[error("the control arm stopped: {0}")]
    Control(WaitError),
    /// The HTTP client could not be created.
    #[error(transparent)]
    Client(#[from] RequestError),
}

/// Observer of a running demo.
pub trait Progress: Send {
    /// Called for each event of an arm.
    fn event(&mut self, event: &ArmEvent);
}

/// No observer.
impl Progress for () {
    fn event(&mut self, _: &ArmEvent) {}
}

/// Runs both arms concurrently.
///
/// # Errors
/// [`DemoError`] if an endpoint cannot be reached or does not become idle between rounds.
pub async fn run_demo(
    endpoints: &DemoEndpoints,
    persona: &dyn Persona,
    options: DemoOptions,
    progress: &mut dyn Progress,
) -> Result<DemoOutcome, DemoError> {
    let started = Instant::now();
    let client = |url: &str| {
        let endpoint = Endpoint {
            url: url.to_owned(),
            model: endpoints.model.clone(),
            api_key: endpoints.api_key.clone(),
        };
        ChatClient::new(endpoint, options.request_timeout)
    };
    let (learns, frozen) = (client(&endpoints.trained)?, client(&endpoints.control)?);
    let (sender, mut events) = tokio::sync::mpsc::unbounded_channel();
    let arm = |draws| ArmOptions {
        conversations: options.conversations,
        concurrency: options.concurrency,
        conversation: ConversationOptions {
            seed: options.seed,
            draws,
            temperature: options.temperature,
            max_tokens: options.max_tokens,
            ..ConversationOptions::default()
        },
        wait: options.wait,
    };
    let arms = async move {
        // The sender lives as long as the arms, so the receiver below ends with them.
        let sender = sender;
        let (trained_arm, control_arm) = (arm(1), arm(options.control_draws.max(1)));
        let trained = async {
            let run = run_arm("trained", &learns, persona, trained_arm, &sender);
            run.await.map_err(DemoError::Trained)
        };
        let control = async {
            let run = run_arm("control", &frozen, persona, control_arm, &sender);
            run.await.map_err(DemoError::Control)
        };
        // The first error ends both arms.
        tokio::try_join!(trained, control)
    };
    let watching = async {
        while let Some(event) = events.recv().await {
            progress.event(&event);
        }
    };
    let (outcome, ()) = tokio::join!(arms, watching);
    let (trained, control) = outcome?;
    Ok(DemoOutcome {
        persona: persona.name(),
        options,
        trained_summary: ArmSummary::new(&trained, options.seed),
        control_summary: ArmSummary::new(&control, options.seed),
        gain: gain(&trained, &control, options.seed),
        trained,
        control,
        seconds: started.elapsed().as_secs_f64(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::{ConversationRecord, Ending};
    use crate::scorer::Score;

    fn arm(values: &[f64], steps: u64, failures: usize) -> ArmRecord {
        let record = |(index, value): (usize, &f64)| ConversationRecord {
            index,
            opening: String::new(),
            replies: vec![],
            reactions: vec![],
            ending: Ending::Content,
            first: Some(Score {
                value: *value,
                style: 1.0,
                correctness: *value,
            }),
            draws: vec![],
            failures: vec!["x".into(); if index == 0 { failures } else { 0 }],
        };
        ArmRecord {
            name: "a".into(),
            conversations: values.iter().enumerate().map(record).collect(),
            steps,
            seconds: 1.0,
            waited_seconds: 0.0,
        }
    }

    fn outcome(trained: ArmRecord, control: ArmRecord) -> DemoOutcome {
        DemoOutcome {
            persona: "student",
            options: DemoOptions::default(),
            trained_summary: ArmSummary::new(&trained, 1),
            control_summary: ArmSummary::new(&control, 1),
            gain: gain(&trained, &control, 1),
            trained,
            control,
            seconds: 12.34,
        }
    }

    fn series(low: f64, high: f64) -> Vec<f64> {
        (0..60).map(|i| if i < 30 { low } else { high }).collect()
    }

    /// Zeros and ones with about this share of ones.
    fn replies(share: f64, count: usize) -> Vec<f64> {
        let ones = |i: usize| (i as f64 * share).floor();
        (0..count).map(|i| ones(i + 1) - ones(i)).collect()
    }

    #[test]
    fn each_failed_criterion_is_reported() {
        let good = || arm(&series(0.2, 0.9), 9, 0);
        let flat = || arm(&series(0.2, 0.2), 0, 0);
        assert_eq!(
            outcome(good(), flat()).verdict().failed,
            Vec::<String>::new()
        );
        let cases = [
            (
                outcome(arm(&series(0.2, 0.45), 9, 0), flat()),
                "is +0.25 (+0.25 … +0.25)",
            ),
            (
                outcome(good(), arm(&series(0.5, 0.2), 0, 0)),
                "already starts at 0.50",
            ),
            (
                outcome(good(), arm(&series(0.2, 0.2), 1, 0)),
                "not frozen: 1 training steps",
            ),
            (
                outcome(arm(&series(0.2, 0.9), 0, 0), flat()),
                "no training step",
            ),
            (
                outcome(arm(&series(0.2, 0.9), 9, 2), flat()),
                "2 requests failed",
            ),
        ];
        for (outcome, sentence) in cases {
            let failed = outcome.verdict().failed;
            assert_eq!(failed.len(), 1, "{failed:?}");
            assert!(failed[0].contains(sentence), "{failed:?}");
        }
    }

    #[test]
    fn an_arm_that_learns_within_its_first_window_passes() {
        let trained = arm(&series(0.6, 0.95), 9, 0);
        assert!(
            outcome(trained, arm(&series(0.2, 0.2), 0, 0))
                .verdict()
                .has_learned()
        );
    }

    #[test]
    fn an_insignificant_gain_does_not_pass() {
        // Eight of the last twelve against the other four: a mean gain of a third whose interval contains 0.
        let mut values = vec![0.0; 48];
        values.extend([[1.0; 8].as_slice(), &[0.0; 4]].concat());
        let mut frozen = vec![0.0; 48];
        frozen.extend([[0.0; 8].as_slice(), &[1.0; 4]].concat());
        let outcome = outcome(arm(&values, 9, 0), arm(&frozen, 0, 0));
        let gain = outcome.gain.unwrap();
        assert!(gain.low <= 0.0 && gain.mean > 0.3, "{gain:?}");
        assert!(!outcome.verdict().has_learned());
        // The same end with noise in the control arm's scores only: it passes.
        let mut frozen = replies(0.1, 48);
        frozen.extend(replies(0.3, 12));
        let learned = arm(&series(0.2, 1.0), 9, 0);
        assert!(
            super::tests::outcome(learned, arm(&frozen, 0, 0))
                .verdict()
                .has_learned()
        );
    }

    #[test]
    fn conversations_are_paired_by_index() {
        let mut trained = arm(&series(0.0, 1.0), 9, 0);
        let control = arm(&series(0.0, 0.25), 0, 0);
        for conversation in &mut trained.conversations[50..54] {
            conversation.first = None;
        }
        let gain = gain(&trained, &control, 1).unwrap();
        assert_eq!((gain.mean, gain.count), (0.75, 12));
        trained.conversations.clear();
        assert_eq!(super::gain(&trained, &control, 1), None);
        let verdict = outcome(trained, control).verdict();
        assert!(
            verdict.failed[0].contains("no conversation has replies of both"),
            "{verdict:?}"
        );
    }

    #[test]
    fn the_json_result_has_the_documented_fields() {
        let line = outcome(
            arm(&series(0.25, 1.0), 9, 0),
            arm(&series(0.25, 0.25), 0, 0),
        )
        .json();
        for (at, expected) in [
            ("/trained/first12", json!(0.25)),
            ("/trained/last12", json!(1.0)),
            ("/control/first12", json!(0.25)),
            ("/control/last12", json!(0.25)),
            ("/gain/low", json!(0.75)),
            ("/curves/trained/59", json!(1.0)),
            ("/curves/control/0", json!(0.25)),
            ("/failed_requests", json!(0)),
            ("/steps", json!(9)),
            ("/seconds", json!(12.3)),
            ("/seed", json!(1)),
        ] {
            assert_eq!(line.pointer(at), Some(&expected), "{at}");
        }
        assert!(!line.to_string().contains('\n'));
    }
}
