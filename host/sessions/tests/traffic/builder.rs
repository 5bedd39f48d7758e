//! Test builder: a server without an engine, and requests in shorthand.

use std::cell::Cell;

use clawhost_chat::{AssistantMessage, Message, Tool};
use clawhost_journal::{Finish, Journal, SessionId, TurnId, TurnRecord};
use clawhost_sessions::{IncomingRequest, Reply, SessionAssignment, SessionOptions, Sessions};
use serde_json::{Value, json};

/// A message in shorthand: `s:` system, `u:` user, `a:` assistant, `t:` tool result, `c:name {arguments}` tool call.
pub(crate) fn message(line: &str) -> Value {
    let (role, text) = line.split_once(':').expect("shorthand is `role:text`");
    match role {
        "s" => json!({"role": "system", "content": text}),
        "u" => json!({"role": "user", "content": text}),
        "a" => json!({"role": "assistant", "content": text}),
        "t" => json!({"role": "tool", "tool_call_id": "call_1", "content": text}),
        "c" => {
            let (name, arguments) = text
                .split_once(' ')
                .expect("a call is `c:name {arguments}`");
            json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}]})
        }
        other => panic!("unknown shorthand `{other}`"),
    }
}

/// Messages in shorthand.
pub(crate) fn talk(lines: &[&str]) -> Vec<Value> {
    lines.iter().map(|line| message(line)).collect()
}

/// Messages from their JSON.
pub(crate) fn typed(messages: Vec<Value>) -> Vec<Message> {
    serde_json::from_value(Value::Array(messages)).unwrap()
}

/// A tool without parameters.
pub(crate) fn tool(name: &str) -> Tool {
    serde_json::from_value(json!({"function": {"name": name}})).unwrap()
}

/// A request of these messages; change its fields as needed.
pub(crate) fn request(messages: Vec<Value>) -> IncomingRequest {
    IncomingRequest {
        n: 1,
        messages: typed(messages),
        prompt_ids: vec![1, 2, 3],
        model: "m".to_owned(),
        ..IncomingRequest::default()
    }
}

/// The reply that the engine would have made.
pub(crate) fn reply(message: Value) -> Reply {
    let message: AssistantMessage = serde_json::from_value(message).unwrap();
    let finish = if message.tool_calls.is_empty() {
        Finish::Stop
    } else {
        Finish::ToolCalls
    };
    Reply {
        message,
        finish,
        token_ids: vec![7, 8],
        logprobs: vec![-0.5, -0.25],
        full_logprobs: vec![-0.5, -0.25],
        forced: Vec::new(),
    }
}

/// A journal with the collecting loop.
pub(crate) struct Server {
    pub(crate) journal: Journal,
    pub(crate) sessions: Sessions,
    responses: Cell<u32>,
}

impl Server {
    pub(crate) fn new() -> Self {
        Self::with(SessionOptions::default())
    }

    pub(crate) fn with(options: SessionOptions) -> Self {
        let journal = Journal::in_memory().unwrap();
        Self {
            sessions: Sessions::new(journal.clone(), options),
            journal,
            responses: Cell::new(0),
        }
    }

    /// Drops all state except the journal.
    pub(crate) fn restart(&mut self) {
        self.journal.abort_interrupted_turns().unwrap();
        self.sessions = Sessions::new(self.journal.clone(), SessionOptions::default());
    }

    /// Records a request without a reply.
    pub(crate) fn ask(&self, mut incoming: IncomingRequest) -> SessionAssignment {
        self.responses.set(self.responses.get() + 1);
        incoming.response_id = format!("chatcmpl-{}", self.responses.get());
        self.sessions.record_request(incoming).unwrap()
    }

    /// Records the reply of a turn.
    pub(crate) fn answer(&self, turn: TurnId, message: Value) {
        self.sessions.complete(turn, reply(message)).unwrap();
    }

    /// Records a request and the same reply for each of its choices.
    pub(crate) fn exchange(&self, incoming: IncomingRequest, answer: &str) -> SessionAssignment {
        let arrived = self.ask(incoming);
        for turn in &arrived.turns {
            self.answer(*turn, message(answer));
        }
        arrived
    }

    pub(crate) fn turn(&self, turn: TurnId) -> TurnRecord {
        self.journal.turn(turn).unwrap().unwrap()
    }

    /// Texts of the next state of a turn.
    pub(crate) fn next(&self, turn: TurnId) -> Option<Vec<String>> {
        self.turn(turn)
            .next_state
            .map(|messages| messages.iter().map(Message::text).collect())
    }

    pub(crate) fn session_count(&self) -> usize {
        self.journal.sessions(100_000).unwrap().len()
    }

    pub(crate) fn ended(&self, session: &SessionId) -> Option<String> {
        self.journal.session(session).unwrap().unwrap().end_reason
    }
}

/// The decision about a request.
pub(crate) fn decision(arrived: &SessionAssignment) -> &'static str {
    arrived.matched.decision.unwrap().as_str()
}
