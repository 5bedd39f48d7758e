//! The PPO clipped surrogate, equal to the native loss.
//!
//! With r = exp(lp - lo) and advantage A, the loss of a token is `max(-r A, -clip(r, 1 - low, 1 + high) A)` and, with the dual
//! clip and for A < 0, at most `-c A`. Where a clip applies, the derivative is 0. Sums are computed in f64, so the result
//! matches the native one to well below 1e-6.
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
//! Tensors and mask of different lengths are rejected. There is no KL penalty and no entropy bonus.

use clawhost_sdk::loss::{
    Aggregation, Batch, Gradient, Inputs, LOG_RATIO_BOUND, References, Requirements, Token, ratio,
    within,
};
use clawhost_sdk::{Loss, PluginError, Settings};

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

/// Clip range of the ratio. Default: 0.2 below, 0.28 above, no dual clip.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clip {
    /// How far below one the ratio may fall before it is clipped.
    pub low: f64,
    /// How far above one the ratio may rise before it is clipped.
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

impl Clip {
    /// Reads the range from the settings.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] with the name of the invalid setting.
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

    /// The loss of one token, from its current logprob, its old logprob and its advantage.
    pub fn token(&self, logprob: f64, old: f64, advantage: f64) -> Token {
        let ratio = ratio(logprob, old);
        let plain = -(ratio * advantage);
        let limited = -(within(ratio, 1.0 - self.low, 1.0 + self.high) * advantage);
        let clipped = limited > plain;
        let mut loss = if clipped { limited } else { plain };
        let mut d_logprob = if clipped || (logprob - old).abs() > LOG_RATIO_BOUND {
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

/// Loss and partials of a micro-batch.
///
/// # Errors
/// [`PluginError::InvalidInput`] when a tensor and the mask have different lengths.
pub fn evaluate(
    batch: &Batch,
    clip: &Clip,
    aggregation: Aggregation,
) -> Result<Gradient, PluginError> {
    Gradient::of_tokens(batch, aggregation, |logprob, old, advantage| {
        clip.token(logprob, old, advantage)
    })
}

#[cfg(test)]
mod tests;
