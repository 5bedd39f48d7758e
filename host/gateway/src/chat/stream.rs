//! A reply as chunks: one per change of a message, the tokens that it took with the first of them.

use clawhost_sessions::MALFORMED_CALLS;
use serde_json::{Map, Value, json};

use super::{Chat, logprobs};
use crate::error::ApiError;
use crate::reply::{Choice, Delta, Events, Known, Outbox, Usage};

/// Writes the chunks of one reply.
pub(crate) struct Chunks {
    chat: Chat,
    known: Known,
}

impl Chunks {
    pub(super) fn new(chat: Chat, known: Known) -> Self {
        Self { chat, known }
    }

    /// The entry of a choice in a chunk.
    fn entry(&self, choice: &mut Choice, delta: Value, finish: Option<&str>) -> Value {
        let tokens = choice.take_fresh();
        let logprobs = (self.chat.logprobs && !tokens.is_empty()).then(|| {
            let entries = logprobs::entries(
                self.known.shared.engine.tokenizer(),
                &tokens,
                self.known.ask.sampling.top_logprobs,
            );
            json!({"content": entries, "refusal": null})
        });
        let mut out = json!({
            "index": choice.index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish,
        });
        if self.chat.return_token_ids
            && let Some(out) = out.as_object_mut()
        {
            let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
            out.insert("token_ids".into(), json!(ids));
        }
        out
    }

    fn chunk(&self, choices: Vec<Value>) -> Value {
        let mut chunk = json!({
            "id": self.known.id,
            "object": "chat.completion.chunk",
            "created": self.known.created,
            "model": self.known.model,
            "system_fingerprint": self.known.fingerprint,
            "choices": choices,
        });
        if self.chat.include_usage
            && let Some(chunk) = chunk.as_object_mut()
        {
            chunk.insert("usage".into(), Value::Null);
        }
        chunk
    }
}

impl Events for Chunks {
    fn begin(&mut self, out: &mut Outbox) {
        for index in 0..self.known.ask.n {
            let mut chunk = self.chunk(vec![json!({
                "index": index,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": null,
                "finish_reason": null,
            })]);
            if index == 0
                && self.chat.return_token_ids
                && let Some(chunk) = chunk.as_object_mut()
            {
                chunk.insert("prompt_token_ids".into(), json!(self.known.prompt_ids));
            }
            out.data(&chunk);
        }
    }

    fn grow(&mut self, out: &mut Outbox, choice: &mut Choice, deltas: Vec<Delta>) {
        for delta in deltas {
            let entry = self.entry(choice, delta_json(delta), None);
            out.data(&self.chunk(vec![entry]));
        }
    }

    fn end(&mut self, out: &mut Outbox, choice: &mut Choice) {
        let finish = choice.finish_reason();
        let mut delta = Map::new();
        if let Some(reasons) = choice.malformed_calls() {
            delta.insert(MALFORMED_CALLS.into(), reasons);
        }
        let last = self.entry(choice, delta.into(), finish);
        out.data(&self.chunk(vec![last]));
    }

    fn finish(&mut self, out: &mut Outbox, usage: &Usage) {
        if self.chat.include_usage {
            let mut chunk = self.chunk(Vec::new());
            if let Some(chunk) = chunk.as_object_mut() {
                chunk.insert("usage".into(), usage.to_json());
            }
            out.data(&chunk);
        }
        out.text("[DONE]");
    }

    fn fail(&mut self, out: &mut Outbox, error: &ApiError) {
        out.named("error", &error.to_json());
        out.text("[DONE]");
    }
}

fn delta_json(delta: Delta) -> Value {
    match delta {
        Delta::Content(text) => json!({"content": text}),
        Delta::Reasoning(text) => json!({"reasoning_content": text}),
        Delta::Call { index, id, name } => json!({"tool_calls": [{
            "index": index,
            "id": id,
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }]}),
        Delta::Arguments { index, json } => json!({"tool_calls": [{
            "index": index,
            "function": {"arguments": json},
        }]}),
    }
}
