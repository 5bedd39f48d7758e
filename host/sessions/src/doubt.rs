//! Requests that are shaped unlike their conversation wait for proof.
//!
//! Clients ask for titles, summaries or memory notes with the whole conversation in front, and nothing marks such a
//! request. Taking it for the person's reaction would let a client's own prompt judge our reply; dropping it would lose
//! real turns. So its next state is held back until the conversation goes on from *its* reply, or ends. Only the shape of
//! a request counts: what it says can be said in any language.
//!
//! What a conversation was seen to vary is no reason for doubt in it any more: a client that builds its system message
//! anew each time is doubted once.

use serde_json::Value;

use crate::likeness::{shared_phrases, text_likeness};
use crate::normalise::{Plain, Role};

/// Why a next state is held back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Doubt {
    /// What is unusual, as kept in `matched` and compared later: one of the constants of this module.
    pub(crate) kind: &'static str,
    /// The same for a person, as a clause.
    pub(crate) why: String,
}

/// The system message is another one.
pub(crate) const SYSTEM: &str = "system";
/// The tools are gone.
pub(crate) const TOOLS: &str = "tools";
/// Our reply is not in the request, although all of its history is.
pub(crate) const REPLY: &str = "reply";
/// Our reply and part of the history are not in the request.
pub(crate) const HISTORY: &str = "history";
/// Another request goes on from the same reply at the same time.
pub(crate) const BESIDE: &str = "beside";
/// Another request goes on from the same reply, and its settings are those of the conversation.
pub(crate) const SETTINGS: &str = "settings";

impl Doubt {
    pub(crate) fn new(kind: &'static str, why: impl Into<String>) -> Self {
        Self {
            kind,
            why: why.into(),
        }
    }
}

/// What a request and its tools look like.
#[derive(Clone, Copy)]
pub(crate) struct Shape<'a> {
    pub(crate) messages: &'a [Plain],
    pub(crate) tools: &'a [Value],
}

/// Why a request is shaped unlike the one before it in its conversation, if it is. `varies` lists the kinds of doubt that
/// this conversation has disproved.
pub(crate) fn about(
    request: Shape<'_>,
    previous: Shape<'_>,
    following: &[&Plain],
    varies: &[String],
) -> Option<Doubt> {
    // Whoever brings the result of a tool that we called goes on with the conversation.
    if following.iter().any(|message| message.role == Role::Tool) {
        return None;
    }
    let usual = |kind: &str| varies.iter().any(|known| known == kind);
    if !usual(TOOLS) && !previous.tools.is_empty() && request.tools.is_empty() {
        return Some(Doubt::new(TOOLS, "the tools of the conversation are gone"));
    }
    let (before, now) = (
        system_text(previous.messages),
        system_text(request.messages),
    );
    (!usual(SYSTEM) && !before.is_empty() && !same_instructions(&before, &now))
        .then(|| Doubt::new(SYSTEM, "the system message is another one"))
}

/// What all system messages say.
pub(crate) fn system_text(messages: &[Plain]) -> String {
    let texts: Vec<&str> = messages
        .iter()
        .filter(|message| message.role == Role::System)
        .map(|message| message.text.as_str())
        .collect();
    texts.join(" ")
}

/// Instructions may gain a clock, a memory or a list of files and stay the same.
fn same_instructions(before: &str, now: &str) -> bool {
    before == now || text_likeness(before, now) > 0.0 || shared_phrases(before, now) >= 0.5
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::normalise::plain_all;

    const TALK: &str = "You are a careful assistant that lives in a workspace and may read files. Today is Friday.";

    fn doubt(system: &str, tools: &[Value], role: &str, varies: &[&str]) -> Option<&'static str> {
        let known = [json!({"type": "function", "function": {"name": "read"}})];
        let previous = plain_all(&[
            json!({"role": "system", "content": TALK}),
            json!({"role": "user", "content": "hi"}),
        ]);
        let mut messages = vec![
            json!({"role": "user", "content": "hi"}),
            json!({"role": "assistant", "content": "hello"}),
            json!({"role": role, "content": "a.md b.md"}),
        ];
        if !system.is_empty() {
            messages.insert(0, json!({"role": "system", "content": system}));
        }
        let request = plain_all(&messages);
        let varies: Vec<String> = varies.iter().map(|kind| (*kind).to_owned()).collect();
        let doubt = about(
            Shape {
                messages: &request,
                tools,
            },
            Shape {
                messages: &previous,
                tools: &known,
            },
            &[request.last().unwrap()],
            &varies,
        );
        doubt.map(|doubt| doubt.kind)
    }

    #[test]
    fn cases() {
        let tools = [json!({"type": "function", "function": {"name": "read"}})];
        let clock = TALK.replace("Friday", "Saturday");
        let notes = format!("Notes: none. {TALK} Files: a.md");
        let title = "Write a name for the chat below in at most five words.";
        type Case<'a> = (
            &'a str,
            &'a str,
            &'a [Value],
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
