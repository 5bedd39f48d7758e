//! Call statistics of plugins as metrics, and as JSON for the operator page. Builds of one plugin are summed: the digest is not a label, because every
//! edit makes a new one.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clawhost_plugins::{CallStats, LatencyHistogram};
use serde_json::{Value, json};

/// Exported quantiles.
const QUANTILES: [f64; 2] = [0.5, 0.99];

/// Name, help text and value of a counter.
type Counter = (&'static str, &'static str, fn(&CallStats) -> u64);

/// The statistics (name, digest, account) as an array, by name.
pub(super) fn costs(accounts: Vec<(String, String, CallStats)>) -> Value {
    let mut plugins: BTreeMap<String, CallStats> = BTreeMap::new();
    for (name, _, account) in accounts {
        plugins.entry(name).or_default().merge(&account);
    }
    let to_json = |(name, account): (&String, &CallStats)| {
        json!({
            "name": name,
            "calls": account.wall.count(),
            "ok": account.ok,
            "refused": account.refused,
            "faults": account.faults,
            "deadline_exceeded": account.deadline_exceeded,
            "wall_p50_us": account.wall.quantile_us(0.5),
            "wall_p99_us": account.wall.quantile_us(0.99),
            "queued_p99_us": account.queued.quantile_us(0.99),
            "cpu_us": account.cpu_us,
            "fuel": account.fuel,
            "peak_memory_bytes": account.peak_memory_bytes,
            "model_calls": account.model_calls,
            "model_tokens": account.model_tokens,
            "http_calls": account.http_calls,
        })
    };
    plugins.iter().map(to_json).collect()
}

/// Writes the statistics (name, digest, account) in the Prometheus text format.
pub(super) fn write(text: &mut String, accounts: Vec<(String, String, CallStats)>) {
    let mut plugins: BTreeMap<String, CallStats> = BTreeMap::new();
    for (name, _, account) in accounts {
        plugins.entry(label(&name)).or_default().merge(&account);
    }
    if plugins.is_empty() {
        return;
    }
    let mut writer = MetricsWriter {
        text,
        plugins: &plugins,
    };
    writer.outcomes();
    writer.summary(
        "clawhost_plugin_call_duration_seconds",
        "Duration of plugin calls.",
        |account| &account.wall,
    );
    writer.summary(
        "clawhost_plugin_queue_time_seconds",
        "Time that plugin calls waited for an instance.",
        |account| &account.queued,
    );
    writer.samples(
        "clawhost_plugin_cpu_seconds_total",
        "counter",
        "CPU time of plugin calls, from ticks or fuel.",
        |account| account.cpu_us as f64 / 1e6,
    );
    writer.samples(
        "clawhost_plugin_peak_memory_bytes",
        "gauge",
        "Peak linear memory of a plugin call.",
        |account| account.peak_memory_bytes as f64,
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
        writer.samples(&name, "counter", help, |account| value(account) as f64);
    }
}

/// Escapes a label value.
fn label(name: &str) -> String {
    let name = name.replace('\\', "\\\\").replace('"', "\\\"");
    name.replace('\n', "\\n")
}

struct MetricsWriter<'a> {
    text: &'a mut String,
    plugins: &'a BTreeMap<String, CallStats>,
}

impl MetricsWriter<'_> {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn outcomes(&mut self) {
        let name = "clawhost_plugin_calls_total";
        self.family(name, "counter", "Plugin calls by outcome.");
        for (plugin, account) in self.plugins {
            let mut sample = |end: &str, kind: &str, count: u64| {
                let _ = writeln!(
                    self.text,
                    "{name}{{plugin=\"{plugin}\",outcome=\"{end}\",error=\"{kind}\"}} {count}"
                );
            };
            sample("ok", "", account.ok);
            for (kind, count) in &account.refused {
                sample("refused", kind, *count);
            }
            for (kind, count) in &account.faults {
                sample("fault", kind, *count);
            }
            sample("deadline-exceeded", "", account.deadline_exceeded);
        }
    }

    fn summary(&mut self, name: &str, help: &str, value: fn(&CallStats) -> &LatencyHistogram) {
        self.family(name, "summary", help);
        for (plugin, account) in self.plugins {
            let times = value(account);
            for share in QUANTILES {
                let seconds = times.quantile_us(share) as f64 / 1e6;
                let _ = writeln!(
                    self.text,
                    "{name}{{plugin=\"{plugin}\",quantile=\"{share}\"}} {seconds}"
                );
            }
            let total = times.total_us() as f64 / 1e6;
            let _ = writeln!(self.text, "{name}_sum{{plugin=\"{plugin}\"}} {total}");
            let _ = writeln!(
                self.text,
                "{name}_count{{plugin=\"{plugin}\"}} {}",
                times.count()
            );
        }
    }

    fn samples(&mut self, name: &str, kind: &str, help: &str, value: impl Fn(&CallStats) -> f64) {
        self.family(name, kind, help);
        for (plugin, account) in self.plugins {
            let _ = writeln!(
                self.text,
                "{name}{{plugin=\"{plugin}\"}} {}",
                value(account)
            );
        }
    }
}
