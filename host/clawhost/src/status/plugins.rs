//! The accounts of plugins as metrics. Builds of one plugin are added up: a digest is no label, because every edit
//! makes another.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clawhost_plugins::{Account, Times};

/// Quantiles that are told.
const QUANTILES: [f64; 2] = [0.5, 0.99];

/// Name, help and value of a sum.
type Counter = (&'static str, &'static str, fn(&Account) -> u64);

/// Writes the accounts (name, digest, account) in the text format of Prometheus.
pub(super) fn write(text: &mut String, accounts: Vec<(String, String, Account)>) {
    let mut plugins: BTreeMap<String, Account> = BTreeMap::new();
    for (name, _, account) in accounts {
        plugins.entry(label(&name)).or_default().merge(&account);
    }
    if plugins.is_empty() {
        return;
    }
    let mut page = Page {
        text,
        plugins: &plugins,
    };
    page.ends();
    page.times(
        "clawhost_plugin_call_seconds",
        "Time from start to end of a plugin's calls.",
        |account| &account.wall,
    );
    page.times(
        "clawhost_plugin_queue_seconds",
        "Time that a plugin's calls waited for an instance.",
        |account| &account.queued,
    );
    page.numbers(
        "clawhost_plugin_cpu_seconds_total",
        "counter",
        "CPU time of a plugin's calls, of ticks or fuel.",
        |account| account.cpu_us as f64 / 1e6,
    );
    page.numbers(
        "clawhost_plugin_peak_memory_bytes",
        "gauge",
        "Largest sum of linear memory of a call.",
        |account| account.peak_memory_bytes as f64,
    );
    let counters: [Counter; 7] = [
        ("ticks", "CPU ticks of 10 ms.", |a| a.ticks),
        ("fuel", "Units of fuel.", |a| a.fuel),
        ("host_calls", "Calls into the host.", |a| a.host_calls),
        ("model_calls", "Requests to models.", |a| a.model_calls),
        ("model_tokens", "Tokens of models.", |a| a.model_tokens),
        ("http_calls", "HTTP exchanges.", |a| a.http_calls),
        ("log_lines_dropped", "Log lines that were dropped.", |a| {
            a.log_lines_dropped
        }),
    ];
    for (what, help, value) in counters {
        let name = format!("clawhost_plugin_{what}_total");
        page.numbers(&name, "counter", help, |account| value(account) as f64);
    }
}

/// A name as the value of a label.
fn label(name: &str) -> String {
    let name = name.replace('\\', "\\\\").replace('"', "\\\"");
    name.replace('\n', "\\n")
}

struct Page<'a> {
    text: &'a mut String,
    plugins: &'a BTreeMap<String, Account>,
}

impl Page<'_> {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn ends(&mut self) {
        let name = "clawhost_plugin_calls_total";
        self.family(name, "counter", "Calls of plugins, by how they ended.");
        for (plugin, account) in self.plugins {
            let mut sample = |end: &str, kind: &str, count: u64| {
                let _ = writeln!(
                    self.text,
                    "{name}{{plugin=\"{plugin}\",end=\"{end}\",kind=\"{kind}\"}} {count}"
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

    fn times(&mut self, name: &str, help: &str, of: fn(&Account) -> &Times) {
        self.family(name, "summary", help);
        for (plugin, account) in self.plugins {
            let times = of(account);
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

    fn numbers(&mut self, name: &str, kind: &str, help: &str, of: impl Fn(&Account) -> f64) {
        self.family(name, kind, help);
        for (plugin, account) in self.plugins {
            let _ = writeln!(self.text, "{name}{{plugin=\"{plugin}\"}} {}", of(account));
        }
    }
}
