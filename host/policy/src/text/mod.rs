//! Text: the tokenizer, the incremental detokenizer, the chat template, stop strings, and the parsing of reasoning and
//! tool calls out of a reply.
//!
//! Nothing here changes a sampled token. Once a reply has begun, text is derived from tokens, never the other way
//! round.

mod byte_level;
mod chat_template;
mod code_fences;
mod detokenizer;
mod json_scanner;
mod python_format;
mod reply_format;
mod reply_parser;
mod special_tokens;
mod stop_strings;
mod strftime;
mod tokenizer;
mod tool_call;
mod tool_call_parser;
mod tool_schemas;

pub use chat_template::{ChatInput, ChatTemplate, TemplateError};
pub use detokenizer::Detokenizer;
pub(crate) use reply_format::is_structural;
pub use reply_format::{
    ArgumentFormat, ReasoningFormat, ReplyFormat, ToolCallFormat, ToolCallSyntax,
};
pub use reply_parser::{
    ParsedReply, ReplyDelta, ReplyParser, ReplyParserOptions, opens_reasoning, parse_reply,
};
pub(crate) use special_tokens::named_tokens;
pub(crate) use stop_strings::StopStrings;
#[cfg(test)]
pub(crate) use tokenizer::tests::{byte_level, byte_level_json};
pub use tokenizer::{Tokenizer, TokenizerError};
pub use tool_call::ToolCall;
pub use tool_schemas::ToolSchemas;
