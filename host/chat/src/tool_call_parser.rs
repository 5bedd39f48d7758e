//! Streaming parser of one tool call, from the text after its start tag.
//!
//! It detects malformed calls as early as the text allows, so that one malformed call does not affect the next, and
//! never earlier, so that the result does not depend on how the text is split. Whitespace between the parts of a call
//! is ignored.
//!
//! A call is emitted before it is complete, see [`streaming`]. An emitted call cannot become text again: if it turns
//! out malformed, the emitted part stands and the rest is text.

mod function_format;
mod object_format;
mod streaming;

use super::json_scanner::JsonScanner;
use super::reply_format::{FUNCTION, FUNCTION_END, PYTHON_TAG, TOOL_CALL, TOOL_CALL_END};
use super::tool_schemas::ToolSchemas;
use crate::FunctionCall;

const REPLY_ENDED: &str = "the reply ended inside the call";

/// What a call starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    /// `<tool_call>`.
    Tag,
    /// `<function=`. With `outer`, the `<tool_call>` before it is missing, but its end tag may follow.
    Function { outer: bool },
    /// `<|python_tag|>`.
    Python,
    /// The brace of a bare JSON object. It is a call only if it names an offered tool: a reply in JSON is not a call.
    Brace,
}

impl Opening {
    /// The opening of a start tag.
    pub(crate) fn from_tag(tag: &str, outer: bool) -> Self {
        match tag {
            FUNCTION => Self::Function { outer },
            PYTHON_TAG => Self::Python,
            _ => Self::Tag,
        }
    }

    /// The text of the opening.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Tag => TOOL_CALL,
            Self::Function { .. } => FUNCTION,
            // A special token is not text, and the brace is parsed with its object.
            Self::Python | Self::Brace => "",
        }
    }
}

/// Result of parsing the text after the opening.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ParseResult {
    /// Undecided: more text is needed.
    More,
    /// The first `used` bytes are a call.
    Call {
        /// The call; `None` if its deltas were emitted already.
        call: Option<FunctionCall>,
        /// Bytes of the call.
        used: usize,
    },
    /// An emitted call is incomplete: its arguments end early or continue with invalid text.
    Incomplete {
        /// Bytes of the call; the rest is text.
        used: usize,
        /// Why it is incomplete.
        reason: String,
    },
    /// Not a call: the first `used` bytes are text.
    Text {
        /// Bytes after which parsing can restart.
        used: usize,
        /// Why the call is malformed; `None` if the text is not a call at all.
        reason: Option<String>,
    },
}

/// A delta of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallDelta {
    /// Start of the call, with the name of its tool.
    Name(String),
    /// JSON text that continues its arguments.
    Arguments(String),
}

/// How much of a call's arguments is emitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Emitted {
    /// Nothing: the call is not started.
    None,
    /// A part.
    Partial,
    /// All of them.
    All,
}

#[derive(Debug, Clone)]
enum Stage {
    /// Before the body.
    Begin,
    /// In an object that starts at `start`: the whole call, or the arguments of the named function.
    Object { start: usize, object: JsonScanner },
    /// After complete arguments, where the object around them is invalid.
    Unclosed,
    /// After `<function=`.
    Name,
    /// In the function: the next parameter, the end, or an object.
    Function,
    /// After `<parameter=`.
    Key,
    /// In a value that starts at `start` and does not end before `searched`. `streaming` once the start of its text is
    /// emitted.
    Value {
        key: String,
        start: usize,
        searched: usize,
        streaming: bool,
    },
    /// After the call; `None` if its deltas were emitted already.
    Tail(Option<FunctionCall>),
}

/// Parser state of one call.
#[derive(Debug, Clone)]
pub(crate) struct ToolCallParser {
    pub(crate) opening: Opening,
    stage: Stage,
    position: usize,
    name: String,
    /// No `</function>` is missing.
    closed: bool,
    /// Keys and JSON values, in order.
    values: Vec<(String, String)>,
    /// The reply must be tool calls.
    must_call: bool,
    /// The tool named by the object that is being parsed.
    tool_name: Option<String>,
    emitted: Emitted,
    /// Bytes of the text that the emitted deltas cover.
    emitted_to: usize,
    /// Deltas to emit.
    pub(crate) deltas: Vec<CallDelta>,
}

/// Result of one stage.
enum Step {
    Continue,
    Done(ParseResult),
}

impl ToolCallParser {
    /// Creates a parser after `opening`. With `must_call` the reply must be tool calls, so even an object without a tag
    /// is definitely one.
    pub(crate) fn new(opening: Opening, must_call: bool) -> Self {
        let stage = match opening {
            Opening::Function { .. } => Stage::Name,
            Opening::Tag | Opening::Python | Opening::Brace => Stage::Begin,
        };
        Self {
            opening,
            stage,
            position: 0,
            name: String::new(),
            closed: true,
            values: Vec::new(),
            must_call,
            tool_name: None,
            emitted: Emitted::None,
            emitted_to: 0,
            deltas: Vec::new(),
        }
    }

