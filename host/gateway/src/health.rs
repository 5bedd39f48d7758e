//! `/healthz`, `/readyz`, `/health`, `/version` and `/metrics`: state of the engine, journal, judging and training.
//!
//! All but `/metrics` need no key and contain no conversation data. File paths and host names in errors are shown to
//! operators only.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use clawhost_config::AdapterScope;
use clawhost_engine::EngineStats;
use clawhost_journal::{Counts, EnvironmentStats, Journal, JudgingState, SampleState, now_ms};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::auth::Caller;
use crate::control::HealthError;
use crate::error::ApiError;
use crate::keys::Scope;
use crate::metrics;
use crate::metrics::{MetricFamilies, MetricType};
use crate::shared::{Client, Shared};

/// State of all components; it has further fields.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct Health {
    status: HealthStatus,
    /// What does not work.
    #[schemars(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(JsonSchema)]
#[schemars(inline, rename_all = "lowercase")]
#[expect(dead_code, reason = "only its schema is used")]
enum HealthStatus {
    Ok,
    Unhealthy,
}

/// Whether chat requests work.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Readiness {
    status: ReadinessStatus,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(inline)]
enum ReadinessStatus {
    #[serde(rename = "ready")]
    Ready,
    #[serde(rename = "not ready")]
    NotReady,
}

/// The version of this program.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Version {
    version: &'static str,
}

/// State of all components; 503 if one has an error.
pub(crate) async fn healthz(Client { shared, caller }: Client) -> Response {
    let active = shared.versions.active(&shared.engine);
    let counts = shared.query(Journal::counts).await;
    let queues = match shared.options.adapters {
        AdapterScope::Shared => None,
        AdapterScope::Key | AdapterScope::User => shared.query(Journal::owner_queues).await.ok(),
    };
    let mut errors: Vec<HealthError> = shared
        .readiness
        .journal_error(&shared.journal)
        .await
        .into_iter()
        .chain(counts.as_ref().err().map(|error| HealthError {
            summary: "the journal is not readable",
            detail: error.to_string(),
        }))
        .collect();
    errors.extend(shared.status.health_errors());
    let mut body = Map::new();
    body.insert(
        "status".into(),
        if errors.is_empty() { "ok" } else { "unhealthy" }.into(),
    );
    if !errors.is_empty() {
        let reasons: Vec<String> = errors
            .iter()
            .map(|error| error_text(error, &caller))
            .collect();
        body.insert("reason".into(), reasons.join("; ").into());
    }
    body.insert("model".into(), shared.options.model_name.as_str().into());
    body.insert(
        "adapter".into(),
        json!({"version": active.version, "digest": active.digest()}),
    );
    body.insert("uptime_ms".into(), (now_ms() - shared.started_ms).into());
    body.insert("stopping".into(), shared.stopping().into());
    body.insert("engine".into(), engine_status(&shared));
    if let Ok(counts) = counts {
        insert_loop_counts(&mut body, &counts);
        body.insert("journal".into(), json!(counts));
    }
    if let (Some(queues), Some(training)) = (queues, body.get_mut("training")) {
        // A step trains the samples of one owner.
        let longest = queues.iter().map(|queue| queue.samples).max();
        training["longest_queue"] = longest.unwrap_or(0).into();
    }
    let mut status = shared.status.status();
    if !caller.can_see_details() {
        redact_locations(&mut status);
    }
    merge(&mut body, status);
    let status = if errors.is_empty() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(Value::Object(body))).into_response()
}

/// Readiness: whether chat requests work.
pub(crate) async fn readyz(Client { shared, caller }: Client) -> Response {
    match shared.chat_error().await {
        None => Json(Readiness {
            status: ReadinessStatus::Ready,
            reason: None,
        })
        .into_response(),
        Some(error) => not_ready(&error, &caller),
    }
}

