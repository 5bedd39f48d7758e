//! Tracks one reply through its grammar and computes token bitmasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

/// Maximum length of an error reason in characters.
const MAX_REASON_CHARS: usize = 300;

/// The state of one reply in the grammar of its constraint.
pub(crate) struct GrammarMatcher {
    matcher: Matcher,
    /// Shared with the compiler's cache: set when this grammar failed in use.
    failed: Arc<AtomicBool>,
}

/// Tokens allowed next.
pub(crate) enum AllowedTokens {
    /// The tokens in the bitmask.
    Mask(TokenBitmask),
    /// Only the end of the reply.
    End,
}

/// A set of tokens, one bit per token id.
pub(crate) struct TokenBitmask(SimpleVob);

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
    pub(crate) fn is_complete(&self) -> bool {
        self.matcher.is_stopped() && !self.matcher.is_error()
    }

    /// Computes the tokens allowed next, or returns why the grammar failed.
    pub(crate) fn allowed_tokens(&mut self) -> Result<AllowedTokens, String> {
        if self.is_complete() {
            return Ok(AllowedTokens::End);
        }
        let mask = self.matcher.compute_mask();
        mask.map(|mask| AllowedTokens::Mask(TokenBitmask(mask)))
            .map_err(|error| self.mark_failed(&error.to_string()))
    }

    /// Advances the state past an allowed token.
    pub(crate) fn accept_token(&mut self, id: u32) -> Result<(), String> {
        if self.is_complete() {
            return Ok(());
        }
        let step = self.matcher.consume_token(id);
        step.map_err(|error| self.mark_failed(&error.to_string()))
    }

    /// Marks the grammar as failed. Lexer states are shared by all replies of a grammar, so after an error or an
    /// exceeded limit no further reply may use it.
    fn mark_failed(&self, reason: &str) -> String {
        self.failed.store(true, Ordering::Relaxed);
        truncate_reason(reason)
    }
}

/// A reason shortened to one line.
pub(super) fn truncate_reason(reason: &str) -> String {
    let line = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(MAX_REASON_CHARS).collect()
}

impl TokenBitmask {
    /// Sets the logits of all tokens outside the set to negative infinity.
    pub(crate) fn apply(&self, logits: &mut [f32]) {
        let mut words = self.0.as_slice().iter();
        for chunk in logits.chunks_mut(u32::BITS as usize) {
            match words.next().copied().unwrap_or(0) {
                0 => chunk.fill(f32::NEG_INFINITY),
                u32::MAX => {}
                word => {
                    for (bit, logit) in chunk.iter_mut().enumerate() {
                        if word >> bit & 1 == 0 {
                            *logit = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
    }
}
