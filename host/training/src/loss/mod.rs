//! Losses over log-probs with their partial derivatives, one formula per file.
//!
//! Notation: lp = current log-prob, lo = old log-prob (recomputed by the trainer before the update), lb = behaviour log-prob
//! (recorded by the engine when it sampled), lr = reference log-prob (base model), lT = teacher log-prob.

mod aggregation;
mod cispo;
mod distillation;
mod dppo;
mod gspo;
mod importance;
mod kl;
mod mask;
mod objective;
mod on_policy_distillation;
mod ppo;
mod preference;
mod sapo;
mod select;
mod surrogate;
mod token_loss;

pub use aggregation::SequenceCoefficients;
pub use cispo::Cispo;
pub use clawhost_config::{Aggregation, DistillationDivergence, ImportanceLevel, KlEstimator};
pub use distillation::TopKDistillation;
pub use dppo::Dppo;
pub use gspo::Gspo;
pub use importance::{ImportanceSampling, LogprobMismatch, WeightBound};
pub(crate) use kl::sum_kl;
pub use kl::{KlEstimate, KlTerm};
pub(crate) use mask::trains;
pub use objective::{KlPenalty, LossError, Objective, SequenceInputs, SequenceLoss};
pub use on_policy_distillation::OnPolicyDistillation;
pub use ppo::PpoClip;
pub use preference::{PairLogprobs, PairLossOutput, Preference};
pub use sapo::Sapo;
pub use select::{TopKSelect, count_shared_tokens};
pub use surrogate::Surrogate;
pub use token_loss::TokenLoss;