/// Readiness in vLLM's format: 200 without a body.
pub(crate) async fn health(Client { shared, caller }: Client) -> Response {
    match shared.chat_error().await {
        None => StatusCode::OK.into_response(),
        Some(error) => not_ready(&error, &caller),
    }
}

fn not_ready(error: &HealthError, caller: &Caller) -> Response {
    (
        StatusCode::SERVICE_UNAVAILABLE,
        Json(Readiness {
            status: ReadinessStatus::NotReady,
            reason: Some(error_text(error, caller)),
        }),
    )
        .into_response()
}

/// The version of this program in vLLM's format.
pub(crate) async fn version() -> Json<Version> {
    Json(Version {
        version: env!("CARGO_PKG_VERSION"),
    })
}

/// Metrics in the Prometheus text format.
pub(crate) async fn metrics(Client { shared, caller }: Client) -> Result<Response, ApiError> {
    caller.require(Scope::Operator)?;
    let mut out = MetricFamilies::default();
    shared.metrics.write(&mut out);
    let in_progress = shared
        .options
        .server
        .max_concurrent_requests
        .saturating_sub(shared.slots.available_permits());
    let active = shared.versions.active(&shared.engine);
    metrics! { out.gauge:
        "clawhost_http_requests_in_progress" = in_progress as f64, "HTTP requests in progress, streams included.";
        "clawhost_adapter_version" = active.version as f64, "Active adapter version; 0 is the base model.";
    }
    write_engine_metrics(&mut out, &shared.engine.stats());
    if let Ok(counts) = shared.query(Journal::counts).await {
        write_journal_counts(&mut out, &json!(counts));
    }
    if let Ok(environments) = shared.query(Journal::environment_stats).await {
        write_environment_stats(&mut out, &environments);
    }
    shared.status.add_metrics(&mut out);
    let kind = [(
        header::CONTENT_TYPE,
        "text/plain; version=0.0.4; charset=utf-8",
    )];
    Ok((kind, out.into_text()).into_response())
}

/// The error text that this caller may see.
fn error_text(error: &HealthError, caller: &Caller) -> String {
    if caller.can_see_details() {
        error.to_string()
    } else {
        error.summary.to_owned()
    }
}

/// Replaces a text that contains a path or URL.
const REDACTED: &str = "(shown with an operator's key)";

/// Replaces each string that contains an absolute path or a URL. The whole string is replaced, because a path may contain
/// spaces, so its end cannot be found.
fn redact_locations(value: &mut Value) {
    match value {
        Value::String(text) if contains_location(text) => REDACTED.clone_into(text),
        Value::Array(list) => list.iter_mut().for_each(redact_locations),
        Value::Object(map) => map.values_mut().for_each(redact_locations),
        _ => {}
    }
}

/// Whether the text contains an absolute path, a drive or a URL. A slash between two words does not count.
fn contains_location(text: &str) -> bool {
    let mut before = ' ';
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let after = characters.peek().copied().unwrap_or(' ');
        let starts_word = !before.is_alphanumeric() && !matches!(before, '.' | '_' | '-' | '~');
        let is_location = match character {
            '/' => starts_word && !after.is_whitespace(),
            ':' => matches!(after, '\\') && before.is_ascii_alphabetic(),
            '\\' => after == '\\',
            _ => false,
        };
        if is_location {
            return true;
        }
        before = character;
    }
    false
}

fn engine_status(shared: &Shared) -> Value {
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
        "paused": stats.preempted,
        "pauses": stats.preemptions,
        "prefix_hits": stats.prefix_hits,
        "evictions": stats.evictions,
        "blocks": stats.blocks,
        "blocks_free": stats.blocks_free,
        "blocks_kept": stats.blocks_cached,
        "blocks_shared": stats.blocks_shared,
        "active_cache_bytes": stats.kv_cache_bytes,
        "cache_bytes": stats.prefix_cache_bytes,
    })
}

