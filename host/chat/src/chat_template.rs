//! The checkpoint's chat template (transformers' `apply_chat_template`): renders messages to the prompt format that the
//! model was trained on.
//!
//! Templates are Jinja as transformers runs it: trimmed blocks, Python methods on values, and its `tojson`,
//! `raise_exception` and `strftime_now`. A template is untrusted data from a checkpoint, so its instructions and its
//! output are bounded; the memory of the values it builds is not.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior, Value};
use serde_json::{Map, Value as Json};

use super::{Content, Message, Tool, python_format, strftime};

/// Instruction limit (fuel) per rendering: enough for a hundred thousand messages, a few tenths of a second.
const FUEL: u64 = 20_000_000;

/// Maximum output per rendering in bytes.
const MAX_OUTPUT: usize = 64 << 20;

/// Name under which the template is compiled.
const NAME: &str = "chat_template";

/// Name under which the template for conversations with tools is compiled.
const TOOL_USE_NAME: &str = "tool_use";

/// Why a chat template could not be compiled or rendered.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The template is not valid Jinja.
    #[error("chat template, line {line}: {reason}")]
    Syntax {
        /// Line in the template, from 1.
        line: usize,
        /// The parser's error.
        reason: String,
    },
    /// The template called `raise_exception`: the messages are invalid for it.
    #[error("the chat template rejected the messages: {0}")]
    Raised(String),
    /// Rendering failed.
    #[error("chat template, line {line}: {reason}")]
    Render {
        /// Line in the template, from 1.
        line: usize,
        /// The error.
        reason: String,
    },
    /// The template exceeded its instruction limit.
    #[error("the chat template executed more than {limit} instructions; it may loop forever")]
    Fuel {
        /// The limit.
        limit: u64,
    },
    /// The template omits the message that the reply should continue.
    #[error("the chat template omits the last message, so the reply cannot continue it")]
    CannotContinue,
    /// The template exceeded its output limit.
    #[error("the chat template wrote more than {limit} bytes")]
    Output {
        /// The limit.
        limit: usize,
    },
}

/// Input of a chat template.
#[derive(Debug, Clone, Copy)]
pub struct ChatInput<'a> {
    /// The conversation; the template sees its JSON form. Tool-call arguments stay text if the template tests for it
    /// (`arguments is string`), so that a call is rendered as it was sampled; for other templates, which would quote
    /// them, they are parsed.
    pub messages: &'a [Message],
    /// Offered tools; empty means that `tools` is none in the template.
    pub tools: &'a [Tool],
    /// Whether to end with the start of an assistant message.
    pub add_generation_prompt: bool,
    /// Additional variables, such as `enable_thinking`; they do not override the ones above.
    pub extra: Option<&'a Map<String, Json>>,
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    parses_arguments: bool,
    /// The same for the separate template for conversations with tools, if there is one.
    tool_template_parses_arguments: Option<bool>,
    variables: Vec<(String, String)>,
}

impl ChatTemplate {
    /// Compiles a template. `variables` are the named special tokens of the checkpoint, such as
    /// `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// When the source is not valid Jinja.
    pub fn new(
        source: &str,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        environment.set_syntax(
            SyntaxConfig::builder()
                .trim_blocks(true)
                .lstrip_blocks(true)
                .build()
                .map_err(syntax_error)?,
        );
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_fuel(Some(FUEL));
        environment.set_formatter(|out, _state, value| {
            out.write_str(&python_format::str_of(value))
                .map_err(Error::from)
        });
        environment.set_unknown_method_callback(python_method);
        environment.add_filter("tojson", python_format::tojson);
        environment.add_filter("string", |value: &Value| python_format::str_of(value));
        environment.add_test("sequence", |value: &Value| {
            matches!(
                value.kind(),
                ValueKind::String | ValueKind::Seq | ValueKind::Map
            )
        });
        environment.add_function(
            "raise_exception",
            |message: &Value| -> Result<Value, Error> {
                let message = python_format::str_of(message);
                Err(Error::new(ErrorKind::InvalidOperation, message.clone())
                    .with_source(Raised(message)))
            },
        );
        environment
            .add_template_owned(NAME, comment_out_generation_tags(source))
            .map_err(syntax_error)?;
        Ok(Self {
            environment,
            source: source.to_owned(),
            parses_arguments: parses_arguments(source),
            tool_template_parses_arguments: None,
            variables: variables.into_iter().collect(),
        })
    }

