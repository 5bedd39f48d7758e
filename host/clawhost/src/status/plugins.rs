//! Call statistics of plugins as metrics, and as JSON for the operator page. Builds of one plugin are summed: the digest is not a label, because every
//! edit makes a new one.

use std::collections::BTreeMap;

use clawhost_gateway::{MetricFamilies, MetricType};
use clawhost_plugins::{CallStats, LatencyHistogram};
use serde_json::Value;

/// Exported quantiles.
const QUANTILES: [f64; 2] = [0.5, 0.99];

/// Name, help text and value of a counter.
type Counter = (&'static str, &'static str, fn(&CallStats) -> u64);
/// Name, help text and durations of a summary.
type Summary = (
    &'static str,
    &'static str,
    fn(&CallStats) -> &LatencyHistogram,
);

/// The statistics (name, digest, account) as an array, by name.
pub(super) fn costs(accounts: Vec<(String, String, CallStats)>) -> Value {
    let to_json = |(name, account): (String, CallStats)| {
        let mut fields = account.to_json();
        fields.insert("name".to_owned(), name.into());
        Value::Object(fields)
    };
    by_name(accounts).into_iter().map(to_json).collect()
}

/// The statistics of each plugin, summed over its builds.
fn by_name(accounts: Vec<(String, String, CallStats)>) -> BTreeMap<String, CallStats> {
    let mut plugins: BTreeMap<String, CallStats> = BTreeMap::new();
    for (name, _, account) in accounts {
        plugins.entry(name).or_default().merge(&account);
    }
    plugins
}

/// Adds the statistics (name, digest, account) to the metrics.
pub(super) fn add(metrics: &mut MetricFamilies, accounts: Vec<(String, String, CallStats)>) {
    let plugins = by_name(accounts);
    add_outcomes(metrics, &plugins);
    let summaries: [Summary; 2] = [
        (
            "clawhost_plugin_call_duration_seconds",
            "Duration of plugin calls.",
            |account| &account.wall,
        ),
        (
            "clawhost_plugin_queue_time_seconds",
            "Time that plugin calls waited for an instance.",
            |account| &account.queued,
        ),
    ];
    for (name, help, value) in summaries {
        let mut samples = metrics.family(name, MetricType::SUMMARY, help);
        for (plugin, account) in &plugins {
            let times = value(account);
            let quantiles = QUANTILES.map(|share| (share, times.quantile_us(share) as f64 / 1e6));
            let sum = times.total_us() as f64 / 1e6;
            samples.add_summary(&[("plugin", plugin)], &quantiles, sum, times.count());
        }
    }
    let mut add = |name: &str, kind, help, value: &dyn Fn(&CallStats) -> f64| {
        let mut samples = metrics.family(name, kind, help);
        for (plugin, account) in &plugins {
            samples.add(&[("plugin", plugin)], value(account));
        }
    };
    add(
        "clawhost_plugin_cpu_seconds_total",
        MetricType::COUNTER,
        "CPU time of plugin calls, from ticks or fuel.",
        &|account| account.cpu_us as f64 / 1e6,
    );
    add(
        "clawhost_plugin_peak_memory_bytes",
        MetricType::GAUGE,
        "Peak linear memory of a plugin call.",
        &|account| account.peak_memory_bytes as f64,
    );
    let counters: [Counter; 7] = [
        (
            "epoch_ticks",
            "CPU ticks of 10 ms used by plugin calls.",
            |a| a.ticks,
        ),
        ("fuel", "Fuel used by plugin calls.", |a| a.fuel),
        ("host_calls", "Calls of host functions by plugins.", |a| {
            a.host_calls
        }),
        ("model_calls", "Model requests by plugins.", |a| {
            a.model_calls
        }),
        ("model_tokens", "Model tokens used by plugins.", |a| {
            a.model_tokens
        }),
        ("http_requests", "HTTP requests by plugins.", |a| {
            a.http_calls
        }),
        ("log_lines_dropped", "Dropped plugin log lines.", |a| {
            a.log_lines_dropped
        }),
    ];
    for (what, help, value) in counters {
        let name = format!("clawhost_plugin_{what}_total");
        add(&name, MetricType::COUNTER, help, &|account| {
            value(account) as f64
        });
    }
}

fn add_outcomes(metrics: &mut MetricFamilies, plugins: &BTreeMap<String, CallStats>) {
    let mut samples = metrics.family(
        "clawhost_plugin_calls_total",
        MetricType::COUNTER,
        "Plugin calls by outcome.",
    );
    for (plugin, account) in plugins {
        let mut add = |outcome: &str, error: &str, count: u64| {
            let labels = [
                ("plugin", plugin.as_str()),
                ("outcome", outcome),
                ("error", error),
            ];
            samples.add(&labels, count as f64);
        };
        add("ok", "", account.ok);
        for (error, count) in &account.refused {
            add("refused", error, *count);
        }
        for (error, count) in &account.faults {
            add("fault", error, *count);
        }
        add("deadline-exceeded", "", account.deadline_exceeded);
    }
}
