//! Errors of a backend.

/// Why a backend could not do what it was asked for. The model is unchanged afterwards.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    /// A token id is outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab}")]
    Token {
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A row or sequence has no new token.
    #[error("a row has no new tokens to run")]
    Empty,
    /// `Sequence::start` is zero or past the end.
    #[error("first scored position {start} is outside 1..{len}")]
    Start {
        /// The requested position.
        start: usize,
        /// Number of tokens.
        len: usize,
    },
    /// The temperature is not a positive finite number.
    #[error("temperature {0} must be positive and finite")]
    Temperature(String),
    /// A vector of partial derivatives has the wrong length.
    #[error("{what}: {found} values for {expected} scored tokens")]
    Length {
        /// Which vector.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The length it must have.
        expected: usize,
    },
    /// The weights do not match the shape of the base model.
    #[error("the adapter belongs to a model of another shape")]
    Adapter,
    /// The optimizer state does not match the trained tensors.
    #[error("the optimizer state has {found} values per moment, the weights have {expected}")]
    OptimizerState {
        /// Values of each moment.
        found: usize,
        /// Trained values.
        expected: usize,
    },
    /// The device cannot do it: it is out of memory, was lost, or a kernel failed. The message names the device and what
    /// it was asked for.
    #[error("{0}")]
    Device(String),
}

/// Why a token could not be sampled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// The logits hold a value that is not finite.
    #[error("the logit of token {id} is {value}; the weights or the adapter are damaged")]
    NotFinite {
        /// The token.
        id: usize,
        /// Its logit.
        value: String,
    },
    /// The grammar could not compute the allowed tokens.
    #[error("the grammar of the structured output failed: {0}")]
    Constraint(String),
    /// A replay continued past its record.
    #[error("the recorded reply has no token at position {position}")]
    NoRecordedToken {
        /// Index of the token in the reply.
        position: usize,
    },
}
