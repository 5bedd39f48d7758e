//! Distillation on the k likeliest tokens of each position.
//!
//! The student's and the teacher's log-probs of the same k entries become two distributions over
//! k + 1 outcomes: the last one, the *tail*, is all the rest of the vocabulary. (Without a tail both
//! are normalised over the k entries.) A position's loss is a divergence of the two:
//!
//! - `alpha` 1: KL(student || teacher), "reverse": the student leaves what the teacher would not say;
//! - `alpha` 0: KL(teacher || student), "forward": the student covers what the teacher would say;
//! - between: `(1 - a) KL(student || m) + a KL(teacher || m)` with `m = (1 - a) student + a teacher`.
//!
//! Settings, as JSON in the configuration:
//!
//! | name | meaning | default |
//! |---|---|---|
//! | `k` | entries a position, 1 to 64 | 20 |
//! | `alpha` | 0 to 1, see above | 1 |
//! | `tail` | whether the rest of the vocabulary counts as one outcome | true |
//! | `aggregation` | `"token-mean"`, `"seq-mean-token-mean"`, `"seq-mean-token-sum"` | `"seq-mean-token-mean"` |
//!
//! What it refuses: to learn from a teacher that is missing. A row of the teacher that is no
//! distribution (not finite, above 0, more than 1 in sum; a row of zeros claims probability 1 k times)
//! is left out: no loss, no derivative. It stays in the denominators, and `missing_teacher` counts it.

mod divergence;

use clawhost_sdk::loss::{Aggregation, Batch, Gradient, Inputs, References, Requirements};
use clawhost_sdk::{Loss, Metric, PluginError, Settings};

pub use crate::divergence::{Divergence, Entries, Row};

/// The loss.
pub struct DistillTopk;

impl Loss for DistillTopk {
    fn describe() -> Requirements {
        // A setting that is wrong is an error of every call of `evaluate`; there is no way to say
        // it here.
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

/// Loss and partials of a microbatch with `k` entries a position.
///
/// # Errors
/// [`PluginError::InvalidInput`] when a tensor does not have `k` numbers for each token.
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
    let metric = |name: &str, value: f64| Metric {
        name: name.to_owned(),
        value,
    };
    // What is no number belongs into the loss, where the host refuses it by name.
    let mean = sum / f64::from(taught.max(1));
    let mut metrics = vec![metric("missing_teacher", f64::from(missing))];
    if mean.is_finite() {
        metrics.push(metric("divergence", mean));
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
