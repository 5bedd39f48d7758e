//! The conversation of one episode as tokens.
//!
//! A reply enters the context as the tokens that the engine sampled, never as text that is tokenized again. An observation
//! is appended as the text that the chat template writes between a reply and the next one. Where a template cannot
//! continue that way, or the offered tools change, the conversation is rendered again and a new sequence begins: its prompt
//! is new text, which does not train. So it is where the context is longer than its limit and its middle is left out.

use std::sync::Arc;

use clawhost_chat::{
    AssistantMessage, ChatInput, Content, Message, ParsedReply, Tool, ToolCall, ToolSchemas,
    parse_reply,
};
use clawhost_engine::{
    Engine, Event, FinishReason, GenerateRequest, LoadedVersion, Priority, SamplingParams,
};
use clawhost_journal::Finish;
use clawhost_plugins::Observation;
use serde::{Deserialize, Serialize};

use crate::sequence::SampledSequence;
use crate::window::window;

/// Stands for a reply when the text after it is rendered: private-use characters, which no template changes.
const REPLY: &str = "\u{e0de}\u{e0ad}\u{e0de}";

/// What becomes one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SampleUnit {
    /// The whole episode, with its observations masked.
    #[default]
    Trajectory,
    /// Each reply, after the tokens of the episode so far.
    Turn,
}

/// The conversation of an episode.
pub(crate) struct Dialogue<'a> {
    engine: &'a Engine,
    version: LoadedVersion,
    unit: SampleUnit,
    priority: Priority,
    /// Tokens of a prompt above which its middle is left out.
    context_limit: Option<usize>,
    /// The time that templates see: that of the episode's start, so that earlier text does not change.
    now_s: i64,
    messages: Vec<Message>,
    tools: Vec<Tool>,
    /// Tokens of the next prompt.
    context: Vec<u32>,
    /// The text that was rendered last, which decides whether the reply begins in a reasoning block.
    rendered: String,
    sequences: Vec<SampledSequence>,
    step: u32,
    sampled_tokens: usize,
}

impl<'a> Dialogue<'a> {
    pub(crate) fn new(
        engine: &'a Engine,
        version: LoadedVersion,
        (unit, priority): (SampleUnit, Priority),
        context_limit: Option<usize>,
        now_ms: i64,
    ) -> Self {
        Self {
            engine,
            version,
            unit,
            priority,
            context_limit,
            now_s: now_ms.div_euclid(1000),
            messages: Vec::new(),
            tools: Vec::new(),
            context: Vec::new(),
            rendered: String::new(),
            sequences: Vec::new(),
            step: 0,
            sampled_tokens: 0,
        }
    }

    /// The sequences, and the number of sampled tokens.
    pub(crate) fn into_sequences(self) -> (Vec<SampledSequence>, usize) {
        (self.sequences, self.sampled_tokens)
    }

    /// Records what followed the last reply of the episode.
    pub(crate) fn end(&mut self, observation: &Observation) {
        if let Some(last) = self.sequences.last_mut() {
            last.next_state = observation.messages.iter().map(Message::from).collect();
        }
    }

    /// Adds an observation that a reply follows.
    pub(crate) fn observe(&mut self, observation: &Observation) -> Result<(), String> {
        let new: Vec<Message> = observation.messages.iter().map(Message::from).collect();
        let tools: Vec<Tool> = observation.tools.iter().map(Tool::from).collect();
        let between = if self.sequences.is_empty() || tools != self.tools {
            None
        } else {
            self.render_between(&new)?
        };
        if let Some(last) = self.sequences.last_mut() {
            last.next_state.clone_from(&new);
        }
        self.tools = tools;
        self.messages.extend(new);
        match between {
            Some((text, ids)) => {
                self.rendered = text;
                self.context.extend(&ids);
                let cut = self.cut_context()?;
                match (self.unit, self.sequences.last_mut()) {
                    (SampleUnit::Trajectory, Some(last)) if !cut => last.push_observation(&ids),
                    _ => self.begin_sequence(),
                }
            }
            None => {
                self.rendered = self
                    .render(&self.messages)
                    .map_err(|error| format!("the chat template rejects the messages: {error}"))?;
                self.context = self.encode(&self.rendered)?;
                self.cut_context()?;
                self.begin_sequence();
            }
        }
        Ok(())
    }

    /// Leaves out the middle of a context that is longer than its limit, and returns whether it was.
    fn cut_context(&mut self) -> Result<bool, String> {
        let Some(limit) = self
            .context_limit
            .filter(|limit| self.context.len() > *limit)
        else {
            return Ok(false);
        };
        self.context = window(&self.context, limit, |left_out| {
            self.encode(&format!(
                "\n[... {left_out} tokens are left out here ...]\n"
            ))
        })?;
        Ok(true)
    }

