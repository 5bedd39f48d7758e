//! Requests that look like housekeeping wait for proof.
//!
//! Clients ask for titles, summaries or memory notes with the whole conversation in front, and nothing marks such a
//! request. Taking it for the person's reaction would let a client's own prompt judge our reply; dropping it would lose
//! real turns. So a doubtful request hands out its next state later: when the conversation goes on from *its* reply, it
//! was part of it after all. Doubt delays and never drops.

use serde_json::Value;

use crate::likeness::{shared_phrases, text_likeness};
use crate::normalise::{Plain, Role};

/// Wording, in lower case, of housekeeping prompts that well-known clients send after a conversation.
pub(crate) fn known_wording() -> Vec<String> {
    [
        // Agents that wake up by a timer and are to answer with one word if nothing is due.
        "heartbeat_ok",
        // Notes saved before an agent compacts its history, and the compaction itself.
        "memory flush",
        "summary of the conversation so far",
        "summarize the conversation above",
        // Web interfaces that name a chat, tag it, or propose what to ask next.
        "word title",
        "title for the conversation",
        "title for this conversation",
        "broad tags categorizing",
        "follow-up questions or prompts",
    ]
    .map(str::to_owned)
    .to_vec()
}

/// Why a request is probably not somebody's reaction to the turn it contains, if so, as a clause.
pub(crate) fn about(
    request: &[Plain],
    tools: &[Value],
    previous: &[Plain],
    previous_tools: &[Value],
    following: &[&Plain],
    wording: &[String],
) -> Option<String> {
    // Whoever brings the result of a tool that we called goes on with the conversation.
    if following.iter().any(|message| message.role == Role::Tool) {
        return None;
    }
    if let Some(last) = following
        .iter()
        .rev()
        .find(|message| message.role == Role::User)
    {
        let said = last.text.to_lowercase();
        if let Some(words) = wording.iter().find(|words| said.contains(words.as_str())) {
            return Some(format!("it asks for housekeeping (\"{words}\")"));
        }
    }
    if !previous_tools.is_empty() && tools.is_empty() {
        return Some("the tools of the conversation are gone".to_owned());
    }
    let (before, now) = (system_text(previous), system_text(request));
    (!before.is_empty() && !same_instructions(&before, &now))
        .then(|| "the system message is another one".to_owned())
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

    #[test]
    fn cases() {
        let tools = [json!({"type": "function", "function": {"name": "read"}})];
        let system = "You are a careful assistant that lives in a workspace and may read files. Today is Friday.";
        type Case<'a> = (&'a str, &'a str, &'a [Value], &'a str, &'a str, bool);
        let cases: [Case<'_>; 9] = [
            (
                "as before",
                system,
                &tools,
                "user",
                "and now the second one",
                false,
            ),
            (
                "clock moved on",
                "You are a careful assistant that lives in a workspace and may read files. Today is Saturday.",
                &tools,
                "user",
                "go on",
                false,
            ),
            (
                "notes added",
                "Notes: none. You are a careful assistant that lives in a workspace and may read files. Today is Friday. Files: a.md",
                &tools,
                "user",
                "go on",
                false,
            ),
            (
                "another system message",
                "Write a name for the chat below in at most five words.",
                &tools,
                "user",
                "name it",
                true,
            ),
            ("system message gone", "", &tools, "user", "name it", true),
            ("tools gone", system, &[], "user", "go on", true),
            (
                "tools gone, but a result",
                system,
                &[],
                "tool",
                "a.md b.md",
                false,
            ),
            (
                "heartbeat",
                system,
                &tools,
                "user",
                "Read the list. If nothing needs attention, reply HEARTBEAT_OK.",
                true,
            ),
            (
                "title",
                system,
                &tools,
                "user",
                "Generate a concise, 3-5 word title.",
                true,
            ),
        ];
        let previous = plain_all(&[
            json!({"role": "system", "content": system}),
            json!({"role": "user", "content": "hi"}),
        ]);
        for (name, system, tools_now, role, text, doubtful) in cases {
            let mut messages = vec![
                json!({"role": "user", "content": "hi"}),
                json!({"role": "assistant", "content": "hello"}),
                json!({"role": role, "content": text}),
            ];
            if !system.is_empty() {
                messages.insert(0, json!({"role": "system", "content": system}));
            }
            let request = plain_all(&messages);
            let following = [request.last().unwrap()];
            let doubt = about(
                &request,
                tools_now,
                &previous,
                &tools,
                &following,
                &known_wording(),
            );
            assert_eq!(doubt.is_some(), doubtful, "{name}: {doubt:?}");
        }
    }
}
