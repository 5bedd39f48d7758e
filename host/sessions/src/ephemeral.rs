//! Trailing messages that a client replaces in each request.
//!
//! Some agents append a block of context as the last message of every request and leave it out of the history that they
//! send next. Such a block is nobody's reaction. It is known by comparing: the request that brought our reply ended with
//! a message that is gone now, while the one before it stands right in front of our reply.

use crate::likeness::likeness;
use crate::normalise::{Plain, Role};

/// Whether the client that sent `previous`, and now sends `history` in front of our reply, replaces its last message
/// each time, so that `last` of the present request is such a message too.
pub(crate) fn is_replaced_each_time(previous: &[Plain], history: &[Plain], last: &Plain) -> bool {
    let Some((ended_with, before)) = previous.split_last() else {
        return false;
    };
    if ended_with.role != last.role || !matches!(last.role, Role::User | Role::System) {
        return false;
    }
    let Some(kept) = before
        .iter()
        .rev()
        .find(|message| message.role != Role::System)
    else {
        return false;
    };
    let Some(asked) = history
        .iter()
        .rev()
        .find(|message| message.role != Role::System)
    else {
        return false;
    };
    if ended_with.role == Role::System
        && history
            .iter()
            .any(|message| message.mark == ended_with.mark)
    {
        return false;
    }
    let kept_is_there = likeness(kept, asked);
    kept_is_there > 0.0 && kept_is_there > likeness(ended_with, asked)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::normalise::plain_all;

    fn talk(lines: &[(&str, &str)]) -> Vec<Plain> {
        plain_all(
            &lines
                .iter()
                .map(|(role, text)| json!({"role": role, "content": text}))
                .collect::<Vec<Value>>(),
        )
    }

    #[test]
    fn cases() {
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
                is_replaced_each_time(&talk(previous), &talk(history), &talk(&[last])[0]),
                expected,
                "{name}"
            );
        }
    }
}
