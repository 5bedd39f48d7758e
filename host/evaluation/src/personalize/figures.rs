//! The figures of one arm with one persona, over all seeds.
//!
//! A figure of a seed is a mean over conversations; reported is the mean over seeds with a 95 % bootstrap interval.
//! Probes are compared with the frozen model's replies to the same prompts, so their intervals are those of paired
//! differences.

use std::collections::BTreeMap;
use std::ops::Range;

use super::cell::CellRecord;
use super::outcome::PersonalizeOutcome;
use super::plan::{Arm, PersonalizeOptions};
use super::probes::ProbeResult;
use crate::arms::ArmRecord;
use crate::conversation::ConversationRecord;
use crate::persona::Track;
use crate::statistics::{Estimate, count_until_streak, estimate, mean};

/// Length of the streak of conversations that must match the persona's preference.
const STREAK: usize = 3;
/// Minimum score of a first reply that matches the persona's preference.
const MIN_SCORE: f64 = 0.8;

/// The figures of one arm with one persona; lists are in the order of the seeds.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    /// The arm.
    pub arm: Arm,
    /// The persona.
    pub track: Track,
    /// The seeds with records.
    pub seeds: Vec<u64>,
    /// Mean score of the first window; `None` without replies.
    pub first: Vec<Option<f64>>,
    /// Mean score of the window that ends at the mark.
    pub at_mark: Vec<Option<f64>>,
    /// Mean score of the last window of all conversations.
    pub last: Vec<Option<f64>>,
    /// Conversations until the first reply matched the persona's preference three times in a row, including those
    /// three. For frozen arms too, only the reply that the conversation continued from counts.
    pub align: Vec<Option<usize>>,
    /// Training steps.
    pub steps: Vec<u64>,
    /// Reply tokens trained on.
    pub tokens: Vec<u64>,
    /// Samples with a reward trained on.
    pub rewarded: Vec<u64>,
    /// Samples with a hint trained on.
    pub hinted: Vec<u64>,
    /// Wall time of the conversations in seconds.
    pub seconds: Vec<f64>,
    /// KL to the base model at the last step, nats per token.
    pub kl: Vec<Option<f64>>,
    /// Entropy at the first step, nats per token.
    pub entropy_first: Vec<Option<f64>>,
    /// Entropy at the last step, nats per token.
    pub entropy_last: Vec<Option<f64>>,
    /// Words of first replies in the window at the mark relative to the first window, minus one.
    pub length_drift: Vec<Option<f64>>,
    /// Largest mean difference between served and trained log-probs of any step.
    pub served_against_trained: Option<f64>,
    /// Failed requests.
    pub failed_requests: usize,
    /// Changes of the probe results.
    pub changes: Vec<ProbeChange>,
    bootstrap: u64,
}

/// ProbeChange of one property of replies to unrelated prompts.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeChange {
    /// The probe set and the property.
    pub name: String,
    /// Share of the frozen model's replies with the property; `None` without a control arm.
    pub base: Option<f64>,
    /// Share of this arm's replies with the property.
    pub after: f64,
    /// Mean paired difference from the frozen model.
    pub change: Option<Estimate>,
}

impl Figures {
    /// The figures of the cells of `outcome` with this arm and persona; `None` if there are none.
    pub(super) fn new(outcome: &PersonalizeOutcome, arm: Arm, track: Track) -> Option<Figures> {
        let cells: Vec<&CellRecord> = outcome.cells_of(arm, track).collect();
        if cells.is_empty() {
            return None;
        }
        let options = &outcome.options;
        let records = || cells.iter().map(|cell| &cell.arm_record);
        let facts = || cells.iter().map(|cell| cell.training);
        let gaps = facts().filter_map(|f| f.served_against_trained);
        let failures =
            |cell: &&CellRecord| cell.arm_record.failed_requests() + cell.probe_failures.len();
        Some(Figures {
            arm,
            track,
            seeds: cells.iter().map(|cell| cell.cell.seed).collect(),
            first: records()
                .map(|record| score(record, options.first_window(track)))
                .collect(),
            at_mark: records()
                .map(|record| score(record, options.mark_window(track)))
                .collect(),
            last: records()
                .map(|record| score(record, options.last_window(track)))
                .collect(),
            align: records().map(align).collect(),
            steps: records().map(|record| record.steps).collect(),
            tokens: facts().map(|f| f.tokens).collect(),
            rewarded: facts().map(|f| f.rewarded).collect(),
            hinted: facts().map(|f| f.hinted).collect(),
            seconds: records().map(|record| record.seconds).collect(),
            kl: facts().map(|f| f.kl).collect(),
            entropy_first: facts().map(|f| f.entropy_first).collect(),
            entropy_last: facts().map(|f| f.entropy_last).collect(),
            length_drift: records()
                .map(|record| length_drift(record, options, track))
                .collect(),
            served_against_trained: gaps.max_by(f64::total_cmp),
            failed_requests: cells.iter().map(failures).sum(),
            changes: changes(outcome, arm, track),
            bootstrap: options.first_seed,
        })
    }

