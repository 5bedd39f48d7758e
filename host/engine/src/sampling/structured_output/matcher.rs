//! Tracks one reply through its grammar and computes token bitmasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

use crate::backend::SampleError;

/// Maximum length of an error reason in characters.
const MAX_REASON_CHARS: usize = 300;

/// The state of one reply in the grammar of its constraint.
pub struct GrammarMatcher {
    matcher: Matcher,
    /// Shared with the compiler's cache: set when this grammar failed in use.
    failed: Arc<AtomicBool>,
}

/// A set of tokens, one bit per token id.
pub struct TokenBitmask(SimpleVob);

impl std::fmt::Debug for GrammarMatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarMatcher")
            .field("complete", &self.is_complete())
            .finish()
    }
}

impl GrammarMatcher {
    pub(super) fn new(matcher: Matcher, failed: Arc<AtomicBool>) -> Self {
        Self { matcher, failed }
    }

    /// Whether the output is complete and only the end of the reply may follow.
    pub fn is_complete(&self) -> bool {
        self.matcher.is_stopped() && !self.matcher.is_error()
    }

    /// Computes the tokens allowed next; after the end of the output these are `eos_token_ids`.
    ///
    /// # Errors
    /// Why the grammar failed.
    pub fn allowed_tokens(&mut self, eos_token_ids: &[u32]) -> Result<TokenBitmask, SampleError> {
        if self.is_complete() {
            return Ok(TokenBitmask::of(eos_token_ids));
        }
        let mask = self.matcher.compute_mask();
        mask.map(TokenBitmask)
            .map_err(|error| self.mark_failed(&error.to_string()))
    }

    /// Advances the state past an allowed token.
    ///
    /// # Errors
    /// Why the grammar failed.
    pub fn accept_token(&mut self, id: u32) -> Result<(), SampleError> {
        if self.is_complete() {
            return Ok(());
        }
        let step = self.matcher.consume_token(id);
        step.map_err(|error| self.mark_failed(&error.to_string()))
    }

    /// Marks the grammar as failed. Lexer states are shared by all replies of a grammar, so after an error or an
    /// exceeded limit no further reply may use it.
    fn mark_failed(&self, reason: &str) -> SampleError {
        self.failed.store(true, Ordering::Relaxed);
        SampleError::Constraint(truncate_reason(reason))
    }
}

/// A reason shortened to one line.
pub(super) fn truncate_reason(reason: &str) -> String {
    let line = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(MAX_REASON_CHARS).collect()
}

impl std::fmt::Debug for TokenBitmask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenBitmask({} words)", self.words().len())
    }
}

impl TokenBitmask {
    /// The set of these tokens.
    fn of(ids: &[u32]) -> Self {
        let mut set = SimpleVob::alloc(ids.iter().max().map_or(0, |id| *id as usize + 1));
        ids.iter().for_each(|id| set.allow_token(*id));
        Self(set)
    }

    /// The words of the mask: bit `id % 32` of word `id / 32` says whether the token is allowed. Tokens past the end are
    /// not allowed.
    pub fn words(&self) -> &[u32] {
        self.0.as_slice()
    }
}
