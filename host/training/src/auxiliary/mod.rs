//! Auxiliary losses: sequences other than the batch's samples, whose losses join each optimizer update of a step.
//!
//! Three sources use them: preference pairs from the journal, the base model's replies after examples (few-shot
//! distillation), and rehearsal of replies without. What an update draws
//! is a function of seed, version, number of the update, what there was to draw from and which pairs were found satisfied,
//! so a resumed run draws the same. A loss reads the scores of its own sequences only; nothing here depends on the samples
//! or their rewards.

mod draw;
mod feedback;
pub(crate) mod material;
mod report;
mod term;
mod terms;

use std::collections::BTreeSet;
use std::sync::Arc;

use clawhost_engine::{LossGradients, SequenceScores, TrainSession};
use clawhost_plugins::PairGradient;

use crate::auxiliary::draw::draw_replies;
use crate::auxiliary::report::{EpochMeans, Source};
use crate::auxiliary::term::{AuxiliaryTerm, TermValue};
use crate::rehearsal::{RehearsedReply, share_of};
use crate::shuffle::numbered_permutation;
use crate::update_task::{UpdateError, UpdateTask};

pub(crate) use feedback::{asked, experience, feedback};
pub(crate) use material::{AuxiliaryMaterial, max_sample_tokens};
pub(crate) use report::AuxiliaryReport;
pub(crate) use terms::TermCache;

/// Separates the random draws of the sources.
const PAIR_DRAWS: u64 = 0x7061_6972;
const FEW_SHOT_DRAWS: u64 = 0x6665_7764;
const REHEARSAL_DRAWS: u64 = 0x7265_6865;

/// The auxiliary losses of one step.
pub(crate) struct AuxiliaryLosses<'a> {
    task: &'a UpdateTask<'a>,
    /// One for each pair of the material.
    pairs: Vec<Arc<AuxiliaryTerm>>,
    /// One for each reply after examples.
    few_shot: Vec<Arc<AuxiliaryTerm>>,
    /// One for each reply to rehearse.
    replies: Vec<Arc<AuxiliaryTerm>>,
    held_out: Vec<Arc<AuxiliaryTerm>>,
    /// Pairs that were found satisfied in this step.
    satisfied: BTreeSet<usize>,
    /// Pairs that were drawn.
    used: BTreeSet<usize>,
    means: EpochMeans,
    report: AuxiliaryReport,
}

impl<'a> AuxiliaryLosses<'a> {
    /// Scores what there is to draw from under the base model, unless an earlier step did.
    pub(crate) fn new(task: &'a UpdateTask<'a>) -> Result<Self, UpdateError> {
        let material = task.auxiliary;
        let mut report = AuxiliaryReport::default();
        let score = |term: &AuxiliaryTerm| {
            task.check_stop()?;
            task.score(None, term.inputs(), term.reference_top_k())
        };
        let mut pairs = Vec::new();
        if let Some(objective) = material.objective {
            pairs = material.terms.pairs(&material.pairs, objective, score)?;
            report.set_pairs(task.options.pairs.loss, pairs.len());
        }
        let mut few_shot = material
            .terms
            .few_shot(&material.few_shot, material.top_k, score)?;
        for (term, reply) in few_shot.iter_mut().zip(&material.few_shot) {
            *term = Arc::new(term.after(&reply.plain_prompt));
        }
        report.set_few_shot(few_shot.len());
        let (mut replies, mut held_out) = (Vec::new(), Vec::new());
        if let Some(set) = &material.rehearsal {
            let all = [set.train.as_slice(), &set.held_out].concat();
            replies = material.terms.replies(&all, material.top_k, score)?;
            let share = task.options.rehearsal.experience_share;
            let scored = replies.split_off(set.train.len()).into_iter();
            let scored = scored.zip(&set.held_out).enumerate();
            held_out = scored
                .map(|(at, (term, rehearsed))| with_experience(term, rehearsed, at, share).0)
                .collect();
            report.set_rehearsal(set);
        }
        Ok(Self {
            task,
            pairs,
            few_shot,
            replies,
            held_out,
            satisfied: BTreeSet::new(),
            used: BTreeSet::new(),
            means: EpochMeans::default(),
            report,
        })
    }

