//! The demonstration: a student talks to a policy that learns, and with the same seeds to one that
//! does not; did the first one learn?
//!
//! It knows two addresses and nothing of what stands behind them.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};

use crate::arms::{ArmEvent, ArmOptions, ArmRecord, run_arm};
use crate::client::{ChatClient, Endpoint, RequestError};
use crate::conversation::Manner;
use crate::persona::Persona;
use crate::settling::{Patience, SettleError};
use crate::statistics::{Estimate, estimate, first, last, mean, until_in_a_row};

/// Where the two arms are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DemoEndpoints {
    /// The base address of the server that learns.
    pub trained: String,
    /// The base address of the server that does not.
    pub control: String,
    /// The `model` field of requests to both.
    pub model: String,
    /// A bearer key for both, where they ask for one.
    pub api_key: Option<String>,
}

/// How the demonstration is run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DemoOptions {
    /// Everything random in the persona and the requests follows from it. Default: 1.
    pub seed: u64,
    /// Conversations of each arm. Default: 60.
    pub conversations: usize,
    /// Conversations at a time. Default: 4.
    pub concurrency: usize,
    /// First replies that are drawn and averaged for each conversation of the control arm. The frozen
    /// policy does not move, so what differs between its first and its last conversations is chance
    /// alone; drawing more keeps that chance below the tolerance. Default: 8.
    pub control_draws: u32,
    /// The `temperature` of requests. Default: none, the endpoint decides.
    pub temperature: Option<f32>,
    /// The `max_tokens` of requests. Default: 256, so that a reply that never ends cannot hold up
    /// a round.
    pub max_tokens: Option<u32>,
    /// Longest time for one request. Default: 120 s.
    pub request_limit: Duration,
    /// The waits between rounds.
    pub patience: Patience,
    /// When the demonstration counts as passed.
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
            request_limit: Duration::from_secs(120),
            patience: Patience::default(),
            bounds: Bounds::default(),
        }
    }
}

/// What "it learned" means.
///
/// Chance in a window of twelve conversations shall neither fail a run that learned nor pass one that did not: a
/// start above its bound must be sure, and so must the gain. Where the *trained* arm starts is not tested: one
/// that learns within its first window starts high.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// The frozen policy's first window is not surely above this (its 95 % interval reaches down to it): there is
    /// something to learn. Default: 0.35.
    pub start_at_most: f64,
    /// The paired gain (trained minus control over the last window) is at least this, and its 95 % interval lies
    /// above 0. Default: 0.3.
    pub gain_at_least: f64,
}

/// Means of scores are sums of fractions: a bound must not fail for its last bit.
const HAIR: f64 = 1e-9;

impl Default for Bounds {
    fn default() -> Self {
        Bounds {
            start_at_most: 0.35,
            gain_at_least: 0.3,
        }
    }
}

/// The figures of one arm.
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
    /// Conversations until three in a row were what the persona wants (value of at least 0.8).
    pub until_three: Option<usize>,
}

impl ArmSummary {
    /// Summarises an arm; intervals are drawn from `seed`.
    pub fn of(arm: &ArmRecord, seed: u64) -> ArmSummary {
        let values = arm.values();
        ArmSummary {
            first12: mean(first(&values)).unwrap_or(0.0),
            last12: mean(last(&values)).unwrap_or(0.0),
            first_window: estimate(first(&values), seed),
            last_window: estimate(last(&values), seed),
            all: estimate(&values, seed),
            until_three: until_in_a_row(&values, 3, 0.8),
        }
    }
}

/// What came out.
#[derive(Debug, Clone, PartialEq)]
pub struct DemoOutcome {
    /// The persona that talked.
    pub persona: &'static str,
    /// The options it was run with.
    pub options: DemoOptions,
    /// The arm that learns.
    pub trained: ArmRecord,
    /// The arm that does not.
    pub control: ArmRecord,
    /// The figures of the first.
    pub trained_summary: ArmSummary,
    /// The figures of the second.
    pub control_summary: ArmSummary,
    /// Trained minus control over the last window, conversation by conversation; none without a pair.
    pub gain: Option<Estimate>,
    /// Wall time of the whole demonstration in seconds.
    pub seconds: f64,
}

