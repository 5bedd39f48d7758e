//! Lets the base model or the policy reply to prompts, through the serving engine, for losses on these replies
//! ([`crate::rehearsal`], [`crate::few_shot`]). Keeps no reply.

use std::sync::atomic::{AtomicBool, Ordering};

use clawhost_chat::{ChatInput, Message, with_system_paragraph};
use clawhost_engine::{
    Engine, EngineOptions, Event, GenerateRequest, Generation, LoadedVersion, Priority,
    SamplingParams,
};
use sha2::{Digest, Sha256};

use crate::error::TrainingError;
use clawhost_config::TrainingOptions;

/// Sampling temperature of the replies.
const TEMPERATURE: f32 = 0.7;
/// Time that chat templates see, in seconds since 1970, so that a prompt renders alike on each day.
const TEMPLATE_TIME: i64 = 1_767_225_600;
/// Most replies that are generated at once. They start in the same step and without cached prefixes, so that a run that was
/// interrupted gets the replies that it would have got, also where rounding depends on the shape of a step.
const CONCURRENT: usize = 32;

/// A reply to a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GeneratedReply {
    /// Key of the reply: a digest of base model, prompt tokens, length limit and seed; of a reply of the policy, with its digest.
    pub(crate) key: String,
    pub(crate) prompt_ids: Vec<u32>,
    pub(crate) token_ids: Vec<u32>,
}

/// A prompt as the model reads it.
pub(crate) struct RenderedPrompt {
    /// Key of its reply.
    pub(crate) key: String,
    messages: Vec<Message>,
    pub(crate) prompt_ids: Vec<u32>,
}

impl RenderedPrompt {
    /// Renders messages, or says why the model cannot read them.
    pub(crate) fn new(
        engine: &Engine,
        options: &TrainingOptions,
        messages: &[Message],
    ) -> Result<Self, String> {
        let prompt_ids = tokens(engine, messages)?;
        let max_tokens = options.rehearsal.max_tokens;
        if prompt_ids.is_empty() || prompt_ids.len() >= longest_sequence(engine) {
            return Err(format!("{} tokens", prompt_ids.len()));
        }
        let mut digest = Sha256::new();
        digest.update(engine.model().digest());
        digest.update(max_tokens.to_le_bytes());
        digest.update(options.seed.to_le_bytes());
        for id in &prompt_ids {
            digest.update(id.to_le_bytes());
        }
        Ok(Self {
            key: hex(digest),
            messages: messages.to_vec(),
            prompt_ids,
        })
    }

    /// Whether the longest reply fits after the prompt.
    pub(crate) fn leaves_room_for_reply(&self, engine: &Engine, options: &TrainingOptions) -> bool {
        self.prompt_ids.len() + options.rehearsal.max_tokens as usize <= longest_sequence(engine)
    }

    /// The tokens of the prompt with a text in its system message; none if the model cannot read it with a reply.
    pub(crate) fn with_experience(
        &self,
        engine: &Engine,
        experience: &str,
        reply_tokens: usize,
    ) -> Option<Vec<u32>> {
        let messages = with_system_paragraph(&self.messages, experience);
        let prompt_ids = tokens(engine, &messages).ok()?;
        (prompt_ids.len() + reply_tokens <= longest_sequence(engine)).then_some(prompt_ids)
    }
}

/// The tokens of messages, up to where the reply begins.
fn tokens(engine: &Engine, messages: &[Message]) -> Result<Vec<u32>, String> {
    let input = ChatInput {
        messages,
        tools: &[],
        add_generation_prompt: true,
        extra: None,
    };
    let text = engine
        .template()
        .render_at(&input, TEMPLATE_TIME)
        .map_err(|error| error.to_string())?;
    engine
        .tokenizer()
        .encode(&text)
        .map_err(|error| error.to_string())
}

/// Most tokens of a prompt with its reply.
fn longest_sequence(engine: &Engine) -> usize {
    engine.max_request_tokens().min(engine.context())
}

