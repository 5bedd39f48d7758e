//! The score after training: first replies to many fresh tasks at once, which say more than the last dozen conversations.

use futures_util::StreamExt;

use super::plan::{Cell, PersonalizeOptions};
use crate::client::{ChatClient, RequestParams};
use crate::conversation::opening;
use crate::persona::{Persona, Phase};
use crate::scorer::{Score, score};
use crate::seeds::{Purpose, request_seed};

/// Scores the first replies to `options.fresh` tasks, each with the system message `memory` if there is one. A failed
/// request leaves a gap and its error.
pub(super) async fn score_fresh(
    client: &ChatClient,
    persona: &dyn Persona,
    cell: Cell,
    memory: Option<&str>,
    options: &PersonalizeOptions,
) -> (Vec<Option<Score>>, Vec<String>) {
    let requests = (0..options.fresh).map(|number| {
        let task = persona.task(cell.seed, number, Phase::Fresh);
        let params = RequestParams {
            seed: request_seed(cell.seed, number as u64, Purpose::FreshRequest, 0),
            temperature: options.temperature,
            max_tokens: options.max_tokens,
        };
        (task, params)
    });
    let replies: Vec<Result<Score, String>> = futures_util::stream::iter(requests)
        .map(|(task, params)| async move {
            let reply = client.chat(&opening(&task, memory), params).await;
            let reply = reply.map_err(|error| error.to_string())?;
            Ok(score(&task, &reply.text))
        })
        .buffered(options.concurrency.max(1))
        .collect()
        .await;
    let scores = replies
        .iter()
        .map(|reply| reply.as_ref().ok().copied())
        .collect();
    (
        scores,
        replies.into_iter().filter_map(Result::err).collect(),
    )
}