    /// Adds the gradients of the losses that optimizer update `number` (from 0) draws to gradients of zero. Returns whether
    /// pairs or replies after examples have a gradient.
    pub(crate) fn accumulate(
        &mut self,
        session: &mut dyn TrainSession,
        number: usize,
    ) -> Result<bool, UpdateError> {
        // The source that comes first takes turns, so that the gradient norms of all are measured at no cost.
        let mut order = [Source::Pairs, Source::FewShot, Source::Rehearsal];
        let turn = session.updates() % order.len() as u64;
        order.rotate_left(usize::try_from(turn).expect("one of three"));
        let mut learns = false;
        let mut is_zero = true;
        for source in order {
            let added = match source {
                Source::Pairs => self.accumulate_pairs(session, number)?,
                Source::FewShot => self.accumulate_few_shot(session, number)?,
                Source::Rehearsal => self.accumulate_rehearsal(session, number)?,
            };
            learns |= added && source != Source::Rehearsal;
            if added && is_zero {
                is_zero = false;
                let norm = session.gradient_norm()?;
                self.report.add_gradient_norm(source, norm);
            }
        }
        Ok(learns)
    }

    /// Draws pairs that were not found satisfied in this step. The weight is shared among as many as an update draws if all
    /// pairs train, so that the last pairs to learn from do not outweigh the rehearsal.
    fn accumulate_pairs(
        &mut self,
        session: &mut dyn TrainSession,
        number: usize,
    ) -> Result<bool, UpdateError> {
        let options = &self.task.options.pairs;
        let order = numbered_permutation(self.pairs.len(), self.task.seed ^ PAIR_DRAWS, number);
        let open = order.into_iter().filter(|at| !self.satisfied.contains(at));
        let drawn: Vec<usize> = open.take(options.per_update).collect();
        for &at in &drawn {
            if self.used.insert(at) {
                self.report.add_pair(&self.task.auxiliary.pairs[at]);
            }
        }
        let shared_among = options.per_update.min(self.pairs.len());
        let terms = drawn.iter().map(|&at| (at, Arc::clone(&self.pairs[at])));
        let terms: Vec<_> = terms.collect();
        self.differentiate(session, Source::Pairs, &terms, options.coef, shared_among)
    }

    fn accumulate_few_shot(
        &mut self,
        session: &mut dyn TrainSession,
        number: usize,
    ) -> Result<bool, UpdateError> {
        let options = &self.task.options.few_shot;
        let seed = self.task.seed ^ FEW_SHOT_DRAWS;
        let order = numbered_permutation(self.few_shot.len(), seed, number);
        let drawn = order.into_iter().take(options.replies_per_update);
        let terms: Vec<_> = drawn
            .map(|at| (at, Arc::clone(&self.few_shot[at])))
            .collect();
        self.differentiate(session, Source::FewShot, &terms, options.coef, terms.len())
    }

    fn accumulate_rehearsal(
        &mut self,
        session: &mut dyn TrainSession,
        number: usize,
    ) -> Result<bool, UpdateError> {
        let Some(set) = &self.task.auxiliary.rehearsal else {
            return Ok(false);
        };
        let options = &self.task.options.rehearsal;
        let count = options.replies_per_update;
        let drawn = draw_replies(
            (self.replies.len(), set.contrary),
            (count, share_of(count, options.contrary_share)),
            self.task.seed ^ REHEARSAL_DRAWS,
            number,
        );
        let mut terms = Vec::with_capacity(drawn.len());
        for (position, at) in drawn.into_iter().enumerate() {
            let rehearsed = &set.train[at];
            let term = Arc::clone(&self.replies[at]);
            let share = options.experience_share;
            let (term, experienced) = with_experience(term, rehearsed, position, share);
            self.report.add_reply(&rehearsed.reply, experienced);
            terms.push((at, term));
        }
        self.differentiate(
            session,
            Source::Rehearsal,
            &terms,
            options.coef,
            terms.len(),
        )
    }

