//! Auxiliary losses: sequences other than the batch's samples, whose losses join each optimizer update of a step.
//!
//! Two sources use them: preference pairs from the journal, and rehearsal of the base model's replies. What an update draws
//! is a function of seed, version, number of the update and what there was to draw from, so a resumed run draws the same.
//! A loss reads the scores of its own sequences only; nothing here depends on the samples or their rewards.

mod material;
mod report;
mod term;

use clawhost_engine::{LossGradients, SequenceScores, TrainSession};

use crate::auxiliary::report::EpochMeans;
use crate::auxiliary::term::AuxiliaryTerm;
use crate::packing::{ModelInput, SplitMix};
use crate::rehearsal::RehearsalReply;
use crate::update_task::{UpdateError, UpdateTask};

pub(crate) use material::{AuxiliaryMaterial, max_sample_tokens};
pub(crate) use report::AuxiliaryReport;

/// Separates the random draws of the two sources.
const PAIR_DRAWS: u64 = 0x7061_6972;
const REHEARSAL_DRAWS: u64 = 0x7265_6865;

/// The auxiliary losses of one step.
pub(crate) struct AuxiliaryLosses {
    terms: Vec<AuxiliaryTerm>,
    /// For each optimizer update, the terms that it draws, each with the factor on its loss.
    draws: Vec<Vec<(usize, f64)>>,
    held_out: Vec<AuxiliaryTerm>,
    means: EpochMeans,
    report: AuxiliaryReport,
}

impl AuxiliaryLosses {
    /// Draws for `updates` optimizer updates and scores what is drawn under the base model.
    pub(crate) fn new(task: &UpdateTask<'_>, updates: usize) -> Result<Self, UpdateError> {
        let material = task.auxiliary;
        let (pairs, rehearsal) = (&task.options.pairs, &task.options.rehearsal);
        let mut terms = Vec::new();
        let mut draws = vec![Vec::new(); updates];
        let mut report = AuxiliaryReport::default();
        if let Some(preference) = material.preference {
            let drawn = Drawn::new(
                task.seed ^ PAIR_DRAWS,
                material.pairs.len(),
                pairs.per_update,
                updates,
            );
            drawn.add_to(&mut draws, terms.len(), pairs.coef);
            let used = drawn.used.iter().map(|&index| &material.pairs[index]);
            for pair in used.clone() {
                terms.push(AuxiliaryTerm::pair(pair, preference));
            }
            report.set_pairs(pairs.loss, material.pairs.len(), used);
        }
        let term_of = |reply: &RehearsalReply| AuxiliaryTerm::rehearsal(reply, material.top_k);
        let mut held_out = Vec::new();
        if let Some(set) = &material.rehearsal {
            let drawn = Drawn::new(
                task.seed ^ REHEARSAL_DRAWS,
                set.train.len(),
                rehearsal.replies_per_update,
                updates,
            );
            drawn.add_to(&mut draws, terms.len(), rehearsal.coef);
            let used = drawn.used.iter().map(|&index| &set.train[index]);
            terms.extend(used.clone().map(term_of));
            held_out.extend(set.held_out.iter().map(term_of));
            report.set_rehearsal(set, used);
        }
        for term in terms.iter_mut().chain(&mut held_out) {
            task.check_stop()?;
            let scored = task.score(None, term.inputs(), term.reference_top_k())?;
            term.set_reference(scored);
        }
        Ok(Self {
            terms,
            draws,
            held_out,
            means: EpochMeans::default(),
            report,
        })
    }

    /// Adds the gradients of the losses that optimizer update `number` (from 0) draws.
    pub(crate) fn accumulate(
        &mut self,
        task: &UpdateTask<'_>,
        session: &mut dyn TrainSession,
        number: usize,
    ) -> Result<(), UpdateError> {
        let draws = self.draws.get(number).map_or(&[][..], Vec::as_slice);
        for micro_batch in self.split(draws, task.options.micro_batch_tokens) {
            task.check_stop()?;
            let terms = || {
                micro_batch
                    .iter()
                    .map(|&(term, weight)| (&self.terms[term], weight))
            };
            let sequences: Vec<_> = terms()
                .flat_map(|(term, _)| term.inputs())
                .map(|input| input.sequence(None))
                .collect();
            let scored = session.forward(&sequences)?;
            let mut rest = scored.as_slice();
            let mut partials: Vec<LossGradients> = Vec::with_capacity(scored.len());
            for (term, weight) in terms() {
                let (own, after) = rest.split_at(term.inputs().len());
                rest = after;
                let output = term.evaluate(own, weight);
                if !output.is_finite() {
                    return Err(UpdateError::NotFinite {
                        what: "an auxiliary loss",
                    });
                }
                self.means.add(&output.value);
                partials.extend(output.partials);
            }
            session.backward(&partials)?;
        }
        Ok(())
    }

