//! What goes into a pass that scores, what comes out, and what a loss hands back.

/// Tokens as they were recorded, and which of them are scored.
#[derive(Debug, Clone, Copy)]
pub struct Sequence<'a> {
    /// Prompt and reply, as ids.
    pub tokens: &'a [u32],
    /// First scored token, at least 1; all tokens from here on are scored.
    pub start: usize,
    /// Logits are divided by this before the softmax; positive.
    pub temperature: f32,
    /// Which other tokens are looked at.
    pub candidates: Candidates<'a>,
}

/// Tokens whose log-probabilities are wanted beside that of the recorded one. Default: none.
#[derive(Debug, Clone, Copy, Default)]
pub enum Candidates<'a> {
    /// None.
    #[default]
    None,
    /// So many of the most likely ones, best first.
    Top(usize),
    /// These, row by row: so many for each scored token.
    Given {
        /// `[scored tokens, per_token]`.
        ids: &'a [u32],
        /// How many each scored token has.
        per_token: usize,
    },
}

/// What a loss may look at: one value per scored token, in nats.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// Log-probability of the recorded token under softmax(logits / temperature).
    pub logprobs: Vec<f32>,
    /// Entropy of that distribution.
    pub entropies: Vec<f32>,
    /// The candidates, `[scored tokens, per token]`; empty without.
    pub candidates: Vec<u32>,
    /// Log-probability of each candidate.
    pub candidate_logprobs: Vec<f32>,
}

/// What a loss hands back: its partial derivative with respect to each scored value.
#[derive(Debug, Clone, PartialEq)]
pub struct Partials {
    /// dL/dlogprob, one per scored token.
    pub d_logprob: Vec<f32>,
    /// dL/dentropy, one per scored token, or empty for none.
    pub d_entropy: Vec<f32>,
    /// dL/dlogprob of each candidate, or empty for none.
    pub d_candidates: Vec<f32>,
}
