//! Ephemeral messages: trailing messages that a client replaces in each request.
//!
//! Some agents append a context block as the last message of every request and leave it out of the history of the next
//! one. Such a block is not a reaction to our reply. It is detected by comparison: the previous request ended with a
//! message that is missing now, while the message before it is directly in front of our reply.

use crate::normalize::NormalizedMessage;
use crate::similarity::similarity;
use clawhost_chat::Role;

/// Whether `last`, the last message of the current request, is ephemeral: the client that sent `previous`, and now sends
/// `history` before our reply, replaced the last message of `previous`.
pub(crate) fn is_ephemeral_message(
    previous: &[NormalizedMessage],
    history: &[NormalizedMessage],
    last: &NormalizedMessage,
) -> bool {
    let Some((ended_with, before)) = previous.split_last() else {
        return false;
    };
    if ended_with.role != last.role || !matches!(last.role, Role::User | Role::System) {
        return false;
    }
    let is_spoken = |message: &&NormalizedMessage| message.role != Role::System;
    let (Some(kept), Some(asked)) = (
        before.iter().rfind(is_spoken),
        history.iter().rfind(is_spoken),
    ) else {
        return false;
    };
    if ended_with.role == Role::System
        && history
            .iter()
            .any(|message| message.digest == ended_with.digest)
    {
        return false;
    }
    let kept_is_there = similarity(kept, asked);
    kept_is_there > 0.0 && kept_is_there > similarity(ended_with, asked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::normalize::normalize_all;
    use crate::normalize::tests::message;

    fn talk(lines: &[(&str, &str)]) -> Vec<NormalizedMessage> {
        let messages: Vec<_> = lines
            .iter()
            .map(|(role, text)| message(role, text))
            .collect();
        normalize_all(&messages)
    }

    #[test]
    fn ephemeral_messages_are_detected_by_comparing_requests() {
        type Line = (&'static str, &'static str);
        type Case = (&'static str, &'static [Line], &'static [Line], Line, bool);
        let cases: [Case; 8] = [
            (
                "replaced",
                &[
                    ("system", "s"),
                    ("user", "list the files"),
                    ("user", "ctx 1"),
                ],
                &[("system", "s"), ("user", "list the files")],
                ("user", "ctx 2"),
                true,
            ),
            (
                "after a tool",
                &[
                    ("user", "list"),
                    ("assistant", "c"),
                    ("tool", "a.md"),
                    ("user", "ctx 1"),
                ],
                &[("user", "list"), ("assistant", "c"), ("tool", "a.md")],
                ("user", "ctx 2"),
                true,
            ),
            (
                "kept",
                &[("system", "s"), ("user", "list the files")],
                &[("system", "s"), ("user", "list the files")],
                ("user", "thanks"),
                false,
            ),
            (
                "kept, decorated",
                &[
                    ("user", "one"),
                    ("assistant", "two"),
                    ("user", "[10:32] list the files"),
                ],
                &[
                    ("user", "one"),
                    ("assistant", "two"),
                    ("user", "list the files"),
                ],
                ("user", "thanks"),
                false,
            ),
            (
                "summarised",
                &[("user", "one"), ("assistant", "two"), ("user", "three")],
                &[("user", "we counted so far")],
                ("user", "four"),
                false,
            ),
            (
                "said twice",
                &[("user", "go"), ("user", "go")],
                &[("user", "go")],
                ("user", "on"),
                false,
            ),
            (
                "system block",
                &[("user", "list"), ("system", "clock 1")],
                &[("user", "list")],
                ("system", "clock 2"),
                true,
            ),
            (
                "system block kept",
                &[("user", "list"), ("system", "be brief")],
                &[("user", "list"), ("system", "be brief")],
                ("system", "be brief"),
                false,
            ),
        ];
        for (name, previous, history, last, expected) in cases {
            assert_eq!(
                is_ephemeral_message(&talk(previous), &talk(history), &talk(&[last])[0]),
                expected,
                "{name}"
            );
        }
    }
}
