//! What a reply consists of, while it is being written: reasoning, content, tool calls.
//!
//! Fed with final text, it yields pieces that are never taken back. So the beginning of a tag is
//! held until it is one or is not, and a tool call is held until its JSON is whole: a call that turns
//! out malformed stays text, marked, and is never half a call. The tokens are not its business.

use super::tool_call::{NoCall, ToolCall};

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";
const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";

/// What to look for in a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyStyle {
    /// The prompt ended inside a reasoning block, so the reply begins there. Default false; see
    /// [`opens_reasoning`].
    pub in_reasoning: bool,
    /// Split `<think>` blocks from content; otherwise they are content. Default true.
    pub reasoning: bool,
    /// Read `<tool_call>` blocks; otherwise they are content. Default true.
    pub tools: bool,
}

impl Default for ReplyStyle {
    fn default() -> Self {
        Self {
            in_reasoning: false,
            reasoning: true,
            tools: true,
        }
    }
}

/// One piece of a reply, final.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyPiece {
    /// Text for the reader.
    Content(String),
    /// Text of the reasoning block, without its tags.
    Reasoning(String),
    /// A tool call begins.
    ToolCallStart {
        /// Position among the calls of this reply, from 0.
        index: usize,
        /// Name of the tool.
        name: String,
    },
    /// JSON text of the arguments of a call that has begun; all of it in one piece.
    ToolCallArguments {
        /// Position among the calls of this reply.
        index: usize,
        /// Text of a JSON object.
        json: String,
    },
    /// A call that is none. Its text, tags included, belongs to the content.
    MalformedCall {
        /// What the model wrote.
        text: String,
        /// Why it is no call.
        reason: String,
    },
}

/// A whole reply, taken apart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParsedReply {
    /// Text for the reader, malformed calls included.
    pub content: String,
    /// Text of the reasoning block; none when there was no block or it was empty.
    pub reasoning: Option<String>,
    /// Well-formed calls in order.
    pub tool_calls: Vec<ToolCall>,
    /// Reasons of the calls that stayed text.
    pub malformed: Vec<String>,
}

impl ParsedReply {
    /// Adds a piece.
    pub fn add(&mut self, piece: &ReplyPiece) {
        match piece {
            ReplyPiece::Content(text) => self.content.push_str(text),
            ReplyPiece::Reasoning(text) => {
                self.reasoning.get_or_insert_default().push_str(text);
            }
            ReplyPiece::ToolCallStart { name, .. } => {
                self.tool_calls.push(ToolCall {
                    name: name.clone(),
                    arguments: String::new(),
                });
            }
            ReplyPiece::ToolCallArguments { json, .. } => {
                if let Some(call) = self.tool_calls.last_mut() {
                    call.arguments.push_str(json);
                }
            }
            ReplyPiece::MalformedCall { text, reason } => {
                self.content.push_str(text);
                self.malformed.push(reason.clone());
            }
        }
    }
}

/// Takes a finished reply apart.
pub fn parse_reply(text: &str, style: ReplyStyle) -> ParsedReply {
    let mut parser = ReplyParser::new(style);
    let mut parsed = ParsedReply::default();
    for piece in parser.push(text).iter().chain(&parser.finish()) {
        parsed.add(piece);
    }
    parsed
}

/// Whether a rendered prompt ends inside a reasoning block that the reply continues.
pub fn opens_reasoning(prompt: &str) -> bool {
    prompt.trim_end().ends_with(THINK)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Nothing but white space so far: a reasoning block may begin.
    Start,
    /// In a reasoning block; `fresh` before its first character.
    Reasoning { fresh: bool },
    /// In the content. `fresh` after a block, where line breaks belong to the format.
    Content { fresh: bool },
    /// Behind `<tool_call>`, with the number of bytes of the body already searched for its end.
    Call { searched: usize },
}

/// Reads one reply, piece by piece.
#[derive(Debug, Clone)]
pub struct ReplyParser {
    style: ReplyStyle,
    place: Place,
    held: String,
    /// White space before a call that is being read: format if it is one, text if it is not.
    white: String,
    calls: usize,
}