/// Whether it learned, and if not, why that is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// What does not hold, one sentence each; empty when it learned.
    pub failed: Vec<String>,
}

impl Verdict {
    /// Whether everything holds.
    pub fn learned(&self) -> bool {
        self.failed.is_empty()
    }
}

impl DemoOutcome {
    /// Requests of both arms that failed.
    pub fn failed_requests(&self) -> usize {
        self.trained.failed_requests() + self.control.failed_requests()
    }

    /// Judges the outcome by the bounds of its options.
    pub fn verdict(&self) -> Verdict {
        let bounds = self.options.bounds;
        let mut failed = Vec::new();
        let mut unless = |holds: bool, sentence: String| {
            if !holds {
                failed.push(sentence);
            }
        };
        match self.control_summary.first_window {
            Some(start) => unless(
                start.low <= bounds.start_at_most,
                format!(
                    "the frozen policy already starts at {:.2} ({:.2} … {:.2}), above {:.2}, so that there is little to learn",
                    start.mean, start.low, start.high, bounds.start_at_most
                ),
            ),
            None => unless(false, "the control arm has no reply".to_owned()),
        }
        match self.gain {
            Some(gain) => unless(
                gain.mean + HAIR >= bounds.gain_at_least && gain.low > 0.0,
                format!(
                    "the last conversations of the trained arm score {:+.2} ({:+.2} … {:+.2}) beside the same ones of the control arm, not at least {:+.2} and surely more than 0",
                    gain.mean, gain.low, gain.high, bounds.gain_at_least
                ),
            ),
            None => unless(false, "no conversation has a reply of both arms".to_owned()),
        }
        unless(
            self.trained.steps > 0,
            "the server reported no training step".to_owned(),
        );
        // That the control arm stands still is checked by what it served: its scores also move by chance.
        let (steps, served) = (self.control.steps, self.control.adapters().len());
        unless(
            steps == 0 && served <= 1,
            format!(
                "the control arm is not frozen: {steps} training steps, {served} adapter versions served"
            ),
        );
        let requests = self.failed_requests();
        unless(requests == 0, format!("{requests} requests failed"));
        Verdict { failed }
    }

    /// The machine-readable result: one object for one line.
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
            "learned": verdict.learned(),
            "failed": verdict.failed,
            "persona": self.persona,
            "conversations": self.options.conversations,
            "control_draws": self.options.control_draws,
            "adapters": self.trained.adapters(),
        })
    }
}

/// Trained minus control over the last window of the conversations that both arms replied in. Both met the same
/// problems with the same seeds, so that pairing takes out what a problem adds to both.
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
    /// The arm that learns did not come to rest.
    #[error("the trained arm stopped: {0}")]
    Trained(SettleError),
    /// The arm that does not learn did not come to rest.
    #[error("the control arm stopped: {0}")]
    Control(SettleError),
    /// No client could be made.
    #[error(transparent)]
    Client(#[from] RequestError),
}

/// Who watches a demonstration.
pub trait Progress: Send {
    /// Something happened in one of the arms.
    fn event(&mut self, event: &ArmEvent);
}

/// For when nobody watches.
impl Progress for () {
    fn event(&mut self, _: &ArmEvent) {}
}

