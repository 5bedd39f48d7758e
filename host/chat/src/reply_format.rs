//! The reasoning and tool-call formats of models, and the detection of a model's format.
//!
//! The chat template shows the model how a tool call is written, so it determines the format to parse. The syntax of a
//! format is public, because structured output must constrain tool calls to the same text that the parser reads.

use super::tokenizer::Tokenizer;

pub(crate) const THINK: &str = "<think>";
pub(crate) const THINK_END: &str = "</think>";
pub(crate) const TOOL_CALL: &str = "<tool_call>";
pub(crate) const TOOL_CALL_END: &str = "</tool_call>";
pub(crate) const FUNCTION: &str = "<function=";
pub(crate) const FUNCTION_END: &str = "</function>";
pub(crate) const PARAMETER: &str = "<parameter=";
pub(crate) const PARAMETER_END: &str = "</parameter>";
pub(crate) const PYTHON_TAG: &str = "<|python_tag|>";

/// Whether a special token is part of a format. The detokenizer emits its text, and the reply parser removes it.
pub fn is_structural(special: &str) -> bool {
    matches!(
        special,
        THINK | THINK_END | TOOL_CALL | TOOL_CALL_END | PYTHON_TAG
    )
}

/// Tool-call format of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ToolCallFormat {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen2.5, Qwen3. The default.
    #[default]
    Hermes,
    /// `<tool_call><function=…><parameter=…>…</parameter></function></tool_call>`: Qwen3-Coder and Qwen3.5.
    QwenXml,
    /// `{"name": …, "parameters": {…}}` alone or behind `<|python_tag|>`, several separated by `;`, and
    /// `<function=…>{…}</function>`: Llama 3.x.
    Llama,
}

/// Syntax of a tool call: `open`, the tool's name, `middle`, the arguments, `close`. Several calls are joined by
/// `between`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolCallSyntax {
    /// Text before the name.
    pub open: &'static str,
    /// Text between the name and the arguments.
    pub middle: &'static str,
    /// Format of the arguments.
    pub arguments: ArgumentFormat,
    /// Text after the arguments.
    pub close: &'static str,
    /// Text between two calls.
    pub between: &'static str,
}

/// Format of the arguments of a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentFormat {
    /// One JSON object that follows the tool's schema.
    Json,
    /// One by one: `open`, the key, `middle`, the value, `close`. A value whose schema allows a string is free text
    /// that does not contain `close`; any other value is JSON that follows its schema.
    PerArgument {
        /// Text before the key.
        open: &'static str,
        /// Text between the key and the value.
        middle: &'static str,
        /// Text after the value.
        close: &'static str,
    },
}

impl ToolCallFormat {
    /// Detects the format from the chat template; if the template has none, from the special tokens of the vocabulary;
    /// else returns the default.
    pub fn detect(template: &str, tokenizer: &Tokenizer) -> Self {
        if template.contains(FUNCTION) && template.contains(PARAMETER) {
            Self::QwenXml
        } else if template.contains(TOOL_CALL) {
            Self::Hermes
        } else if template.contains(PYTHON_TAG) || tokenizer.id(PYTHON_TAG).is_some() {
            Self::Llama
        } else {
            Self::Hermes
        }
    }

    /// The syntax of this format, as the chat templates of the model family write it.
    pub fn syntax(self) -> ToolCallSyntax {
        match self {
            Self::Hermes => ToolCallSyntax {
                open: "<tool_call>\n{\"name\": \"",
                middle: "\", \"arguments\": ",
                arguments: ArgumentFormat::Json,
                close: "}\n</tool_call>",
                between: "\n",
            },
            Self::QwenXml => ToolCallSyntax {
                open: "<tool_call>\n<function=",
                middle: ">\n",
                arguments: ArgumentFormat::PerArgument {
                    open: "<parameter=",
                    middle: ">\n",
                    close: "\n</parameter>\n",
                },
                close: "</function>\n</tool_call>",
                between: "\n",
            },
            Self::Llama => ToolCallSyntax {
                open: "{\"name\": \"",
                middle: "\", \"parameters\": ",
                arguments: ArgumentFormat::Json,
                close: "}",
                between: "; ",
            },
        }
    }

    /// Tags that may start a tool call within content.
    pub(crate) fn start_tags(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &[TOOL_CALL],
            // These models often omit the outer tag.
            Self::QwenXml => &[TOOL_CALL, FUNCTION],
            Self::Llama => &[PYTHON_TAG, FUNCTION],
        }
    }
}

/// Reasoning format of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ReasoningFormat {
    /// No reasoning: text that looks like it is content.
    None,
    /// `<think>…</think>` at the start of the reply, opened by the model or by the template. The default.
    #[default]
    Think,
    /// The reply starts inside the block without `<think>`; `</think>` ends it.
    Unopened,
}

impl ReasoningFormat {
    /// Detects the format from the chat template: one that strips `</think>` from earlier replies and never mentions
    /// `<think>` belongs to a model that omits the opening tag.
    pub fn detect(template: &str) -> Self {
        if template.contains(THINK_END) && !template.contains(THINK) {
            Self::Unopened
        } else {
            Self::Think
        }
    }

    /// Whether a reply to this rendered prompt starts inside a reasoning block.
    pub fn starts_in_reasoning(self, prompt: &str) -> bool {
        match self {
            Self::None => false,
            Self::Think => opens_reasoning(prompt),
            // A prompt that closes the block disables reasoning.
            Self::Unopened => !prompt.trim_end().ends_with(THINK_END),
        }
    }
}

/// Whether a rendered prompt ends inside a reasoning block, which the reply continues.
pub fn opens_reasoning(prompt: &str) -> bool {
    prompt.trim_end().ends_with(THINK)
}

/// Options of a [`ReplyParser`](crate::ReplyParser).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyParserOptions {
    /// The prompt ends inside a reasoning block, so the reply starts there. Default false; see [`opens_reasoning`].
    pub in_reasoning: bool,
    /// Split `<think>` blocks from the content; otherwise they are content. Default true.
    pub reasoning: bool,
    /// Parse tool calls; otherwise they are content. Default true.
    pub tools: bool,
    /// Tool-call format. Default [`ToolCallFormat::Hermes`].
    pub calls: ToolCallFormat,
    /// The reply must be tool calls, so that a call without a tag is definite before it ends. Default false.
    pub must_call: bool,
}

impl Default for ReplyParserOptions {
    fn default() -> Self {
        Self {
            in_reasoning: false,
            reasoning: true,
            tools: true,
            calls: ToolCallFormat::default(),
            must_call: false,
        }
    }
}

/// Format of everything in a reply that is not content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ReplyFormat {
    /// Tool-call format.
    pub calls: ToolCallFormat,
    /// Reasoning format.
    pub reasoning: ReasoningFormat,
}

impl ReplyFormat {
    /// Detects the formats from a checkpoint's chat template and vocabulary.
    pub fn detect(template: &str, tokenizer: &Tokenizer) -> Self {
        Self {
            calls: ToolCallFormat::detect(template, tokenizer),
            reasoning: ReasoningFormat::detect(template),
        }
    }

    /// Parser options for the reply to a rendered prompt. Without tools in the prompt, text that looks like a tool call
    /// is content.
    pub fn parser_options(self, prompt: &str, tools: bool) -> ReplyParserOptions {
        ReplyParserOptions {
            in_reasoning: self.reasoning.starts_in_reasoning(prompt),
            reasoning: self.reasoning != ReasoningFormat::None,
            tools,
            calls: self.calls,
            must_call: false,
        }
    }
}

#[cfg(test)]
#[path = "reply_format_tests.rs"]
mod tests;
