//! What a reply consists of, while it is being written: reasoning, content, tool calls.
//!
//! Fed with final text, it yields pieces that are never taken back. So the beginning of a tag is
//! held until it is one or is not, and a call is held until it is certain: until it names an offered tool and its arguments
//! have begun. From there on its arguments come as they are written, and never more of them than the beginning of a valid
//! JSON object. A call that breaks off behind that point, because its JSON is malformed or the length limit cuts it, keeps
//! what came of it and is marked; what turns out malformed before stays text, marked, and was never announced. What stands in a fenced code
//! block is no call, and what a model says in its reasoning it has not done. The tokens are not its business.

use std::sync::Arc;

use super::call_reader::{CallReader, Early, Opening, Read, overlap};
use super::fences::Fences;
use super::form::{CallForm, PYTHON, THINK, THINK_END};
use super::tool_call::ToolCall;
use super::tool_types::ToolTypes;

/// What to look for in a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyStyle {
    /// The prompt ended inside a reasoning block, so the reply begins there. Default false; see
    /// [`opens_reasoning`].
    pub in_reasoning: bool,
    /// Split `<think>` blocks from content; otherwise they are content. Default true.
    pub reasoning: bool,
    /// Read tool calls; otherwise they are content. Default true.
    pub tools: bool,
    /// How calls are written. Default [`CallForm::Hermes`].
    pub calls: CallForm,
    /// The reply can be nothing but calls, so that one without a tag is certain before it ends. Default false.
    pub must_call: bool,
}

