//! `/healthz`, `/readyz`, `/health`, `/version` and `/metrics`: the real state of engine, journal and loops.
//!
//! All but the last need no key and say nothing of any conversation. Files and hosts that a fault is about are shown
//! with the operator's key only.

use std::sync::Arc;

use axum::Extension;
use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use clawhost_journal::{Counts, JudgingState, SampleState, now_ms};
use serde_json::{Map, Value, json};

use crate::auth::{Caller, Scope};
use crate::error::ApiError;
use crate::gateway::{Fault, Shared};
use crate::metrics::Page;
use crate::recorded;

/// State of everything, with 503 when something is broken.
pub(crate) async fn healthz(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Response {
    let active = shared.versions.active(&shared.engine);
    let counts = counts(&shared).await;
    let mut faults: Vec<Fault> = shared
        .readiness
        .journal_fault(&shared)
        .await
        .into_iter()
        .chain(counts.as_ref().err().map(|error| Fault {
            what: "the journal cannot be read",
            why: error.to_string(),
        }))
        .collect();
    faults.extend(shared.status.faults());
    let mut body = Map::new();
    body.insert(
        "status".into(),
        if faults.is_empty() { "ok" } else { "unhealthy" }.into(),
    );
    if !faults.is_empty() {
        let reasons: Vec<String> = faults.iter().map(|fault| reason(fault, &caller)).collect();
        body.insert("reason".into(), reasons.join("; ").into());
    }
    body.insert("model".into(), shared.options.model_name.as_str().into());
    body.insert(
        "adapter".into(),
        json!({"version": active.version, "digest": active.digest}),
    );
    body.insert("uptime_ms".into(), (now_ms() - shared.started_ms).into());
    body.insert("stopping".into(), shared.stopping().into());
    body.insert("engine".into(), engine(&shared));
    if let Ok(counts) = counts {
        loops(&mut body, &counts);
        body.insert("journal".into(), json!(counts));
    }
    let mut status = shared.status.status();
    if !caller.sees_details() {
        hide_places(&mut status);
    }
    merge(&mut body, status);
    let status = if faults.is_empty() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(Value::Object(body))).into_response()
}