    fn begin_sequence(&mut self) {
        self.sequences.push(SampledSequence::new(
            self.step,
            &self.messages,
            &self.tools,
            &self.context,
        ));
    }

    /// The text and tokens between the last reply and the next one; none if the template cannot render them.
    fn render_between(&self, new: &[Message]) -> Result<Option<(String, Vec<u32>)>, String> {
        let mut messages = self.messages.clone();
        match messages.last_mut() {
            Some(last @ Message::Assistant(_)) => *last = Message::assistant(REPLY),
            _ => return Ok(None),
        }
        messages.extend_from_slice(new);
        // A template may reject results of tools without their calls.
        let Ok(text) = self.render(&messages) else {
            return Ok(None);
        };
        let Some((_, text)) = text.rsplit_once(REPLY) else {
            return Ok(None);
        };
        let mut ids = self.encode(text)?;
        // A reply that the model ended has the end token already.
        if ids.first() == self.context.last() && !ids.is_empty() {
            ids.remove(0);
        }
        Ok(Some((text.to_owned(), ids)))
    }

    fn render(&self, messages: &[Message]) -> Result<String, clawhost_chat::TemplateError> {
        let input = ChatInput {
            messages,
            tools: &self.tools,
            add_generation_prompt: true,
            extra: None,
        };
        self.engine.template().render_at(&input, self.now_s)
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        let ids = self.engine.tokenizer().encode(text);
        ids.map_err(|error| error.to_string())
    }

    /// Whether the context leaves no room for a reply.
    pub(crate) fn is_full(&self) -> bool {
        self.context.len() >= self.engine.max_request_tokens()
    }

    /// Whether the last reply was cut at the token limit.
    pub(crate) fn is_truncated(&self) -> bool {
        let last = self.sequences.last();
        last.is_some_and(|last| last.finish == Finish::Length)
    }

    /// Samples the next reply.
    pub(crate) async fn reply(
        &mut self,
        sampling: &SamplingParams,
    ) -> Result<AssistantMessage, String> {
        let mut generation = self
            .engine
            .generate(GenerateRequest {
                prompt: self.context.clone(),
                sampling: sampling.clone(),
                version: self.version.clone(),
                priority: self.priority,
                user: None,
            })
            .map_err(|error| error.to_string())?;
        let mut tokens = Vec::new();
        let mut text = String::new();
        let end = loop {
            match generation.next().await {
                Some(Event::Token(token)) => {
                    text.push_str(&token.text);
                    tokens.push((token.id, token.logprob, token.full_logprob, token.forced));
                }
                Some(Event::Finished(end)) => break end,
                Some(Event::Failed(reason)) => return Err(reason),
                None => return Err("the engine stopped before the reply was complete".to_owned()),
            }
        };
        text.push_str(&end.text);
        if let Some(known) = &end.reply_logprobs {
            let known = known.logprobs.iter().zip(&known.full_logprobs);
            for (token, (logprob, full)) in tokens.iter_mut().zip(known) {
                (token.1, token.2) = (*logprob, *full);
            }
        }
        let reasoning = self.engine.reply_format();
        let options = reasoning.parser_options(&self.rendered, !self.tools.is_empty());
        let schemas = Arc::new(ToolSchemas::from_definitions(&self.tools));
        let parsed = parse_reply(&text, options, &schemas);
        let finish = match end.reason {
            FinishReason::Length => Finish::Length,
            FinishReason::Stop if parsed.has_complete_calls() => Finish::ToolCalls,
            FinishReason::Stop => Finish::Stop,
        };
        let message = reply_message(parsed, self.step);
        let sequence = self.sequences.last_mut();
        let sequence = sequence.ok_or("a reply was requested before an observation")?;
        for (id, logprob, full_logprob, forced) in &tokens {
            sequence.push(*id, *logprob, *full_logprob, *forced);
            self.context.push(*id);
        }
        sequence.replies += 1;
        sequence.finish = finish;
        sequence.reply = message.clone();
        self.sampled_tokens += tokens.len();
        self.messages.push(Message::Assistant(message.clone()));
        self.step += 1;
        Ok(message)
    }
}

fn reply_message(parsed: ParsedReply, step: u32) -> AssistantMessage {
    let calls = parsed.tool_calls.iter().enumerate();
    AssistantMessage {
        content: (!parsed.content.is_empty() || parsed.tool_calls.is_empty())
            .then(|| Content::text(&parsed.content)),
        reasoning_content: parsed.reasoning,
        tool_calls: calls
            .map(|(index, call)| {
                ToolCall::new(format!("call-{step}-{index}"), &call.name, &call.arguments)
            })
            .collect(),
        malformed_tool_calls: parsed.malformed,
        name: None,
    }
}