impl Default for ReplyStyle {
    fn default() -> Self {
        Self {
            in_reasoning: false,
            reasoning: true,
            tools: true,
            calls: CallForm::default(),
            must_call: false,
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
    /// JSON text of the arguments of a call that has begun. All pieces of a call together are an object, or the beginning
    /// of one when a [`ReplyPiece::BrokenCall`] follows.
    ToolCallArguments {
        /// Position among the calls of this reply.
        index: usize,
        /// Text that continues the JSON object.
        json: String,
    },
    /// The call that has begun breaks off: there are no more arguments, or something else contradicts them.
    BrokenCall {
        /// Position among the calls of this reply.
        index: usize,
        /// Why it is not whole.
        reason: String,
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
    /// Calls in order. They are well-formed, save that the arguments of one that broke off may be only the beginning of an
    /// object.
    pub tool_calls: Vec<ToolCall>,
    /// Positions of the calls that broke off, ascending.
    pub broken: Vec<usize>,
    /// Reasons of the calls that stayed text or broke off.
    pub malformed: Vec<String>,
}

impl ParsedReply {
    /// Whether at least one call is whole.
    pub fn has_whole_calls(&self) -> bool {
        self.tool_calls.len() > self.broken.len()
    }

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
            ReplyPiece::BrokenCall { index, reason } => {
                self.broken.push(*index);
                self.malformed.push(reason.clone());
            }
            ReplyPiece::MalformedCall { text, reason } => {
                self.content.push_str(text);
                self.malformed.push(reason.clone());
            }
        }
    }
}

/// Takes a finished reply apart. `tools` are the tools that the prompt offered.
pub fn parse_reply(text: &str, style: ReplyStyle, tools: &Arc<ToolTypes>) -> ParsedReply {
    let mut parser = ReplyParser::new(style, Arc::clone(tools));
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

#[derive(Debug, Clone)]
enum Place {
    /// Nothing but white space so far: a reasoning block may begin.
    Start,
    /// In a reasoning block; `fresh` before its first character.
    Reasoning { fresh: bool },
    /// In the content. `fresh` after a block, where line breaks belong to the format.
    Content { fresh: bool },
    /// Behind what may have opened a call.
    Call(Box<CallReader>),
}

/// Reads one reply, piece by piece.
#[derive(Debug, Clone)]
pub struct ReplyParser {
    style: ReplyStyle,
    tools: Arc<ToolTypes>,
    place: Place,
    held: String,
    /// White space before a call that is being read: format if it is one, text if it is not.
    white: String,
    fences: Fences,
    /// An object that stands here may be a call: the content has not begun, or only with such calls.
    bare: bool,
    /// Calls that have begun.
    calls: usize,
    /// Calls that have ended, whole or broken off.
    ended: usize,
    /// What the calls were written as.
    #[cfg(test)]
    written: Vec<String>,
}

impl ReplyParser {
    /// A reader at the beginning of a reply to a prompt that offered `tools`.
    pub fn new(style: ReplyStyle, tools: Arc<ToolTypes>) -> Self {
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
            tools,
            place,
            held: String::new(),
            white: String::new(),
            fences: Fences::default(),
            bare: style.tools && style.calls == CallForm::Llama,
            calls: 0,
            ended: 0,
            #[cfg(test)]
            written: Vec::new(),
        }
    }

    /// Whether a tool call of the reply has ended.
    pub fn has_calls(&self) -> bool {
        self.ended > 0
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
        let mut pieces = Vec::new();
        while let Place::Call(_) = self.place {
            self.call(true, &mut pieces);
            while self.step(&mut pieces) {}
        }
        let held = std::mem::take(&mut self.held);
        match self.place {
            Place::Reasoning { fresh } => {
                let text = held.trim_end_matches('\n');
                reasoning(
                    if fresh {
                        text.trim_start_matches('\n')
                    } else {
                        text
                    },
                    &mut pieces,
                );
            }
            // Line breaks between a block and the end of the reply are format, not content; so is what would have
            // separated a call from the next.
            Place::Content { fresh: true }
                if held
                    .trim_matches(|c: char| c.is_whitespace() || self.separates(c))
                    .is_empty() => {}
            _ => self.say(held, &mut pieces),
        }
        self.place = Place::Content { fresh: false };
        pieces
    }

    /// Decides as much as one place allows; false when more text is needed.
    fn step(&mut self, pieces: &mut Vec<ReplyPiece>) -> bool {
        match self.place {
            Place::Start => self.start(),
            Place::Reasoning { fresh } => self.reasoning(fresh, pieces),
            Place::Content { .. } if self.bare => self.bare_object(),
            Place::Content { fresh } => self.content(fresh, pieces),
            Place::Call(_) => self.call(false, pieces),
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
            // Some write the tag that the template has written already. However often: what was taken out is
            // forgotten where the next piece begins.
            while self.style.in_reasoning {
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
            self.place = Place::Reasoning { fresh: false };
        }
        if let Some((thought, rest)) = self.held.split_once(THINK_END) {
            reasoning(thought.trim_end_matches('\n'), pieces);
            self.held = rest.to_owned();
            self.place = Place::Content { fresh: true };
            return true;
        }
        let tag = overlap(&self.held, THINK_END);
        let before = self.held.get(..self.held.len() - tag).unwrap_or_default();
        let kept = before.trim_end_matches('\n').len();
        let rest = self.held.split_off(kept);
        reasoning(&std::mem::replace(&mut self.held, rest), pieces);
        false
    }

    /// At the beginning of the content, or behind a call without tags: an object here may be a call.
    fn bare_object(&mut self) -> bool {
        let text = self
            .held
            .trim_start_matches(|c: char| c.is_whitespace() || self.separates(c));
        let object = text.starts_with('{');
        if text.is_empty() {
            return false;
        }
        self.bare = false;
        if object {
            let at = self.held.len() - text.len();
            let rest = self.held.split_off(at);
            self.white = std::mem::replace(&mut self.held, rest);
            let reader = CallReader::new(Opening::Brace, self.style.must_call);
            self.place = Place::Call(Box::new(reader));
        }
        true
    }

    /// Whether a character stands between two calls of this form.
    fn separates(&self, character: char) -> bool {
        character == ';' && self.calls > 0 && self.style.calls == CallForm::Llama
    }

    fn content(&mut self, fresh: bool, pieces: &mut Vec<ReplyPiece>) -> bool {
        let openings = self.openings();
        if fresh {
            let text = self.held.trim_start();
            if text.is_empty()
                || openings
                    .iter()
                    .any(|tag| text.len() < tag.len() && tag.starts_with(text))
            {
                return false;
            }
            if !openings.iter().any(|tag| text.starts_with(tag)) {
                let white = self.held.len() - text.len();
                self.drop_line_breaks(white);
            }
            self.place = Place::Content { fresh: false };
        }
        if let Some((at, tag)) = self.opening(openings) {
            let rest = self.held.split_off(at + tag.len());
            let mut before = std::mem::replace(&mut self.held, rest);
            before.truncate(at);
            if !self.style.tools {
                self.say(before, pieces);
                return true;
            }
            let white = before.split_off(before.trim_end().len());
            self.say(before, pieces);
            self.fences.feed(&white);
            self.white = white;
            let outer = self.style.calls == CallForm::QwenXml;
            let opening = Opening::of(tag, outer);
            let reader = CallReader::new(opening, self.style.must_call);
            self.place = Place::Call(Box::new(reader));
            return true;
        }
        let tag = openings.iter().map(|tag| overlap(&self.held, tag)).max();
        let before = self.held.len() - tag.unwrap_or_default();
        let kept = match self.held.get(..before) {
            Some(text) if self.style.tools => text.trim_end().len(),
            _ => before,
        };
        let rest = self.held.split_off(kept);
        let said = std::mem::replace(&mut self.held, rest);
        self.say(said, pieces);
        false
    }

    /// Tags that end the content: of calls, or of what is no text even where calls are not read.
    fn openings(&self) -> &'static [&'static str] {
        match (self.style.tools, self.style.calls) {
            (true, form) => form.openings(),
            (false, CallForm::Llama) => &[PYTHON],
            (false, _) => &[],
        }
    }

    /// The first tag that is not shown in a code block, and where it stands.
    fn opening(&self, openings: &[&'static str]) -> Option<(usize, &'static str)> {
        let mut from = 0;
        loop {
            let rest = self.held.get(from..)?;
            let found = openings
                .iter()
                .filter_map(|tag| Some((rest.find(tag)? + from, *tag)));
            let (at, tag) = found.min()?;
            let shown = self
                .held
                .get(..at)
                .is_some_and(|before| self.fences.inside_after(before));
            if !shown || tag == PYTHON {
                return Some((at, tag));
            }
            from = at + tag.len();
        }
    }

    /// Reads on in a call; `ended` when no more text comes.
    fn call(&mut self, ended: bool, pieces: &mut Vec<ReplyPiece>) -> bool {
        let Place::Call(reader) = &mut self.place else {
            return false;
        };
        let opening = reader.opening;
        let read = reader.read(&self.held, ended, &self.tools);
        for early in std::mem::take(&mut reader.early) {
            match early {
                Early::Name(name) => {
                    pieces.push(ReplyPiece::ToolCallStart {
                        index: self.calls,
                        name,
                    });
                    self.calls += 1;
                }
                // Arguments follow a name, so a call has begun.
                Early::Arguments(json) => pieces.push(ReplyPiece::ToolCallArguments {
                    index: self.calls.saturating_sub(1),
                    json,
                }),
            }
        }
        match read {
            Read::More => return false,
            Read::Call { call, used } => {
                #[cfg(test)]
                self.remember(opening, used);
                self.close(used);
                if let Some(call) = call {
                    self.announce(call, pieces);
                }
                self.bare = self.style.calls == CallForm::Llama;
                self.place = Place::Content { fresh: true };
            }
            Read::Broken { used, reason } => {
                #[cfg(test)]
                self.remember(opening, used);
                self.close(used);
                let index = self.calls.saturating_sub(1);
                pieces.push(ReplyPiece::BrokenCall { index, reason });
                self.place = Place::Content { fresh: false };
            }
            Read::Text { used, reason } => {
                let mut text = std::mem::take(&mut self.white);
                let rest = self.held.split_off(used);
                text.push_str(opening.text());
                text.push_str(&std::mem::replace(&mut self.held, rest));
                match reason {
                    None => self.say(text, pieces),
                    Some(reason) => {
                        self.fences.feed(&text);
                        pieces.push(ReplyPiece::MalformedCall { text, reason });
                    }
                }
                self.place = Place::Content { fresh: false };
            }
        }
        true
    }

    /// Takes the text of a call that has ended.
    fn close(&mut self, used: usize) {
        let rest = self.held.split_off(used);
        let written = std::mem::replace(&mut self.held, rest);
        self.fences.feed(&written);
        self.white.clear();
        self.ended += 1;
    }

    /// Keeps the text of a call that has ended.
    #[cfg(test)]
    fn remember(&mut self, opening: Opening, used: usize) {
        let text = self.held.get(..used).unwrap_or_default();
        self.written.push(format!("{}{text}", opening.text()));
    }

    fn announce(&mut self, call: ToolCall, pieces: &mut Vec<ReplyPiece>) {
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

    fn say(&mut self, text: String, pieces: &mut Vec<ReplyPiece>) {
        self.fences.feed(&text);
        if !text.is_empty() {
            pieces.push(ReplyPiece::Content(text));
        }
    }

    /// Removes line breaks from the front, among the first `limit` bytes.
    fn drop_line_breaks(&mut self, limit: usize) {
        let head = self.held.get(..limit).unwrap_or_default();
        let dropped = head.len() - head.trim_start_matches(['\n', '\r']).len();
        self.held.drain(..dropped);
    }
}

fn reasoning(text: &str, pieces: &mut Vec<ReplyPiece>) {
    if !text.is_empty() {
        pieces.push(ReplyPiece::Reasoning(text.to_owned()));
    }
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;
