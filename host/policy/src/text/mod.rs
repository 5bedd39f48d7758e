//! Between tokens and words: the tokenizer, its incremental decoder, the chat template, stop
//! strings, and the reading of a reply's reasoning and tool calls.
//!
//! Nothing here changes a token that was sampled. Text is derived from tokens, never the other way
//! round, once a reply has begun.

mod alphabet;
mod call_reader;
mod fences;
mod form;
mod json_object;
mod python;
mod reply;
mod special;
mod stop;
mod stream;
mod strftime;
mod template;
mod tokenizer;
mod tool_call;
mod tool_types;

pub(crate) use form::is_structural;
pub use form::{ArgumentForm, CallForm, CallParts, ReasoningForm, ReplyForm};
pub use reply::{ParsedReply, ReplyParser, ReplyPiece, ReplyStyle, opens_reasoning, parse_reply};
pub(crate) use special::named_tokens;
pub(crate) use stop::StopStrings;
pub use stream::TokenStream;
pub use template::{ChatInput, ChatTemplate, TemplateError};
#[cfg(test)]
pub(crate) use tokenizer::tests::{byte_level, byte_level_json};
pub use tokenizer::{Tokenizer, TokenizerError};
pub use tool_call::ToolCall;
pub use tool_types::ToolTypes;
