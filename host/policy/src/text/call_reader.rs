//! Reads one tool call from the text behind the tag that opened it, while that text is still being written.
//!
//! It says as early as the text allows that something is no call, so that one call gone wrong takes no
//! other with it; and never before the text allows, so that the result does not depend on how the text was
//! divided. White space between the parts of a call is free.
//!
//! A call is announced before it is whole, see `early`. An announced call cannot become text again: where it breaks, what was
//! handed out stands and the rest is text.

mod early;

use super::form::{CALL, CALL_END, FUNCTION, FUNCTION_END, PARAMETER, PARAMETER_END, PYTHON};
use super::json_object::{JsonObject, Scan};
use super::tool_call::ToolCall;
use super::tool_types::ToolTypes;
pub(super) use early::Early;
use early::Handed;

/// Bytes that the name of a tool or of a parameter may have.
const LONGEST_NAME: usize = 256;

const CUT: &str = "the reply ended inside the call";

/// What the call began with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opening {
    /// `<tool_call>`.
    Tag,
    /// `<function=`. With `outer`, the `<tool_call>` before it was left out, its end perhaps not.
    Function { outer: bool },
    /// `<|python_tag|>`.
    Python,
    /// The brace of an object that stands alone. It is a call only if it says so: an answer in JSON is none.
    Brace,
}

impl Opening {
    /// The opening that one of a form's tags stands for.
    pub(super) fn of(tag: &str, outer: bool) -> Self {
        match tag {
            FUNCTION => Self::Function { outer },
            PYTHON => Self::Python,
            _ => Self::Tag,
        }
    }

    /// Its text, as far as it is text.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Tag => CALL,
            Self::Function { .. } => FUNCTION,
            // A special token is no text, and the brace is read with its object.
            Self::Python | Self::Brace => "",
        }
    }
}

/// What became of the text behind the opening.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Read {
    /// More text must decide.
    More,
    /// The first `used` bytes are a call.
    Call {
        /// The call; none when it was announced before it was whole.
        call: Option<ToolCall>,
        /// Bytes that belong to it.
        used: usize,
    },
    /// A call that was announced breaks off before its arguments are whole, or goes on as no call does.
    Broken {
        /// Bytes that belong to it; what follows them is text.
        used: usize,
        /// Why it is not whole.
        reason: String,
    },
    /// There is no call: the first `used` bytes are text.
    Text {
        /// Bytes after which reading may begin anew.
        used: usize,
        /// Why it is no call; none when nothing claimed to be one.
        reason: Option<String>,
    },
}

#[derive(Debug, Clone)]
enum Stage {
    /// Before the body.
    Begin,
    /// In an object that began at `start`: the whole call, or the arguments of the function that is named.
    Object { start: usize, object: JsonObject },
    /// Behind whole arguments, where the object around them goes on as no object does.
    Unclosed,
    /// Behind `<function=`.
    Name,
    /// In the function: the next parameter, the end, or an object.
    Function,
    /// Behind `<parameter=`.
    Key,
    /// In a value that begins at `start`, of which everything before `searched` is no end. `opened` once the beginning of
    /// its text was handed out.
    Value {
        key: String,
        start: usize,
        searched: usize,
        opened: bool,
    },
    /// Behind the call, which is none here when it was announced.
    Tail(Option<ToolCall>),
}

/// One call that is being read.
#[derive(Debug, Clone)]
pub(super) struct CallReader {
    pub(super) opening: Opening,
    stage: Stage,
    at: usize,
    name: String,
    /// No `</function>` is owed.
    closed: bool,
    /// Key and value, as JSON, in the order in which they were written.
    values: Vec<(String, String)>,
    /// The reply can be nothing but calls.
    must_call: bool,
    /// The tool that an object names which is not whole yet.
    called: Option<String>,
    handed: Handed,
    /// Bytes of the text that belong to what was handed out.
    handed_to: usize,
    /// What may be handed out and was not fetched yet.
    pub(super) early: Vec<Early>,
}

/// What a stage came to.
enum Step {
    Go,
    Done(Read),
}

impl CallReader {
    /// A reader behind `opening`. With `must_call` the reply can be nothing but calls, so that even an object without a tag
    /// is certain to be one.
    pub(super) fn new(opening: Opening, must_call: bool) -> Self {
        let stage = match opening {
            Opening::Function { .. } => Stage::Name,
            Opening::Tag | Opening::Python | Opening::Brace => Stage::Begin,
        };
        Self {
            opening,
            stage,
            at: 0,
            name: String::new(),
            closed: true,
            values: Vec::new(),
            must_call,
            called: None,
            handed: Handed::Nothing,
            handed_to: 0,
            early: Vec::new(),
        }
    }

