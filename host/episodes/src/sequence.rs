//! A token sequence of an episode: what becomes one training sample.

use clawhost_chat::{AssistantMessage, Message, Tool};
use clawhost_journal::Finish;

/// A prompt and what followed it. Tokens that the engine sampled train; observation tokens between them are masked.
#[derive(Debug, Clone, PartialEq)]
pub struct SampledSequence {
    /// The step at which it begins, from 0.
    pub step: u32,
    /// Number of replies in it.
    pub replies: u32,
    /// The conversation of its prompt.
    pub messages: Vec<Message>,
    /// The tools of its prompt.
    pub tools: Vec<Tool>,
    /// Token ids of the prompt.
    pub prompt_ids: Vec<u32>,
    /// Token ids after the prompt, as the engine sampled them; observations are masked.
    pub token_ids: Vec<u32>,
    /// Logprobs under the distribution that was sampled from, one per token; 0 for masked tokens.
    pub logprobs: Vec<f32>,
    /// Logprobs under the full softmax at the temperature, one per token; 0 for masked tokens.
    pub full_logprobs: Vec<f32>,
    /// Positions of the tokens that do not train, ascending: observations, and tokens that a constraint forced.
    pub masked: Vec<u32>,
    /// How its last reply ended.
    pub finish: Finish,
    /// Its last reply.
    pub reply: AssistantMessage,
    /// What followed its last reply.
    pub next_state: Vec<Message>,
}

impl SampledSequence {
    /// A sequence without replies.
    pub(crate) fn new(step: u32, messages: &[Message], tools: &[Tool], prompt_ids: &[u32]) -> Self {
        Self {
            step,
            replies: 0,
            messages: messages.to_vec(),
            tools: tools.to_vec(),
            prompt_ids: prompt_ids.to_vec(),
            token_ids: Vec::new(),
            logprobs: Vec::new(),
            full_logprobs: Vec::new(),
            masked: Vec::new(),
            finish: Finish::Aborted,
            reply: AssistantMessage::default(),
            next_state: Vec::new(),
        }
    }

    /// Appends the tokens of an observation.
    pub(crate) fn push_observation(&mut self, ids: &[u32]) {
        for id in ids {
            self.push(*id, 0.0, 0.0, true);
        }
    }

    /// Appends a token.
    pub(crate) fn push(&mut self, id: u32, logprob: f32, full_logprob: f32, masked: bool) {
        if masked {
            let position = u32::try_from(self.token_ids.len());
            self.masked
                .push(position.expect("a sequence has fewer tokens"));
        }
        self.token_ids.push(id);
        self.logprobs.push(logprob);
        self.full_logprobs.push(full_logprob);
    }

    /// Prompt and everything after it.
    pub fn all_ids(&self) -> Vec<u32> {
        [&self.prompt_ids[..], &self.token_ids[..]].concat()
    }
}
