//! A loss over the likeliest tokens of each position, beside that over the recorded ones: distances to a teacher's
//! distribution, or clipped surrogates. It knows no sample and scores nothing.

use crate::loss::{Distillation, Select};

/// K tokens of each position.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Compared {
    /// K.
    pub(crate) k: usize,
    /// `[tokens, K]`.
    pub(crate) ids: Vec<u32>,
    /// What the teacher finds of them, `[tokens, K]`; empty without a teacher.
    pub(crate) teacher: Vec<f32>,
}

/// A loss over K tokens of each position, beside that over the recorded ones.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Over {
    pub(super) k: usize,
    pub(super) kind: OverKind,
    /// Factor on its loss.
    pub(super) weight: f32,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum OverKind {
    /// Distance to the teacher's distribution.
    Distance(Distillation),
    /// Surrogates with these advantages from these log-probs before the update, both `[tokens, K]`.
    Select {
        select: Select,
        old: Vec<f32>,
        advantages: Vec<f32>,
    },
}

/// What a loss over K tokens came to.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct OverLoss {
    pub(crate) loss: f64,
    /// `[tokens, K]`.
    pub(crate) d_candidates: Vec<f32>,
}

impl Over {
    /// The loss of one reply: the sum over positions that train (`mask`, empty = all), each times `coefficient`.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "losses are computed in f32, as the parameters are"
    )]
    pub(crate) fn evaluate(
        &self,
        compared: &Compared,
        logprobs: &[f32],
        mask: &[bool],
        coefficient: f64,
    ) -> OverLoss {
        let scale = coefficient as f32 * self.weight;
        let mut made = OverLoss {
            loss: 0.0,
            d_candidates: vec![0.0; logprobs.len()],
        };
        let k = self.k.max(1);
        let rows = logprobs.chunks(k).zip(made.d_candidates.chunks_mut(k));
        for (row, (now, partials)) in rows.enumerate() {
            if !mask.get(row).copied().unwrap_or(true) {
                continue;
            }
            let at = |values: &'_ [f32]| -> Vec<f32> {
                let from = row * k;
                values
                    .get(from..from + now.len())
                    .unwrap_or_default()
                    .to_vec()
            };
            let loss = match &self.kind {
                OverKind::Distance(distillation) => {
                    let teacher = at(&compared.teacher);
                    if !teacher.iter().all(|value| value.is_finite()) {
                        continue;
                    }
                    distillation.token(now, &teacher, partials)
                }
                OverKind::Select {
                    select,
                    old,
                    advantages,
                } => select.token(now, &at(old), &at(advantages), partials).0,
            };
            made.loss += f64::from(loss * scale);
            partials.iter_mut().for_each(|partial| *partial *= scale);
        }
        made
    }
}
