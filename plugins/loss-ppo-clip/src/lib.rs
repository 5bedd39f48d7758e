//! The clipped surrogate of PPO, as the native loss has it.
//!
//! With r = exp(lp - lo) and advantage A a token's loss is `max(-r A, -clip(r, 1 - low, 1 + high) A)`
//! and, with the dual clip and for A < 0, at most `-c A`. Where a clip decides, the derivative is 0.
//! Sums are formed in f64, so the result is the native one's to well below 1e-6.
//!
//! Settings, as JSON in the configuration:
//!
//! | name | meaning | default |
//! |---|---|---|
//! | `clip_low` | how far below one the ratio may fall, 0 to 1 | 0.2 |
//! | `clip_high` | how far above one the ratio may rise, 0 to 100 | 0.28 |
//! | `dual_clip` | c, more than 1 to 1,000; 0 turns it off | 0 |
//! | `aggregation` | `"token-mean"`, `"seq-mean-token-mean"`, `"seq-mean-token-sum"` | `"seq-mean-token-mean"` |
//!
//! What it refuses: tensors of another length than the mask. It adds no penalty and no entropy bonus;
//! those are other losses.

use clawhost_sdk::loss::{Aggregation, Batch, Gradient, Inputs, References, Requirements};
use clawhost_sdk::{Loss, Metric, PluginError, Settings};

/// The loss.
pub struct PpoClip;

impl Loss for PpoClip {
    fn describe() -> Requirements {
        Requirements {
            differentiable: Inputs::LOGPROB,
            references: References::OLD,
            k: 0,
        }
    }

    fn evaluate(batch: &Batch) -> Result<Gradient, PluginError> {
        let settings = Settings::of_plugin();
        evaluate(batch, &Clip::of(&settings)?, Aggregation::of(&settings)?)
    }
}

clawhost_sdk::export_loss!(PpoClip);

/// Bounds on the log-ratio before it is exponentiated: a guard for the arithmetic, far outside of
/// any clip. The loss is constant beyond it.
const LOG_RATIO_BOUND: f64 = 20.0;

/// Clip range of the ratio. Default: 0.2 below, 0.28 above, no dual clip.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clip {
    /// How far below one the ratio may fall before a gain stops counting.
    pub low: f64,
    /// How far above one the ratio may rise before a gain stops counting.
    pub high: f64,
    /// For negative advantages: the loss is at most this factor times |A|.
    pub dual: Option<f64>,
}

impl Default for Clip {
    fn default() -> Clip {
        Clip {
            low: 0.2,
            high: 0.28,
            dual: None,
        }
    }
}

/// One token's loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Token {
    /// To be minimised.
    pub loss: f64,
    /// Derivative with respect to the log-prob.
    pub d_logprob: f64,
    /// Whether the range decided (the dual clip is not counted).
    pub clipped: bool,
}

impl Clip {
    /// The range that the settings name.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] that names the setting which is wrong.
    pub fn of(settings: &Settings) -> Result<Clip, PluginError> {
        let default = Clip::default();
        let dual = settings.number("dual_clip", 0.0, 0.0..=1000.0)?;
        if dual > 0.0 && dual <= 1.0 {
            return Err(PluginError::InvalidInput(format!(
                "the setting `dual_clip` is {dual}, expected more than 1, or 0 for none"
            )));
        }
        Ok(Clip {
            low: settings.number("clip_low", default.low, 0.0..=1.0)?,
            high: settings.number("clip_high", default.high, 0.0..=100.0)?,
            dual: (dual > 0.0).then_some(dual),
        })
    }

    /// The loss of one token: its log-prob now, its log-prob under the old policy, its advantage.
    pub fn token(&self, logprob: f64, old: f64, advantage: f64) -> Token {
        let difference = logprob - old;
        let guarded = within(difference, -LOG_RATIO_BOUND, LOG_RATIO_BOUND);
        let ratio = guarded.exp();
        let plain = -(ratio * advantage);
        let limited = -(within(ratio, 1.0 - self.low, 1.0 + self.high) * advantage);
        let clipped = limited > plain;
        let mut loss = if clipped { limited } else { plain };
        let mut d_logprob = if clipped || difference.abs() > LOG_RATIO_BOUND {
            0.0
        } else {
            plain
        };
        if let Some(factor) = self.dual
            && advantage < 0.0
            && loss > -(factor * advantage)
        {
            loss = -(factor * advantage);
            d_logprob = 0.0;
        }
        Token {
            loss,
            d_logprob,
            clipped,
        }
    }
}

/// A NaN stays a NaN, so that the host finds it.
fn within(value: f64, low: f64, high: f64) -> f64 {
    if value < low {
        low
    } else if value > high {
        high
    } else {
        value
    }
}

/// Loss and partials of a microbatch.
///
/// # Errors
/// [`PluginError::InvalidInput`] when a tensor has another length than the mask.
pub fn evaluate(
    batch: &Batch,
    clip: &Clip,
    aggregation: Aggregation,
) -> Result<Gradient, PluginError> {
    batch.check_length("logprob", &batch.logprob, 1)?;
    batch.check_length("old-logprob", &batch.old_logprob, 1)?;
    batch.check_length("advantages", &batch.advantages, 1)?;
    let coefficients = aggregation.coefficients(batch)?;
    let mut loss = 0.0;
    let (mut trained, mut clipped) = (0u32, 0u32);
    let mut d_logprob = Vec::with_capacity(batch.mask.len());
    let tokens = batch
        .logprob
        .iter()
        .zip(&batch.old_logprob)
        .zip(&batch.advantages)
        .zip(&coefficients);
    for (((logprob, old), advantage), coefficient) in tokens {
        if *coefficient == 0.0 {
            d_logprob.push(0.0);
            continue;
        }
        let token = clip.token(f64::from(*logprob), f64::from(*old), f64::from(*advantage));
        loss += token.loss * coefficient;
        d_logprob.push((token.d_logprob * coefficient) as f32);
        trained += 1;
        clipped += u32::from(token.clipped);
    }
    Ok(Gradient {
        loss,
        d_logprob,
        d_topk: Vec::new(),
        d_entropy: Vec::new(),
        metrics: vec![Metric {
            name: "clip_fraction".to_owned(),
            value: f64::from(clipped) / f64::from(trained.max(1)),
        }],
    })
}

#[cfg(test)]
mod tests;
