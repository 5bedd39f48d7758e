//! Streaming parser of replies: splits text into reasoning, content and tool calls while it is generated.
//!
//! It takes final text and yields deltas that are never retracted. So a possible start of a tag is held until it is
//! known to be one or not, and a tool call is held until it is definite: it names an offered tool and its arguments
//! have begun. From then on its arguments are streamed, always as a prefix of a valid JSON object. A call that ends
//! incomplete after that point (malformed JSON, or the length limit) keeps the streamed part and is reported; a call
//! that turns out malformed before stays text and is reported. Tags inside fenced code blocks and inside reasoning are
//! not tool calls. The parser does not see tokens.

use std::sync::Arc;

use super::code_fences::CodeFences;
use super::reply_format::{PYTHON_TAG, ReplyParserOptions, THINK, THINK_END, ToolCallFormat};
use super::stop_strings::partial_match_len;
use super::tool_call_parser::{CallDelta, Opening, ParseResult, ToolCallParser};
use super::tool_schemas::ToolSchemas;
use crate::FunctionCall;

/// A final piece of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyDelta {
    /// Content text.
    Content(String),
    /// Reasoning text, without its tags.
    Reasoning(String),
    /// Start of a tool call.
    ToolCallStart {
        /// Index of the call in this reply, from 0.
        index: usize,
        /// Name of the tool.
        name: String,
    },
    /// JSON text of the arguments of a started call. The concatenation over a call is an object, or a prefix of one if
    /// a [`ReplyDelta::IncompleteCall`] follows.
    ToolCallArguments {
        /// Index of the call in this reply.
        index: usize,
        /// Text that continues the JSON object.
        json: String,
    },
    /// The started call is incomplete: its arguments end early, or later text contradicts them.
    IncompleteCall {
        /// Index of the call in this reply.
        index: usize,
        /// Why it is incomplete.
        reason: String,
    },
    /// Text that looks like a call but is malformed. It belongs to the content, tags included.
    MalformedCall {
        /// The generated text.
        text: String,
        /// Why it is not a call.
        reason: String,
    },
}

/// A parsed reply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParsedReply {
    /// Content, including malformed calls.
    pub content: String,
    /// Reasoning; `None` if there was no block or it was empty.
    pub reasoning: Option<String>,
    /// Tool calls in order. They are well-formed, except that the arguments of an incomplete call may be a prefix of an
    /// object.
    pub tool_calls: Vec<FunctionCall>,
    /// Indices of the incomplete calls, ascending.
    pub incomplete: Vec<usize>,
    /// Reasons of the malformed and incomplete calls.
    pub malformed: Vec<String>,
}

impl ParsedReply {
    /// Whether at least one call is complete.
    pub fn has_complete_calls(&self) -> bool {
        self.tool_calls.len() > self.incomplete.len()
    }

    /// Applies a delta.
    pub fn apply(&mut self, delta: &ReplyDelta) {
        match delta {
            ReplyDelta::Content(text) => self.content.push_str(text),
            ReplyDelta::Reasoning(text) => {
                self.reasoning.get_or_insert_default().push_str(text);
            }
            ReplyDelta::ToolCallStart { name, .. } => {
                self.tool_calls.push(FunctionCall {
                    name: name.clone(),
                    arguments: String::new(),
                });
            }
            ReplyDelta::ToolCallArguments { json, .. } => {
                if let Some(call) = self.tool_calls.last_mut() {
                    call.arguments.push_str(json);
                }
            }
            ReplyDelta::IncompleteCall { index, reason } => {
                self.incomplete.push(*index);
                self.malformed.push(reason.clone());
            }
            ReplyDelta::MalformedCall { text, reason } => {
                self.content.push_str(text);
                self.malformed.push(reason.clone());
            }
        }
    }
}

/// Parses a complete reply. `tools` are the tools offered in the prompt.
pub fn parse_reply(
    text: &str,
    options: ReplyParserOptions,
    tools: &Arc<ToolSchemas>,
) -> ParsedReply {
    let mut parser = ReplyParser::new(options, Arc::clone(tools));
    let mut parsed = ParsedReply::default();
    for delta in parser.push(text).iter().chain(&parser.finish()) {
        parsed.apply(delta);
    }
    parsed
}

