//! How much of two histories agrees.
//!
//! The two are read backwards from our reply, because that is where they must meet: what a client trims, summarises or
//! inserts lies further back or in single places. System messages do not count; clients change them at will.

use crate::likeness::likeness;
use crate::normalise::{Plain, Role};

/// Messages before our reply that are compared, at most.
const WINDOW: usize = 64;
/// Messages that one side may have and the other not, in one place, before both are given up there.
const GAP: usize = 3;

/// Outcome of comparing what a request says came before a reply with what a turn was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Agreement {
    /// Share of the request's messages that the turn has too, 0 to 1; 0 when there are none.
    pub(crate) of_request: f32,
    /// Share of the turn's messages that the request still has, 0 to 1.
    pub(crate) of_turn: f32,
    /// Number of the request's messages that were compared.
    pub(crate) compared: usize,
}

/// Compares the messages before our reply in a request with the messages of the turn that gave it.
pub(crate) fn agreement(request: &[Plain], turn: &[Plain]) -> Agreement {
    let request = spoken(request);
    let turn = spoken(turn);
    let (mut left, mut right) = (request.as_slice(), turn.as_slice());
    let mut agreed = 0.0;
    while !left.is_empty() && !right.is_empty() {
        match nearest(left, right) {
            Some((skip_left, skip_right, value)) => {
                agreed += value;
                left = shortened(left, skip_left + 1);
                right = shortened(right, skip_right + 1);
            }
            None => {
                left = shortened(left, 1);
                right = shortened(right, 1);
            }
        }
    }
    let share = |count: usize| {
        if count == 0 {
            0.0
        } else {
            agreed / count as f32
        }
    };
    Agreement {
        of_request: share(request.len()),
        of_turn: share(turn.len()),
        compared: request.len(),
    }
}

/// The pair of like messages closest to both ends, and how alike they are.
fn nearest(left: &[&Plain], right: &[&Plain]) -> Option<(usize, usize, f32)> {
    (0..=2 * GAP).find_map(|gaps| {
        (0..=gaps.min(GAP))
            .filter(|skip| gaps - skip <= GAP)
            .filter_map(|skip_left| {
                let skip_right = gaps - skip_left;
                let a = left.iter().rev().nth(skip_left)?;
                let b = right.iter().rev().nth(skip_right)?;
                let value = likeness(a, b);
                (value > 0.0).then_some((skip_left, skip_right, value))
            })
            .max_by(|a, b| a.2.total_cmp(&b.2))
    })
}

fn shortened<'a, 'b>(messages: &'a [&'b Plain], by: usize) -> &'a [&'b Plain] {
    messages
        .get(..messages.len().saturating_sub(by))
        .unwrap_or_default()
}

fn spoken(messages: &[Plain]) -> Vec<&Plain> {
    let all: Vec<&Plain> = messages
        .iter()
        .filter(|message| message.role != Role::System)
        .collect();
    all.get(all.len().saturating_sub(WINDOW)..)
        .unwrap_or_default()
        .to_vec()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::normalise::plain_all;

    fn talk(lines: &[&str]) -> Vec<Plain> {
        let messages: Vec<Value> = lines
            .iter()
            .map(|line| {
                let (role, text) = line.split_once(':').unwrap();
                let role = match role {
                    "s" => "system",
                    "u" => "user",
                    "t" => "tool",
                    _ => "assistant",
                };
                json!({"role": role, "content": text})
            })
            .collect();
        plain_all(&messages)
    }

    #[test]
    fn cases() {
        let full = talk(&[
            "s:x",
            "u:one apple",
            "a:yes",
            "u:two pears",
            "a:no",
            "u:three plums",
        ]);
        let cases: [(&str, &[&str], f32, f32); 7] = [
            (
                "the same, system changed",
                &[
                    "s:y",
                    "u:one apple",
                    "a:yes",
                    "u:two pears",
                    "a:no",
                    "u:three plums",
                ],
                1.0,
                1.0,
            ),
            ("trimmed in front", &["a:no", "u:three plums"], 1.0, 0.4),
            (
                "replaced last message",
                &["u:one apple", "a:yes", "u:two pears", "a:no"],
                1.0,
                0.8,
            ),
            (
                "one inserted",
                &[
                    "u:one apple",
                    "a:yes",
                    "u:memo",
                    "u:two pears",
                    "a:no",
                    "u:three plums",
                ],
                5.0 / 6.0,
                1.0,
            ),
            (
                "summarised",
                &["u:so far fruit was counted", "u:three plums"],
                0.5,
                0.2,
            ),
            ("another talk", &["u:good morning", "a:hello"], 0.0, 0.0),
            ("nothing left", &[], 0.0, 0.0),
        ];
        for (name, request, of_request, of_turn) in cases {
            let found = agreement(&talk(request), &full);
            assert!(
                (found.of_request - of_request).abs() < 1e-6,
                "{name}: {found:?}"
            );
            assert!((found.of_turn - of_turn).abs() < 1e-6, "{name}: {found:?}");
        }
    }
}
