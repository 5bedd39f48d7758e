//! The verdict on recorded runs: first-reply scores of the embedded model with seeds 1 to 15.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::options::DemoOptions;
use super::outcome::{ArmSummary, DemoOutcome, gain};
use crate::arms::ArmRecord;
use crate::conversation::{ConversationRecord, Ending};
use crate::scorer::Score;

/// A recorded run.
#[derive(Debug, Clone, Deserialize)]
struct Run {
    steps: u64,
    trained: Vec<f64>,
    control: Vec<f64>,
}

fn runs() -> BTreeMap<u64, Run> {
    serde_json::from_str(include_str!("recorded.json")).unwrap()
}

/// An arm whose first replies have these scores.
pub(super) fn arm(values: &[f64], steps: u64) -> ArmRecord {
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
        failures: vec![],
    };
    ArmRecord {
        name: "arm".into(),
        conversations: values.iter().enumerate().map(conversation).collect(),
        steps,
        seconds: 1.0,
        waited_seconds: 0.0,
    }
}

fn outcome(seed: u64, trained: ArmRecord, control: ArmRecord) -> DemoOutcome {
    DemoOutcome {
        persona: "student",
        options: DemoOptions {
            seed,
            ..DemoOptions::default()
        },
        trained_summary: ArmSummary::new(&trained, seed),
        control_summary: ArmSummary::new(&control, seed),
        gain: gain(&trained, &control, seed),
        trained,
        control,
        seconds: 1.0,
    }
}

#[test]
fn every_recorded_training_run_passes() {
    let runs = runs();
    assert_eq!(
        runs.keys().copied().collect::<Vec<_>>(),
        (1..=15).collect::<Vec<_>>()
    );
    let mut fast = 0;
    for (seed, run) in runs {
        let outcome = outcome(seed, arm(&run.trained, run.steps), arm(&run.control, 0));
        assert_eq!(
            outcome.verdict().failed,
            Vec::<String>::new(),
            "seed {seed}"
        );
        // All seeds pass with a margin, so passing is not a matter of chance.
        let gain = outcome.gain.unwrap();
        let bound = outcome.options.bounds.gain_at_least;
        assert!(
            gain.mean > bound + 0.2 && gain.low > 0.2,
            "seed {seed}: {gain:?}"
        );
        fast += u32::from(outcome.trained_summary.first12 > 0.35);
    }
    assert!(fast >= 4, "{fast} runs learned within their first window");
}

#[test]
fn no_recorded_control_arm_passes() {
    let runs: Vec<(u64, Run)> = runs().into_iter().collect();
    for (seed, run) in &runs {
        // Control arms of other seeds: they differ by problems and by chance, as much as two frozen arms can.
        for (_, other) in runs.iter().filter(|(other, _)| other != seed) {
            let outcome = outcome(*seed, arm(&other.control, 5), arm(&run.control, 0));
            assert!(
                !outcome.verdict().has_learned(),
                "seed {seed}: {:?}",
                outcome.gain
            );
        }
        // An arm that learned and forgot does not pass either.
        let mut forgot = run.trained.clone();
        forgot.truncate(48);
        forgot.extend(&run.control[48..]);
        let outcome = outcome(*seed, arm(&forgot, run.steps), arm(&run.control, 0));
        assert!(
            !outcome.verdict().has_learned(),
            "seed {seed}: {:?}",
            outcome.gain
        );
    }
}