#[derive(Debug, Clone)]
enum ParserState {
    /// Only whitespace so far: a reasoning block may start.
    Start,
    /// In a reasoning block; `at_start` before its first character.
    Reasoning { at_start: bool },
    /// In the content; `at_start` after a block, where line breaks belong to the format.
    Content { at_start: bool },
    /// After a possible start of a tool call.
    Call(Box<ToolCallParser>),
}

/// Parses one reply incrementally.
#[derive(Debug, Clone)]
pub struct ReplyParser {
    options: ReplyParserOptions,
    tools: Arc<ToolSchemas>,
    state: ParserState,
    held: String,
    /// Whitespace before a possible call: part of the format if it is a call, else text.
    whitespace: String,
    fences: CodeFences,
    /// A JSON object at this point may be a call without tags: there is no content yet, except such calls.
    may_be_bare_call: bool,
    /// Number of started calls.
    started_calls: usize,
    /// Number of ended calls, complete or not.
    ended_calls: usize,
    /// Generated text of the calls.
    #[cfg(test)]
    call_texts: Vec<String>,
}

impl ReplyParser {
    /// Creates a parser for a reply to a prompt that offered `tools`.
    pub fn new(options: ReplyParserOptions, tools: Arc<ToolSchemas>) -> Self {
        let state = match options {
            ReplyParserOptions {
                in_reasoning: true,
                reasoning: true,
                ..
            } => ParserState::Reasoning { at_start: true },
            ReplyParserOptions {
                reasoning: true, ..
            } => ParserState::Start,
            _ => ParserState::Content { at_start: false },
        };
        Self {
            options,
            tools,
            state,
            held: String::new(),
            whitespace: String::new(),
            fences: CodeFences::default(),
            may_be_bare_call: options.tools && options.calls == ToolCallFormat::Llama,
            started_calls: 0,
            ended_calls: 0,
            #[cfg(test)]
            call_texts: Vec::new(),
        }
    }

    /// Whether a tool call of the reply has ended.
    pub fn has_calls(&self) -> bool {
        self.ended_calls > 0
    }

    /// Adds text and returns the deltas that became final.
    pub fn push(&mut self, text: &str) -> Vec<ReplyDelta> {
        self.held.push_str(text);
        let mut deltas = Vec::new();
        while self.step(&mut deltas) {}
        deltas
    }

    /// Returns the remaining deltas at the end of the reply.
    pub fn finish(&mut self) -> Vec<ReplyDelta> {
        let mut deltas = Vec::new();
        while let ParserState::Call(_) = self.state {
            self.parse_call(true, &mut deltas);
            while self.step(&mut deltas) {}
        }
        let held = std::mem::take(&mut self.held);
        match self.state {
            ParserState::Reasoning { at_start } => {
                let text = held.trim_end_matches('\n');
                push_reasoning(
                    if at_start {
                        text.trim_start_matches('\n')
                    } else {
                        text
                    },
                    &mut deltas,
                );
            }
            // Line breaks between a block and the end of the reply are format, not content; so is a separator after a
            // call.
            ParserState::Content { at_start: true }
                if held
                    .trim_matches(|c: char| c.is_whitespace() || self.is_call_separator(c))
                    .is_empty() => {}
            _ => self.push_content(held, &mut deltas),
        }
        self.state = ParserState::Content { at_start: false };
        deltas
    }

    /// Advances the parser. Returns false if more text is needed.
    fn step(&mut self, deltas: &mut Vec<ReplyDelta>) -> bool {
        match self.state {
            ParserState::Start => self.parse_start(),
            ParserState::Reasoning { at_start } => self.parse_reasoning(at_start, deltas),
            ParserState::Content { .. } if self.may_be_bare_call => self.parse_bare_object(),
            ParserState::Content { at_start } => self.parse_content(at_start, deltas),
            ParserState::Call(_) => self.parse_call(false, deltas),
        }
    }

    fn parse_start(&mut self) -> bool {
        let text = self.held.trim_start();
        if let Some(rest) = text.strip_prefix(THINK) {
            self.held = rest.to_owned();
            self.state = ParserState::Reasoning { at_start: true };
            return true;
        }
        if THINK.starts_with(text) {
            return false;
        }
        self.state = ParserState::Content { at_start: false };
        true
    }

