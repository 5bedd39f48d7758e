//! Counters of the gateway in the Prometheus text format.
//!
//! Labels come from small fixed sets (matched paths, methods, statuses), never from what a client sent.

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

/// All counters.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    requests: Mutex<BTreeMap<(String, String, u16), u64>>,
    replies: Mutex<BTreeMap<&'static str, u64>>,
    head: Histogram,
    first_token: Histogram,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    completion_tokens: AtomicU64,
    malformed_calls: AtomicU64,
}

impl Metrics {
    /// A request was answered; for a stream, its head was.
    pub(crate) fn request(&self, method: &Method, route: &str, status: StatusCode, took: Duration) {
        let method = match *method {
            Method::GET | Method::POST | Method::DELETE | Method::HEAD | Method::OPTIONS => {
                method.as_str()
            }
            _ => "other",
        };
        let key = (route.to_owned(), method.to_owned(), status.as_u16());
        *lock(&self.requests).entry(key).or_default() += 1;
        self.head.observe(took);
    }

    /// A choice drew its first token.
    pub(crate) fn first_token(&self, after: Duration) {
        self.first_token.observe(after);
    }

    /// A choice ended: with its finish reason, or `aborted`, `failed`, `unrecorded`.
    pub(crate) fn reply(&self, end: &'static str) {
        *lock(&self.replies).entry(end).or_default() += 1;
    }

    pub(crate) fn prompt_tokens(&self, tokens: usize, cached: usize) {
        self.prompt_tokens
            .fetch_add(tokens as u64, Ordering::Relaxed);
        self.cached_tokens
            .fetch_add(cached as u64, Ordering::Relaxed);
    }

    /// What looked like a tool call was none and stayed text.
    pub(crate) fn malformed_call(&self) {
        self.malformed_calls.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn completion_tokens(&self, tokens: usize) {
        self.completion_tokens
            .fetch_add(tokens as u64, Ordering::Relaxed);
    }

    /// The counters as text.
    pub(crate) fn write(&self, out: &mut Page) {
        let requests = lock(&self.requests).clone();
        out.family(
            "clawhost_http_requests_total",
            "counter",
            "Requests answered.",
        );
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
            "clawhost_replies_total",
            "counter",
            "Choices that ended, by how they did.",
        );
        for (end, count) in lock(&self.replies).clone() {
            out.sample("clawhost_replies_total", &[("end", end)], count as f64);
        }
        self.head.write(
            out,
            "clawhost_http_head_seconds",
            "Time from a request's head to the head of its response.",
        );
        self.first_token.write(
            out,
            "clawhost_first_token_seconds",
            "Time from a chat request to its first token.",
        );
        for (name, help, value) in [
            (
                "clawhost_prompt_tokens_total",
                "Prompt tokens of replies that ended.",
                &self.prompt_tokens,
            ),
            (
                "clawhost_cached_prompt_tokens_total",
                "Of these, tokens that were taken from the prefix cache.",
                &self.cached_tokens,
            ),
            (
                "clawhost_completion_tokens_total",
                "Tokens sampled.",
                &self.completion_tokens,
            ),
            (
                "clawhost_malformed_tool_calls_total",
                "Texts that began like a tool call and were none; they stayed text.",
                &self.malformed_calls,
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
    fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        for (bucket, bound) in self.buckets.iter().zip(BOUNDS) {
            if seconds <= bound {
                bucket.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.micros
            .fetch_add(took.as_micros() as u64, Ordering::Relaxed);
    }

    fn write(&self, out: &mut Page, name: &str, help: &str) {
        out.family(name, "histogram", help);
        let count = self.count.load(Ordering::Relaxed) as f64;
        let bucket = format!("{name}_bucket");
        for (held, bound) in self.buckets.iter().zip(BOUNDS) {
            out.sample(
                &bucket,
                &[("le", &bound.to_string())],
                held.load(Ordering::Relaxed) as f64,
            );
        }
        out.sample(&bucket, &[("le", "+Inf")], count);
        let sum = self.micros.load(Ordering::Relaxed) as f64 / 1e6;
        out.sample(&format!("{name}_sum"), &[], sum);
        out.sample(&format!("{name}_count"), &[], count);
    }
}

/// A page of metrics being written.
#[derive(Debug, Default)]
pub(crate) struct Page(String);

impl Page {
    /// Begins a family of samples.
    pub(crate) fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// One sample.
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

    /// A family of one sample.
    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value);
    }

    /// Lines that somebody else wrote.
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
    fn the_text_is_what_prometheus_reads() {
        let metrics = Metrics::default();
        metrics.request(
            &Method::POST,
            "/v1/feedback",
            StatusCode::OK,
            Duration::from_millis(7),
        );
        metrics.first_token(Duration::from_secs(60));
        metrics.reply("stop");
        metrics.prompt_tokens(10, 4);
        metrics.completion_tokens(3);
        let mut page = Page::default();
        metrics.write(&mut page);
        let text = page.into_text();
        for line in [
            "clawhost_http_requests_total{path=\"/v1/feedback\",method=\"POST\",status=\"200\"} 1",
            "clawhost_http_head_seconds_bucket{le=\"0.005\"} 0",
            "clawhost_http_head_seconds_bucket{le=\"0.01\"} 1",
            "clawhost_http_head_seconds_sum 0.007",
            "clawhost_first_token_seconds_bucket{le=\"30\"} 0",
            "clawhost_first_token_seconds_bucket{le=\"+Inf\"} 1",
            "clawhost_replies_total{end=\"stop\"} 1",
            "clawhost_prompt_tokens_total 10",
            "clawhost_cached_prompt_tokens_total 4",
            "clawhost_completion_tokens_total 3",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
    }

    #[test]
    fn labels_are_escaped_and_methods_bounded() {
        let mut page = Page::default();
        page.sample("m", &[("a", "x\"\\\n")], 1.5);
        assert_eq!(page.into_text(), "m{a=\"x\\\"\\\\\\n\"} 1.5\n");
        let metrics = Metrics::default();
        let strange = Method::from_bytes(b"BREW").unwrap();
        metrics.request(&strange, "other", StatusCode::NOT_FOUND, Duration::ZERO);
        let mut page = Page::default();
        metrics.write(&mut page);
        assert!(page.into_text().contains("method=\"other\""));
    }
}
