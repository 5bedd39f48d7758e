//! Probes for forgetting: held-out prompts unrelated to the persona's feedback, run after the conversations.
//!
//! The prompts and checks are those of the model card. Each persona has those that its preference does not affect: for
//! a student who wants plain prose, correct sums, formatted pages on request, and unchanged comments on answers.

use std::ops::Range;

use clawhost_corpus::probes::{self, Probe, ProbeSet};
use futures_util::StreamExt;
use serde::Serialize;
use serde_json::Value;

use crate::client::{ChatClient, RequestParams};
use crate::persona::Track;
use crate::seeds::{Purpose, request_seed};

/// Concurrent requests.
const CONCURRENCY: usize = 8;

/// Longer than any reply of the corpus.
const MAX_TOKENS: u32 = 192;

/// One property of the replies to one set of prompts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProbeResult {
    /// The set and the property, such as `homework-formatted: right`.
    pub name: String,
    /// Whether each reply has the property, in the order of the prompts; `None` without a reply.
    pub passed: Vec<Option<bool>>,
}

/// The probe sets with the checks that a persona's preference does not affect.
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

/// Runs the prompts `which` of each set. A failed request leaves a gap and its error.
pub(super) async fn probe(
    client: &ChatClient,
    track: Track,
    which: Range<usize>,
    params: RequestParams,
) -> (Vec<ProbeResult>, Vec<String>) {
    let (mut results, mut failures) = (Vec::new(), Vec::new());
    for (number, (mut set, selected)) in sets(track, which.end).into_iter().enumerate() {
        set.probes.drain(..which.start.min(set.probes.len()));
        let replies = replies(client, &set.probes, number as u64, params).await;
        let reply = |at: usize| replies.get(at).and_then(|r| r.as_ref().ok());
        for check in set.checks.iter().filter(|c| selected.contains(&c.name)) {
            let probes = set.probes.iter().enumerate();
            results.push(ProbeResult {
                name: format!("{}: {}", set.name, check.name),
                passed: probes
                    .map(|(at, probe)| reply(at).map(|text| (check.passes)(probe, text)))
                    .collect(),
            });
        }
        failures.extend(replies.into_iter().filter_map(Result::err));
    }
    (results, failures)
}

async fn replies(
    client: &ChatClient,
    probes: &[Probe],
    set: u64,
    params: RequestParams,
) -> Vec<Result<String, String>> {
    let request = |(at, probe): (usize, &Probe)| {
        let messages: Vec<Value> = probe.messages.iter().map(|m| m.to_json()).collect();
        let params = RequestParams {
            seed: request_seed(params.seed, set, Purpose::Probe, at as u64),
            max_tokens: Some(MAX_TOKENS),
            ..params
        };
        (messages, params)
    };
    let requests: Vec<(Vec<Value>, RequestParams)> =
        probes.iter().enumerate().map(request).collect();
    futures_util::stream::iter(requests)
        .map(|(messages, params)| async move {
            let reply = client.chat(&messages, params).await;
            reply.map(|r| r.text).map_err(|e| e.to_string())
        })
        .buffered(CONCURRENCY)
        .collect()
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_selected_check_exists_in_its_set() {
        for track in Track::ALL {
            for (set, selected) in sets(track, 1) {
                let known: Vec<&str> = set.checks.iter().map(|check| check.name).collect();
                assert!(
                    !selected.is_empty() && selected.iter().all(|name| known.contains(name)),
                    "{}: {selected:?} of {known:?}",
                    set.name
                );
            }
        }
    }
}
