//! Formats conversations for a model, each message in its own fence.

use clawhost_sdk::{Message, Part, Role, Turn};

use crate::bound::bounded;
use crate::fence::Fence;

/// How much of a turn is shown, in characters.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Of the conversation before the response, all messages together.
    pub conversation: usize,
    /// Of a response.
    pub reply: usize,
    /// Of the messages after the response, all together.
    pub next_state: usize,
}

impl Default for Limits {
    /// 6,000 before the response, 6,000 of the response, 4,000 after it.
    fn default() -> Limits {
        Limits {
            conversation: 6000,
            reply: 6000,
            next_state: 4000,
        }
    }
}

/// Minimum characters that a message is truncated to.
const LEAST: usize = 120;
/// Maximum messages of a conversation that are shown; the first two and the last are kept.
const MOST_MESSAGES: usize = 24;

/// A whole turn: the messages before, the response, the messages after.
pub fn turn(fence: &Fence, turn: &Turn, limits: Limits) -> String {
    let mut parts = vec!["The conversation before the reply:".to_owned()];
    parts.push(conversation(fence, &turn.prompt, limits.conversation));
    parts.push("The reply to be judged:".to_owned());
    parts.push(message(fence, &turn.response, limits.reply));
    if turn.truncated {
        parts.push("The reply was cut at its longest length.".to_owned());
    }
    parts.push("What followed the reply:".to_owned());
    parts.push(next_state(fence, turn, limits.next_state));
    parts.join("\n\n")
}

/// The messages after the response.
pub fn next_state(fence: &Fence, turn: &Turn, limit: usize) -> String {
    if turn.next_state.is_empty() {
        return "(nothing)".to_owned();
    }
    conversation(fence, &turn.next_state, limit)
}

/// Messages in order, together about `limit` characters. Each message gets an equal share;
/// what short ones leave over goes to the others.
pub fn conversation(fence: &Fence, messages: &[Message], limit: usize) -> String {
    if messages.is_empty() {
        return "(nothing)".to_owned();
    }
    let left_out = messages.len().saturating_sub(MOST_MESSAGES);
    let shown: Vec<&Message> = messages
        .iter()
        .enumerate()
        .filter(|(at, _)| *at < 2 || *at >= 2 + left_out)
        .map(|(_, message)| message)
        .collect();
    let lengths: Vec<usize> = shown.iter().map(|m| content(m).chars().count()).collect();
    let share = share(&lengths, limit).max(LEAST);
    let mut parts: Vec<String> = shown.iter().map(|m| message(fence, m, share)).collect();
    if left_out > 0 {
        parts.insert(2, format!("({left_out} messages left out)"));
    }
    parts.join("\n")
}

/// One message in its fence, labelled with its role.
pub fn message(fence: &Fence, message: &Message, limit: usize) -> String {
    let label = match message.role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool result",
    };
    fence.around(label, &bounded(&content(message), limit))
}

/// The largest share such that texts of these lengths, each truncated to it, fit into `limit`.
fn share(lengths: &[usize], limit: usize) -> usize {
    let mut sorted = lengths.to_vec();
    sorted.sort_unstable();
    let mut left = limit;
    for (at, length) in sorted.iter().enumerate() {
        let equal = left / (sorted.len() - at);
        if *length > equal {
            return equal;
        }
        left -= length;
    }
    limit
}

/// The visible content: text, tool calls, and a placeholder for other parts. Hidden reasoning is
/// not shown, because the user does not see it.
fn content(message: &Message) -> String {
    let mut parts = Vec::new();
    for part in &message.content {
        match part {
            Part::Text(text) => parts.push(text.clone()),
            Part::Image(_) => parts.push("[image]".to_owned()),
            Part::Other((kind, _)) => parts.push(format!("[{kind}]")),
            Part::Reasoning(_) => {}
        }
    }
    for call in &message.tool_calls {
        parts.push(format!("[calls {} with {}]", call.name, call.arguments));
    }
    parts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_share_of_short_messages_goes_to_long_ones() {
        assert_eq!(share(&[10, 1000], 500), 490);
        assert_eq!(share(&[10, 20], 500), 500);
        assert_eq!(share(&[900, 900, 900], 300), 100);
        assert_eq!(share(&[], 300), 300);
    }

    #[test]
    fn all_messages_are_fenced_and_truncated() {
        let fence = Fence::new(3);
        let mut messages: Vec<Message> = (0..60)
            .map(|i| Message::new(Role::User, format!("{i} {}", "word ".repeat(500))))
            .collect();
        if let Some(last) = messages.last_mut() {
            last.role = Role::Tool;
        }
        let shown = conversation(&fence, &messages, 6000);
        assert!(shown.len() < 12_000, "{}", shown.len());
        assert!(shown.contains("(36 messages left out)"));
        assert!(shown.contains("tool result>>>\n59 word"));
        assert_eq!(
            shown.matches(" end>>>").count(),
            shown.matches("user>>>").count() + 1
        );
    }

    #[test]
    fn a_response_shows_tool_calls_but_not_reasoning() {
        let mut reply = Message::new(Role::Assistant, "I look.");
        reply.content.push(Part::Reasoning("secret".to_owned()));
        reply.tool_calls.push(clawhost_sdk::ToolCall {
            id: "1".to_owned(),
            name: "read".to_owned(),
            arguments: "{\"path\":\"a\"}".to_owned(),
        });
        let shown = message(&Fence::new(1), &reply, 1000);
        assert!(shown.contains("[calls read with {\"path\":\"a\"}]") && !shown.contains("secret"));
    }
}
