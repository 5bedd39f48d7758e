//! Losses over the K most likely tokens of each position, added to the loss over the recorded tokens: a divergence from the
//! teacher's distribution, or clipped surrogates.

use crate::loss::{TopKDistillation, TopKSelect, trains};

/// K candidate tokens of each position.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct TopKTokens {
    /// K.
    pub(crate) k: usize,
    /// `[tokens, K]`.
    pub(crate) ids: Vec<u32>,
    /// The teacher's log-probs of them, `[tokens, K]`; empty without a teacher.
    pub(crate) teacher: Vec<f32>,
}

/// A loss over K tokens of each position.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TopKLoss {
    pub(super) k: usize,
    pub(super) kind: TopKLossKind,
    /// Factor on the loss.
    pub(super) weight: f32,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum TopKLossKind {
    /// Divergence from the teacher's distribution.
    Divergence(TopKDistillation),
    /// Clipped surrogates; `old` are the log-probs before the update, both `[tokens, K]`.
    Select {
        select: TopKSelect,
        old: Vec<f32>,
        advantages: Vec<f32>,
    },
}

/// Loss and partial derivatives of one reply.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct TopKLossOutput {
    pub(crate) loss: f64,
    /// `[tokens, K]`.
    pub(crate) d_candidates: Vec<f32>,
}

impl TopKLoss {
    /// The loss of one reply: the sum over trained positions (`mask`, empty = all), each times `coefficient`.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "losses are computed in f32, as the parameters are"
    )]
    pub(crate) fn evaluate(
        &self,
        topk_tokens: &TopKTokens,
        logprobs: &[f32],
        mask: &[bool],
        coefficient: f64,
    ) -> TopKLossOutput {
        let scale = coefficient as f32 * self.weight;
        let mut output = TopKLossOutput {
            loss: 0.0,
            d_candidates: vec![0.0; logprobs.len()],
        };
        let k = self.k.max(1);
        let rows = logprobs.chunks(k).zip(output.d_candidates.chunks_mut(k));
        for (row, (now, partials)) in rows.enumerate() {
            if !trains(mask, row) {
                continue;
            }
            let row_of = |values: &'_ [f32]| values[row * k..row * k + now.len()].to_vec();
            let loss = match &self.kind {
                TopKLossKind::Divergence(distillation) => {
                    let teacher = row_of(&topk_tokens.teacher);
                    if !teacher.iter().all(|value| value.is_finite()) {
                        continue;
                    }
                    distillation.token(now, &teacher, partials)
                }
                TopKLossKind::Select {
                    select,
                    old,
                    advantages,
                } => {
                    select
                        .token(now, &row_of(old), &row_of(advantages), partials)
                        .0
                }
            };
            output.loss += f64::from(loss * scale);
            partials.iter_mut().for_each(|partial| *partial *= scale);
        }
        output
    }
}