    /// Continues parsing `text`, which starts after the opening and may have grown since the last call. With `ended`,
    /// the text is complete and the result is never [`ParseResult::More`].
    pub(crate) fn parse(&mut self, text: &str, ended: bool, tools: &ToolSchemas) -> ParseResult {
        loop {
            let step = match &self.stage {
                Stage::Begin => self.parse_body_start(text),
                Stage::Object { .. } => self.parse_object(text, tools),
                Stage::Name => self.parse_function_name(text, tools),
                Stage::Unclosed => self.parse_unclosed(text, ended),
                Stage::Function => self.parse_function(text, tools),
                Stage::Key => self.parse_parameter_name(text),
                Stage::Value { .. } => self.parse_value(text, tools),
                Stage::Tail(_) => self.parse_tail(text, ended),
            };
            match step {
                Step::Continue => {}
                Step::Done(ParseResult::More) if ended => {
                    let (used, reason) = (text.len(), REPLY_ENDED.to_owned());
                    return match self.emitted {
                        Emitted::None => ParseResult::Text {
                            used,
                            reason: Some(reason),
                        },
                        Emitted::Partial => ParseResult::Incomplete { used, reason },
                        // Only the closing text of the format is missing.
                        Emitted::All => ParseResult::Call { call: None, used },
                    };
                }
                Step::Done(result) => return result,
            }
        }
    }

    fn parse_body_start(&mut self, text: &str) -> Step {
        let rest = self.skip_whitespace(text);
        if rest.starts_with('{') {
            self.stage = Stage::Object {
                start: self.position,
                object: JsonScanner::new(self.position),
            };
            return Step::Continue;
        }
        if self.opening == Opening::Tag {
            if rest.starts_with(FUNCTION) {
                self.position += FUNCTION.len();
                self.stage = Stage::Name;
                return Step::Continue;
            }
            if FUNCTION.starts_with(rest) {
                return Step::Done(ParseResult::More);
            }
        }
        if rest.is_empty() {
            return Step::Done(ParseResult::More);
        }
        match self.opening {
            Opening::Python => malformed(self.position, "no JSON object follows the tag"),
            _ => malformed(
                self.position,
                "neither a JSON object nor a function follows the tag",
            ),
        }
    }

    fn parse_tail(&mut self, text: &str, ended: bool) -> Step {
        let tail = &text[self.position..];
        let rest = tail.trim_start();
        let skipped = tail.len() - rest.len();
        let (end, optional, starts): (&str, bool, &[&str]) = match self.opening {
            _ if !self.closed => (FUNCTION_END, false, &[]),
            Opening::Tag => (TOOL_CALL_END, false, &[TOOL_CALL]),
            Opening::Function { outer: true } => (TOOL_CALL_END, true, &[]),
            Opening::Brace => ("", false, &[";", "{", PYTHON_TAG]),
            Opening::Function { outer: false } | Opening::Python => {
                return self.finish_call(self.position);
            }
        };
        if !end.is_empty() && rest.starts_with(end) {
            let used = self.position + skipped + end.len();
            if !self.closed {
                self.position = used;
                self.closed = true;
                return Step::Continue;
            }
            return self.finish_call(used);
        }
        if starts.iter().any(|start| rest.starts_with(start)) {
            return self.finish_call(self.position);
        }
        if !ended && (end.starts_with(rest) || starts.iter().any(|start| start.starts_with(rest))) {
            return Step::Done(ParseResult::More);
        }
        // A missing or truncated closing tag is accepted: the call is complete.
        if end.starts_with(rest) {
            return self.finish_call(if rest.is_empty() {
                self.position
            } else {
                text.len()
            });
        }
        if optional {
            return self.finish_call(self.position);
        }
        match self.opening {
            // The call is already emitted, whatever follows.
            Opening::Brace if self.emitted != Emitted::None => self.finish_call(self.position),
            Opening::Brace => not_a_call(self.position),
            _ => {
                self.emitted_to = self.position;
                self.fail(self.position, "text follows the call before its end")
            }
        }
    }

    fn finish_call(&mut self, used: usize) -> Step {
        let Stage::Tail(call) = std::mem::replace(&mut self.stage, Stage::Begin) else {
            unreachable!("only a call in its tail finishes")
        };
        Step::Done(ParseResult::Call { call, used })
    }

    /// Reports a malformed call in the first `used` bytes; or an incomplete call that ends after the emitted text.
    fn fail(&self, used: usize, reason: &str) -> Step {
        match self.emitted {
            Emitted::None => malformed(used, reason),
            _ => Step::Done(ParseResult::Incomplete {
                used: self.emitted_to,
                reason: reason.to_owned(),
            }),
        }
    }

    /// Skips whitespace and returns the rest.
    fn skip_whitespace<'t>(&mut self, text: &'t str) -> &'t str {
        let rest = text[self.position..].trim_start();
        self.position = text.len() - rest.len();
        rest
    }
}

fn malformed(used: usize, reason: &str) -> Step {
    Step::Done(ParseResult::Text {
        used,
        reason: Some(reason.to_owned()),
    })
}

fn not_a_call(used: usize) -> Step {
    Step::Done(ParseResult::Text { used, reason: None })
}