/// Whether new requests should be sent here: whether chat works.
pub(crate) async fn readyz(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Response {
    match shared.readiness.chat_fault(&shared).await {
        None => Json(json!({"status": "ready"})).into_response(),
        Some(fault) => not_ready(&fault, &caller),
    }
}

/// The same as vLLM answers it: 200 without a body.
pub(crate) async fn health(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Response {
    match shared.readiness.chat_fault(&shared).await {
        None => StatusCode::OK.into_response(),
        Some(fault) => not_ready(&fault, &caller),
    }
}

fn not_ready(fault: &Fault, caller: &Caller) -> Response {
    (
        StatusCode::SERVICE_UNAVAILABLE,
        Json(json!({"status": "not ready", "reason": reason(fault, caller)})),
    )
        .into_response()
}

/// The version of this program, as vLLM answers it.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// Everything that can be counted, for Prometheus.
pub(crate) async fn metrics(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    caller.require(Scope::Operator)?;
    let mut page = Page::default();
    shared.metrics.write(&mut page);
    let busy = shared
        .options
        .max_concurrent
        .saturating_sub(shared.slots.available_permits());
    page.gauge(
        "clawhost_requests_in_progress",
        "Requests being answered, streams included.",
        busy as f64,
    );
    let active = shared.versions.active(&shared.engine);
    page.gauge(
        "clawhost_adapter_version",
        "Version of the adapter that is served.",
        active.version as f64,
    );
    numbers(&mut page, "clawhost_engine", &engine(&shared));
    if let Ok(counts) = counts(&shared).await {
        tallies(&mut page, &json!(counts));
    }
    page.append(&shared.status.metrics());
    let kind = [(
        header::CONTENT_TYPE,
        "text/plain; version=0.0.4; charset=utf-8",
    )];
    Ok((kind, page.into_text()).into_response())
}

/// A fault as this caller may see it.
fn reason(fault: &Fault, caller: &Caller) -> String {
    if caller.sees_details() {
        fault.to_string()
    } else {
        fault.what.to_owned()
    }
}

/// Stands for a text that names a place.
const HIDDEN: &str = "(shown with an operator's key)";

/// Replaces each text that names an absolute path or a URL. The whole text goes, since a path may hold spaces and so
/// has no end that could be found.
fn hide_places(value: &mut Value) {
    match value {
        Value::String(text) if names_a_place(text) => HIDDEN.clone_into(text),
        Value::Array(list) => list.iter_mut().for_each(hide_places),
        Value::Object(map) => map.values_mut().for_each(hide_places),
        _ => {}
    }
}

/// Whether a slash or a drive begins something in the text, rather than standing between two words.
fn names_a_place(text: &str) -> bool {
    let mut before = ' ';
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let after = characters.peek().copied().unwrap_or(' ');
        let begins = !before.is_alphanumeric() && !matches!(before, '.' | '_' | '-' | '~');
        let is_place = match character {
            '/' => begins && !after.is_whitespace(),
            ':' => matches!(after, '\\') && before.is_ascii_alphabetic(),
            '\\' => after == '\\',
            _ => false,
        };
        if is_place {
            return true;
        }
        before = character;
    }
    false
}

async fn counts(shared: &Arc<Shared>) -> Result<Counts, ApiError> {
    shared
        .ask(|shared| {
            shared
                .journal
                .counts()
                .map_err(|error| recorded::refusal(&error))
        })
        .await
}

fn engine(shared: &Shared) -> Value {
    let stats = shared.engine.stats();
    json!({
        "running": stats.running,
        "waiting": stats.waiting,
        "finished": stats.finished,
        "cancelled": stats.cancelled,
        "failed": stats.failed,
        "steps": stats.steps,
        "mean_batch": stats.mean_batch(),
        "tokens_generated": stats.tokens_generated,
        "prefill_tokens": stats.prefill_tokens,
        "cached_tokens": stats.cached_tokens,
        "paused": stats.paused,
        "pauses": stats.pauses,
        "prefix_hits": stats.prefix_hits,
        "evictions": stats.evictions,
        "blocks": stats.blocks,
        "blocks_free": stats.blocks_free,
        "blocks_kept": stats.blocks_kept,
        "blocks_shared": stats.blocks_shared,
        "active_cache_bytes": stats.active_cache_bytes,
        "cache_bytes": stats.cache_bytes,
    })
}

/// What the journal knows of the loops; whoever runs them may say more.
fn loops(body: &mut Map<String, Value>, counts: &Counts) {
    let ready = counts
        .judging
        .get(&JudgingState::Ready)
        .copied()
        .unwrap_or(0);
    let queued = counts
        .samples
        .get(&SampleState::Queued)
        .copied()
        .unwrap_or(0);
    let steps: u64 = counts.steps.values().sum();
    body.insert("judging".into(), json!({"ready": ready, "running": 0}));
    body.insert(
        "training".into(),
        json!({"queued": queued, "running": false, "steps": steps}),
    );
}

/// Lays `extra` over `body`, field by field where both are objects.
fn merge(body: &mut Map<String, Value>, extra: Value) {
    let Value::Object(extra) = extra else { return };
    for (name, value) in extra {
        match (body.get_mut(&name), value) {
            (Some(Value::Object(have)), Value::Object(more)) => have.extend(more),
            (_, value) => {
                body.insert(name, value);
            }
        }
    }
}

/// Each number in an object as a gauge.
fn numbers(page: &mut Page, prefix: &str, object: &Value) {
    for (name, value) in object.as_object().into_iter().flatten() {
        if let Some(number) = value.as_f64() {
            page.gauge(&format!("{prefix}_{name}"), "State of the engine.", number);
        }
    }
}

/// Each count of the journal: a number as it is, a tally by its words.
fn tallies(page: &mut Page, counts: &Value) {
    for (name, value) in counts.as_object().into_iter().flatten() {
        let family = format!("clawhost_journal_{name}");
        match value {
            Value::Object(tally) => {
                page.family(&family, "gauge", "Recorded, by state or reason.");
                for (word, count) in tally {
                    page.sample(&family, &[("by", word)], count.as_f64().unwrap_or(0.0));
                }
            }
            value => page.gauge(&family, "Recorded.", value.as_f64().unwrap_or(0.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_loops_say_is_laid_over_what_the_journal_knows() {
        let mut body = Map::new();
        body.insert("judging".into(), json!({"ready": 2, "running": 0}));
        merge(
            &mut body,
            json!({"judging": {"running": 3}, "plugins": ["a"]}),
        );
        assert_eq!(
            Value::Object(body),
            json!({"judging": {"ready": 2, "running": 3}, "plugins": ["a"]})
        );
    }

    #[test]
    fn texts_that_name_places_are_hidden_whole() {
        let mut value = json!({
            "training": {"last_error": "cannot use /srv/my data/adapters: Permission denied", "steps": 3},
            "plugins": [{"name": "judge", "reason": "`/opt/judge.wasm` has gone"}, "C:\\Users\\me", "http://10.0.0.7/v1"],
            "waits": "3/4 of a batch and/or 20 s, in ./adapters (7 / 8)",
        });
        hide_places(&mut value);
        assert_eq!(
            value,
            json!({
                "training": {"last_error": HIDDEN, "steps": 3},
                "plugins": [{"name": "judge", "reason": HIDDEN}, HIDDEN, HIDDEN],
                "waits": "3/4 of a batch and/or 20 s, in ./adapters (7 / 8)",
            })
        );
    }

    #[test]
    fn a_tally_becomes_labelled_samples() {
        let mut page = Page::default();
        tallies(&mut page, &json!({"turns": {"complete": 3}, "sessions": 2}));
        let text = page.into_text();
        assert!(
            text.contains("clawhost_journal_turns{by=\"complete\"} 3\n"),
            "{text}"
        );
        assert!(text.contains("clawhost_journal_sessions 2\n"), "{text}");
    }
}