    fn parse_reasoning(&mut self, at_start: bool, deltas: &mut Vec<ReplyDelta>) -> bool {
        if at_start {
            // Some models repeat the tag that the template already wrote, possibly several times. Removed tags leave no
            // trace, so the result does not depend on how the text is split.
            while self.options.in_reasoning {
                let text = self.held.trim_start();
                if THINK.starts_with(text) && text.len() < THINK.len() {
                    return false;
                }
                let Some(rest) = text.strip_prefix(THINK) else {
                    break;
                };
                self.held = rest.to_owned();
            }
            let kept = self.held.trim_start_matches('\n').len();
            self.held.drain(..self.held.len() - kept);
            if self.held.is_empty() {
                return false;
            }
            self.state = ParserState::Reasoning { at_start: false };
        }
        if let Some((thought, rest)) = self.held.split_once(THINK_END) {
            push_reasoning(thought.trim_end_matches('\n'), deltas);
            self.held = rest.to_owned();
            self.state = ParserState::Content { at_start: true };
            return true;
        }
        let tag = partial_match_len(&self.held, THINK_END);
        let before = &self.held[..self.held.len() - tag];
        let kept = before.trim_end_matches('\n').len();
        let rest = self.held.split_off(kept);
        push_reasoning(&std::mem::replace(&mut self.held, rest), deltas);
        false
    }

    /// Parses at the start of the content or after a call without tags, where a JSON object may be a call.
    fn parse_bare_object(&mut self) -> bool {
        let text = self
            .held
            .trim_start_matches(|c: char| c.is_whitespace() || self.is_call_separator(c));
        let object = text.starts_with('{');
        if text.is_empty() {
            return false;
        }
        self.may_be_bare_call = false;
        if object {
            let at = self.held.len() - text.len();
            let rest = self.held.split_off(at);
            self.whitespace = std::mem::replace(&mut self.held, rest);
            let parser = ToolCallParser::new(Opening::Brace, self.options.must_call);
            self.state = ParserState::Call(Box::new(parser));
        }
        true
    }

    /// Whether a character separates two calls of this format.
    fn is_call_separator(&self, character: char) -> bool {
        character == ';' && self.started_calls > 0 && self.options.calls == ToolCallFormat::Llama
    }

    fn parse_content(&mut self, at_start: bool, deltas: &mut Vec<ReplyDelta>) -> bool {
        let start_tags = self.start_tags();
        if at_start {
            let text = self.held.trim_start();
            if text.is_empty()
                || start_tags
                    .iter()
                    .any(|tag| text.len() < tag.len() && tag.starts_with(text))
            {
                return false;
            }
            if !start_tags.iter().any(|tag| text.starts_with(tag)) {
                let whitespace = self.held.len() - text.len();
                self.drop_line_breaks(whitespace);
            }
            self.state = ParserState::Content { at_start: false };
        }
        if let Some((at, tag)) = self.find_start_tag(start_tags) {
            let rest = self.held.split_off(at + tag.len());
            let mut before = std::mem::replace(&mut self.held, rest);
            before.truncate(at);
            if !self.options.tools {
                self.push_content(before, deltas);
                return true;
            }
            let whitespace = before.split_off(before.trim_end().len());
            self.push_content(before, deltas);
            self.fences.push(&whitespace);
            self.whitespace = whitespace;
            let outer = self.options.calls == ToolCallFormat::QwenXml;
            let opening = Opening::from_tag(tag, outer);
            let parser = ToolCallParser::new(opening, self.options.must_call);
            self.state = ParserState::Call(Box::new(parser));
            return true;
        }
        let tag = start_tags
            .iter()
            .map(|tag| partial_match_len(&self.held, tag))
            .max();
        let before = self.held.len() - tag.unwrap_or_default();
        let kept = if self.options.tools {
            self.held[..before].trim_end().len()
        } else {
            before
        };
        let rest = self.held.split_off(kept);
        let content = std::mem::replace(&mut self.held, rest);
        self.push_content(content, deltas);
        false
    }