    /// Reads on in `text`, which begins behind the opening and may have grown since the last time. With `ended`, no
    /// more will come, and the answer is never [`Read::More`].
    pub(super) fn read(&mut self, text: &str, ended: bool, tools: &ToolTypes) -> Read {
        loop {
            let step = match &self.stage {
                Stage::Begin => self.begin(text),
                Stage::Object { .. } => self.object(text, tools),
                Stage::Name => self.named(text, tools),
                Stage::Unclosed => self.unclosed(text, ended),
                Stage::Function => self.function(text, tools),
                Stage::Key => self.key(text),
                Stage::Value { .. } => self.value(text, tools),
                Stage::Tail(_) => self.tail(text, ended),
            };
            match step {
                Step::Go => {}
                Step::Done(Read::More) if ended => {
                    let (used, reason) = (text.len(), CUT.to_owned());
                    return match self.handed {
                        Handed::Nothing => Read::Text {
                            used,
                            reason: Some(reason),
                        },
                        Handed::Part => Read::Broken { used, reason },
                        // Nothing is missing but the end of the form.
                        Handed::All => Read::Call { call: None, used },
                    };
                }
                Step::Done(read) => return read,
            }
        }
    }

    fn begin(&mut self, text: &str) -> Step {
        let rest = self.skip_white(text);
        if rest.starts_with('{') {
            self.stage = Stage::Object {
                start: self.at,
                object: JsonObject::at(self.at),
            };
            return Step::Go;
        }
        if self.opening == Opening::Tag {
            if rest.starts_with(FUNCTION) {
                self.at += FUNCTION.len();
                self.stage = Stage::Name;
                return Step::Go;
            }
            if FUNCTION.starts_with(rest) {
                return Step::Done(Read::More);
            }
        }
        if rest.is_empty() {
            return Step::Done(Read::More);
        }
        match self.opening {
            Opening::Python => wrong(self.at, "what follows the tag is no JSON object"),
            _ => wrong(
                self.at,
                "what follows the tag is neither a JSON object nor a function",
            ),
        }
    }

    fn object(&mut self, text: &str, tools: &ToolTypes) -> Step {
        let Stage::Object { start, object } = &mut self.stage else {
            return Step::Done(Read::More);
        };
        let start = *start;
        let scan = object.scan(text);
        let announced = self.handed != Handed::Nothing;
        if self.opening == Opening::Brace && !announced && !may_be_call(text.get(start..)) {
            return plain(start + 1);
        }
        let end = match scan {
            Scan::Whole(end) => end,
            Scan::Wrong(at) if announced => {
                self.hand_out(text, at);
                if self.handed == Handed::Part {
                    return self.fail(at, "its JSON is malformed");
                }
                self.at = at;
                self.stage = Stage::Unclosed;
                return Step::Go;
            }
            Scan::Wrong(at) if self.opening == Opening::Brace => return plain(at),
            Scan::Wrong(at) => return wrong(at, "its JSON is malformed"),
            Scan::Begins { key, at } => {
                self.member_begins(text, key, at, tools);
                return Step::Go;
            }
            Scan::Ends { key, value } => {
                self.member_ends(text, key, value);
                return Step::Go;
            }
            Scan::More => {
                self.hand_out(text, text.len());
                return Step::Done(Read::More);
            }
        };
        self.at = end;
        let body = text.get(start..end).unwrap_or_default();
        if announced {
            self.hand_out(text, end);
            self.handed = Handed::All;
            // What the members behind the arguments say may still contradict them.
            if self.name.is_empty()
                && let Err(reason) = ToolCall::parse(body)
            {
                return self.fail(end, &reason);
            }
            self.stage = Stage::Tail(None);
            return Step::Go;
        }
        let call = if self.name.is_empty() {
            ToolCall::parse(body)
        } else {
            ToolCall::with_arguments(std::mem::take(&mut self.name), body)
        };
        match call {
            Ok(call) if self.opening == Opening::Brace && !tools.knows(&call.name) => plain(end),
            Ok(call) => {
                self.stage = Stage::Tail(Some(call));
                Step::Go
            }
            Err(_) if self.opening == Opening::Brace => plain(end),
            Err(reason) => wrong(end, &reason),
        }
    }

    /// A closing brace that was left out costs nothing where the arguments are whole, as with a closing tag.
    fn unclosed(&mut self, text: &str, ended: bool) -> Step {
        let rest = text.get(self.at..).unwrap_or_default();
        if self.opening == Opening::Tag {
            let begun = CALL_END.starts_with(rest);
            if rest.starts_with(CALL_END) || begun && ended {
                self.stage = Stage::Tail(None);
                return Step::Go;
            }
            if begun {
                return Step::Done(Read::More);
            }
        }
        self.fail(self.at, "its JSON is malformed")
    }

