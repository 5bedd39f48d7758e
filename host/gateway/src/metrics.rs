//! HTTP-level metrics of the gateway in the Prometheus text format, under vLLM's names (`clawhost_` instead of `vllm:`)
//! where the meaning is the same.
//!
//! Label values come from small fixed sets (matched routes, methods, statuses), never from client input.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::{Method, StatusCode};

/// Upper bounds of the latency buckets in seconds.
const BOUNDS: [f64; 12] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];

/// Counters and histograms of HTTP requests and their replies.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    requests: Mutex<BTreeMap<(String, String, u16), u64>>,
    finished_requests: Mutex<BTreeMap<&'static str, u64>>,
    response_head: Histogram,
    time_to_first_token: Histogram,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    generation_tokens: AtomicU64,
    malformed_tool_calls: AtomicU64,
}

impl Metrics {
    /// Records a response. For a stream, `elapsed` is the time until the response head.
    pub(crate) fn observe_http_request(
        &self,
        method: &Method,
        route: &str,
        status: StatusCode,
        elapsed: Duration,
    ) {
        let method = match *method {
            Method::GET | Method::POST | Method::DELETE | Method::HEAD | Method::OPTIONS => {
                method.as_str()
            }
            _ => "other",
        };
        let key = (route.to_owned(), method.to_owned(), status.as_u16());
        *lock(&self.requests).entry(key).or_default() += 1;
        self.response_head.observe(elapsed);
    }

    /// Records the time from the request to the first token of a choice.
    pub(crate) fn observe_time_to_first_token(&self, elapsed: Duration) {
        self.time_to_first_token.observe(elapsed);
    }

    /// Counts a finished choice by its finish reason, or by `abort`, `error` or `unrecorded`.
    pub(crate) fn count_finished_request(&self, reason: &'static str) {
        *lock(&self.finished_requests).entry(reason).or_default() += 1;
    }

    pub(crate) fn add_prompt_tokens(&self, tokens: usize, cached: usize) {
        self.prompt_tokens
            .fetch_add(tokens as u64, Ordering::Relaxed);
        self.cached_tokens
            .fetch_add(cached as u64, Ordering::Relaxed);
    }

