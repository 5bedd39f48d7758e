//! The forms in which models write reasoning and tool calls, and which of them a model was taught.
//!
//! A chat template shows the model how a call is written, so the template says which form to read.
//! What a form consists of is public: whoever constrains a reply to be a call writes the same text
//! that is read back here.

use super::reply::{ReplyStyle, opens_reasoning};
use super::tokenizer::Tokenizer;

pub(super) const THINK: &str = "<think>";
pub(super) const THINK_END: &str = "</think>";
pub(super) const CALL: &str = "<tool_call>";
pub(super) const CALL_END: &str = "</tool_call>";
pub(super) const FUNCTION: &str = "<function=";
pub(super) const FUNCTION_END: &str = "</function>";
pub(super) const PARAMETER: &str = "<parameter=";
pub(super) const PARAMETER_END: &str = "</parameter>";
pub(super) const PYTHON: &str = "<|python_tag|>";

/// Special tokens that are part of a form: their text reaches the reader of a reply, who takes it out.
pub(crate) fn is_structural(special: &str) -> bool {
    matches!(special, THINK | THINK_END | CALL | CALL_END | PYTHON)
}

/// How a model writes a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CallForm {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen2.5, Qwen3. The default.
    #[default]
    Hermes,
    /// `<tool_call><function=…><parameter=…>…</parameter></function></tool_call>`: Qwen3-Coder and Qwen3.5.
    QwenXml,
    /// `{"name": …, "parameters": {…}}` alone or behind `<|python_tag|>`, several separated by `;`, and
    /// `<function=…>{…}</function>`: Llama 3.x.
    Llama,
}

/// What a call consists of: `open`, the tool's name, `middle`, the arguments, `close`. Several calls are
/// joined by `between`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallParts {
    /// Text up to the name.
    pub open: &'static str,
    /// Text from the name to the arguments.
    pub middle: &'static str,
    /// How the arguments are written.
    pub arguments: ArgumentForm,
    /// Text behind the arguments.
    pub close: &'static str,
    /// Text from one call to the next.
    pub between: &'static str,
}

/// How the arguments of a call are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentForm {
    /// One JSON object that follows the tool's schema.
    Json,
    /// Each by itself: `open`, the key, `middle`, the value, `close`. A value whose schema allows a string is
    /// free text that does not contain `close`; any other is JSON that follows its schema.
    Each {
        /// Text up to the key.
        open: &'static str,
        /// Text from the key to the value.
        middle: &'static str,
        /// Text behind the value.
        close: &'static str,
    },
}

impl CallForm {
    /// The form that a chat template teaches; where it teaches none, the one of the family whose special tokens
    /// the vocabulary has; else the default.
    pub fn of(template: &str, tokenizer: &Tokenizer) -> Self {
        if template.contains(FUNCTION) && template.contains(PARAMETER) {
            Self::QwenXml
        } else if template.contains(CALL) {
            Self::Hermes
        } else if template.contains(PYTHON) || tokenizer.id(PYTHON).is_some() {
            Self::Llama
        } else {
            Self::Hermes
        }
    }

    /// What a call in this form consists of, as the templates of the family write it.
    pub fn parts(self) -> CallParts {
        match self {
            Self::Hermes => CallParts {
                open: "<tool_call>\n{\"name\": \"",
                middle: "\", \"arguments\": ",
                arguments: ArgumentForm::Json,
                close: "}\n</tool_call>",
                between: "\n",
            },
            Self::QwenXml => CallParts {
                open: "<tool_call>\n<function=",
                middle: ">\n",
                arguments: ArgumentForm::Each {
                    open: "<parameter=",
                    middle: ">\n",
                    close: "\n</parameter>\n",
                },
                close: "</function>\n</tool_call>",
                between: "\n",
            },
            Self::Llama => CallParts {
                open: "{\"name\": \"",
                middle: "\", \"parameters\": ",
                arguments: ArgumentForm::Json,
                close: "}",
                between: "; ",
            },
        }
    }

    /// Tags that may begin a call in the middle of content.
    pub(super) fn openings(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &[CALL],
            // The outer tag is what these models forget most.
            Self::QwenXml => &[CALL, FUNCTION],
            Self::Llama => &[PYTHON, FUNCTION],
        }
    }
}

/// How a model writes reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ReasoningForm {
    /// It writes none, and what looks like it is content.
    None,
    /// `<think>…</think>` at the beginning of the reply, opened by the model or by the template. The default.
    #[default]
    Think,
    /// The reply begins in the block although nobody wrote `<think>`; `</think>` ends it.
    Unopened,
}

impl ReasoningForm {
    /// The form that a chat template teaches: one that takes `</think>` out of older replies and never
    /// mentions `<think>` belongs to a model that leaves the opening out.
    pub fn of(template: &str) -> Self {
        if template.contains(THINK_END) && !template.contains(THINK) {
            Self::Unopened
        } else {
            Self::Think
        }
    }

    /// Whether a reply to this rendered prompt begins inside a reasoning block.
    pub fn begins_in(self, prompt: &str) -> bool {
        match self {
            Self::None => false,
            Self::Think => opens_reasoning(prompt),
            // A prompt that closed the block has switched reasoning off.
            Self::Unopened => !prompt.trim_end().ends_with(THINK_END),
        }
    }
}

/// How a model writes what is not content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ReplyForm {
    /// Tool calls.
    pub calls: CallForm,
    /// Reasoning.
    pub reasoning: ReasoningForm,
}

impl ReplyForm {
    /// The form that a checkpoint's template and vocabulary ask for.
    pub fn of(template: &str, tokenizer: &Tokenizer) -> Self {
        Self {
            calls: CallForm::of(template, tokenizer),
            reasoning: ReasoningForm::of(template),
        }
    }

    /// What to look for in the reply to a rendered prompt. Without tools in the prompt, what looks like a call is
    /// something that the model talks about.
    pub fn style(self, prompt: &str, tools: bool) -> ReplyStyle {
        ReplyStyle {
            in_reasoning: self.reasoning.begins_in(prompt),
            reasoning: self.reasoning != ReasoningForm::None,
            tools,
            calls: self.calls,
            must_call: false,
        }
    }
}

#[cfg(test)]
#[path = "form_tests.rs"]
mod tests;
