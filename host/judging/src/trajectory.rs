//! Builds the trajectory that a judge sees: the head and the tail of the conversation, within size limits.
//!
//! Messages keep their roles and nothing is concatenated into a prompt here, so text of a user or a tool cannot pose as
//! anything else. The metadata says how many messages were left out; a shortened text contains a note in place of its
//! middle.

use clawhost_journal::{Completion, Finish, TurnRecord};
use clawhost_plugins::{Message, Part, Role, Trajectory};

use clawhost_config::JudgingOptions;

/// Builds the trajectory that ends with `turn` and returns it with the index of that turn. `earlier` are the preceding
/// turns, oldest first; `next_state` is what followed the turn.
pub(crate) fn build_trajectory(
    turn: &TurnRecord,
    completion: &Completion,
    earlier: &[TurnRecord],
    next_state: Vec<Message>,
    options: &JudgingOptions,
) -> (Trajectory, u32) {
    let mut trajectory = Trajectory::new(turn.session.0.clone(), turn.group.clone());
    let mut before: Option<&TurnRecord> = None;
    for record in earlier {
        let Some(done) = &record.completion else {
            continue;
        };
        // Only the new messages of the request; the others are part of the preceding turns.
        let new = match before {
            Some(before) => before.next_state.as_deref().unwrap_or_default(),
            None => &record.messages,
        };
        let followed = record.next_state.as_deref().unwrap_or_default();
        trajectory.push(
            limit_messages(Message::from_chat(new), options).0,
            limit_message((&done.reply).into(), options.max_message_size),
            limit_messages(Message::from_chat(followed), options).0,
            done.finish == Finish::Length,
        );
        before = Some(record);
    }
    let (prompt, left_out) = limit_messages(Message::from_chat(&turn.messages), options);
    let next_state = next_state
        .into_iter()
        .map(|message| limit_message(message, options.max_message_size))
        .collect();
    let index = trajectory.push(
        prompt,
        limit_message((&completion.reply).into(), options.max_message_size),
        next_state,
        completion.finish == Finish::Length,
    );
    for (key, value) in [
        ("turn", turn.id.0.to_string()),
        ("choice", turn.choice.to_string()),
        ("messages_left_out", left_out.to_string()),
    ] {
        trajectory.metadata.push((key.to_owned(), value));
    }
    (trajectory, index)
}

/// Limits messages to `max_history_size`: the opening (system messages and the first other one) takes at most a
/// quarter, the newest messages the rest. Returns the number of messages left out.
fn limit_messages(messages: Vec<Message>, options: &JudgingOptions) -> (Vec<Message>, usize) {
    let messages: Vec<Message> = messages
        .into_iter()
        .map(|message| limit_message(message, options.max_message_size))
        .collect();
    if messages.iter().map(size).sum::<usize>() <= options.max_history_size {
        return (messages, 0);
    }
    let opening = messages
        .iter()
        .position(|message| message.role != Role::System)
        .map_or(messages.len(), |first| first + 1);
    let mut room = options.max_history_size / 4;
    let mut head = 0;
    for message in messages.iter().take(opening) {
        let Some(rest) = room.checked_sub(size(message)) else {
            break;
        };
        room = rest;
        head += 1;
    }
    let mut room = options.max_history_size - options.max_history_size / 4 + room;
    let mut tail = 0;
    for message in messages.iter().skip(head).rev() {
        // The newest message always stays: the reply answers it.
        match room.checked_sub(size(message)) {
            Some(rest) => room = rest,
            None if tail == 0 => room = 0,
            None => break,
        }
        tail += 1;
    }
    let total = messages.len();
    let kept: Vec<Message> = messages
        .into_iter()
        .enumerate()
        .filter(|(i, _)| *i < head || *i >= total - tail)
        .map(|(_, message)| message)
        .collect();
    let left_out = total - kept.len();
    (kept, left_out)
}

/// Bytes of a message's content.
fn size(message: &Message) -> usize {
    let parts: usize = message.content.iter().map(part_size).sum();
    let calls: usize = message
        .tool_calls
        .iter()
        .map(|call| call.name.len() + call.arguments.len())
        .sum();
    parts + calls
}

fn part_size(part: &Part) -> usize {
    match part {
        Part::Text(text) | Part::Reasoning(text) => text.len(),
        Part::Image(blob) => blob.data.len(),
        Part::Other(kind, text) => kind.len() + text.len(),
    }
}