/// Runs both arms at once and waits for both.
///
/// # Errors
/// [`DemoError`] when an endpoint cannot be talked to or does not come to rest between rounds.
pub async fn run_demo(
    endpoints: &DemoEndpoints,
    persona: &dyn Persona,
    options: DemoOptions,
    progress: &mut dyn Progress,
) -> Result<DemoOutcome, DemoError> {
    let begun = Instant::now();
    let client = |url: &str| {
        let endpoint = Endpoint {
            url: url.to_owned(),
            model: endpoints.model.clone(),
            api_key: endpoints.api_key.clone(),
        };
        ChatClient::new(endpoint, options.request_limit)
    };
    let (learns, frozen) = (client(&endpoints.trained)?, client(&endpoints.control)?);
    let (sender, mut events) = tokio::sync::mpsc::unbounded_channel();
    let arm = |draws| ArmOptions {
        conversations: options.conversations,
        concurrency: options.concurrency,
        manner: Manner {
            seed: options.seed,
            draws,
            temperature: options.temperature,
            max_tokens: options.max_tokens,
            ..Manner::default()
        },
        patience: options.patience,
    };
    let arms = async move {
        // The sender lives as long as the arms: when both are done the listener below ends.
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
        // The first error ends both.
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
        trained_summary: ArmSummary::of(&trained, options.seed),
        control_summary: ArmSummary::of(&control, options.seed),
        gain: gain(&trained, &control, options.seed),
        trained,
        control,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::{ConversationRecord, Ending};
    use crate::scorer::Score;

    fn arm(values: &[f64], steps: u64, failures: usize) -> ArmRecord {
        let conversation = |(index, value): (usize, &f64)| ConversationRecord {
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
            conversations: values.iter().enumerate().map(conversation).collect(),
            steps,
            seconds: 1.0,
            waited_seconds: 0.0,
        }
    }

    fn outcome(trained: ArmRecord, control: ArmRecord) -> DemoOutcome {
        DemoOutcome {
            persona: "student",
            options: DemoOptions::default(),
            trained_summary: ArmSummary::of(&trained, 1),
            control_summary: ArmSummary::of(&control, 1),
            gain: gain(&trained, &control, 1),
            trained,
            control,
            seconds: 12.34,
        }
    }

    fn series(low: f64, high: f64) -> Vec<f64> {
        (0..60).map(|i| if i < 30 { low } else { high }).collect()
    }

    /// 0 or 1, with about this share of ones.
    fn replies(share: f64, count: usize) -> Vec<f64> {
        let ones = |i: usize| (i as f64 * share).floor();
        (0..count).map(|i| ones(i + 1) - ones(i)).collect()
    }

    #[test]
    fn each_bound_has_its_sentence() {
        let good = || arm(&series(0.2, 0.9), 9, 0);
        let flat = || arm(&series(0.2, 0.2), 0, 0);
        assert_eq!(
            outcome(good(), flat()).verdict().failed,
            Vec::<String>::new()
        );
        let cases = [
            (
                outcome(arm(&series(0.2, 0.45), 9, 0), flat()),
                "score +0.25 (+0.25 … +0.25)",
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
    fn an_arm_that_learns_within_its_first_window_has_learned() {
        let trained = arm(&series(0.6, 0.95), 9, 0);
        assert!(
            outcome(trained, arm(&series(0.2, 0.2), 0, 0))
                .verdict()
                .learned()
        );
    }

    #[test]
    fn a_gain_that_may_be_chance_is_none() {
        // Eight of the last twelve against the other four: a mean gain of a third whose interval holds 0.
        let mut values = vec![0.0; 48];
        values.extend([[1.0; 8].as_slice(), &[0.0; 4]].concat());
        let mut frozen = vec![0.0; 48];
        frozen.extend([[0.0; 8].as_slice(), &[1.0; 4]].concat());
        let outcome = outcome(arm(&values, 9, 0), arm(&frozen, 0, 0));
        let gain = outcome.gain.unwrap();
        assert!(gain.low <= 0.0 && gain.mean > 0.3, "{gain:?}");
        assert!(!outcome.verdict().learned());
        // The same end without a control arm that moves: chance in its scores is no fault of the trained arm.
        let mut frozen = replies(0.1, 48);
        frozen.extend(replies(0.3, 12));
        let learned = arm(&series(0.2, 1.0), 9, 0);
        assert!(
            super::tests::outcome(learned, arm(&frozen, 0, 0))
                .verdict()
                .learned()
        );
    }

    #[test]
    fn conversations_are_paired_by_their_number() {
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
            verdict.failed[0].contains("no conversation has a reply of both"),
            "{verdict:?}"
        );
    }

    #[test]
    fn the_line_has_the_promised_fields() {
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
