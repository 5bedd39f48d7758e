//! What was forgotten: held-out prompts about which the persona never said a word, asked when its
//! conversations are over.
//!
//! The prompts and their checks are those that the policy's own card is measured by. Each persona has the
//! ones that its preference does not touch: a student who wants plain prose wants the sums right, formatted
//! pages for those who ask for them, and comments on answers as before.

use std::ops::Range;

use clawhost_corpus::probes::{self, Probe, ProbeSet};
use futures_util::StreamExt;
use serde::Serialize;
use serde_json::Value;

use crate::client::{Asking, ChatClient};
use crate::persona::Track;
use crate::seeds::{Purpose, request_seed};

/// Requests in flight at once.
const AT_ONCE: usize = 8;

/// A reply that is longer than any of the corpus' has run on.
const LONGEST: u32 = 192;

/// One property of the replies to one set of prompts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Probed {
    /// The set and the property, `homework-formatted: right`.
    pub name: String,
    /// Whether each reply has it, in the order of the prompts; `None` where no reply came.
    pub passed: Vec<Option<bool>>,
}

/// The sets with the checks that are not at stake with a persona.
fn sets(track: Track, count: usize) -> Vec<(ProbeSet, &'static [&'static str])> {
    match track {
        Track::Student => vec![
            (probes::homework_first(count), &["right"]),
            (probes::homework_formatted(count), &["formatted", "right"]),
            (probes::grading_first(count), &["terse", "verdict"]),
            (probes::grading_hinted(count), &["kind"]),
            (probes::grading_thorough(count), &["long"]),
            (probes::talk(count), &["clean"]),
        ],
        Track::Teacher => vec![
            (probes::homework_first(count), &["right"]),
            (probes::homework_formatted(count), &["formatted", "right"]),
            (probes::homework_hinted(count), &["plain", "right"]),
            (probes::grading_thorough(count), &["long", "verdict"]),
            (probes::talk(count), &["clean"]),
        ],
    }
}

/// Asks the prompts `which` of each set. A request that fails leaves a gap and its message.
pub(super) async fn probe(
    client: &ChatClient,
    track: Track,
    which: Range<usize>,
    asking: Asking,
) -> (Vec<Probed>, Vec<String>) {
    let (mut found, mut failures) = (Vec::new(), Vec::new());
    for (number, (mut set, wanted)) in sets(track, which.end).into_iter().enumerate() {
        set.probes.drain(..which.start.min(set.probes.len()));
        let replies = replies(client, &set.probes, number as u64, asking).await;
        let reply = |at: usize| replies.get(at).and_then(|r| r.as_ref().ok());
        for check in set.checks.iter().filter(|c| wanted.contains(&c.name)) {
            let probes = set.probes.iter().enumerate();
            found.push(Probed {
                name: format!("{}: {}", set.name, check.name),
                passed: probes
                    .map(|(at, probe)| reply(at).map(|text| (check.passes)(probe, text)))
                    .collect(),
            });
        }
        failures.extend(replies.into_iter().filter_map(Result::err));
    }
    (found, failures)
}

async fn replies(
    client: &ChatClient,
    probes: &[Probe],
    set: u64,
    asking: Asking,
) -> Vec<Result<String, String>> {
    let request = |(at, probe): (usize, &Probe)| {
        let messages: Vec<Value> = probe.messages.iter().map(|m| m.to_json()).collect();
        let asking = Asking {
            seed: request_seed(asking.seed, set, Purpose::Probe, at as u64),
            max_tokens: Some(LONGEST),
            ..asking
        };
        (messages, asking)
    };
    let requests: Vec<(Vec<Value>, Asking)> = probes.iter().enumerate().map(request).collect();
    futures_util::stream::iter(requests)
        .map(|(messages, asking)| async move {
            let reply = client.chat(&messages, asking).await;
            reply.map(|r| r.text).map_err(|e| e.to_string())
        })
        .buffered(AT_ONCE)
        .collect()
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_that_is_wanted_is_one_of_its_set() {
        for track in Track::ALL {
            for (set, wanted) in sets(track, 1) {
                let known: Vec<&str> = set.checks.iter().map(|check| check.name).collect();
                assert!(
                    !wanted.is_empty() && wanted.iter().all(|name| known.contains(name)),
                    "{}: {wanted:?} of {known:?}",
                    set.name
                );
            }
        }
    }
}
