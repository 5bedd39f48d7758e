//! From a body to texts in progress: checked, scored where that is asked for, taken on by the engine.

use std::sync::Arc;
use std::time::Instant;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use clawhost_journal::now_ms;
use clawhost_policy::{GenerateRequest, Priority, Served};
use serde_json::Value;

use super::choice::Choice;
use super::request::Asked;
use super::score::{self, ScoredToken};
use crate::admission::Slot;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::gateway::Shared;
use crate::{ids, reply, versions};

/// Texts in progress, and what their answer is made from.
pub(super) struct Begun {
    pub(super) shared: Arc<Shared>,
    pub(super) asked: Asked,
    pub(super) id: String,
    /// Unix seconds.
    pub(super) created: i64,
    pub(super) model: String,
    pub(super) fingerprint: String,
    adapter: String,
    /// For each prompt; empty when nothing is to be scored.
    pub(super) scored: Vec<Vec<ScoredToken>>,
    /// In order: all texts of the first prompt, then those of the next.
    pub(super) choices: Vec<Choice>,
    /// Held until the texts are generated, so that a stream counts as a request in progress. None once a stream
    /// holds it by itself.
    pub(super) slot: Option<Slot>,
}

/// Checks the request and begins its texts, off the threads that serve requests.
pub(super) async fn begin(
    shared: Arc<Shared>,
    body: Value,
    caller: Caller,
    arrived: Instant,
    slot: Slot,
) -> Result<Begun, ApiError> {
    let user = caller.name().map(|name| format!("key {name}"));
    let reading = shared.clone();
    let read = shared.begin(move || {
        let fields = Fields::of(&body, "")?;
        let asked = Asked::read(fields, &reading.engine, reading.options.max_choices)?;
        let asked_model = asked.model.as_deref();
        let (served, model) = reading.versions.resolve(
            &reading.engine,
            &reading.options,
            asked_model,
            caller.adapter,
        )?;
        Ok((asked, served, model))
    });
    let (asked, served, model) = read.await?;
    if shared.stopping() {
        return Err(reply::stopping());
    }
    let scored = match asked.scored() {
        Some(top) => score::score(&shared.engine, &served, &asked.prompts, top).await?,
        None => Vec::new(),
    };
    let writing = shared.clone();
    let begun = move || {
        let choices = choices(&shared, &asked, &served, user.as_ref(), arrived)?;
        Ok(Begun {
            id: ids::response_id("cmpl-"),
            created: now_ms().div_euclid(1000),
            model,
            fingerprint: served.digest.clone(),
            adapter: versions::label(&served),
            scored,
            choices,
            slot: Some(slot),
            asked,
            shared,
        })
    };
    writing.begin(begun).await
}

/// All texts, or none: dropping a generation cancels it.
fn choices(
    shared: &Arc<Shared>,
    asked: &Asked,
    served: &Served,
    user: Option<&String>,
    arrived: Instant,
) -> Result<Vec<Choice>, ApiError> {
    let mut choices = Vec::new();
    for (place, prompt) in asked.prompts.iter().enumerate() {
        for which in 0..asked.n {
            let generation = if asked.length == 0 {
                None
            } else {
                let mut sampling = asked.sampling.clone();
                // Texts of one prompt differ, and the same request gives the same texts again.
                sampling.seed = sampling
                    .seed
                    .map(|seed| seed.wrapping_add(u64::from(which)));
                let request = GenerateRequest {
                    prompt: prompt.ids.clone(),
                    sampling,
                    served: served.clone(),
                    priority: Priority::Person,
                    user: user.cloned(),
                };
                let taken = shared.engine.generate(request);
                Some(taken.map_err(|refused| reply::refusal(&refused, "prompt", "guided_json"))?)
            };
            let index = choices.len();
            choices.push(Choice::new(shared, (index, place), generation, arrived));
        }
    }
    Ok(choices)
}

impl Begun {
    /// Headers that say which adapter answered, and that nothing was recorded.
    pub(super) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Ok(label) = HeaderValue::from_str(&self.adapter) {
            headers.insert(HeaderName::from_static("x-clawhost-adapter"), label);
        }
        headers.insert(
            HeaderName::from_static("x-clawhost-collected"),
            HeaderValue::from_static("false"),
        );
        headers
    }
}
