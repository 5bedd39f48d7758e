//! HTTP-level metrics of the gateway, under vLLM's names (`clawhost_` instead of `vllm:`) where the meaning is the same,
//! and the families of one scrape.
//!
//! Label values come from small fixed sets (matched routes, methods, statuses), never from client input.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use prometheus::core::Collector;
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, Quantile, Summary};
use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry, TextEncoder,
};

pub use prometheus::proto::MetricType;

/// Upper bounds of the latency buckets in seconds.
const BOUNDS: [f64; 12] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];
/// Names and labels are constants.
const VALID: &str = "the metric is valid and registered once";

/// Counters and histograms of HTTP requests and their replies.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    finished_requests: IntCounterVec,
    response_head: Histogram,
    time_to_first_token: Histogram,
    prompt_tokens: IntCounter,
    cached_tokens: IntCounter,
    generation_tokens: IntCounter,
    malformed_tool_calls: IntCounter,
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::new();
        let counter =
            |name: &str, help: &str| register(&registry, IntCounter::new(name, help).expect(VALID));
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let vec = IntCounterVec::new(Opts::new(name, help), labels);
            register(&registry, vec.expect(VALID))
        };
        let histogram = |name: &str, help: &str| {
            let options = HistogramOpts::new(name, help).buckets(BOUNDS.to_vec());
            register(&registry, Histogram::with_opts(options).expect(VALID))
        };
        Self {
            requests: counters(
                "clawhost_http_requests_total",
                "HTTP responses.",
                &["path", "method", "status"],
            ),
            finished_requests: counters(
                "clawhost_request_success_total",
                "Finished choices of generation requests, by finish reason.",
                &["finished_reason"],
            ),
            response_head: histogram(
                "clawhost_http_time_to_response_head_seconds",
                "Time from a request head to its response head.",
            ),
            time_to_first_token: histogram(
                "clawhost_time_to_first_token_seconds",
                "Time from a generation request to its first token.",
            ),
            prompt_tokens: counter(
                "clawhost_prompt_tokens_total",
                "Prompt tokens of finished requests.",
            ),
            cached_tokens: counter(
                "clawhost_prompt_tokens_cached_total",
                "Prompt tokens of finished requests that were in the prefix cache.",
            ),
            generation_tokens: counter(
                "clawhost_generation_tokens_total",
                "Generation tokens of finished requests.",
            ),
            malformed_tool_calls: counter(
                "clawhost_malformed_tool_calls_total",
                "Tool calls in replies that could not be parsed; they remain text.",
            ),
            registry,
        }
    }
}

fn register<C: Collector + Clone + 'static>(registry: &Registry, collector: C) -> C {
    registry.register(Box::new(collector.clone())).expect(VALID);
    collector
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
            Method::GET
            | Method::POST
            | Method::PUT
            | Method::DELETE
            | Method::HEAD
            | Method::OPTIONS => method.as_str(),
            _ => "other",
        };
        self.requests
            .with_label_values(&[route, method, status.as_str()])
            .inc();
        self.response_head.observe(elapsed.as_secs_f64());
    }

    /// Records the time from the request to the first token of a choice.
    pub(crate) fn observe_time_to_first_token(&self, elapsed: Duration) {
        self.time_to_first_token.observe(elapsed.as_secs_f64());
    }

    /// Counts a finished choice by its finish reason, or by `abort`, `error` or `unrecorded`.
    pub(crate) fn count_finished_request(&self, reason: &'static str) {
        self.finished_requests.with_label_values(&[reason]).inc();
    }

    pub(crate) fn add_prompt_tokens(&self, tokens: usize, cached: usize) {
        self.prompt_tokens.inc_by(tokens as u64);
        self.cached_tokens.inc_by(cached as u64);
    }

    /// Counts text that looked like a tool call but could not be parsed as one.
    pub(crate) fn count_malformed_tool_call(&self) {
        self.malformed_tool_calls.inc();
    }

    pub(crate) fn add_generation_tokens(&self, tokens: usize) {
        self.generation_tokens.inc_by(tokens as u64);
    }

    /// Adds the metrics to a scrape.
    pub(crate) fn write(&self, out: &mut MetricFamilies) {
        out.0.extend(self.registry.gather());
    }
}

