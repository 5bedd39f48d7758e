//! Sampling: from logits to a token, with the logprobs that training needs.
//!
//! A token is sampled in a fixed order: logit bias, penalties, allowed tokens, grammar bitmask, banned tokens (bad
//! words, and EOS before `min_tokens`), temperature, min-p, top-k, top-p, one random number. Two logprobs are recorded:
//! that of the distribution sampled from, and that of the full softmax at the temperature, which a trainer can
//! recompute because it involves no truncation, bias, penalty or mask. A third, of the model's own distribution at
//! temperature 1, is reported to chat clients.
//!
//! Where a constraint leaves a single token, the first logprob is 0 and the second is the model's. A trainer that
//! measures how far the policy has moved therefore uses the second. Such a token is marked as forced: the policy had no
//! choice, so training leaves it out.

mod distribution;
mod logits_scan;
mod sampler;
#[cfg(test)]
mod structured_output_tests;
mod top_k;

pub(crate) use sampler::Sampler;