impl ReplyParser {
    /// A reader at the beginning of a reply.
    pub fn new(style: ReplyStyle) -> Self {
        let place = match style {
            ReplyStyle {
                in_reasoning: true,
                reasoning: true,
                ..
            } => Place::Reasoning { fresh: true },
            ReplyStyle {
                reasoning: true, ..
            } => Place::Start,
            _ => Place::Content { fresh: false },
        };
        Self {
            style,
            place,
            held: String::new(),
            white: String::new(),
            calls: 0,
        }
    }

    /// Whether the reply has at least one well-formed tool call so far.
    pub fn has_calls(&self) -> bool {
        self.calls > 0
    }

    /// Adds text and returns what it decided.
    pub fn push(&mut self, text: &str) -> Vec<ReplyPiece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while self.step(&mut pieces) {}
        pieces
    }

    /// What is still held, once no more text comes.
    pub fn finish(&mut self) -> Vec<ReplyPiece> {
        let held = std::mem::take(&mut self.held);
        let mut pieces = Vec::new();
        match self.place {
            Place::Start => content(held, &mut pieces),
            Place::Reasoning { .. } => reasoning(held.trim_end_matches('\n'), &mut pieces),
            Place::Content { fresh } => {
                // Line breaks between a block and the end of the reply are format, not content.
                let blank = fresh && held.trim().is_empty();
                content(if blank { String::new() } else { held }, &mut pieces);
            }
            // A closing tag that was left out costs nothing when the call is whole.
            Place::Call { .. } => match ToolCall::parse(&held) {
                Ok(call) => self.well_formed(call, &mut pieces),
                Err(_) => pieces.push(ReplyPiece::MalformedCall {
                    text: format!("{}{CALL}{held}", self.white),
                    reason: "the reply ended inside the call".to_owned(),
                }),
            },
        }
        self.place = Place::Content { fresh: false };
        pieces
    }

    /// Decides as much as one place allows; false when more text is needed.
    fn step(&mut self, pieces: &mut Vec<ReplyPiece>) -> bool {
        match self.place {
            Place::Start => self.start(),
            Place::Reasoning { fresh } => self.reasoning(fresh, pieces),
            Place::Content { fresh } => self.content(fresh, pieces),
            Place::Call { searched } => self.call(searched, pieces),
        }
    }

    fn start(&mut self) -> bool {
        let text = self.held.trim_start();
        if let Some(rest) = text.strip_prefix(THINK) {
            self.held = rest.to_owned();
            self.place = Place::Reasoning { fresh: true };
            return true;
        }
        if THINK.starts_with(text) {
            return false;
        }
        self.place = Place::Content { fresh: false };
        true
    }

    fn reasoning(&mut self, fresh: bool, pieces: &mut Vec<ReplyPiece>) -> bool {
        if fresh {
            let kept = self.held.trim_start_matches('\n').len();
            self.held.drain(..self.held.len() - kept);
            if self.held.is_empty() {
                return false;
            }
            self.place = Place::Reasoning { fresh: false };
        }
        if let Some((thought, rest)) = self.held.split_once(THINK_END) {
            reasoning(thought.trim_end_matches('\n'), pieces);
            self.held = rest.to_owned();
            self.place = Place::Content { fresh: true };
            return true;
        }
        let keep = self.undecided(&[THINK_END], '\n');
        let rest = self.held.split_off(self.held.len() - keep);
        reasoning(&std::mem::replace(&mut self.held, rest), pieces);
        false
    }

    fn content(&mut self, fresh: bool, pieces: &mut Vec<ReplyPiece>) -> bool {
        if !self.style.tools {
            return self.plain_content(fresh, pieces);
        }
        if fresh {
            let text = self.held.trim_start();
            if text.len() < CALL.len() && CALL.starts_with(text) {
                return false;
            }
            if !text.starts_with(CALL) {
                let white = self.held.len() - text.len();
                self.drop_line_breaks(white);
            }
            self.place = Place::Content { fresh: false };
        }
        if let Some((before, rest)) = self.held.split_once(CALL) {
            let text = before.trim_end();
            self.white = before.get(text.len()..).unwrap_or_default().to_owned();
            content(text.to_owned(), pieces);
            self.held = rest.to_owned();
            self.place = Place::Call { searched: 0 };
            return true;
        }
        let keep = self.undecided_white();
        let rest = self.held.split_off(self.held.len() - keep);
        content(std::mem::replace(&mut self.held, rest), pieces);
        false
    }

    fn plain_content(&mut self, fresh: bool, pieces: &mut Vec<ReplyPiece>) -> bool {
        if fresh {
            self.drop_line_breaks(self.held.len());
            if self.held.is_empty() {
                return false;
            }
            self.place = Place::Content { fresh: false };
        }
        content(std::mem::take(&mut self.held), pieces);
        false
    }

    fn call(&mut self, searched: usize, pieces: &mut Vec<ReplyPiece>) -> bool {
        let found = self
            .held
            .get(searched..)
            .and_then(|unread| unread.find(CALL_END));
        let Some(at) = found.map(|at| at + searched) else {
            let keep = overlap(&self.held, CALL_END);
            self.place = Place::Call {
                searched: (self.held.len() - keep).max(searched),
            };
            return false;
        };
        let body = self.held.get(..at).unwrap_or_default();
        let after = at + CALL_END.len();
        match ToolCall::parse(body) {
            Ok(call) => {
                self.well_formed(call, pieces);
                self.place = Place::Content { fresh: true };
            }
            Err(NoCall::Unfinished) => {
                self.place = Place::Call { searched: after };
                return true;
            }
            Err(NoCall::Malformed(reason)) => {
                let text = format!("{}{CALL}{body}{CALL_END}", self.white);
                pieces.push(ReplyPiece::MalformedCall { text, reason });
                self.place = Place::Content { fresh: false };
            }
        }
        self.held.drain(..after);
        true
    }

    fn well_formed(&mut self, call: ToolCall, pieces: &mut Vec<ReplyPiece>) {
        let index = self.calls;
        self.calls += 1;
        pieces.push(ReplyPiece::ToolCallStart {
            index,
            name: call.name,
        });
        pieces.push(ReplyPiece::ToolCallArguments {
            index,
            json: call.arguments,
        });
    }

    /// Removes line breaks from the front, among the first `limit` bytes.
    fn drop_line_breaks(&mut self, limit: usize) {
        let head = self.held.get(..limit).unwrap_or_default();
        let dropped = head.len() - head.trim_start_matches(['\n', '\r']).len();
        self.held.drain(..dropped);
    }

    /// Bytes at the end that may yet belong to one of the tags, with the line breaks before it.
    fn undecided(&self, tags: &[&str], white: char) -> usize {
        let tag = tags
            .iter()
            .map(|tag| overlap(&self.held, tag))
            .max()
            .unwrap_or(0);
        let before = self.held.get(..self.held.len() - tag).unwrap_or_default();
        tag + before.len() - before.trim_end_matches(white).len()
    }

    /// Bytes at the end that may yet belong to `<tool_call>`, with the white space before it.
    fn undecided_white(&self) -> usize {
        let tag = overlap(&self.held, CALL);
        let before = self.held.get(..self.held.len() - tag).unwrap_or_default();
        tag + before.len() - before.trim_end().len()
    }
}

fn content(text: String, pieces: &mut Vec<ReplyPiece>) {
    if !text.is_empty() {
        pieces.push(ReplyPiece::Content(text));
    }
}

fn reasoning(text: &str, pieces: &mut Vec<ReplyPiece>) {
    if !text.is_empty() {
        pieces.push(ReplyPiece::Reasoning(text.to_owned()));
    }
}

/// Length of the longest proper beginning of `tag` that ends `text`.
fn overlap(text: &str, tag: &str) -> usize {
    (1..tag.len())
        .rev()
        .find(|length| {
            tag.get(..*length)
                .is_some_and(|start| text.ends_with(start))
        })
        .unwrap_or(0)
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;