    /// Adds a separate template for conversations with tools, which checkpoints name `tool_use`.
    ///
    /// # Errors
    /// When the source is not valid Jinja.
    pub fn with_tool_template(mut self, source: &str) -> Result<Self, TemplateError> {
        self.environment
            .add_template_owned(TOOL_USE_NAME, comment_out_generation_tags(source))
            .map_err(syntax_error)?;
        self.tool_template_parses_arguments = Some(parses_arguments(source));
        Ok(self)
    }

    /// The source of the template.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders the messages; `strftime_now` returns the current time in UTC.
    ///
    /// # Errors
    /// When the template rejects the messages, fails, or exceeds its limits.
    pub fn render(&self, input: &ChatInput<'_>) -> Result<String, TemplateError> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        self.render_at(input, i64::try_from(now.as_secs()).unwrap_or(i64::MAX))
    }

    /// [`ChatTemplate::render_at`], cut after the content of the last message, so that the reply continues it.
    /// `add_generation_prompt` is ignored.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`], and when the template omits the last message.
    pub fn render_continuation_at(
        &self,
        input: &ChatInput<'_>,
        now: i64,
    ) -> Result<String, TemplateError> {
        // Templates trim content, so a marker of private-use characters finds its end.
        const MARKER: &str = "\u{e0de}\u{e0ad}\u{e0de}";
        let mut messages = input.messages.to_vec();
        let content = messages
            .last_mut()
            .and_then(Message::content_mut)
            .filter(|content| content.is_text())
            .ok_or(TemplateError::CannotContinue)?;
        *content = Content::text(content.to_text() + MARKER);
        let marked = ChatInput {
            messages: &messages,
            add_generation_prompt: false,
            ..*input
        };
        let mut text = self.render_at(&marked, now)?;
        let end = text.rfind(MARKER).ok_or(TemplateError::CannotContinue)?;
        text.truncate(end);
        Ok(text)
    }

    /// [`ChatTemplate::render`] at a given time, in seconds since 1970.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render_at(&self, input: &ChatInput<'_>, now: i64) -> Result<String, TemplateError> {
        let (name, parses) = match self.tool_template_parses_arguments {
            Some(parses) if !input.tools.is_empty() => (TOOL_USE_NAME, parses),
            _ => (NAME, self.parses_arguments),
        };
        let messages: Vec<Json> = input
            .messages
            .iter()
            .map(|message| template_message(message, parses))
            .collect();
        let tools = match input.tools {
            [] => Value::from(()),
            tools => Value::from(Serde(tools)),
        };
        let clock = Value::from_function(move |format: &str| strftime::strftime(format, now));
        let variables = self
            .variables
            .iter()
            .map(|(name, token)| (name.as_str(), token.into()));
        let extra = input.extra.into_iter().flatten();
        // The last of equal names wins.
        let context = Value::from_pairs(
            variables
                .chain(extra.map(|(name, value)| (name.as_str(), Value::from(Serde(value)))))
                .chain([
                    ("messages", Value::from(Serde(&messages))),
                    ("tools", tools),
                    (
                        "add_generation_prompt",
                        Value::from(input.add_generation_prompt),
                    ),
                    ("strftime_now", clock),
                ]),
        );
        let mut out = BoundedWriter {
            bytes: Vec::new(),
            full: false,
        };
        let rendered = self
            .environment
            .get_template(name)
            .and_then(|template| template.render_captured_to(context, &mut out).map(|_| ()));
        match rendered {
            Err(_) if out.full => Err(TemplateError::Output { limit: MAX_OUTPUT }),
            Err(error) => Err(render_error(&error)),
            Ok(()) => String::from_utf8(out.bytes).map_err(|error| TemplateError::Render {
                line: 0,
                reason: error.to_string(),
            }),
        }
    }
}

