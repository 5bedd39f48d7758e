//! Distillation on the top-k tokens of each position.
//!
//! The student's and the teacher's logprobs of the same k entries are treated as two distributions over k + 1 outcomes: the
//! last one, the *tail*, is the rest of the vocabulary. (Without a tail, both are renormalized over the k entries.) The loss
//! of a position is a divergence of the two:
//!
//! - `alpha` 1: KL(student || teacher), reverse (mode-seeking);
//! - `alpha` 0: KL(teacher || student), forward (mass-covering);
//! - between: `(1 - a) KL(student || m) + a KL(teacher || m)` with `m = (1 - a) student + a teacher`.
//!
//! Settings, as JSON in the configuration:
//!
//! | name | meaning | default |
//! |---|---|---|
//! | `k` | entries per position, 1 to 64 | 20 |
//! | `alpha` | 0 to 1, see above | 1 |
//! | `tail` | whether the rest of the vocabulary is one outcome | true |
//! | `aggregation` | `"token-mean"`, `"seq-mean-token-mean"`, `"seq-mean-token-sum"` | `"seq-mean-token-mean"` |
//!
//! A position without a valid teacher row is skipped: a row that is not a distribution (not finite, above 0, a sum of more
//! than 1; a row of zeros claims probability 1 k times) has no loss and no derivative. The position still counts in the
//! denominators, and the metric `missing_teacher` counts it.

mod divergence;

use clawhost_sdk::loss::{Aggregation, Batch, Gradient, Inputs, References, Requirements};
use clawhost_sdk::{Loss, Metric, PluginError, Settings};

pub use crate::divergence::{Divergence, Entries, Row};

/// The loss.
pub struct DistillTopk;

impl Loss for DistillTopk {
    fn describe() -> Requirements {
        // An invalid setting is an error of every call of `evaluate`; `describe` cannot return an error.
        let k = entries(&Settings::of_plugin()).unwrap_or(DEFAULT_K);
        Requirements {
            differentiable: Inputs::TOPK,
            references: References::TEACHER_TOPK,
            k,
        }
    }

    fn evaluate(batch: &Batch) -> Result<Gradient, PluginError> {
        let settings = Settings::of_plugin();
        evaluate(
            batch,
            entries(&settings)?,
            &Divergence::of(&settings)?,
            Aggregation::of(&settings)?,
        )
    }
}

clawhost_sdk::export_loss!(DistillTopk);

const DEFAULT_K: u32 = 20;

fn entries(settings: &Settings) -> Result<u32, PluginError> {
    settings.count("k", DEFAULT_K, 1..=64)
}

/// Loss and partials of a micro-batch with `k` entries per position.
///
/// # Errors
/// [`PluginError::InvalidInput`] when a tensor does not have `k` numbers per token.
pub fn evaluate(
    batch: &Batch,
    k: u32,
    divergence: &Divergence,
    aggregation: Aggregation,
) -> Result<Gradient, PluginError> {
    let width = k.max(1) as usize;
    batch.check_length("topk-logprob", &batch.topk_logprob, width)?;
    batch.check_length("teacher-topk-logprob", &batch.teacher_topk_logprob, width)?;
    let coefficients = aggregation.coefficients(batch)?;
    let mut loss = 0.0;
    let (mut sum, mut taught, mut missing) = (0.0, 0u32, 0u32);
    let mut d_topk = Vec::with_capacity(batch.topk_logprob.len());
    let rows = batch
        .topk_logprob
        .chunks_exact(width)
        .zip(batch.teacher_topk_logprob.chunks_exact(width))
        .zip(&coefficients);
    let (mut of_student, mut of_teacher) = (Entries::default(), Entries::default());
    for ((student, teacher), coefficient) in rows {
        let trains = *coefficient != 0.0;
        if trains {
            of_teacher.read(teacher.iter().map(|log| f64::from(*log)));
        }
        if !trains || !of_teacher.is_distribution() {
            missing += u32::from(trains);
            d_topk.extend(std::iter::repeat_n(0.0, width));
            continue;
        }
        of_student.read(student.iter().map(|log| f64::from(*log)));
        let row = divergence.row(&of_student, &of_teacher);
        loss += row.value * coefficient;
        d_topk.extend(row.d_student.iter().map(|d| (d * coefficient) as f32));
        sum += row.value;
        taught += 1;
    }
    // A NaN must propagate to the loss, where the host rejects it.
    let mean = sum / f64::from(taught.max(1));
    let mut metrics = vec![Metric::new("missing_teacher", f64::from(missing))];
    if mean.is_finite() {
        metrics.push(Metric::new("divergence", mean));
    }
    Ok(Gradient {
        loss,
        d_logprob: Vec::new(),
        d_topk,
        d_entropy: Vec::new(),
        metrics,
    })
}

#[cfg(test)]
mod tests;
