//! Shows conversations to a model, each message in a fence of its own.

use clawhost_sdk::{Message, Part, Role, Turn};

use crate::bound::bounded;
use crate::fence::Fence;

/// How much is shown, in characters.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Of the conversation before the reply, all messages together.
    pub conversation: usize,
    /// Of a reply.
    pub reply: usize,
    /// Of what followed it, all messages together.
    pub next_state: usize,
}

impl Default for Limits {
    /// 6,000 before the reply, 6,000 of the reply, 4,000 of what followed.
    fn default() -> Limits {
        Limits {
            conversation: 6000,
            reply: 6000,
            next_state: 4000,
        }
    }
}

/// Fewest characters that a message is cut to.
const LEAST: usize = 120;
/// Most messages that are shown of a conversation; the first two and the last are kept.
const MOST_MESSAGES: usize = 24;

/// Everything about one turn: what came before, the reply, what followed.
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

/// What followed the reply.
pub fn next_state(fence: &Fence, turn: &Turn, limit: usize) -> String {
    if turn.next_state.is_empty() {
        return "(nothing)".to_owned();
    }
    conversation(fence, &turn.next_state, limit)
}

/// Messages in order, together about as long as `limit` characters. The share of each message is
/// equal; what short ones leave over goes to the others.
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

/// The largest share such that texts of these lengths, each cut to it, fit into `limit`.
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

/// The visible content: text, calls of tools, and a word for what is no text. Hidden reasoning is
/// not shown: it is not what the user got.
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
    fn short_messages_leave_their_share_to_long_ones() {
        assert_eq!(share(&[10, 1000], 500), 490);
        assert_eq!(share(&[10, 20], 500), 500);
        assert_eq!(share(&[900, 900, 900], 300), 100);
        assert_eq!(share(&[], 300), 300);
    }

    #[test]
    fn everything_stands_in_a_fence_and_within_its_bound() {
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
    fn a_reply_shows_its_calls_and_not_its_thoughts() {
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
