//! The stages of a call as `<function=NAME>` with parameters: its name, each parameter and its value.

use super::{
    CallDelta, Emitted, Opening, ParseResult, Stage, Step, ToolCallParser, malformed, not_a_call,
};
use crate::FunctionCall;
use crate::json_scanner::JsonScanner;
use crate::reply_format::{FUNCTION_END, PARAMETER, PARAMETER_END, TOOL_CALL_END};
use crate::stop_strings::partial_match_len;
use crate::tool_schemas::ToolSchemas;

/// Maximum length of a tool or parameter name in bytes.
const MAX_NAME_BYTES: usize = 256;

impl ToolCallParser {
    pub(super) fn parse_function_name(&mut self, text: &str, tools: &ToolSchemas) -> Step {
        let start = self.position;
        let name = match self.take_name(text) {
            Ok(Some(name)) => name.to_owned(),
            Ok(None) => return Step::Done(ParseResult::More),
            Err(()) if matches!(self.opening, Opening::Function { .. }) => {
                return not_a_call(start);
            }
            Err(()) => return malformed(start, "the function has no valid name"),
        };
        // Without a tag around it, only the name of an offered tool identifies a call.
        if matches!(self.opening, Opening::Function { .. }) && !tools.has_tool(&name) {
            return not_a_call(start);
        }
        self.name = name;
        self.closed = false;
        self.stage = Stage::Function;
        Step::Continue
    }

    pub(super) fn parse_function(&mut self, text: &str, tools: &ToolSchemas) -> Step {
        let rest = self.skip_whitespace(text);
        if rest.starts_with('{') && self.values.is_empty() {
            if self.is_definite(&self.name, tools) {
                self.start_call(self.name.clone(), self.position);
            }
            self.stage = Stage::Object {
                start: self.position,
                object: JsonScanner::new(self.position),
            };
            return Step::Continue;
        }
        if rest.starts_with(PARAMETER) {
            self.position += PARAMETER.len();
            self.stage = Stage::Key;
            return Step::Continue;
        }
        if rest.starts_with(FUNCTION_END) {
            self.position += FUNCTION_END.len();
            self.closed = true;
            if self.emitted == Emitted::Partial {
                self.deltas.push(CallDelta::Arguments("}".to_owned()));
                (self.emitted, self.emitted_to) = (Emitted::All, self.position);
                self.stage = Stage::Tail(None);
                return Step::Continue;
            }
            let values: Vec<String> = self
                .values
                .iter()
                .map(|(key, value)| format!("{}: {value}", serde_json::Value::from(key.as_str())))
                .collect();
            self.stage = Stage::Tail(Some(FunctionCall {
                name: std::mem::take(&mut self.name),
                arguments: format!("{{{}}}", values.join(", ")),
            }));
            return Step::Continue;
        }
        if PARAMETER.starts_with(rest) || FUNCTION_END.starts_with(rest) {
            return Step::Done(ParseResult::More);
        }
        self.fail(self.position, "text between the parameters of the call")
    }

    pub(super) fn parse_parameter_name(&mut self, text: &str) -> Step {
        let start = self.position;
        let key = match self.take_name(text) {
            Ok(Some(key)) => key.to_owned(),
            Ok(None) => return Step::Done(ParseResult::More),
            Err(()) => return self.fail(start, "a parameter has no valid name"),
        };
        if self.values.iter().any(|(earlier, _)| *earlier == key) {
            return self.fail(start, &format!("the parameter `{key}` is duplicated"));
        }
        self.stage = Stage::Value {
            key,
            start: self.position,
            searched: self.position,
            streaming: false,
        };
        Step::Continue
    }

    /// A value ends at a closing tag after which the call continues or ends. It may contain any other text, including
    /// that tag.
    pub(super) fn parse_value(&mut self, text: &str, tools: &ToolSchemas) -> Step {
        let Stage::Value {
            key,
            start,
            searched,
            ..
        } = &mut self.stage
        else {
            return Step::Done(ParseResult::More);
        };
        let unread = &text[*searched..];
        let parameter = unread.find(PARAMETER_END);
        let function = unread.find(FUNCTION_END);
        let Some(found) = parameter.into_iter().chain(function).min() else {
            let keep = partial_match_len(unread, PARAMETER_END)
                .max(partial_match_len(unread, FUNCTION_END));
            *searched = text.len() - keep;
            let final_to = *searched;
            self.emit_value(text, final_to, tools);
            return Step::Done(ParseResult::More);
        };
        let at = *searched + found;
        let closes = parameter == Some(found);
        let tag = if closes { PARAMETER_END } else { FUNCTION_END };
        let rest = text[at + tag.len()..].trim_start();
        let follows: &[&str] = if closes {
            &[PARAMETER, FUNCTION_END]
        } else {
            &[TOOL_CALL_END]
        };
        if !follows.iter().any(|next| rest.starts_with(next)) {
            if follows.iter().any(|next| next.starts_with(rest)) {
                self.emit_value(text, at, tools);
                return Step::Done(ParseResult::More);
            }
            *searched = at + 1;
            return Step::Continue;
        }
        let (key, start) = (key.clone(), *start);
        self.emit_value(text, at, tools);
        let value = &text[start..at];
        if !closes || self.contains_parameter_tag(value, tools) {
            return self.fail(start, &format!("the parameter `{key}` is not closed"));
        }
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        let json = tools.value_to_json(&self.name, &key, value);
        if matches!(
            self.stage,
            Stage::Value {
                streaming: true,
                ..
            }
        ) {
            self.deltas.push(CallDelta::Arguments("\"".to_owned()));
        } else if self.is_definite(&self.name, tools) {
            self.emit_key(&key, &json);
        }
        self.values.push((key, json));
        self.position = at + PARAMETER_END.len();
        if self.emitted == Emitted::Partial {
            self.emitted_to = self.position;
        }
        self.stage = Stage::Function;
        Step::Continue
    }

    /// Whether another parameter of this tool starts inside the value: then the end tag of the value is missing.
    fn contains_parameter_tag(&self, value: &str, tools: &ToolSchemas) -> bool {
        value.split(PARAMETER).skip(1).any(|after| {
            after
                .split_once('>')
                .is_some_and(|(key, _)| tools.has_parameter(&self.name, key))
        })
    }

    /// Takes a name and the bracket after it; `None` if more text is needed.
    fn take_name<'t>(&mut self, text: &'t str) -> Result<Option<&'t str>, ()> {
        let rest = &text[self.position..];
        let end = rest.find(['>', '<', '\n', '{']);
        let name = &rest[..end.unwrap_or(rest.len())];
        if name.len() > MAX_NAME_BYTES {
            return Err(());
        }
        let Some(end) = end else {
            return Ok(None);
        };
        if !rest[end..].starts_with('>') || name.trim().is_empty() {
            return Err(());
        }
        self.position += end + 1;
        Ok(Some(name.trim()))
    }
}
