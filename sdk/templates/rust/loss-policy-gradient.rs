//! The policy gradient with the ratio to the policy that sampled, without clipping.

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
        // The step's size, not the microbatch's: a step cut in two adds up to the same loss.
        let scale = 1.0 / batch.step_tokens.max(1) as f64;
        let mut loss = 0.0;
        let mut partials = vec![0.0; batch.logprob.len()];
        for (i, partial) in partials.iter_mut().enumerate() {
            if batch.mask[i] == 0 {
                continue;
            }
            let ratio = (f64::from(batch.logprob[i]) - f64::from(batch.old_logprob[i])).exp();
            let of_this_token = -f64::from(batch.advantages[i]) * ratio * scale;
            loss += of_this_token;
            *partial = of_this_token as f32;
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
