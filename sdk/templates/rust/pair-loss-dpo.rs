//! A loss on preference pairs: DPO, −log sigmoid(beta · margin).
//!
//! The margin is how much more than the base model the policy prefers the accepted reply, in nats. The setting `beta` (default
//! 0.1) is the strength of the reference.

use clawhost_sdk::pair_loss::{Batch, Evaluation, Gradient};
use clawhost_sdk::{PairLoss, PluginError, Settings};

struct Dpo;

impl PairLoss for Dpo {
    fn evaluate(batch: &Batch) -> Result<Evaluation, PluginError> {
        let beta = Settings::of_plugin().number("beta", 0.1, 0.001..=100.0)?;
        let mut gradients = Vec::new();
        for pair in &batch.pairs {
            let (chosen, reference_chosen, _) = pair.chosen.sums()?;
            let (rejected, reference_rejected, _) = pair.rejected.sums()?;
            let margin = (chosen - reference_chosen) - (rejected - reference_rejected);
            let loss = (-beta * margin).exp().ln_1p();
            // The derivative of the loss by the margin.
            let slope = -beta / (1.0 + (beta * margin).exp());
            gradients.push(Gradient {
                loss,
                d_chosen: pair.chosen.partials(slope),
                d_rejected: pair.rejected.partials(-slope),
            });
        }
        Ok(Evaluation {
            gradients,
            metrics: Vec::new(),
        })
    }
}

clawhost_sdk::export_pair_loss!(Dpo);
