//! Detection of requests whose shape differs from their conversation, which may be side requests.
//!
//! Clients request titles, summaries or memory notes with the whole conversation as context, and nothing marks such a
//! request. Taking it for the user's reaction would let a client's own prompt judge our reply; dropping it would lose
//! real turns. So its next state is held back until the conversation continues from *its* reply, or ends. Only the shape
//! of a request counts, not its text, which can be in any language.
//!
//! A kind of difference that a conversation has shown before is no longer ambiguous in it: a client that rebuilds its
//! system message each time is held back once.

use clawhost_chat::{Role, Tool};

use crate::normalize::NormalizedMessage;
use crate::similarity::{shared_trigrams, text_similarity};

/// Why a next state is held back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ambiguity {
    /// The kind, stored in `matched` and compared later: one of the constants of this module.
    pub(crate) kind: &'static str,
    /// Explanation, as a clause.
    pub(crate) why: String,
}

/// The system message differs.
pub(crate) const SYSTEM: &str = "system";
/// The tools are missing.
pub(crate) const TOOLS: &str = "tools";
/// Our reply is missing from the request, but the history before it is complete.
pub(crate) const REPLY: &str = "reply";
/// Our reply and part of the history are missing from the request.
pub(crate) const HISTORY: &str = "history";
/// Another request continues the same reply at the same time.
pub(crate) const BESIDE: &str = "beside";
/// Another request continues the same reply, and has the sampling settings of the conversation.
pub(crate) const SETTINGS: &str = "settings";

impl Ambiguity {
    pub(crate) fn new(kind: &'static str, why: impl Into<String>) -> Self {
        Self {
            kind,
            why: why.into(),
        }
    }
}

/// The parts of a request whose shape is compared.
#[derive(Clone, Copy)]
pub(crate) struct RequestShape<'a> {
    pub(crate) messages: &'a [NormalizedMessage],
    pub(crate) tools: &'a [Tool],
}

/// The difference in shape between a request and the previous one of its conversation, if any. `varies` lists the kinds
/// that this conversation is known to vary in.
pub(crate) fn detect_ambiguity(
    request: RequestShape<'_>,
    previous: RequestShape<'_>,
    following: &[&NormalizedMessage],
    varies: &[String],
) -> Option<Ambiguity> {
    // A request with the result of a tool that we called continues the conversation.
    if following.iter().any(|message| message.role == Role::Tool) {
        return None;
    }
    let usual = |kind: &str| varies.iter().any(|known| known == kind);
    if !usual(TOOLS) && !previous.tools.is_empty() && request.tools.is_empty() {
        return Some(Ambiguity::new(
            TOOLS,
            "the tools of the conversation are gone",
        ));
    }
    let (before, now) = (
        system_text(previous.messages),
        system_text(request.messages),
    );
    (!usual(SYSTEM) && !before.is_empty() && !is_same_instructions(&before, &now))
        .then(|| Ambiguity::new(SYSTEM, "the system message is another one"))
}

/// The text of all system messages.
pub(crate) fn system_text(messages: &[NormalizedMessage]) -> String {
    let texts: Vec<&str> = messages
        .iter()
        .filter(|message| message.role == Role::System)
        .map(|message| message.text.as_str())
        .collect();
    texts.join(" ")
}

/// Whether two system texts are the same instructions: a clock, memory notes or a file list may be added.
fn is_same_instructions(before: &str, now: &str) -> bool {
    before == now || text_similarity(before, now) > 0.0 || shared_trigrams(before, now) >= 0.5
}

#[cfg(test)]
mod tests {
    use clawhost_chat::Message;

    use super::*;
    use crate::normalize::normalize_all;
    use crate::normalize::tests::message;

    const TALK: &str = "You are a careful assistant that lives in a workspace and may read files. Today is Friday.";

    fn tool() -> Tool {
        serde_json::from_value(serde_json::json!({"function": {"name": "read"}})).unwrap()
    }

    fn doubt(system: &str, tools: &[Tool], role: &str, varies: &[&str]) -> Option<&'static str> {
        let known = [tool()];
        let previous = normalize_all(&[Message::system(TALK), Message::user("hi")]);
        let mut messages = vec![
            Message::user("hi"),
            Message::assistant("hello"),
            message(role, "a.md b.md"),
        ];
        if !system.is_empty() {
            messages.insert(0, Message::system(system));
        }
        let request = normalize_all(&messages);
        let varies: Vec<String> = varies.iter().map(|kind| (*kind).to_owned()).collect();
        let doubt = detect_ambiguity(
            RequestShape {
                messages: &request,
                tools,
            },
            RequestShape {
                messages: &previous,
                tools: &known,
            },
            &[request.last().unwrap()],
            &varies,
        );
        doubt.map(|doubt| doubt.kind)
    }

    #[test]
    fn ambiguity_is_detected_from_system_message_and_tools() {
        let tools = [tool()];
        let clock = TALK.replace("Friday", "Saturday");
        let notes = format!("Notes: none. {TALK} Files: a.md");
        let title = "Write a name for the chat below in at most five words.";
        type Case<'a> = (
            &'a str,
            &'a str,
            &'a [Tool],
            &'a str,
            &'a [&'a str],
            Option<&'a str>,
        );
        let cases: [Case<'_>; 10] = [
            ("as before", TALK, &tools, "user", &[], None),
            ("clock moved on", &clock, &tools, "user", &[], None),
            ("notes added", &notes, &tools, "user", &[], None),
            ("another one", title, &tools, "user", &[], Some(SYSTEM)),
            ("system message gone", "", &tools, "user", &[], Some(SYSTEM)),
            ("it varies here", title, &tools, "user", &[SYSTEM], None),
            ("tools gone", TALK, &[], "user", &[], Some(TOOLS)),
            ("tools come and go here", TALK, &[], "user", &[TOOLS], None),
            ("tools gone, but a result", TALK, &[], "tool", &[], None),
            ("both", title, &[], "user", &[TOOLS], Some(SYSTEM)),
        ];
        for (name, system, tools, role, varies, expected) in cases {
            assert_eq!(doubt(system, tools, role, varies), expected, "{name}");
        }
    }
}
