//! The result of a demo, and whether the model learned.

use serde::Serialize;
use serde_json::{Value, json};

use super::options::DemoOptions;
use crate::arms::ArmRecord;
use crate::statistics::{Estimate, count_until_streak, estimate, first, last, mean};

/// Means of scores are sums of fractions; tolerates rounding of the last bit.
const EPSILON: f64 = 1e-9;

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
pub(super) fn gain(trained: &ArmRecord, control: &ArmRecord, seed: u64) -> Option<Estimate> {
    let differences: Vec<f64> = trained
        .curve()
        .into_iter()
        .zip(control.curve())
        .filter_map(|(trained, control)| Some(trained? - control?))
        .collect();
    estimate(last(&differences), seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::recorded;

    fn arm(values: &[f64], steps: u64, failures: usize) -> ArmRecord {
        let mut record = recorded::arm(values, steps);
        record.conversations[0].failures = vec!["x".into(); failures];
        record
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