/// The replies of a version to these prompts.
///
/// # Errors
/// The engine rejects a request or a reply fails, or training is stopped.
pub(crate) fn generate_replies(
    engine: &Engine,
    options: &TrainingOptions,
    version: &LoadedVersion,
    prompts: &[&RenderedPrompt],
    stop: &AtomicBool,
) -> Result<Vec<GeneratedReply>, TrainingError> {
    let mut replies = Vec::with_capacity(prompts.len());
    let EngineOptions {
        max_num_seqs,
        max_waiting_requests,
        ..
    } = engine.options();
    let room = Room {
        // They run together, and wait together before.
        replies: CONCURRENT.min(*max_num_seqs).min(*max_waiting_requests),
        // Half of the cache stays for the traffic of people.
        tokens: engine.kv_cache_tokens() / 2,
    };
    let most_tokens = |prompt: &&RenderedPrompt| {
        (prompt.prompt_ids.len() + options.rehearsal.max_tokens as usize)
            .min(longest_sequence(engine))
    };
    let mut rest = prompts;
    while !rest.is_empty() {
        let group;
        (group, rest) = rest.split_at(room.prefix(rest.iter().map(most_tokens)));
        let requests = group.iter().map(|prompt| request(options, version, prompt));
        let running = engine
            .generate_together(requests.collect())
            .map_err(|error| TrainingError::Replies(error.to_string()))?;
        for (prompt, generation) in group.iter().zip(running) {
            replies.push(GeneratedReply {
                key: prompt.key.clone(),
                prompt_ids: prompt.prompt_ids.clone(),
                token_ids: read_reply(engine, generation, stop)?,
            });
        }
    }
    Ok(replies)
}

/// What replies that are generated at once may take.
struct Room {
    replies: usize,
    tokens: usize,
}

impl Room {
    /// How many of these, with so many tokens each, fit; at least one of them.
    fn prefix(&self, tokens: impl Iterator<Item = usize>) -> usize {
        let mut sum = 0;
        let fitting = tokens.take(self.replies).take_while(|tokens| {
            sum += tokens;
            sum <= self.tokens
        });
        fitting.count().max(1)
    }
}

fn request(
    options: &TrainingOptions,
    version: &LoadedVersion,
    prompt: &RenderedPrompt,
) -> GenerateRequest {
    let seed = u64::from_str_radix(&prompt.key[..16], 16).expect("a digest is hexadecimal");
    GenerateRequest {
        prompt: prompt.prompt_ids.clone(),
        sampling: SamplingParams {
            temperature: TEMPERATURE,
            seed: Some(seed),
            max_tokens: options.rehearsal.max_tokens,
            ..SamplingParams::default()
        },
        version: version.clone(),
        priority: Priority::Training,
        user: None,
    }
}

/// The token ids of a reply; at least one.
fn read_reply(
    engine: &Engine,
    mut generation: Generation,
    stop: &AtomicBool,
) -> Result<Vec<u32>, TrainingError> {
    let mut ids = Vec::new();
    while let Some(event) = generation.blocking_next() {
        match event {
            Event::Token(token) => ids.push(token.id),
            Event::Finished(_) => {}
            Event::Failed(_) if engine.is_shutting_down() => return Err(TrainingError::Stopped),
            Event::Failed(reason) => {
                return Err(TrainingError::Replies(reason.to_string()));
            }
        }
        if stop.load(Ordering::Relaxed) {
            return Err(TrainingError::Stopped);
        }
    }
    if ids.is_empty() {
        return Err(TrainingError::Replies("a reply has no tokens".to_owned()));
    }
    Ok(ids)
}

/// A digest in hexadecimal.
pub(crate) fn hex(digest: Sha256) -> String {
    let bytes = digest.finalize();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_at_once_are_limited_by_number_and_tokens() {
        let room = Room {
            replies: 3,
            tokens: 10,
        };
        let fitting = |tokens: &[usize]| room.prefix(tokens.iter().copied());
        assert_eq!(fitting(&[1, 1, 1, 1]), 3);
        assert_eq!(fitting(&[5, 5, 1]), 2);
        assert_eq!(fitting(&[9, 9]), 1);
        assert_eq!(fitting(&[11, 1]), 1);
    }
}
