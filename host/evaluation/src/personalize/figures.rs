//! The figures of one arm with one persona, over all seeds.
//!
//! A figure of a seed is a mean over conversations; reported is the mean over seeds with its 95 % t interval, as all
//! conversations of a seed depend on one training run. Probes are compared with the frozen model's replies to the same
//! prompts: each seed gives one mean paired difference.

use std::collections::BTreeMap;
use std::ops::Range;

use super::arm::Arm;
use super::cell::CellRecord;
use super::outcome::PersonalizeOutcome;
use super::plan::PersonalizeOptions;
use super::probes::ProbeResult;
use crate::arms::ArmRecord;
use crate::conversation::ConversationRecord;
use crate::persona::Track;
use crate::scorer::Score;
use crate::statistics::{Estimate, clustered, count_until_streak, mean, t_interval};

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
    /// Mean score of the fresh tasks after the conversations; `None` without fresh tasks.
    pub fresh: Vec<Option<f64>>,
    /// The same with the adapter of the person who shares the server; `None` without such a person.
    pub fresh_other: Vec<Option<f64>>,
    /// The same with the base model, for two people who share a server.
    pub fresh_base: Vec<Option<f64>>,
    /// The style factor of the score after training, of the fresh tasks or without these of the window at the mark: for a
    /// wish, whether replies have its form, whatever they say.
    pub style: Vec<Option<f64>>,
    /// The other factor of the same score: for a wish, the share of replies that are about the question.
    pub correctness: Vec<Option<f64>>,
    /// Conversations until the first reply matched the persona's preference three times in a row, including those
    /// three. For frozen arms too, only the reply that the conversation continued from counts.
    pub align: Vec<Option<usize>>,
    /// The same, counted from the conversation in which the wish was taken back. Empty for other personas.
    pub realign: Vec<Option<usize>>,
    /// Mean tokens of the prompts of first replies in the last window; `None` if the endpoint does not report them.
    pub prompt_tokens: Vec<Option<f64>>,
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
    /// Mean change over all probes that count, without explicit requests for the opposite.
    pub skills: Option<Estimate>,
}

/// Change of one property of replies to unrelated prompts.
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
    /// Whether the frozen model is significantly above chance; otherwise there is nothing to forget.
    pub counts: bool,
    /// Whether the prompts explicitly ask for the opposite of the wish.
    pub opposite: bool,
}

impl PersonalizeOutcome {
    /// The figures of one arm with one persona; `None` without finished cells.
    pub fn figures(&self, arm: Arm, track: Track) -> Option<Figures> {
        let cells: Vec<&CellRecord> = self.cells_of(arm, track).collect();
        if cells.is_empty() {
            return None;
        }
        let options = &self.options;
        let records = || cells.iter().map(|cell| &cell.arm_record);
        let facts = || cells.iter().map(|cell| cell.training);
        let gaps = facts().filter_map(|f| f.served_against_trained);
        let factor = |of: &dyn Fn(&Score) -> f64| -> Vec<Option<f64>> {
            let of_cell = |cell: &&CellRecord| {
                let mark = conversations_in(&cell.arm_record, options.mark_window(track));
                mean_of(cell.fresh.iter().flatten(), of)
                    .or_else(|| mean_of(mark.filter_map(|c| c.first.as_ref()), of))
            };
            cells.iter().map(of_cell).collect()
        };
        let fresh = |scores: fn(&CellRecord) -> &[Option<Score>]| -> Vec<Option<f64>> {
            let of_cell =
                |cell: &&CellRecord| mean_of(scores(cell).iter().flatten(), |score| score.value);
            cells.iter().map(of_cell).collect()
        };
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
            fresh: fresh(|cell| &cell.fresh),
            fresh_other: fresh(|cell| &cell.fresh_other),
            fresh_base: fresh(|cell| &cell.fresh_base),
            style: factor(&|score| score.style),
            correctness: factor(&|score| score.correctness),
            align: records().map(|record| align(record, 0)).collect(),
            realign: match track {
                Track::TakenBack(_) => records()
                    .map(|record| align(record, track.mark()))
                    .collect(),
                _ => Vec::new(),
            },
            prompt_tokens: records()
                .map(|record| prompt_tokens(record, options.last_window(track)))
                .collect(),
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
            changes: changes(self, arm, track),
            skills: skills(self, arm, track),
        })
    }
}

impl Figures {
    /// The mean over seeds of values that some seeds may lack.
    pub fn over_seeds(&self, values: &[Option<f64>]) -> Option<Estimate> {
        t_interval(&present(values))
    }

    /// The mean over seeds of scores.
    pub fn score_over_seeds(&self, values: &[Option<f64>]) -> Option<Estimate> {
        self.over_seeds(values).map(|e| e.within(0.0, 1.0))
    }

    /// The first window over seeds.
    pub fn first_window(&self) -> Option<Estimate> {
        self.score_over_seeds(&self.first)
    }

    /// The window at the mark over seeds.
    pub fn mark_window(&self) -> Option<Estimate> {
        self.score_over_seeds(&self.at_mark)
    }

    /// The score after training of each seed: of the fresh tasks, or without these of the window at the mark.
    pub fn after(&self) -> &[Option<f64>] {
        if self.fresh.iter().any(Option::is_some) {
            &self.fresh
        } else {
            &self.at_mark
        }
    }

    /// How well explicit requests for the opposite of the wish are followed, if they were probed.
    pub fn opposite(&self) -> Option<&ProbeChange> {
        self.changes.iter().find(|change| change.opposite)
    }

    /// Paired by seed: how much higher this arm scores after training than `other`.
    pub fn lead_over(&self, other: &Figures) -> Option<Estimate> {
        self.lead_by(other, Figures::after)
    }

