//! The inputs and outputs of scoring, and the gradients that a loss returns.

/// Recorded tokens, and which of them are scored.
#[derive(Debug, Clone, Copy)]
pub struct Sequence<'a> {
    /// Token ids of prompt and reply.
    pub tokens: &'a [u32],
    /// Index of the first scored token, at least 1; all tokens from here on are scored.
    pub start: usize,
    /// Logits are divided by this before the softmax; positive.
    pub temperature: f32,
    /// Other tokens whose log-probs are computed.
    pub candidates: Candidates<'a>,
}

/// Tokens whose log-probs are computed in addition to that of the recorded token. Default: none.
#[derive(Debug, Clone, Copy, Default)]
pub enum Candidates<'a> {
    /// None.
    #[default]
    None,
    /// This many of the most likely tokens, best first.
    Top(usize),
    /// These tokens, row by row, the same number for each scored token.
    Fixed {
        /// `[scored tokens, per_token]`.
        ids: &'a [u32],
        /// Number of candidates per scored token.
        per_token: usize,
    },
}

/// The inputs of a loss: one value per scored token, in nats.
#[derive(Debug, Clone, PartialEq)]
pub struct SequenceScores {
    /// Log-prob of the recorded token under softmax(logits / temperature).
    pub logprobs: Vec<f32>,
    /// Entropy of that distribution.
    pub entropies: Vec<f32>,
    /// The candidates, `[scored tokens, per token]`; empty if none were requested.
    pub candidates: Vec<u32>,
    /// Log-prob of each candidate.
    pub candidate_logprobs: Vec<f32>,
}

/// The partial derivatives of a loss with respect to each scored value.
#[derive(Debug, Clone, PartialEq)]
pub struct LossGradients {
    /// dL/dlogprob, one per scored token.
    pub d_logprob: Vec<f32>,
    /// dL/dentropy, one per scored token, or empty for none.
    pub d_entropy: Vec<f32>,
    /// dL/dlogprob of each candidate, or empty for none.
    pub d_candidates: Vec<f32>,
}