    /// Counts text that looked like a tool call but could not be parsed as one.
    pub(crate) fn count_malformed_tool_call(&self) {
        self.malformed_tool_calls.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_generation_tokens(&self, tokens: usize) {
        self.generation_tokens
            .fetch_add(tokens as u64, Ordering::Relaxed);
    }

    /// Writes the metrics as text.
    pub(crate) fn write(&self, out: &mut MetricsText) {
        let requests = lock(&self.requests).clone();
        out.family("clawhost_http_requests_total", "counter", "HTTP responses.");
        for ((route, method, status), count) in requests {
            out.sample(
                "clawhost_http_requests_total",
                &[
                    ("path", &route),
                    ("method", &method),
                    ("status", &status.to_string()),
                ],
                count as f64,
            );
        }
        out.family(
            "clawhost_request_success_total",
            "counter",
            "Finished choices of generation requests, by finish reason.",
        );
        for (reason, count) in lock(&self.finished_requests).clone() {
            out.sample(
                "clawhost_request_success_total",
                &[("finished_reason", reason)],
                count as f64,
            );
        }
        self.response_head.write(
            out,
            "clawhost_http_time_to_response_head_seconds",
            "Time from a request head to its response head.",
        );
        self.time_to_first_token.write(
            out,
            "clawhost_time_to_first_token_seconds",
            "Time from a generation request to its first token.",
        );
        for (name, help, value) in [
            (
                "clawhost_prompt_tokens_total",
                "Prompt tokens of finished requests.",
                &self.prompt_tokens,
            ),
            (
                "clawhost_prompt_tokens_cached_total",
                "Prompt tokens of finished requests that were in the prefix cache.",
                &self.cached_tokens,
            ),
            (
                "clawhost_generation_tokens_total",
                "Generation tokens of finished requests.",
                &self.generation_tokens,
            ),
            (
                "clawhost_malformed_tool_calls_total",
                "Tool calls in replies that could not be parsed; they remain text.",
                &self.malformed_tool_calls,
            ),
        ] {
            out.family(name, "counter", help);
            out.sample(name, &[], value.load(Ordering::Relaxed) as f64);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Default)]
struct Histogram {
    buckets: [AtomicU64; BOUNDS.len()],
    count: AtomicU64,
    micros: AtomicU64,
}

impl Histogram {
    fn observe(&self, elapsed: Duration) {
        let seconds = elapsed.as_secs_f64();
        for (bucket, bound) in self.buckets.iter().zip(BOUNDS) {
            if seconds <= bound {
                bucket.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.micros
            .fetch_add(elapsed.as_micros() as u64, Ordering::Relaxed);
    }

    fn write(&self, out: &mut MetricsText, name: &str, help: &str) {
        out.family(name, "histogram", help);
        let count = self.count.load(Ordering::Relaxed) as f64;
        let bucket = format!("{name}_bucket");
        for (count_le, bound) in self.buckets.iter().zip(BOUNDS) {
            out.sample(
                &bucket,
                &[("le", &bound.to_string())],
                count_le.load(Ordering::Relaxed) as f64,
            );
        }
        out.sample(&bucket, &[("le", "+Inf")], count);
        let sum = self.micros.load(Ordering::Relaxed) as f64 / 1e6;
        out.sample(&format!("{name}_sum"), &[], sum);
        out.sample(&format!("{name}_count"), &[], count);
    }
}

/// Metrics in the Prometheus text format.
#[derive(Debug, Default)]
pub(crate) struct MetricsText(String);

impl MetricsText {
    /// Writes the HELP and TYPE lines of a metric.
    pub(crate) fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Writes one sample.
    pub(crate) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            self.0.push(if index == 0 { '{' } else { ',' });
            let text = text
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let _ = write!(self.0, "{label}=\"{text}\"");
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }

    /// Writes a gauge without labels.
    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value);
    }

    /// Appends lines in the same format.
    pub(crate) fn append(&mut self, text: &str) {
        self.0.push_str(text);
        if !text.is_empty() && !text.ends_with('\n') {
            self.0.push('\n');
        }
    }

    pub(crate) fn into_text(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_written_in_prometheus_text_format() {
        let metrics = Metrics::default();
        metrics.observe_http_request(
            &Method::POST,
            "/v1/feedback",
            StatusCode::OK,
            Duration::from_millis(7),
        );
        metrics.observe_time_to_first_token(Duration::from_secs(60));
        metrics.count_finished_request("stop");
        metrics.add_prompt_tokens(10, 4);
        metrics.add_generation_tokens(3);
        let mut out = MetricsText::default();
        metrics.write(&mut out);
        let text = out.into_text();
        for line in [
            "clawhost_http_requests_total{path=\"/v1/feedback\",method=\"POST\",status=\"200\"} 1",
            "clawhost_http_time_to_response_head_seconds_bucket{le=\"0.005\"} 0",
            "clawhost_http_time_to_response_head_seconds_bucket{le=\"0.01\"} 1",
            "clawhost_http_time_to_response_head_seconds_sum 0.007",
            "clawhost_time_to_first_token_seconds_bucket{le=\"30\"} 0",
            "clawhost_time_to_first_token_seconds_bucket{le=\"+Inf\"} 1",
            "clawhost_request_success_total{finished_reason=\"stop\"} 1",
            "clawhost_prompt_tokens_total 10",
            "clawhost_prompt_tokens_cached_total 4",
            "clawhost_generation_tokens_total 3",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
    }

    #[test]
    fn label_values_are_escaped_and_methods_bounded() {
        let mut out = MetricsText::default();
        out.sample("m", &[("a", "x\"\\\n")], 1.5);
        assert_eq!(out.into_text(), "m{a=\"x\\\"\\\\\\n\"} 1.5\n");
        let metrics = Metrics::default();
        let strange = Method::from_bytes(b"BREW").unwrap();
        metrics.observe_http_request(&strange, "other", StatusCode::NOT_FOUND, Duration::ZERO);
        let mut out = MetricsText::default();
        metrics.write(&mut out);
        assert!(out.into_text().contains("method=\"other\""));
    }
}
