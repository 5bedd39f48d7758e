//! Follows one reply through its grammar.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

/// Longest reason that is passed on.
const MAX_REASON: usize = 300;

/// The state of one reply in the grammar of its constraint.
pub(crate) struct Guide {
    matcher: Matcher,
    /// Tells the cache that this grammar cannot be followed any more.
    spoiled: Arc<AtomicBool>,
}

/// What may come next.
pub(crate) enum Next {
    /// One of these tokens.
    Of(Mask),
    /// Nothing but the end of the reply.
    End,
}

/// A set of tokens.
pub(crate) struct Mask(SimpleVob);

impl std::fmt::Debug for Guide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guide")
            .field("complete", &self.is_complete())
            .finish()
    }
}

impl Guide {
    pub(super) fn new(matcher: Matcher, spoiled: Arc<AtomicBool>) -> Self {
        Self { matcher, spoiled }
    }

    /// Whether the reply has its whole form and nothing may follow but its end.
    pub(crate) fn is_complete(&self) -> bool {
        self.matcher.is_stopped() && !self.matcher.is_error()
    }

    /// What may come next, or why that cannot be said.
    pub(crate) fn next(&mut self) -> Result<Next, String> {
        if self.is_complete() {
            return Ok(Next::End);
        }
        let mask = self.matcher.compute_mask();
        mask.map(|mask| Next::Of(Mask(mask)))
            .map_err(|error| self.spoil(&error.to_string()))
    }

    /// Goes on past a token that was allowed.
    pub(crate) fn accept(&mut self, id: u32) -> Result<(), String> {
        if self.is_complete() {
            return Ok(());
        }
        let step = self.matcher.consume_token(id);
        step.map_err(|error| self.spoil(&error.to_string()))
    }

    /// States of the lexer are shared by all replies of a grammar; where they have run out or broken,
    /// nobody should go on with them.
    fn spoil(&self, reason: &str) -> String {
        self.spoiled.store(true, Ordering::Relaxed);
        shorten(reason)
    }
}

/// The beginning of a reason, on one line.
pub(super) fn shorten(reason: &str) -> String {
    let line = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(MAX_REASON).collect()
}

impl Mask {
    /// Gives minus infinity to all tokens that are not in the set.
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
