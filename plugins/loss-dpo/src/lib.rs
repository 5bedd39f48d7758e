//! DPO on preference pairs, equal to the native `training.pairs.loss = "dpo"`.
//!
//! With lp the policy's and ref the base model's log-prob of a whole reply, c the accepted and r the rejected one, and the
//! margin m = (lp_c − ref_c) − (lp_r − ref_r): the loss of a pair is −log sigmoid(beta · m) (Rafailov et al. 2023, "Direct
//! Preference Optimization", eq. 7) plus `sft_coef` times the mean negative log-likelihood of the tokens of c. With
//! `label_smoothing` e it is −(1 − e) · log sigmoid(beta · m) − e · log sigmoid(−beta · m) (Mitchell 2023, "A note on DPO
//! with noisy preferences"). Sums are computed in f64.
//!
//! Settings, as JSON in the configuration:
//!
//! | name | meaning | default |
//! |---|---|---|
//! | `beta` | strength of the reference, more than 0 to 100 | 0.1 |
//! | `sft_coef` | weight of the accepted reply's mean negative log-likelihood, 0 to 100 | 0.2 |
//! | `label_smoothing` | share of pairs that are taken to be the wrong way round, 0 to 0.5 | 0 |

use clawhost_sdk::pair_loss::{Batch, Evaluation, Gradient, Pair};
use clawhost_sdk::{Metric, PairLoss, PluginError, Settings};

/// The loss.
pub struct DpoLoss;

impl PairLoss for DpoLoss {
    fn evaluate(batch: &Batch) -> Result<Evaluation, PluginError> {
        evaluate(batch, &Dpo::of(&Settings::of_plugin())?)
    }
}

clawhost_sdk::export_pair_loss!(DpoLoss);

/// Coefficients of the loss. Default: beta 0.1, `sft_coef` 0.2, no label smoothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dpo {
    /// Strength of the reference.
    pub beta: f64,
    /// Weight of the accepted reply's mean negative log-likelihood.
    pub sft_coef: f64,
    /// Share of pairs that are taken to be the wrong way round.
    pub label_smoothing: f64,
}

impl Default for Dpo {
    fn default() -> Dpo {
        Dpo {
            beta: 0.1,
            sft_coef: 0.2,
            label_smoothing: 0.0,
        }
    }
}

impl Dpo {
    /// Reads the coefficients from the settings.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] with the name of the invalid setting.
    pub fn of(settings: &Settings) -> Result<Dpo, PluginError> {
        let default = Dpo::default();
        let beta = settings.number("beta", default.beta, 0.0..=100.0)?;
        if beta == 0.0 {
            return Err(PluginError::InvalidInput(
                "the setting `beta` is 0, expected more than 0".to_owned(),
            ));
        }
        Ok(Dpo {
            beta,
            sft_coef: settings.number("sft_coef", default.sft_coef, 0.0..=100.0)?,
            label_smoothing: settings.number(
                "label_smoothing",
                default.label_smoothing,
                0.0..=0.5,
            )?,
        })
    }

    /// Loss and partials of a pair, and its margin in nats.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] when the lists of a reply have different lengths.
    pub fn pair(&self, pair: &Pair) -> Result<(Gradient, f64), PluginError> {
        let (chosen, reference_chosen, tokens) = pair.chosen.sums()?;
        let (rejected, reference_rejected, _) = pair.rejected.sums()?;
        let margin = (chosen - reference_chosen) - (rejected - reference_rejected);
        let scaled = self.beta * margin;
        let smooth = self.label_smoothing;
        let loss = (1.0 - smooth) * softplus(-scaled) + smooth * softplus(scaled);
        let slope = self.beta * (smooth * sigmoid(scaled) - (1.0 - smooth) * sigmoid(-scaled));
        let per_token = self.sft_coef / tokens.max(1) as f64;
        let gradient = Gradient {
            loss: loss - per_token * chosen,
            d_chosen: pair.chosen.partials(slope - per_token),
            d_rejected: pair.rejected.partials(-slope),
        };
        Ok((gradient, margin))
    }
}

/// Losses and partials of a micro-batch, with the mean reward margin and the share of pairs with a positive one.
///
/// # Errors
/// [`PluginError::InvalidInput`] when the lists of a reply have different lengths.
pub fn evaluate(batch: &Batch, dpo: &Dpo) -> Result<Evaluation, PluginError> {
    let mut gradients = Vec::with_capacity(batch.pairs.len());
    let (mut margins, mut positive) = (0.0, 0.0);
    for pair in &batch.pairs {
        let (gradient, margin) = dpo.pair(pair)?;
        gradients.push(gradient);
        margins += dpo.beta * margin;
        positive += f64::from(u8::from(margin > 0.0));
    }
    let pairs = batch.pairs.len().max(1) as f64;
    Ok(Evaluation {
        gradients,
        metrics: vec![
            Metric::new("reward_margin", margins / pairs),
            Metric::new("accuracy", positive / pairs),
        ],
    })
}

/// log(1 + exp(x)) without overflow.
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// 1 / (1 + exp(−x)) without overflow.
fn sigmoid(x: f64) -> f64 {
    let small = (-x.abs()).exp();
    if x >= 0.0 {
        1.0 / (1.0 + small)
    } else {
        small / (1.0 + small)
    }
}

#[cfg(test)]
mod tests;