    fn named(&mut self, text: &str, tools: &ToolTypes) -> Step {
        let start = self.at;
        let name = match self.up_to_bracket(text) {
            Ok(Some(name)) => name.to_owned(),
            Ok(None) => return Step::Done(Read::More),
            Err(()) if matches!(self.opening, Opening::Function { .. }) => return plain(start),
            Err(()) => return wrong(start, "the function has no proper name"),
        };
        // Without a tag around it, only the name of a tool shows that a call is meant.
        if matches!(self.opening, Opening::Function { .. }) && !tools.knows(&name) {
            return plain(start);
        }
        self.name = name;
        self.closed = false;
        self.stage = Stage::Function;
        Step::Go
    }

    fn function(&mut self, text: &str, tools: &ToolTypes) -> Step {
        let rest = self.skip_white(text);
        if rest.starts_with('{') && self.values.is_empty() {
            if self.is_certain(&self.name, tools) {
                self.announce(self.name.clone(), self.at);
            }
            self.stage = Stage::Object {
                start: self.at,
                object: JsonObject::at(self.at),
            };
            return Step::Go;
        }
        if rest.starts_with(PARAMETER) {
            self.at += PARAMETER.len();
            self.stage = Stage::Key;
            return Step::Go;
        }
        if rest.starts_with(FUNCTION_END) {
            self.at += FUNCTION_END.len();
            self.closed = true;
            if self.handed == Handed::Part {
                self.early.push(Early::Arguments("}".to_owned()));
                (self.handed, self.handed_to) = (Handed::All, self.at);
                self.stage = Stage::Tail(None);
                return Step::Go;
            }
            let values: Vec<String> = self
                .values
                .iter()
                .map(|(key, value)| format!("{}: {value}", serde_json::Value::from(key.as_str())))
                .collect();
            self.stage = Stage::Tail(Some(ToolCall {
                name: std::mem::take(&mut self.name),
                arguments: format!("{{{}}}", values.join(", ")),
            }));
            return Step::Go;
        }
        if PARAMETER.starts_with(rest) || FUNCTION_END.starts_with(rest) {
            return Step::Done(Read::More);
        }
        self.fail(self.at, "between the parameters of a call stands text")
    }

    fn key(&mut self, text: &str) -> Step {
        let start = self.at;
        let key = match self.up_to_bracket(text) {
            Ok(Some(key)) => key.to_owned(),
            Ok(None) => return Step::Done(Read::More),
            Err(()) => return self.fail(start, "a parameter has no proper name"),
        };
        if self.values.iter().any(|(earlier, _)| *earlier == key) {
            return self.fail(start, &format!("the parameter `{key}` is there twice"));
        }
        self.stage = Stage::Value {
            key,
            start: self.at,
            searched: self.at,
            opened: false,
        };
        Step::Go
    }

    /// A value ends at the closing tag behind which the call goes on or ends: it may contain any other text, that
    /// tag too.
    fn value(&mut self, text: &str, tools: &ToolTypes) -> Step {
        let Stage::Value {
            key,
            start,
            searched,
            ..
        } = &mut self.stage
        else {
            return Step::Done(Read::More);
        };
        let unread = text.get(*searched..).unwrap_or_default();
        let parameter = unread.find(PARAMETER_END);
        let function = unread.find(FUNCTION_END);
        let Some(found) = parameter.into_iter().chain(function).min() else {
            let keep = overlap(unread, PARAMETER_END).max(overlap(unread, FUNCTION_END));
            *searched = text.len() - keep;
            let certain = *searched;
            self.hand_out_value(text, certain, tools);
            return Step::Done(Read::More);
        };
        let at = *searched + found;
        let closes = parameter == Some(found);
        let tag = if closes { PARAMETER_END } else { FUNCTION_END };
        let rest = text.get(at + tag.len()..).unwrap_or_default().trim_start();
        let follows: &[&str] = if closes {
            &[PARAMETER, FUNCTION_END]
        } else {
            &[CALL_END]
        };
        if !follows.iter().any(|next| rest.starts_with(next)) {
            if follows.iter().any(|next| next.starts_with(rest)) {
                self.hand_out_value(text, at, tools);
                return Step::Done(Read::More);
            }
            *searched = at + 1;
            return Step::Go;
        }
        let (key, start) = (key.clone(), *start);
        self.hand_out_value(text, at, tools);
        let value = text.get(start..at).unwrap_or_default();
        if !closes || self.holds_parameter(value, tools) {
            return self.fail(start, &format!("the parameter `{key}` is not closed"));
        }
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        let json = tools.json(&self.name, &key, value);
        if matches!(self.stage, Stage::Value { opened: true, .. }) {
            self.early.push(Early::Arguments("\"".to_owned()));
        } else if self.is_certain(&self.name, tools) {
            self.hand_out_key(&key, &json);
        }
        self.values.push((key, json));
        self.at = at + PARAMETER_END.len();
        if self.handed == Handed::Part {
            self.handed_to = self.at;
        }
        self.stage = Stage::Function;
        Step::Go
    }

