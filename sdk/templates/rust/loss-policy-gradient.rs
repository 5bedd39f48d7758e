//! A policy gradient loss with the importance ratio to the sampling policy, without clipping.

use clawhost_sdk::loss::{Batch, Gradient, Inputs, References, Requirements};
use clawhost_sdk::{Loss, PluginError};

struct PolicyGradient;

impl Loss for PolicyGradient {
    fn describe() -> Requirements {
        Requirements {
            differentiable: Inputs::LOGPROB,
            references: References::OLD,
            k: 0,
        }
    }

    fn evaluate(batch: &Batch) -> Result<Gradient, PluginError> {
        // Scale by the tokens of the step, not of the micro-batch, so that the loss does not depend on how a step is split.
        let scale = 1.0 / batch.step_tokens.max(1) as f64;
        let mut loss = 0.0;
        let mut partials = vec![0.0; batch.logprob.len()];
        for (i, partial) in partials.iter_mut().enumerate() {
            if batch.mask[i] == 0 {
                continue;
            }
            let ratio = (f64::from(batch.logprob[i]) - f64::from(batch.old_logprob[i])).exp();
            let token_loss = -f64::from(batch.advantages[i]) * ratio * scale;
            loss += token_loss;
            *partial = token_loss as f32;
        }
        Ok(Gradient {
            loss,
            d_logprob: partials,
            d_topk: Vec::new(),
            d_entropy: Vec::new(),
            metrics: Vec::new(),
        })
    }
}

clawhost_sdk::export_loss!(PolicyGradient);