    /// Tags that end the content: tool-call tags, or special tokens that are not text even if calls are not parsed.
    fn start_tags(&self) -> &'static [&'static str] {
        match (self.options.tools, self.options.calls) {
            (true, format) => format.start_tags(),
            (false, ToolCallFormat::Llama) => &[PYTHON_TAG],
            (false, _) => &[],
        }
    }

    /// The first tag outside fenced code blocks, and its position.
    fn find_start_tag(&self, start_tags: &[&'static str]) -> Option<(usize, &'static str)> {
        let mut from = 0;
        loop {
            let rest = &self.held[from..];
            let found = start_tags
                .iter()
                .filter_map(|tag| Some((rest.find(tag)? + from, *tag)));
            let (at, tag) = found.min()?;
            let fenced = self.fences.inside_after(&self.held[..at]);
            if !fenced || tag == PYTHON_TAG {
                return Some((at, tag));
            }
            from = at + tag.len();
        }
    }

    /// Continues parsing a call; `ended` at the end of the reply.
    fn parse_call(&mut self, ended: bool, deltas: &mut Vec<ReplyDelta>) -> bool {
        let ParserState::Call(parser) = &mut self.state else {
            return false;
        };
        let opening = parser.opening;
        let result = parser.parse(&self.held, ended, &self.tools);
        for delta in std::mem::take(&mut parser.deltas) {
            match delta {
                CallDelta::Name(name) => {
                    deltas.push(ReplyDelta::ToolCallStart {
                        index: self.started_calls,
                        name,
                    });
                    self.started_calls += 1;
                }
                // Arguments follow a name, so a call has started.
                CallDelta::Arguments(json) => deltas.push(ReplyDelta::ToolCallArguments {
                    index: self.started_calls - 1,
                    json,
                }),
            }
        }
        match result {
            ParseResult::More => return false,
            ParseResult::Call { call, used } => {
                #[cfg(test)]
                self.record_call_text(opening, used);
                self.consume_call(used);
                if let Some(call) = call {
                    self.push_call(call, deltas);
                }
                self.may_be_bare_call = self.options.calls == ToolCallFormat::Llama;
                self.state = ParserState::Content { at_start: true };
            }
            ParseResult::Incomplete { used, reason } => {
                #[cfg(test)]
                self.record_call_text(opening, used);
                self.consume_call(used);
                let index = self.started_calls - 1;
                deltas.push(ReplyDelta::IncompleteCall { index, reason });
                self.state = ParserState::Content { at_start: false };
            }
            ParseResult::Text { used, reason } => {
                let mut text = std::mem::take(&mut self.whitespace);
                let rest = self.held.split_off(used);
                text.push_str(opening.text());
                text.push_str(&std::mem::replace(&mut self.held, rest));
                match reason {
                    None => self.push_content(text, deltas),
                    Some(reason) => {
                        self.fences.push(&text);
                        deltas.push(ReplyDelta::MalformedCall { text, reason });
                    }
                }
                self.state = ParserState::Content { at_start: false };
            }
        }
        true
    }

    /// Removes the text of an ended call.
    fn consume_call(&mut self, used: usize) {
        let rest = self.held.split_off(used);
        let written = std::mem::replace(&mut self.held, rest);
        self.fences.push(&written);
        self.whitespace.clear();
        self.ended_calls += 1;
    }

    /// Records the text of an ended call.
    #[cfg(test)]
    fn record_call_text(&mut self, opening: Opening, used: usize) {
        let text = &self.held[..used];
        self.call_texts.push(format!("{}{text}", opening.text()));
    }

    fn push_call(&mut self, call: FunctionCall, deltas: &mut Vec<ReplyDelta>) {
        let index = self.started_calls;
        self.started_calls += 1;
        deltas.push(ReplyDelta::ToolCallStart {
            index,
            name: call.name,
        });
        deltas.push(ReplyDelta::ToolCallArguments {
            index,
            json: call.arguments,
        });
    }

    fn push_content(&mut self, text: String, deltas: &mut Vec<ReplyDelta>) {
        self.fences.push(&text);
        if !text.is_empty() {
            deltas.push(ReplyDelta::Content(text));
        }
    }

    /// Removes leading line breaks within the first `limit` bytes.
    fn drop_line_breaks(&mut self, limit: usize) {
        let head = &self.held[..limit];
        let dropped = head.len() - head.trim_start_matches(['\n', '\r']).len();
        self.held.drain(..dropped);
    }
}

fn push_reasoning(text: &str, deltas: &mut Vec<ReplyDelta>) {
    if !text.is_empty() {
        deltas.push(ReplyDelta::Reasoning(text.to_owned()));
    }
}

#[cfg(test)]
#[path = "reply_parser_tests.rs"]
mod tests;
