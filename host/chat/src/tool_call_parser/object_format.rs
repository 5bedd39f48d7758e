//! The stages of a call as a JSON object, or of a function whose arguments are one.

use super::{Emitted, Opening, ParseResult, Stage, Step, ToolCallParser, malformed, not_a_call};
use crate::FunctionCall;
use crate::json_scanner::Scan;
use crate::reply_format::TOOL_CALL_END;
use crate::tool_schemas::ToolSchemas;

impl ToolCallParser {
    pub(super) fn parse_object(&mut self, text: &str, tools: &ToolSchemas) -> Step {
        let Stage::Object { start, object } = &mut self.stage else {
            return Step::Done(ParseResult::More);
        };
        let start = *start;
        let scan = object.scan(text);
        let started = self.emitted != Emitted::None;
        // What follows an invalid character is not part of the first key, however much of it is there.
        let valid = match scan {
            Scan::Invalid(at) => &text[start..at],
            _ => &text[start..],
        };
        if self.opening == Opening::Brace && !started && !may_be_call(valid) {
            return not_a_call(start + 1);
        }
        let end = match scan {
            Scan::Complete(end) => end,
            Scan::Invalid(at) if started => {
                self.emit_json(text, at);
                if self.emitted == Emitted::Partial {
                    return self.fail(at, "its JSON is malformed");
                }
                self.position = at;
                self.stage = Stage::Unclosed;
                return Step::Continue;
            }
            Scan::Invalid(at) if self.opening == Opening::Brace => return not_a_call(at),
            Scan::Invalid(at) => return malformed(at, "its JSON is malformed"),
            Scan::MemberStart { key, at } => {
                self.on_member_start(text, key, at, tools);
                return Step::Continue;
            }
            Scan::MemberEnd { key, value } => {
                self.on_member_end(text, key, value);
                return Step::Continue;
            }
            Scan::More => {
                self.emit_json(text, text.len());
                return Step::Done(ParseResult::More);
            }
        };
        self.position = end;
        let body = &text[start..end];
        if started {
            self.emit_json(text, end);
            self.emitted = Emitted::All;
            // Members after the arguments may still contradict the emitted call.
            if self.name.is_empty()
                && let Err(reason) = FunctionCall::parse(body)
            {
                return self.fail(end, &reason);
            }
            self.stage = Stage::Tail(None);
            return Step::Continue;
        }
        let call = if self.name.is_empty() {
            FunctionCall::parse(body)
        } else {
            FunctionCall::with_arguments(std::mem::take(&mut self.name), body)
        };
        match call {
            Ok(call) if self.opening == Opening::Brace && !tools.has_tool(&call.name) => {
                not_a_call(end)
            }
            Ok(call) => {
                self.stage = Stage::Tail(Some(call));
                Step::Continue
            }
            Err(_) if self.opening == Opening::Brace => not_a_call(end),
            Err(reason) => malformed(end, &reason),
        }
    }

    /// A missing closing brace is accepted if the arguments are complete, like a missing closing tag.
    pub(super) fn parse_unclosed(&mut self, text: &str, ended: bool) -> Step {
        let rest = &text[self.position..];
        if self.opening == Opening::Tag {
            let is_partial_tag = TOOL_CALL_END.starts_with(rest);
            if rest.starts_with(TOOL_CALL_END) || is_partial_tag && ended {
                self.stage = Stage::Tail(None);
                return Step::Continue;
            }
            if is_partial_tag {
                return Step::Done(ParseResult::More);
            }
        }
        self.fail(self.position, "its JSON is malformed")
    }
}

/// Whether an incomplete object may be a call, judging by its first key.
fn may_be_call(object: &str) -> bool {
    let inside = object.strip_prefix('{');
    let Some(key) = inside.and_then(|text| text.trim_start().strip_prefix('"')) else {
        return true;
    };
    match key.split_once('"') {
        Some((key, _)) => matches!(key, "name" | "type" | "parameters" | "arguments" | "id"),
        None => true,
    }
}
