//! The figures of one arm with one persona, over all seeds that there are.
//!
//! A figure of a seed is a mean over conversations; what is reported is the mean over seeds, with a 95 %
//! bootstrap interval of the seeds. Probes are compared reply by reply with those of the frozen policy to the
//! same prompt, so their interval is one of paired differences.

use std::collections::BTreeMap;
use std::ops::Range;

use super::cell::CellRecord;
use super::outcome::PersonalizeOutcome;
use super::plan::{Arm, PersonalizeOptions};
use super::probing::Probed;
use crate::arms::ArmRecord;
use crate::conversation::ConversationRecord;
use crate::persona::Track;
use crate::statistics::{Estimate, estimate, mean, until_in_a_row};

/// So many conversations in a row must be what the persona wants.
const RUN: usize = 3;
/// A first reply of this score is what the persona wants.
const HOLDS: f64 = 0.8;

/// The figures of one arm with one persona; lists are by seed, in the order of the seeds.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    /// The arm.
    pub arm: Arm,
    /// Who talked.
    pub track: Track,
    /// The seeds that there are records of.
    pub seeds: Vec<u64>,
    /// Mean score of the first window; `None` where no reply came.
    pub first: Vec<Option<f64>>,
    /// Mean score of the window that ends at the mark.
    pub at_mark: Vec<Option<f64>>,
    /// Mean score of the last window of all conversations that were held.
    pub last: Vec<Option<f64>>,
    /// Conversations until the first reply was what the persona wants three times in a row, those three
    /// included. Of an arm that does not learn, too, only the reply that the conversation went on from counts.
    pub align: Vec<Option<usize>>,
    /// Training steps.
    pub steps: Vec<u64>,
    /// Tokens of replies that were trained.
    pub tokens: Vec<u64>,
    /// Samples with a reward that were trained.
    pub rewarded: Vec<u64>,
    /// Samples with a hint that were trained.
    pub hinted: Vec<u64>,
    /// Wall time of the conversations.
    pub seconds: Vec<f64>,
    /// KL to the base as the trainer measured it at its last step, nats per token.
    pub kl: Vec<Option<f64>>,
    /// Entropy at the first step, nats per token.
    pub entropy_first: Vec<Option<f64>>,
    /// Entropy at the last step, nats per token.
    pub entropy_last: Vec<Option<f64>>,
    /// Words of first replies in the window at the mark against those in the first window, less one.
    pub length_drift: Vec<Option<f64>>,
    /// Largest mean difference of any step between served and trained log-probs.
    pub served_against_trained: Option<f64>,
    /// Requests that failed.
    pub failed_requests: usize,
    /// What became of the probes.
    pub changes: Vec<Change>,
    bootstrap: u64,
}

/// What became of one property that was not at stake.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The probe set and the property.
    pub name: String,
    /// Share of the frozen policy's replies that have it; `None` without a control arm.
    pub base: Option<f64>,
    /// Share of this arm's replies.
    pub after: f64,
    /// The mean difference to the frozen policy, reply by reply.
    pub change: Option<Estimate>,
}

impl Figures {
    /// Of the cells of `outcome` with this arm and persona; `None` when there is none.
    pub(super) fn of(outcome: &PersonalizeOutcome, arm: Arm, track: Track) -> Option<Figures> {
        let cells: Vec<&CellRecord> = outcome.of(arm, track).collect();
        if cells.is_empty() {
            return None;
        }
        let options = &outcome.options;
        let talks = || cells.iter().map(|cell| &cell.talk);
        let facts = || cells.iter().map(|cell| cell.training);
        let gaps = facts().filter_map(|f| f.served_against_trained);
        let failures = |cell: &&CellRecord| cell.talk.failed_requests() + cell.probe_failures.len();
        Some(Figures {
            arm,
            track,
            seeds: cells.iter().map(|cell| cell.cell.seed).collect(),
            first: talks()
                .map(|talk| score(talk, options.first_window(track)))
                .collect(),
            at_mark: talks()
                .map(|talk| score(talk, options.mark_window(track)))
                .collect(),
            last: talks()
                .map(|talk| score(talk, options.last_window(track)))
                .collect(),
            align: talks().map(align).collect(),
            steps: talks().map(|talk| talk.steps).collect(),
            tokens: facts().map(|f| f.tokens).collect(),
            rewarded: facts().map(|f| f.rewarded).collect(),
            hinted: facts().map(|f| f.hinted).collect(),
            seconds: talks().map(|talk| talk.seconds).collect(),
            kl: facts().map(|f| f.kl).collect(),
            entropy_first: facts().map(|f| f.entropy_first).collect(),
            entropy_last: facts().map(|f| f.entropy_last).collect(),
            length_drift: talks()
                .map(|talk| length_drift(talk, options, track))
                .collect(),
            served_against_trained: gaps.max_by(f64::total_cmp),
            failed_requests: cells.iter().map(failures).sum(),
            changes: changes(outcome, arm, track),
            bootstrap: options.first_seed,
        })
    }

