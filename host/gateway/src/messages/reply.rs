//! Writes a reply as an Anthropic message, streaming or not.

use clawhost_journal::Finish;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::blocks::Blocks;
use crate::error::ApiError;
use crate::reply::{Choice, Delta, EventQueue, FinishedChoice, ReplyContext, StreamWriter, Usage};

/// Data of the keep-alive event.
pub(super) const PING: &str = r#"{"type": "ping"}"#;

/// `stop_reason` and `stop_sequence` of a message.
#[derive(Debug, Default)]
struct StopReason {
    reason: Option<&'static str>,
    sequence: Option<String>,
}

impl StopReason {
    fn new(choice: &Choice, context: &ReplyContext) -> Self {
        let sequence = choice.stop_string().map(str::to_owned);
        let reason = match (choice.finish(), &sequence) {
            (None | Some(Finish::Aborted), _) => return Self::default(),
            (Some(Finish::ToolCalls), _) => "tool_use",
            (Some(Finish::Stop), Some(_)) => "stop_sequence",
            (Some(Finish::Stop), None) => "end_turn",
            (Some(Finish::Length), _) if reached_max_tokens(choice, context) => "max_tokens",
            (Some(Finish::Length), _) => "model_context_window_exceeded",
        };
        Self {
            reason: Some(reason),
            sequence: sequence.filter(|_| reason == "stop_sequence"),
        }
    }
}

/// Whether the reply has reached `max_tokens`.
fn reached_max_tokens(choice: &Choice, context: &ReplyContext) -> bool {
    choice.completion_tokens() >= context.request.sampling.max_tokens as usize
}

/// The body of a non-streaming response.
pub(super) fn body(context: &ReplyContext, finished: Vec<FinishedChoice>, usage: &Usage) -> Value {
    let (mut blocks, mut stop) = (Blocks::default(), StopReason::default());
    // This dialect has a single choice.
    for finished in finished {
        stop = StopReason::new(&finished.choice, context);
        for delta in finished.deltas {
            blocks.push_delta(delta);
        }
    }
    blocks.close();
    message(context, blocks.into_content(), &stop, message_usage(usage))
}

fn message(
    context: &ReplyContext,
    content: Vec<Value>,
    stop: &StopReason,
    usage: MessageUsage,
) -> Value {
    json!(Message {
        id: &context.id,
        kind: "message",
        role: "assistant",
        model: &context.model,
        content,
        stop_reason: stop.reason,
        stop_sequence: stop.sequence.as_deref(),
        usage,
    })
}

/// A message of the assistant.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Message<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    #[schemars(extend("const" = "message"))]
    kind: &'static str,
    #[schemars(extend("const" = "assistant"))]
    role: &'static str,
    model: &'a str,
    #[schemars(with = "Vec<ReplyBlock>")]
    content: Vec<Value>,
    #[schemars(with = "StopReasonName")]
    stop_reason: Option<&'static str>,
    /// The stop sequence that ended the message, if any.
    stop_sequence: Option<&'a str>,
    usage: MessageUsage,
}

#[derive(JsonSchema)]
#[schemars(inline, tag = "type", rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used")]
enum ReplyBlock {
    Text {
        text: String,
    },
    Thinking {
        thinking: String,
        signature: String,
    },
    ToolUse {
        id: String,
        name: String,
        input: Map<String, Value>,
    },
}

#[derive(JsonSchema)]
#[schemars(inline, rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used")]
enum StopReasonName {
    EndTurn,
    MaxTokens,
    StopSequence,
    ToolUse,
    ModelContextWindowExceeded,
}

/// Token counts of a message.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct MessageUsage {
    /// Without the cached tokens.
    input_tokens: usize,
    cache_creation_input_tokens: usize,
    cache_read_input_tokens: usize,
    output_tokens: usize,
}

/// In Anthropic's format `input_tokens` excludes cached tokens.
fn message_usage(usage: &Usage) -> MessageUsage {
    MessageUsage {
        input_tokens: usage.prompt.saturating_sub(usage.cached),
        cache_creation_input_tokens: 0,
        cache_read_input_tokens: usage.cached,
        output_tokens: usage.completion,
    }
}

/// Writes the events of a message.
pub(crate) struct MessageWriter {
    context: ReplyContext,
    blocks: Blocks,
    stop: StopReason,
}

impl MessageWriter {
    pub(super) fn new(context: ReplyContext) -> Self {
        Self {
            context,
            blocks: Blocks::default(),
            stop: StopReason::default(),
        }
    }
}

impl StreamWriter for MessageWriter {
    fn start(&mut self, out: &mut EventQueue) {
        let so_far = Usage {
            prompt: self.context.prompt_ids.len(),
            ..Usage::default()
        };
        let message = message(
            &self.context,
            Vec::new(),
            &self.stop,
            message_usage(&so_far),
        );
        out.push_named(
            "message_start",
            &json!({"type": "message_start", "message": message}),
        );
        out.push_named_text("ping", PING);
    }

    fn write_deltas(&mut self, out: &mut EventQueue, _choice: &mut Choice, deltas: Vec<Delta>) {
        for delta in deltas {
            for (name, data) in self.blocks.push_delta(delta) {
                out.push_named(name, &data);
            }
        }
    }

    fn finish_choice(&mut self, out: &mut EventQueue, choice: &mut Choice) {
        for (name, data) in self.blocks.close() {
            out.push_named(name, &data);
        }
        self.stop = StopReason::new(choice, &self.context);
    }

    fn finish(&mut self, out: &mut EventQueue, usage: &Usage) {
        out.push_named(
            "message_delta",
            &json!({
                "type": "message_delta",
                "delta": {"stop_reason": self.stop.reason, "stop_sequence": self.stop.sequence},
                "usage": message_usage(usage),
            }),
        );
        out.push_named("message_stop", &json!({"type": "message_stop"}));
    }

    fn fail(&mut self, out: &mut EventQueue, error: &ApiError) {
        out.push_named("error", &error.to_anthropic_json(None));
    }
}
