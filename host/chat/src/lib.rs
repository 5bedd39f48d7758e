//! The text side of a chat model: typed conversations, sampling parameters, the chat template, the tokenizer, the incremental detokenizer,
//! stop strings, and the parsing of reasoning and tool calls out of a reply.
//!
//! Nothing here changes a sampled token. Once a reply has begun, text is derived from tokens, never the other way
//! round.
//!
//! ```
//! use clawhost_chat::{Message, Role};
//!
//! let message: Message = serde_json::from_str(r#"{"role": "user", "content": "Hi!"}"#)?;
//! assert_eq!(message.role(), Role::User);
//! assert_eq!(message, Message::user("Hi!"));
//! # Ok::<(), serde_json::Error>(())
//! ```

mod byte_level;
mod chat_template;
mod code_fences;
mod detokenizer;
mod experience;
mod json_scanner;
mod message;
mod python_format;
mod reply_format;
mod reply_parser;
mod sampling;
mod special_tokens;
mod stop_strings;
mod strftime;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod tokenizer;
mod tool_call;
mod tool_call_parser;
mod tool_schemas;

pub use chat_template::{ChatInput, ChatTemplate, TemplateError};
pub use detokenizer::Detokenizer;
pub use experience::{experience_text, with_system_paragraph};
pub use message::{
    AssistantMessage, Content, ContentPart, FunctionCall, FunctionDefinition, Message, Role, Tool,
    ToolCall, ToolKind,
};
pub use reply_format::{
    ArgumentFormat, ReasoningFormat, ReplyFormat, ReplyParserOptions, ToolCallFormat,
    ToolCallSyntax, is_structural, opens_reasoning,
};
pub use reply_parser::{ParsedReply, ReplyDelta, ReplyParser, parse_reply};
pub use sampling::{
    CallableTool, Constraint, ResponseFormat, SamplingError, SamplingParams, ToolCallConstraint,
};
pub use special_tokens::named_tokens;
pub use stop_strings::StopStrings;
pub use tokenizer::{Tokenizer, TokenizerError};
pub use tool_schemas::ToolSchemas;