    /// The mean over seeds of values that some seeds may not have.
    pub fn over_seeds(&self, values: &[Option<f64>]) -> Option<Estimate> {
        let there: Vec<f64> = values.iter().copied().flatten().collect();
        estimate(&there, self.bootstrap)
    }

    /// The first window over seeds.
    pub fn first_window(&self) -> Option<Estimate> {
        self.over_seeds(&self.first)
    }

    /// The window at the mark over seeds.
    pub fn mark_window(&self) -> Option<Estimate> {
        self.over_seeds(&self.at_mark)
    }

    /// Seed by seed, how much more this arm scores at the mark than `other`.
    pub fn lead_over(&self, other: &Figures) -> Option<Estimate> {
        let theirs: BTreeMap<u64, Option<f64>> = other
            .seeds
            .iter()
            .copied()
            .zip(other.at_mark.iter().copied())
            .collect();
        let pairs = self.seeds.iter().zip(&self.at_mark);
        let differences: Vec<f64> = pairs
            .filter_map(|(seed, mine)| Some((*mine)? - theirs.get(seed).copied().flatten()?))
            .collect();
        estimate(&differences, self.bootstrap)
    }
}

fn within(
    talk: &ArmRecord,
    window: Range<usize>,
) -> impl Iterator<Item = &ConversationRecord> + Clone {
    talk.conversations
        .iter()
        .filter(move |conversation| window.contains(&conversation.index))
}

/// Mean score of the first replies of a window. Conversations whose first reply never came are left out.
fn score(talk: &ArmRecord, window: Range<usize>) -> Option<f64> {
    let values: Vec<f64> = within(talk, window).filter_map(|c| c.value()).collect();
    mean(&values)
}

fn align(talk: &ArmRecord) -> Option<usize> {
    let mut ordered: Vec<&ConversationRecord> = talk.conversations.iter().collect();
    ordered.sort_by_key(|conversation| conversation.index);
    // A reply that never came is not what the persona wants.
    let values: Vec<f64> = ordered
        .iter()
        .map(|conversation| conversation.first.map_or(0.0, |score| score.value))
        .collect();
    until_in_a_row(&values, RUN, HOLDS)
}

fn length_drift(talk: &ArmRecord, options: &PersonalizeOptions, track: Track) -> Option<f64> {
    let words = |window: Range<usize>| {
        let lengths: Vec<f64> = within(talk, window)
            .filter_map(|conversation| conversation.replies.first())
            .map(|reply| reply.text.split_whitespace().count() as f64)
            .collect();
        mean(&lengths).filter(|words| *words > 0.0)
    };
    Some(words(options.mark_window(track))? / words(options.first_window(track))? - 1.0)
}

fn changes(outcome: &PersonalizeOutcome, arm: Arm, track: Track) -> Vec<Change> {
    let mut names: Vec<&str> = Vec::new();
    for probed in outcome.of(arm, track).flat_map(|cell| &cell.probes) {
        if !names.contains(&probed.name.as_str()) {
            names.push(&probed.name);
        }
    }
    let of = |arm: Arm, name: &str| -> BTreeMap<(u64, usize), f64> {
        let mut replies = BTreeMap::new();
        for cell in outcome.of(arm, track) {
            let seed = cell.cell.seed;
            let named = |probed: &&Probed| probed.name == name;
            for probed in cell.probes.iter().filter(named) {
                for (at, passed) in probed.passed.iter().enumerate() {
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
        let (base, after) = (of(Arm::Control, name), of(arm, name));
        let differences: Vec<f64> = after
            .iter()
            .filter_map(|(at, passed)| Some(passed - base.get(at)?))
            .collect();
        Some(Change {
            name: name.to_owned(),
            base: share(&base),
            after: share(&after)?,
            change: estimate(&differences, outcome.options.first_seed),
        })
    };
    names.into_iter().filter_map(change).collect()
}