    /// Paired by seed: how much higher the score of this arm is than that of `other`.
    pub fn lead_by(
        &self,
        other: &Figures,
        score: fn(&Figures) -> &[Option<f64>],
    ) -> Option<Estimate> {
        self.lead(score(self), &other.seeds, score(other))
    }

    /// Paired by seed: how much higher fresh tasks score with the person's own adapter than with the other person's.
    pub fn lead_over_other_adapter(&self) -> Option<Estimate> {
        self.lead(&self.fresh, &self.seeds, &self.fresh_other)
    }

    fn lead(&self, own: &[Option<f64>], seeds: &[u64], theirs: &[Option<f64>]) -> Option<Estimate> {
        let theirs: BTreeMap<u64, Option<f64>> =
            seeds.iter().copied().zip(theirs.iter().copied()).collect();
        let pairs = self.seeds.iter().zip(own);
        let differences: Vec<f64> = pairs
            .filter_map(|(seed, own)| Some((*own)? - theirs.get(seed).copied().flatten()?))
            .collect();
        t_interval(&differences).map(|e| e.within(-1.0, 1.0))
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

/// Counted from conversation `from` on.
fn align(record: &ArmRecord, from: usize) -> Option<usize> {
    let mut ordered: Vec<&ConversationRecord> = record.conversations.iter().collect();
    ordered.sort_by_key(|conversation| conversation.index);
    // A missing reply does not match the preference.
    let values: Vec<f64> = ordered
        .iter()
        .filter(|conversation| conversation.index >= from)
        .map(|conversation| conversation.first.map_or(0.0, |score| score.value))
        .collect();
    count_until_streak(&values, STREAK, MIN_SCORE)
}

fn mean_of<'a>(scores: impl Iterator<Item = &'a Score>, of: impl Fn(&Score) -> f64) -> Option<f64> {
    mean(&scores.map(of).collect::<Vec<f64>>())
}

fn present(values: &[Option<f64>]) -> Vec<f64> {
    values.iter().copied().flatten().collect()
}

fn prompt_tokens(record: &ArmRecord, window: Range<usize>) -> Option<f64> {
    let tokens: Vec<f64> = conversations_in(record, window)
        .filter_map(|conversation| conversation.replies.first()?.prompt_tokens)
        .map(|tokens| tokens as f64)
        .collect();
    mean(&tokens)
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

/// Scores of one probe by seed and prompt.
type Scores = BTreeMap<(u64, usize), f64>;

fn scores(outcome: &PersonalizeOutcome, arm: Arm, track: Track, name: &str) -> Scores {
    let mut scores = Scores::new();
    for cell in outcome.cells_of(arm, track) {
        let same_name = |result: &&ProbeResult| result.name == name;
        for result in cell.probes.iter().filter(same_name) {
            let present = result
                .scores
                .iter()
                .enumerate()
                .filter_map(|(at, score)| Some((at, (*score)?)));
            scores.extend(present.map(|(at, score)| ((cell.cell.seed, at), score)));
        }
    }
    scores
}

/// The paired differences of each seed.
fn differences(base: &Scores, after: &Scores) -> BTreeMap<u64, Vec<f64>> {
    let mut by_seed: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for (at, score) in after {
        if let Some(base) = base.get(at) {
            by_seed.entry(at.0).or_default().push(score - base);
        }
    }
    by_seed
}

/// The probes of an arm: name, chance, and whether they ask for the opposite.
fn probes_of(outcome: &PersonalizeOutcome, arm: Arm, track: Track) -> Vec<&ProbeResult> {
    let mut probes: Vec<&ProbeResult> = Vec::new();
    for result in outcome.cells_of(arm, track).flat_map(|cell| &cell.probes) {
        if probes.iter().all(|known| known.name != result.name) {
            probes.push(result);
        }
    }
    probes
}

/// Whether the scores are significantly above chance. Without an interval their mean decides.
fn is_above_chance(base: &Scores, chance: f64) -> bool {
    let values: Vec<f64> = base.values().copied().collect();
    t_interval(&values).is_none_or(|e| {
        if e.has_interval() {
            e.low > chance
        } else {
            e.mean > chance
        }
    })
}

fn changes(outcome: &PersonalizeOutcome, arm: Arm, track: Track) -> Vec<ProbeChange> {
    let share = |scores: &Scores| mean(&scores.values().copied().collect::<Vec<f64>>());
    let change = |probe: &ProbeResult| {
        let base = scores(outcome, Arm::CONTROL, track, &probe.name);
        let after = scores(outcome, arm, track, &probe.name);
        let change = clustered(differences(&base, &after).values().map(Vec::as_slice));
        Some(ProbeChange {
            name: probe.name.clone(),
            base: share(&base),
            after: share(&after)?,
            change: change.map(|e| e.within(-1.0, 1.0)),
            counts: is_above_chance(&base, probe.chance),
            opposite: probe.opposite,
        })
    };
    probes_of(outcome, arm, track)
        .into_iter()
        .filter_map(change)
        .collect()
}

/// Each seed gives the mean over its probes.
fn skills(outcome: &PersonalizeOutcome, arm: Arm, track: Track) -> Option<Estimate> {
    let mut by_seed: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for probe in probes_of(outcome, arm, track) {
        let base = scores(outcome, Arm::CONTROL, track, &probe.name);
        if probe.opposite || !is_above_chance(&base, probe.chance) {
            continue;
        }
        let after = scores(outcome, arm, track, &probe.name);
        for (seed, differences) in differences(&base, &after) {
            by_seed.entry(seed).or_default().extend(mean(&differences));
        }
    }
    clustered(by_seed.values().map(Vec::as_slice)).map(|e| e.within(-1.0, 1.0))
}
