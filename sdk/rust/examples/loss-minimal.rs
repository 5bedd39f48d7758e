//! A minimal loss: REINFORCE, the mean over trained tokens of `-advantage * logprob`.
//!
//! ```text
//! cargo build --example loss-minimal --profile guest --target wasm32-unknown-unknown
//! ```

use clawhost_sdk::loss::{Batch, Gradient, Inputs, References, Requirements};
use clawhost_sdk::{Loss, PluginError};

struct Reinforce;

impl Loss for Reinforce {
    fn describe() -> Requirements {
        Requirements {
            differentiable: Inputs::LOGPROB,
            references: References::empty(),
            k: 0,
        }
    }

    fn evaluate(batch: &Batch) -> Result<Gradient, PluginError> {
        let share = 1.0 / batch.step_tokens.max(1) as f64;
        let mut loss = 0.0;
        let mut d_logprob = Vec::with_capacity(batch.logprob.len());
        let tokens = batch.logprob.iter().zip(&batch.advantages).zip(&batch.mask);
        for ((logprob, advantage), mask) in tokens {
            let slope = if *mask == 0 {
                0.0
            } else {
                -f64::from(*advantage) * share
            };
            loss += slope * f64::from(*logprob);
            d_logprob.push(slope as f32);
        }
        Ok(Gradient {
            loss,
            d_logprob,
            d_topk: Vec::new(),
            d_entropy: Vec::new(),
            metrics: Vec::new(),
        })
    }
}

clawhost_sdk::export_loss!(Reinforce);
