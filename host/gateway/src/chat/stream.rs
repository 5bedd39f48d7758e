//! Chat completion chunks: one per increment of a message. The logprobs and ids of its tokens are in the first of them.

use serde_json::{Value, json};

use super::logprobs;
use super::request::Chat;
use crate::error::ApiError;
use crate::reply::{Choice, Delta, EventQueue, ReplyContext, StreamWriter, Usage};

/// Writes the chunks of a reply.
pub(crate) struct ChunkWriter {
    chat: Chat,
    context: ReplyContext,
}

impl ChunkWriter {
    pub(super) fn new(chat: Chat, context: ReplyContext) -> Self {
        Self { chat, context }
    }

    /// The `choices` entry of a chunk.
    fn entry(&self, choice: &mut Choice, delta: Value, finish: Option<&str>) -> Value {
        let tokens = choice.take_unsent_tokens();
        let logprobs = (self.chat.logprobs && !tokens.is_empty()).then(|| {
            let entries = logprobs::entries(
                self.context.shared.engine.tokenizer(),
                &tokens,
                self.context.request.sampling.top_logprobs,
            );
            json!({"content": entries, "refusal": null})
        });
        let mut out = json!({
            "index": choice.index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish,
        });
        if self.chat.return_token_ids {
            out["token_ids"] = tokens.iter().map(|token| token.id).collect();
        }
        out
    }

    fn chunk(&self, choices: Vec<Value>) -> Value {
        let mut chunk = json!({
            "id": self.context.id,
            "object": "chat.completion.chunk",
            "created": self.context.created,
            "model": self.context.model,
            "system_fingerprint": self.context.fingerprint,
            "choices": choices,
        });
        if self.chat.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }
}

impl StreamWriter for ChunkWriter {
    fn start(&mut self, out: &mut EventQueue) {
        for index in 0..self.context.request.n {
            let mut chunk = self.chunk(vec![json!({
                "index": index,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": null,
                "finish_reason": null,
            })]);
            if index == 0 && self.chat.return_token_ids {
                chunk["prompt_token_ids"] = json!(self.context.prompt_ids);
            }
            out.push_json(&chunk);
        }
    }

    fn write_deltas(&mut self, out: &mut EventQueue, choice: &mut Choice, deltas: Vec<Delta>) {
        for delta in deltas {
            let entry = self.entry(choice, delta_json(delta), None);
            out.push_json(&self.chunk(vec![entry]));
        }
    }

    fn finish_choice(&mut self, out: &mut EventQueue, choice: &mut Choice) {
        let finish = choice.finish_reason();
        let delta = match choice.malformed_calls() {
            [] => json!({}),
            reasons => json!({"malformed_tool_calls": reasons}),
        };
        let last = self.entry(choice, delta, finish);
        out.push_json(&self.chunk(vec![last]));
    }

    fn finish(&mut self, out: &mut EventQueue, usage: &Usage) {
        if self.chat.include_usage {
            let mut chunk = self.chunk(Vec::new());
            chunk["usage"] = json!(usage.to_completion_usage());
            out.push_json(&chunk);
        }
        out.push_text("[DONE]");
    }

    fn fail(&mut self, out: &mut EventQueue, error: &ApiError) {
        out.push_named("error", &error.to_json());
        out.push_text("[DONE]");
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
