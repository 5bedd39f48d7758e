//! A reply as a message, whole and as events.

use clawhost_journal::Finish;
use serde_json::{Value, json};

use super::PING;
use super::blocks::Blocks;
use crate::error::ApiError;
use crate::reply::{Choice, Delta, Ended, Events, Known, Outbox, Usage};

/// Why a message ended, and by which of the client's stop sequences.
#[derive(Debug, Default)]
struct Stop {
    reason: Option<&'static str>,
    sequence: Option<String>,
}

impl Stop {
    fn of(choice: &Choice, known: &Known) -> Self {
        let sequence = choice.stop().map(str::to_owned);
        let reason = match (choice.ended(), &sequence) {
            (None | Some(Finish::Aborted), _) => return Self::default(),
            (Some(Finish::ToolCalls), _) => "tool_use",
            (Some(Finish::Stop), Some(_)) => "stop_sequence",
            (Some(Finish::Stop), None) => "end_turn",
            (Some(Finish::Length), _) if asked_for(choice, known) => "max_tokens",
            (Some(Finish::Length), _) => "model_context_window_exceeded",
        };
        Self {
            reason: Some(reason),
            sequence: sequence.filter(|_| reason == "stop_sequence"),
        }
    }
}

/// Whether the reply is as long as the client allowed.
fn asked_for(choice: &Choice, known: &Known) -> bool {
    choice.completion_tokens()
        >= usize::try_from(known.ask.sampling.max_tokens).unwrap_or(usize::MAX)
}

/// The body of a whole answer.
pub(super) fn body(known: &Known, ended: Vec<Ended>, usage: &Usage) -> Value {
    let (mut blocks, mut stop) = (Blocks::default(), Stop::default());
    // One choice is all that this dialect has.
    for ended in ended {
        stop = Stop::of(&ended.choice, known);
        for delta in ended.deltas {
            blocks.take(delta);
        }
    }
    blocks.close();
    message(known, blocks.into_content(), &stop, usage_json(usage))
}

fn message(known: &Known, content: Vec<Value>, stop: &Stop, usage: Value) -> Value {
    json!({
        "id": known.id,
        "type": "message",
        "role": "assistant",
        "model": known.model,
        "content": content,
        "stop_reason": stop.reason,
        "stop_sequence": stop.sequence,
        "usage": usage,
    })
}

/// Here `input_tokens` are those that were not in memory any more.
fn usage_json(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt.saturating_sub(usage.cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    })
}

/// Writes the events of one message.
pub(crate) struct MessageEvents {
    known: Known,
    blocks: Blocks,
    stop: Stop,
}

impl MessageEvents {
    pub(super) fn new(known: Known) -> Self {
        Self {
            known,
            blocks: Blocks::default(),
            stop: Stop::default(),
        }
    }
}

impl Events for MessageEvents {
    fn begin(&mut self, out: &mut Outbox) {
        let so_far = Usage {
            prompt: self.known.prompt_ids.len(),
            ..Usage::default()
        };
        let message = message(&self.known, Vec::new(), &self.stop, usage_json(&so_far));
        out.named(
            "message_start",
            &json!({"type": "message_start", "message": message}),
        );
        out.named_text("ping", PING);
    }

    fn grow(&mut self, out: &mut Outbox, _choice: &mut Choice, deltas: Vec<Delta>) {
        for delta in deltas {
            for (name, data) in self.blocks.take(delta) {
                out.named(name, &data);
            }
        }
    }

    fn end(&mut self, out: &mut Outbox, choice: &mut Choice) {
        for (name, data) in self.blocks.close() {
            out.named(name, &data);
        }
        self.stop = Stop::of(choice, &self.known);
    }

    fn finish(&mut self, out: &mut Outbox, usage: &Usage) {
        out.named(
            "message_delta",
            &json!({
                "type": "message_delta",
                "delta": {"stop_reason": self.stop.reason, "stop_sequence": self.stop.sequence},
                "usage": usage_json(usage),
            }),
        );
        out.named("message_stop", &json!({"type": "message_stop"}));
    }

    fn fail(&mut self, out: &mut Outbox, error: &ApiError) {
        out.named("error", &error.to_messages_json(None));
    }
}