    /// Adds the gradients of the drawn losses, each times `coef / shared_among`. Returns whether any has a gradient.
    #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    fn differentiate(
        &mut self,
        session: &mut dyn TrainSession,
        source: Source,
        drawn: &[(usize, Arc<AuxiliaryTerm>)],
        coef: f64,
        shared_among: usize,
    ) -> Result<bool, UpdateError> {
        let weight = coef / shared_among.max(1) as f64;
        let mut has_gradient = false;
        for micro_batch in split(drawn, self.task.options.micro_batch_tokens) {
            self.task.check_stop()?;
            let sequences: Vec<_> = micro_batch
                .iter()
                .flat_map(|(_, term)| term.inputs())
                .map(|input| input.sequence(None))
                .collect();
            let scored = session.forward(&sequences)?;
            let mut of_component = self.component_gradients(micro_batch, &scored)?.into_iter();
            let mut rest = scored.as_slice();
            let mut partials: Vec<LossGradients> = Vec::with_capacity(scored.len());
            let mut open = 0;
            for (at, term) in micro_batch {
                let (own, after) = rest.split_at(term.inputs().len());
                rest = after;
                let mut output = match of_component.next() {
                    Some(gradient) => term.of_component(own, gradient, weight),
                    None => term.evaluate(own, weight),
                };
                if !output.is_finite() {
                    return Err(UpdateError::NotFinite {
                        what: "an auxiliary loss",
                    });
                }
                self.means.add(source, &output.value);
                if self.is_satisfied(&output.value) {
                    self.satisfied.insert(*at);
                    self.report.add_satisfied();
                    output.clear();
                } else {
                    open += 1;
                }
                partials.extend(output.partials);
            }
            if open > 0 {
                has_gradient = true;
                session.backward(&partials)?;
            }
        }
        Ok(has_gradient)
    }

    /// What the pair-loss component says about a micro-batch under these scores, one per pair; empty if its losses are
    /// native.
    fn component_gradients(
        &mut self,
        micro_batch: &[(usize, Arc<AuxiliaryTerm>)],
        scored: &[SequenceScores],
    ) -> Result<Vec<PairGradient>, UpdateError> {
        let mut rest = scored;
        let mut shown = Vec::new();
        for (_, term) in micro_batch {
            let (own, after) = rest.split_at(term.inputs().len());
            rest = after;
            shown.extend(term.component_input(own));
        }
        if shown.is_empty() {
            return Ok(Vec::new());
        }
        let component = self.task.pair_component.as_ref();
        let component = component.expect("startup requires the component of training.pairs.loss");
        let result = component.evaluate(shown)?;
        self.report.set_component_metrics(result.metrics);
        Ok(result.gradients)
    }

    /// Whether the policy prefers the accepted reply of a pair as much as it should.
    fn is_satisfied(&self, value: &TermValue) -> bool {
        let options = &self.task.options.pairs;
        match *value {
            TermValue::Pair { margin, .. } => {
                options.max_reward_margin > 0.0 && options.beta * margin > options.max_reward_margin
            }
            TermValue::Divergence { .. } => false,
        }
    }

    /// Ends an epoch: the means of the first and of the last one are reported.
    pub(crate) fn end_epoch(&mut self) {
        let means = std::mem::take(&mut self.means);
        self.report.record_epoch(&means);
    }

    /// The report, with the divergence on held-out prompts under the session's weights.
    pub(crate) fn finish(
        mut self,
        session: &mut dyn TrainSession,
    ) -> Result<AuxiliaryReport, UpdateError> {
        let (mut all, mut contrary) = (EpochMeans::default(), EpochMeans::default());
        let rehearsal = self.task.auxiliary.rehearsal.as_ref();
        let contrary_count = rehearsal.map_or(0, |set| set.held_out_contrary);
        for (at, term) in self.held_out.iter().enumerate() {
            let inputs = term.inputs();
            let scored: Vec<SequenceScores> = self.task.score_session(session, inputs, None)?;
            let value = term.evaluate(&scored, 1.0).value;
            all.add(Source::Rehearsal, &value);
            if at < contrary_count {
                contrary.add(Source::Rehearsal, &value);
            }
        }
        self.report
            .set_held_out(&all, &contrary, self.held_out.len());
        Ok(self.report)
    }
}

/// The term of a reply, with experience in the policy's prompt for a share of the positions in a draw, and whether it has some.
fn with_experience(
    term: Arc<AuxiliaryTerm>,
    rehearsed: &RehearsedReply,
    position: usize,
    share: f64,
) -> (Arc<AuxiliaryTerm>, bool) {
    let has_turn = share_of(position + 1, share) > share_of(position, share);
    match &rehearsed.with_experience {
        Some(prompt_ids) if has_turn => (Arc::new(term.after(prompt_ids)), true),
        _ => (term, false),
    }
}

/// Splits losses into micro-batches of at most `budget` tokens. The sequences of one loss stay together.
fn split(
    drawn: &[(usize, Arc<AuxiliaryTerm>)],
    budget: usize,
) -> Vec<&[(usize, Arc<AuxiliaryTerm>)]> {
    let mut micro_batches = Vec::new();
    let (mut start, mut tokens) = (0, 0);
    for (at, (_, term)) in drawn.iter().enumerate() {
        if at > start && tokens + term.tokens() > budget {
            micro_batches.push(&drawn[start..at]);
            (start, tokens) = (at, 0);
        }
        tokens += term.tokens();
    }
    if start < drawn.len() {
        micro_batches.push(&drawn[start..]);
    }
    micro_batches
}