/// Limits every part and every tool call's arguments to `limit` bytes.
fn limit_message(mut message: Message, limit: usize) -> Message {
    for part in &mut message.content {
        match part {
            Part::Text(text) | Part::Reasoning(text) | Part::Other(_, text) => {
                truncate_middle(text, limit);
            }
            Part::Image(blob) if blob.data.len() > limit => {
                let omitted =
                    serde_json::json!({"media_type": blob.media_type, "bytes": blob.data.len()});
                *part = Part::Other("image-left-out".to_owned(), omitted.to_string());
            }
            Part::Image(_) => {}
        }
    }
    for call in &mut message.tool_calls {
        truncate_middle(&mut call.arguments, limit);
    }
    message
}

/// Removes the middle of a text that is too long and notes the number of bytes.
fn truncate_middle(text: &mut String, limit: usize) {
    if text.len() <= limit {
        return;
    }
    let head = text.floor_char_boundary(limit / 2);
    let tail = text.ceil_char_boundary(text.len() - limit / 2);
    let omitted = tail - head;
    text.replace_range(head..tail, &format!("\n[{omitted} bytes left out]\n"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::turn;
    use clawhost_chat as chat;

    fn options(history_bytes: usize, message_bytes: usize) -> JudgingOptions {
        JudgingOptions {
            max_history_size: history_bytes,
            max_message_size: message_bytes,
            ..JudgingOptions::default()
        }
    }

    fn texts(messages: &[Message]) -> Vec<String> {
        messages.iter().map(Message::visible_text).collect()
    }

    #[test]
    fn long_histories_keep_head_and_tail() {
        let mut messages = vec![
            Message::text(Role::System, "rules"),
            Message::text(Role::User, "first"),
        ];
        for i in 0..50 {
            messages.push(Message::text(Role::User, format!("message {i:02}")));
        }
        let (kept, left_out) = limit_messages(messages, &options(60, 4096));
        assert_eq!(
            texts(&kept),
            [
                "rules",
                "first",
                "message 45",
                "message 46",
                "message 47",
                "message 48",
                "message 49"
            ]
        );
        assert_eq!(left_out, 45);
    }

    #[test]
    fn long_texts_are_truncated_in_the_middle_at_character_boundaries() {
        let mut text = "äöü".repeat(100);
        truncate_middle(&mut text, 101);
        assert!(text.starts_with('ä') && text.ends_with('ü'));
        assert!(
            text.contains("bytes left out") && text.len() < 140,
            "{text}"
        );
        let mut short = "short".to_owned();
        truncate_middle(&mut short, 5);
        assert_eq!(short, "short");
    }

    #[test]
    fn earlier_turns_contain_only_their_new_messages() {
        let mut root = turn(1);
        root.next_state = Some(vec![chat::Message::user("and then?")]);
        let mut second = turn(2);
        let result = chat::Message::Tool {
            content: chat::Content::text("3"),
            tool_call_id: String::new(),
            name: None,
        };
        second.messages = vec![
            chat::Message::user("hi"),
            chat::Message::assistant("reply 1"),
            chat::Message::user("and then?"),
        ];
        second.next_state = Some(vec![result.clone()]);
        let mut judged = turn(3);
        judged.messages = second.messages.clone();
        judged
            .messages
            .extend([chat::Message::assistant("reply 2"), result]);
        let completion = judged.completion.clone().unwrap();
        let (seen, index) = build_trajectory(
            &judged,
            &completion,
            &[root, second],
            vec![Message::text(Role::User, "thanks")],
            &JudgingOptions::default(),
        );
        assert_eq!((seen.turns.len(), index), (3, 2));
        assert_eq!(texts(&seen.turns[0].prompt), ["hi"]);
        assert_eq!(texts(&seen.turns[1].prompt), ["and then?"]);
        assert_eq!(seen.turns[1].response.visible_text(), "reply 2");
        assert_eq!(
            texts(&seen.turns[2].prompt),
            ["hi", "reply 1", "and then?", "reply 2", "3"]
        );
        assert_eq!(texts(&seen.turns[2].next_state), ["thanks"]);
        assert_eq!(seen.turns[2].prompt[4].role, Role::Tool);
    }
}