    /// Ends an epoch: the means of the first and of the last one are reported.
    pub(crate) fn end_epoch(&mut self) {
        let means = std::mem::take(&mut self.means);
        self.report.record_epoch(&means);
    }

    /// The report, with the divergence on held-out prompts under the session's weights.
    pub(crate) fn finish(
        mut self,
        task: &UpdateTask<'_>,
        session: &mut dyn TrainSession,
    ) -> Result<AuxiliaryReport, UpdateError> {
        let mut means = EpochMeans::default();
        for term in &self.held_out {
            let scored: Vec<SequenceScores> = task.score_session(session, term.inputs(), None)?;
            means.add(&term.evaluate(&scored, 1.0).value);
        }
        self.report.set_held_out(&means, self.held_out.len());
        Ok(self.report)
    }

    /// Splits draws into micro-batches of at most `budget` tokens. The sequences of one term stay together.
    fn split(&self, draws: &[(usize, f64)], budget: usize) -> Vec<Vec<(usize, f64)>> {
        let mut micro_batches: Vec<Vec<(usize, f64)>> = Vec::new();
        let mut remaining = 0;
        for &draw in draws {
            let inputs = self.terms[draw.0].inputs();
            let length: usize = inputs
                .iter()
                .map(|input: &ModelInput| input.tokens.len())
                .sum();
            match micro_batches.last_mut() {
                Some(micro_batch) if length <= remaining => micro_batch.push(draw),
                _ => {
                    micro_batches.push(vec![draw]);
                    remaining = budget;
                }
            }
            remaining = remaining.saturating_sub(length);
        }
        micro_batches
    }
}

/// What the updates of a step draw from one source.
struct Drawn {
    /// Drawn indices, in order of the first draw.
    used: Vec<usize>,
    /// Positions in `used` for each update.
    per_update: Vec<Vec<usize>>,
}

impl Drawn {
    /// Draws `count` of `available` without replacement for each update.
    fn new(seed: u64, available: usize, count: usize, updates: usize) -> Self {
        let mut used: Vec<usize> = Vec::new();
        let per_update = (0..updates as u64)
            .map(|update| {
                let seed = seed ^ update.wrapping_mul(0xA076_1D64_78BD_642F);
                let drawn = permutation(available, seed).into_iter().take(count);
                drawn
                    .map(|index| {
                        used.iter()
                            .position(|known| *known == index)
                            .unwrap_or_else(|| {
                                used.push(index);
                                used.len() - 1
                            })
                    })
                    .collect()
            })
            .collect();
        Self { used, per_update }
    }

    /// Adds the draws to those of each update, with `coefficient` shared among the draws of an update. The terms of this
    /// source start at `first`.
    #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    fn add_to(&self, draws: &mut [Vec<(usize, f64)>], first: usize, coefficient: f64) {
        for (draws, drawn) in draws.iter_mut().zip(&self.per_update) {
            let weight = coefficient / drawn.len().max(1) as f64;
            draws.extend(drawn.iter().map(|position| (first + position, weight)));
        }
    }
}

/// A permutation of `0..count` determined by the seed.
pub(crate) fn permutation(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut random = SplitMix(seed);
    for i in (1..count).rev() {
        let j = (random.next() % (i as u64 + 1)) as usize;
        order.swap(i, j);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_determined_by_seed_and_update_and_have_no_repeats() {
        let drawn = Drawn::new(7, 10, 4, 3);
        let again = Drawn::new(7, 10, 4, 3);
        assert_eq!(
            (&drawn.used, &drawn.per_update),
            (&again.used, &again.per_update)
        );
        assert_ne!(drawn.per_update[0], drawn.per_update[1]);
        for positions in &drawn.per_update {
            let mut positions = positions.clone();
            positions.sort_unstable();
            positions.dedup();
            assert_eq!(positions.len(), 4);
        }
        assert_eq!(Drawn::new(7, 2, 4, 1).used.len(), 2);
        assert!(Drawn::new(7, 0, 4, 2).used.is_empty());
    }

    #[test]
    fn the_coefficient_is_shared_among_the_draws_of_an_update() {
        let mut draws = vec![vec![(0, 1.0)], Vec::new()];
        Drawn::new(1, 3, 2, 2).add_to(&mut draws, 5, 0.5);
        assert_eq!((draws[0].len(), draws[1].len()), (3, 2));
        assert!(
            draws[1]
                .iter()
                .all(|&(term, weight)| term >= 5 && weight == 0.25)
        );
    }
}
