//! The sequences to train on, and why pretraining rejects one or fails.

use clawhost_engine::ForwardError;
use clawhost_training::OptionsError;

/// A sequence with token weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// Token ids, at least two.
    pub tokens: Vec<u32>,
    /// Weight of each token's prediction; 0 = not trained. The first is never used.
    pub weights: Vec<f32>,
}

/// Why pretraining failed. The model is lost; a run with the same seed reproduces it.
#[derive(Debug, thiserror::Error)]
pub enum PretrainError {
    /// An invalid option.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// An invalid sequence.
    #[error("sequence {index} is invalid: {reason}")]
    Example {
        /// Index of the sequence in the input, from 0.
        index: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// The model rejected a sequence.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// Loss or gradient became NaN or infinite.
    #[error(
        "{what} of step {step} is not finite; try a lower pretrain.learning_rate or more warmup"
    )]
    NotFinite {
        /// `loss` or `gradient`.
        what: &'static str,
        /// The step.
        step: u64,
    },
    /// A worker thread panicked.
    #[error("a pretraining thread panicked")]
    Thread,
}

/// Validates a sequence and removes the tokens after its last weight; none if no token has weight.
pub(super) fn validate_and_trim(
    mut example: Example,
    index: u64,
    context: usize,
) -> Result<Option<Example>, PretrainError> {
    let invalid = |reason: String| Err(PretrainError::Example { index, reason });
    if example.tokens.len() != example.weights.len() {
        return invalid(format!(
            "{} tokens but {} weights",
            example.tokens.len(),
            example.weights.len()
        ));
    }
    if example.tokens.len() > context {
        return invalid(format!(
            "{} tokens exceed the model's context of {context}",
            example.tokens.len()
        ));
    }
    if !example.weights.iter().all(|w| w.is_finite() && *w >= 0.0) {
        return invalid("a weight is negative or not finite".to_owned());
    }
    match example.weights.iter().skip(1).rposition(|w| *w > 0.0) {
        None => Ok(None),
        Some(last) => {
            example.tokens.truncate(last + 2);
            example.weights.truncate(last + 2);
            Ok(Some(example))
        }
    }
}