/// Adds metrics without labels to the [`MetricFamilies`] `$out`, each with its name, value and help text. `$kind` is `gauge`
/// or `counter`.
#[macro_export]
macro_rules! metrics {
    ($out:ident.$kind:ident: $($name:literal = $value:expr, $help:literal;)*) => {
        $($out.$kind($name, $help, $value);)*
    };
}

/// The metrics of one scrape.
#[derive(Debug, Default)]
pub struct MetricFamilies(Vec<MetricFamily>);

impl MetricFamilies {
    /// The samples of a metric: those that it has already, or none.
    pub fn family(&mut self, name: &str, kind: MetricType, help: &str) -> Samples<'_> {
        let known = self.0.iter().position(|family| family.name() == name);
        let at = known.unwrap_or_else(|| {
            let mut family = MetricFamily::default();
            family.set_name(name.to_owned());
            family.set_help(help.to_owned());
            family.set_field_type(kind);
            self.0.push(family);
            self.0.len() - 1
        });
        Samples(&mut self.0[at])
    }

    /// Adds a gauge without labels.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, MetricType::GAUGE, help).add(&[], value);
    }

    /// Adds a counter without labels.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, MetricType::COUNTER, help)
            .add(&[], value as f64);
    }

    /// The metrics in the Prometheus text format. A metric without samples is left out.
    pub fn into_text(mut self) -> String {
        self.0.retain(|family| !family.get_metric().is_empty());
        TextEncoder::new()
            .encode_to_string(&self.0)
            .expect("every family has a name and samples")
    }
}

/// The samples of one metric.
pub struct Samples<'a>(&'a mut MetricFamily);

impl Samples<'_> {
    /// Adds a sample of a counter or a gauge.
    pub fn add(&mut self, labels: &[(&str, &str)], value: f64) {
        let mut metric = Metric::from_label(label_pairs(labels));
        if self.0.get_field_type() == MetricType::COUNTER {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        self.0.mut_metric().push(metric);
    }

    /// Adds a summary: pairs of a quantile and its value, and the sum and number of all values.
    pub fn add_summary(
        &mut self,
        labels: &[(&str, &str)],
        quantiles: &[(f64, f64)],
        sum: f64,
        count: u64,
    ) {
        let to_quantile = |(share, value): &(f64, f64)| {
            let mut quantile = Quantile::default();
            quantile.set_quantile(*share);
            quantile.set_value(*value);
            quantile
        };
        let mut summary = Summary::default();
        summary.set_quantile(quantiles.iter().map(to_quantile).collect());
        summary.set_sample_sum(sum);
        summary.set_sample_count(count);
        let mut metric = Metric::from_label(label_pairs(labels));
        metric.set_summary(summary);
        self.0.mut_metric().push(metric);
    }
}

fn label_pairs(labels: &[(&str, &str)]) -> Vec<LabelPair> {
    let to_pair = |(name, value): &(&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    labels.iter().map(to_pair).collect()
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
        let mut out = MetricFamilies::default();
        metrics.write(&mut out);
        let text = out.into_text();
        for line in [
            "clawhost_http_requests_total{method=\"POST\",path=\"/v1/feedback\",status=\"200\"} 1",
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
        let mut out = MetricFamilies::default();
        let mut samples = out.family("m", MetricType::GAUGE, "Help.");
        samples.add(&[("a", "x\"\\\n")], 1.5);
        assert_eq!(
            out.into_text(),
            "# HELP m Help.\n# TYPE m gauge\nm{a=\"x\\\"\\\\\\n\"} 1.5\n"
        );
        let metrics = Metrics::default();
        let strange = Method::from_bytes(b"BREW").unwrap();
        metrics.observe_http_request(&strange, "other", StatusCode::NOT_FOUND, Duration::ZERO);
        let mut out = MetricFamilies::default();
        metrics.write(&mut out);
        assert!(out.into_text().contains("method=\"other\""));
    }
}