/// Whether tool-call arguments are parsed for a template: one that tests for text prints them unchanged.
fn parses_arguments(source: &str) -> bool {
    !source.contains("arguments is string")
}

/// A message as templates see it.
fn template_message(message: &Message, parses_arguments: bool) -> Json {
    let mut json = serde_json::to_value(message).expect("a message has a JSON form");
    let calls = json.get_mut("tool_calls").and_then(Json::as_array_mut);
    for call in calls.into_iter().flatten().filter(|_| parses_arguments) {
        let arguments = &mut call["function"]["arguments"];
        let text = arguments.as_str().expect("arguments are text");
        if let Ok(parsed @ Json::Object(_)) = serde_json::from_str(text) {
            *arguments = parsed;
        }
    }
    json
}

/// Source of an error from `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn syntax_error(error: Error) -> TemplateError {
    TemplateError::Syntax {
        line: error.line().unwrap_or(0),
        reason: reason(&error),
    }
}

fn render_error(error: &Error) -> TemplateError {
    if error.kind() == ErrorKind::OutOfFuel {
        return TemplateError::Fuel { limit: FUEL };
    }
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(link) = cause {
        if let Some(Raised(message)) = link.downcast_ref::<Raised>() {
            return TemplateError::Raised(message.clone());
        }
        cause = link.source();
    }
    TemplateError::Render {
        line: error.line().unwrap_or(0),
        reason: reason(error),
    }
}

fn reason(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// A writer with a size limit.
struct BoundedWriter {
    bytes: Vec<u8>,
    full: bool,
}

impl io::Write for BoundedWriter {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + piece.len() > MAX_OUTPUT {
            self.full = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend_from_slice(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Turns `{% generation %}` tags into comments. They mark generated text for training masks, which here come from
/// recorded tokens instead. Comments trim whitespace the same way.
fn comment_out_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, tag)) = rest.split_once("{%") {
        out.push_str(before);
        let Some((inside, after)) = tag.split_once("%}") else {
            out.push_str("{%");
            rest = tag;
            continue;
        };
        let name = inside.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        let (open, close) = match name {
            "generation" | "endgeneration" => ("{#", "#}"),
            _ => ("{%", "%}"),
        };
        out.push_str(open);
        out.push_str(inside);
        out.push_str(close);
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Python methods on values: minijinja's compatibility layer, and a few more that templates call.
fn python_method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let first = args.first().and_then(Value::as_str);
    if let (Some(text), Some(argument)) = (value.as_str(), first) {
        match method {
            "removeprefix" => return Ok(text.strip_prefix(argument).unwrap_or(text).into()),
            "removesuffix" => return Ok(text.strip_suffix(argument).unwrap_or(text).into()),
            "partition" if !argument.is_empty() => {
                return Ok(match text.split_once(argument) {
                    Some((before, after)) => string_list([before, argument, after]),
                    None => string_list([text, "", ""]),
                });
            }
            "rsplit" if !argument.is_empty() => {
                let limit = args.get(1).and_then(Value::as_i64).filter(|n| *n >= 0);
                let count = limit
                    .and_then(|n| usize::try_from(n).ok())
                    .unwrap_or(usize::MAX);
                let mut parts: Vec<&str> =
                    text.rsplitn(count.saturating_add(1), argument).collect();
                parts.reverse();
                return Ok(string_list(parts));
            }
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

fn string_list<'a>(parts: impl IntoIterator<Item = &'a str>) -> Value {
    parts
        .into_iter()
        .map(Value::from)
        .collect::<Vec<_>>()
        .into()
}

#[cfg(test)]
#[path = "chat_template_tests.rs"]
mod tests;
