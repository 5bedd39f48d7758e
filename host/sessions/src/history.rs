//! Agreement of two message histories.
//!
//! They are compared backwards from our reply, where they must agree: what a client trims, summarizes or inserts is
//! further back or in single places. System messages are ignored; clients change them at will.

use crate::normalize::NormalizedMessage;
use crate::similarity::similarity;
use clawhost_chat::Role;

/// Maximum number of messages before our reply that are compared.
const MAX_COMPARED_MESSAGES: usize = 64;
/// Maximum number of messages that only one side has in one place.
const MAX_GAP: usize = 3;

/// Agreement of the history before a reply in a request with the request of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct HistoryAgreement {
    /// Share of the request's messages that the turn has, 0 to 1; 0 if there are none.
    pub(crate) of_request: f32,
    /// Share of the turn's messages that the request still has, 0 to 1.
    pub(crate) of_turn: f32,
    /// Number of the request's messages that were compared.
    pub(crate) compared: usize,
}

/// Compares the messages before our reply in a request with the request messages of a turn.
pub(crate) fn compare_histories(
    request: &[NormalizedMessage],
    turn: &[NormalizedMessage],
) -> HistoryAgreement {
    let request = non_system_messages(request);
    let turn = non_system_messages(turn);
    let (mut left, mut right) = (request.as_slice(), turn.as_slice());
    let mut agreed = 0.0;
    while !left.is_empty() && !right.is_empty() {
        match nearest(left, right) {
            Some((skip_left, skip_right, value)) => {
                agreed += value;
                left = drop_last(left, skip_left + 1);
                right = drop_last(right, skip_right + 1);
            }
            None => {
                left = drop_last(left, 1);
                right = drop_last(right, 1);
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
    HistoryAgreement {
        of_request: share(request.len()),
        of_turn: share(turn.len()),
        compared: request.len(),
    }
}

/// The pair of similar messages closest to both ends, and their similarity.
fn nearest(
    left: &[&NormalizedMessage],
    right: &[&NormalizedMessage],
) -> Option<(usize, usize, f32)> {
    (0..=2 * MAX_GAP).find_map(|gaps| {
        (0..=gaps.min(MAX_GAP))
            .filter(|skip| gaps - skip <= MAX_GAP)
            .filter_map(|skip_left| {
                let skip_right = gaps - skip_left;
                let a = left.iter().rev().nth(skip_left)?;
                let b = right.iter().rev().nth(skip_right)?;
                let value = similarity(a, b);
                (value > 0.0).then_some((skip_left, skip_right, value))
            })
            .max_by(|a, b| a.2.total_cmp(&b.2))
    })
}

fn drop_last<'a, 'b>(
    messages: &'a [&'b NormalizedMessage],
    by: usize,
) -> &'a [&'b NormalizedMessage] {
    &messages[..messages.len().saturating_sub(by)]
}

fn non_system_messages(messages: &[NormalizedMessage]) -> Vec<&NormalizedMessage> {
    let all: Vec<&NormalizedMessage> = messages
        .iter()
        .filter(|message| message.role != Role::System)
        .collect();
    all[all.len().saturating_sub(MAX_COMPARED_MESSAGES)..].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::normalize::normalize_all;
    use crate::normalize::tests::message;

    fn talk(lines: &[&str]) -> Vec<NormalizedMessage> {
        let messages: Vec<_> = lines
            .iter()
            .map(|line| {
                let (role, text) = line.split_once(':').unwrap();
                let role = match role {
                    "s" => "system",
                    "u" => "user",
                    "t" => "tool",
                    _ => "assistant",
                };
                message(role, text)
            })
            .collect();
        normalize_all(&messages)
    }

    #[test]
    fn agreement_tolerates_trimming_and_insertions() {
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
            let found = compare_histories(&talk(request), &full);
            assert!(
                (found.of_request - of_request).abs() < 1e-6,
                "{name}: {found:?}"
            );
            assert!((found.of_turn - of_turn).abs() < 1e-6, "{name}: {found:?}");
        }
    }
}