    /// The mean over seeds of values that some seeds may lack.
    pub fn over_seeds(&self, values: &[Option<f64>]) -> Option<Estimate> {
        let present: Vec<f64> = values.iter().copied().flatten().collect();
        estimate(&present, self.bootstrap)
    }

    /// The first window over seeds.
    pub fn first_window(&self) -> Option<Estimate> {
        self.over_seeds(&self.first)
    }

    /// The window at the mark over seeds.
    pub fn mark_window(&self) -> Option<Estimate> {
        self.over_seeds(&self.at_mark)
    }

    /// Paired by seed: how much higher this arm scores at the mark than `other`.
    pub fn lead_over(&self, other: &Figures) -> Option<Estimate> {
        let theirs: BTreeMap<u64, Option<f64>> = other
            .seeds
            .iter()
            .copied()
            .zip(other.at_mark.iter().copied())
            .collect();
        let pairs = self.seeds.iter().zip(&self.at_mark);
        let differences: Vec<f64> = pairs
            .filter_map(|(seed, own)| Some((*own)? - theirs.get(seed).copied().flatten()?))
            .collect();
        estimate(&differences, self.bootstrap)
    }
}

fn conversations_in(
    record: &ArmRecord,
    window: Range<usize>,
) -> impl Iterator<Item = &ConversationRecord> + Clone {
    record
        .conversations
        .iter()
        .filter(move |conversation| window.contains(&conversation.index))
}

/// Mean score of the first replies of a window. Conversations without a first reply are left out.
fn score(record: &ArmRecord, window: Range<usize>) -> Option<f64> {
    let values: Vec<f64> = conversations_in(record, window)
        .filter_map(|c| c.value())
        .collect();
    mean(&values)
}

fn align(record: &ArmRecord) -> Option<usize> {
    let mut ordered: Vec<&ConversationRecord> = record.conversations.iter().collect();
    ordered.sort_by_key(|conversation| conversation.index);
    // A missing reply does not match the preference.
    let values: Vec<f64> = ordered
        .iter()
        .map(|conversation| conversation.first.map_or(0.0, |score| score.value))
        .collect();
    count_until_streak(&values, STREAK, MIN_SCORE)
}

fn length_drift(record: &ArmRecord, options: &PersonalizeOptions, track: Track) -> Option<f64> {
    let words = |window: Range<usize>| {
        let lengths: Vec<f64> = conversations_in(record, window)
            .filter_map(|conversation| conversation.replies.first())
            .map(|reply| reply.text.split_whitespace().count() as f64)
            .collect();
        mean(&lengths).filter(|words| *words > 0.0)
    };
    Some(words(options.mark_window(track))? / words(options.first_window(track))? - 1.0)
}

fn changes(outcome: &PersonalizeOutcome, arm: Arm, track: Track) -> Vec<ProbeChange> {
    let mut names: Vec<&str> = Vec::new();
    for result in outcome.cells_of(arm, track).flat_map(|cell| &cell.probes) {
        if !names.contains(&result.name.as_str()) {
            names.push(&result.name);
        }
    }
    let results = |arm: Arm, name: &str| -> BTreeMap<(u64, usize), f64> {
        let mut replies = BTreeMap::new();
        for cell in outcome.cells_of(arm, track) {
            let seed = cell.cell.seed;
            let same_name = |result: &&ProbeResult| result.name == name;
            for result in cell.probes.iter().filter(same_name) {
                for (at, passed) in result.passed.iter().enumerate() {
                    if let Some(passed) = passed {
                        replies.insert((seed, at), f64::from(u8::from(*passed)));
                    }
                }
            }
        }
        replies
    };
    let share = |replies: &BTreeMap<(u64, usize), f64>| {
        mean(&replies.values().copied().collect::<Vec<f64>>())
    };
    let change = |name: &str| {
        let (base, after) = (results(Arm::Control, name), results(arm, name));
        let differences: Vec<f64> = after
            .iter()
            .filter_map(|(at, passed)| Some(passed - base.get(at)?))
            .collect();
        Some(ProbeChange {
            name: name.to_owned(),
            base: share(&base),
            after: share(&after)?,
            change: estimate(&differences, outcome.options.first_seed),
        })
    };
    names.into_iter().filter_map(change).collect()
}
