//! `training.parameters`: which parameters a step trains.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Which parameters a step trains.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum TrainableParameters {
    /// A LoRA adapter on the frozen base model: a version and its optimizer state take megabytes.
    #[default]
    Lora,
    /// All weights. A version is as large as the base model, on disk too, and its optimizer state twice as large. At its
    /// peak a step holds about ten copies of the weights in f32: base, served, new, both moments before and after, and
    /// either the gradients or, during verification, the weights read back from the checkpoint. Besides the base the engine
    /// holds one copy for the active version, one for the previous version, and one for each version that requests in
    /// flight use.
    Full,
}

impl fmt::Display for TrainableParameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lora => "lora",
            Self::Full => "full",
        })
    }
}