    /// Whether the next parameter of this tool begins inside the value: then the value's end was left out.
    fn holds_parameter(&self, value: &str, tools: &ToolTypes) -> bool {
        value.split(PARAMETER).skip(1).any(|after| {
            after
                .split_once('>')
                .is_some_and(|(key, _)| tools.has(&self.name, key))
        })
    }

    fn tail(&mut self, text: &str, ended: bool) -> Step {
        let behind = text.get(self.at..).unwrap_or_default();
        let rest = behind.trim_start();
        let skipped = behind.len() - rest.len();
        let (end, optional, starts): (&str, bool, &[&str]) = match self.opening {
            _ if !self.closed => (FUNCTION_END, false, &[]),
            Opening::Tag => (CALL_END, false, &[CALL]),
            Opening::Function { outer: true } => (CALL_END, true, &[]),
            Opening::Brace => ("", false, &[";", "{", PYTHON]),
            Opening::Function { outer: false } | Opening::Python => return self.done(self.at),
        };
        if !end.is_empty() && rest.starts_with(end) {
            let used = self.at + skipped + end.len();
            if !self.closed {
                self.at = used;
                self.closed = true;
                return Step::Go;
            }
            return self.done(used);
        }
        if starts.iter().any(|start| rest.starts_with(start)) {
            return self.done(self.at);
        }
        if !ended && (end.starts_with(rest) || starts.iter().any(|start| start.starts_with(rest))) {
            return Step::Done(Read::More);
        }
        // A closing tag that was left out or cut off costs nothing: the call is whole.
        if end.starts_with(rest) {
            return self.done(if rest.is_empty() { self.at } else { text.len() });
        }
        if optional {
            return self.done(self.at);
        }
        match self.opening {
            // Whatever follows, the call has been announced.
            Opening::Brace if self.handed != Handed::Nothing => self.done(self.at),
            Opening::Brace => plain(self.at),
            _ => {
                self.handed_to = self.at;
                self.fail(self.at, "text follows the call before its end")
            }
        }
    }

    fn done(&mut self, used: usize) -> Step {
        let Stage::Tail(call) = std::mem::replace(&mut self.stage, Stage::Begin) else {
            return Step::Done(Read::More);
        };
        Step::Done(Read::Call { call, used })
    }

    /// There is no call in the first `used` bytes; or, where it was announced, it breaks off behind what was handed out.
    fn fail(&self, used: usize, reason: &str) -> Step {
        match self.handed {
            Handed::Nothing => wrong(used, reason),
            _ => Step::Done(Read::Broken {
                used: self.handed_to,
                reason: reason.to_owned(),
            }),
        }
    }

    /// Moves behind white space and returns what follows.
    fn skip_white<'t>(&mut self, text: &'t str) -> &'t str {
        let rest = text.get(self.at..).unwrap_or_default().trim_start();
        self.at = text.len() - rest.len();
        rest
    }

    /// A name and the bracket behind it; none when there may be one yet.
    fn up_to_bracket<'t>(&mut self, text: &'t str) -> Result<Option<&'t str>, ()> {
        let rest = text.get(self.at..).unwrap_or_default();
        let end = rest.find(['>', '<', '\n', '{']);
        let name = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
        if name.len() > LONGEST_NAME {
            return Err(());
        }
        let Some(end) = end else {
            return Ok(None);
        };
        if !rest.get(end..).is_some_and(|rest| rest.starts_with('>')) || name.trim().is_empty() {
            return Err(());
        }
        self.at += end + 1;
        Ok(Some(name.trim()))
    }
}

/// Whether an object that is not whole yet may be a call: its first key is one that calls have.
fn may_be_call(object: Option<&str>) -> bool {
    let inside = object.and_then(|text| text.strip_prefix('{'));
    let Some(key) = inside.and_then(|text| text.trim_start().strip_prefix('"')) else {
        return true;
    };
    match key.split_once('"') {
        Some((key, _)) => matches!(key, "name" | "type" | "parameters" | "arguments" | "id"),
        None => true,
    }
}

fn wrong(used: usize, reason: &str) -> Step {
    Step::Done(Read::Text {
        used,
        reason: Some(reason.to_owned()),
    })
}

fn plain(used: usize) -> Step {
    Step::Done(Read::Text { used, reason: None })
}

/// Length of the longest proper beginning of `tag` that ends `text`.
pub(super) fn overlap(text: &str, tag: &str) -> usize {
    (1..tag.len())
        .rev()
        .find(|length| {
            tag.get(..*length)
                .is_some_and(|start| text.ends_with(start))
        })
        .unwrap_or(0)
}
