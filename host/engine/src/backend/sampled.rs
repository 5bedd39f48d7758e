//! A sampled token.

/// A sampled token and its logprobs, in nats.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplerOutput {
    /// The token.
    pub id: u32,
    /// Under the distribution sampled from.
    pub logprob: f32,
    /// Under the full softmax at [`crate::SamplingParams::full_temperature`], no bias, penalties or constraint.
    pub full_logprob: f32,
    /// Under the full softmax at temperature 1, no bias, penalties or constraint.
    pub model_logprob: f32,
    /// The most likely tokens at temperature 1 with their logprobs, most likely first.
    pub top: Vec<(u32, f32)>,
    /// A constraint allowed only this token.
    pub forced: bool,
}