/// Inserts the judging and training counts of the journal; [`merge`] adds the state of the running loops.
fn insert_loop_counts(body: &mut Map<String, Value>, counts: &Counts) {
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

/// Merges `extra` into `body`, field by field where both are objects; `extra` wins.
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

/// Writes the statistics of the engine, under vLLM's names where the meaning is the same. They include the requests of
/// judges and training, which the HTTP metrics do not.
fn write_engine_metrics(out: &mut MetricFamilies, stats: &EngineStats) {
    let free_blocks = stats.blocks_free + stats.blocks_cached;
    let usage = match stats.blocks {
        0 => 0.0,
        blocks => blocks.saturating_sub(free_blocks) as f64 / blocks as f64,
    };
    metrics! { out.gauge:
        "clawhost_num_requests_running" = stats.running.saturating_sub(stats.preempted) as f64, "Requests in model execution batches.";
        "clawhost_num_requests_waiting" = (stats.waiting + stats.preempted) as f64, "Requests waiting to be scheduled, preempted ones included.";
        "clawhost_num_requests_waiting_for_kv_cache" = stats.preempted as f64, "Of the waiting requests, those that were admitted and wait for KV cache blocks: new or preempted ones.";
        "clawhost_kv_cache_usage_perc" = usage, "KV cache usage; 1 means 100 percent. Blocks that only the prefix cache holds count as free.";
        "clawhost_kv_cache_blocks" = stats.blocks as f64, "KV cache blocks.";
        "clawhost_kv_cache_blocks_free" = stats.blocks_free as f64, "Unused KV cache blocks.";
        "clawhost_kv_cache_blocks_cached" = stats.blocks_cached as f64, "KV cache blocks that only the prefix cache holds.";
        "clawhost_kv_cache_blocks_shared" = stats.blocks_shared as f64, "KV cache blocks that several running requests share.";
        "clawhost_kv_cache_active_bytes" = stats.kv_cache_bytes as f64, "Bytes of KV cache of unfinished requests.";
        "clawhost_prefix_cache_bytes" = stats.prefix_cache_bytes as f64, "Bytes of KV cache that only the prefix cache holds.";
        "clawhost_engine_mean_batch_size" = stats.mean_batch(), "Mean number of rows in an engine step.";
    }
    metrics! { out.counter:
        "clawhost_num_preemptions_total" = stats.preemptions, "Preemptions of running requests.";
        "clawhost_prefix_cache_queries_total" = stats.prefill_tokens + stats.cached_tokens, "Prompt tokens looked up in the prefix cache.";
        "clawhost_prefix_cache_hits_total" = stats.cached_tokens, "Prompt tokens found in the prefix cache.";
        "clawhost_prefix_cache_hit_requests_total" = stats.prefix_hits, "Requests that found a prefix of their prompt in the prefix cache.";
        "clawhost_prefix_cache_evicted_blocks_total" = stats.evictions, "Blocks evicted from the prefix cache.";
        "clawhost_engine_requests_finished_total" = stats.finished, "Requests that finished.";
        "clawhost_engine_requests_cancelled_total" = stats.cancelled, "Requests cancelled by their client.";
        "clawhost_engine_requests_failed_total" = stats.failed, "Requests that failed.";
        "clawhost_engine_steps_total" = stats.steps, "Engine steps (forward passes).";
        "clawhost_engine_generation_tokens_total" = stats.tokens_generated, "Tokens sampled.";
        "clawhost_engine_prefill_tokens_total" = stats.prefill_tokens, "Prompt tokens computed.";
    }
}

/// Writes the counts of the journal: a number as one sample, a map with one label for its keys.
fn write_journal_counts(out: &mut MetricFamilies, counts: &Value) {
    for (field, value) in counts.as_object().into_iter().flatten() {
        let (name, label) = match field.as_str() {
            "judging" => ("turns_by_judging", "state"),
            "skipped" => ("turns_skipped", "reason"),
            "no_verdict" => ("missing_verdicts", "reason"),
            "dropped" => ("samples_dropped", "reason"),
            "steps" => ("steps", "outcome"),
            "forgotten" => ("sessions_forgotten", "state"),
            "retractions" => ("next_states_retracted", "state"),
            other => (other, "state"),
        };
        let name = format!("clawhost_journal_{name}");
        match value {
            Value::Object(counts) => {
                let help = format!("Records in the journal, by {label}.");
                let mut samples = out.family(&name, MetricType::GAUGE, &help);
                for (key, count) in counts {
                    samples.add(&[(label, key)], number(count));
                }
            }
            value => out.gauge(&name, "Records in the journal.", number(value)),
        }
    }
}

/// Writes what the environments of `[[environments]]` have done. Reasons of failures may be anything, so only their sum is a
/// metric; `clawhost env top` lists them.
fn write_environment_stats(out: &mut MetricFamilies, environments: &[EnvironmentStats]) {
    for one in environments {
        let failed: u64 = one.failed.iter().map(|(_, count)| count).sum();
        let mut add = |name: &str, kind, help: &str, label: Option<(&str, &str)>, value: f64| {
            let labels = [("environment", one.name.as_str())]
                .into_iter()
                .chain(label);
            let labels: Vec<(&str, &str)> = labels.collect();
            out.family(&format!("clawhost_environment_{name}"), kind, help)
                .add(&labels, value);
        };
        add(
            "round",
            MetricType::GAUGE,
            "Round of the environment.",
            None,
            one.round as f64,
        );
        let help = "Running episodes.";
        add(
            "episodes_running",
            MetricType::GAUGE,
            help,
            None,
            one.running as f64,
        );
        let help = "Episodes that have ended, by outcome: done, or failed without a verdict.";
        for (outcome, count) in [("done", one.done), ("failed", failed)] {
            let label = Some(("outcome", outcome));
            add(
                "episodes_total",
                MetricType::COUNTER,
                help,
                label,
                count as f64,
            );
        }
        for (state, count) in &one.samples {
            let label = Some(("state", state.as_str()));
            let help = "Samples of episodes, by state.";
            add("samples", MetricType::GAUGE, help, label, *count as f64);
        }
        if let Some(mean) = one.recent_reward_mean {
            let help = "Mean reward of the episodes that ended in the last minute.";
            add("reward_mean", MetricType::GAUGE, help, None, mean);
        }
    }
}

fn number(count: &Value) -> f64 {
    count.as_f64().expect("a count is a number")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_status_is_merged_into_journal_counts() {
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
    fn strings_with_locations_are_redacted_completely() {
        let mut value = json!({
            "training": {"last_error": "cannot use /srv/my data/adapters: Permission denied", "steps": 3},
            "plugins": [{"name": "judge", "reason": "`/opt/judge.wasm` has gone"}, "C:\\Users\\me", "http://10.0.0.7/v1"],
            "waits": "3/4 of a batch and/or 20 s, in ./adapters (7 / 8)",
        });
        redact_locations(&mut value);
        assert_eq!(
            value,
            json!({
                "training": {"last_error": REDACTED, "steps": 3},
                "plugins": [{"name": "judge", "reason": REDACTED}, REDACTED, REDACTED],
                "waits": "3/4 of a batch and/or 20 s, in ./adapters (7 / 8)",
            })
        );
    }

    #[test]
    fn maps_of_counts_become_labelled_samples() {
        let mut out = MetricFamilies::default();
        write_journal_counts(&mut out, &json!({"turns": {"complete": 3}, "sessions": 2}));
        let text = out.into_text();
        assert!(
            text.contains("clawhost_journal_turns{state=\"complete\"} 3\n"),
            "{text}"
        );
        assert!(text.contains("clawhost_journal_sessions 2\n"), "{text}");
    }
}
