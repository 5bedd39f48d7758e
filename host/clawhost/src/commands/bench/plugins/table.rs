//! The measurements as text.

use serde::Serialize;

use super::calls::{Calls, Overhead};
use super::languages::{LanguageFigures, SkippedLanguage};
use super::looping::LoopingFigures;
use crate::commands::bench::figures::number;

/// The measured loss.
pub(super) const LOSS: &str = "loss-ppo-clip";

/// All measurements.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) bench: &'static str,
    pub(super) rounds: u32,
    pub(super) threads: usize,
    pub(super) pooled: bool,
    pub(super) calls: Vec<Calls>,
    pub(super) overhead: Vec<Overhead>,
    pub(super) loss_tokens: usize,
    pub(super) languages: Vec<LanguageFigures>,
    pub(super) absent: Vec<SkippedLanguage>,
    pub(super) failing: Option<FailingFigures>,
    pub(super) looping: Option<LoopingFigures>,
}

/// Resident memory during many failing calls.
#[derive(Serialize)]
pub(super) struct FailingFigures {
    pub(super) calls: u32,
    pub(super) per_second: f64,
    /// Bytes, before the calls and after each tenth of them; empty where the system does not report it.
    pub(super) resident_bytes: Vec<u64>,
}

/// Formats the whole report.
pub(super) fn text(report: &Report) -> String {
    let mut text = format!(
        "{} threads, instances {}; medians of {} rounds; queueing counts in p50 and p99, not in run\n\n",
        report.threads,
        if report.pooled {
            "from a pool"
        } else {
            "on demand"
        },
        report.rounds
    );
    text.push_str(&head("judge, fresh instance each"));
    let (losses, judges): (Vec<&Calls>, Vec<&Calls>) = report
        .calls
        .iter()
        .partition(|calls| calls.component == LOSS);
    for calls in judges {
        text.push_str(&line(
            &format!("{}: {}", calls.component, calls.runner),
            calls,
        ));
    }
    text.push('\n');
    for overhead in &report.overhead {
        text.push_str(&format!(
            "{}, {}, concurrency {}: overhead {} × over wasmtime alone (lowest {}, highest {})\n",
            overhead.component,
            overhead.profile,
            overhead.concurrency,
            number(overhead.ratio.median),
            number(overhead.ratio.low),
            number(overhead.ratio.high)
        ));
    }
    text.push('\n');
    text.push_str(&head(&format!("loss over {} tokens", report.loss_tokens)));
    for calls in losses {
        text.push_str(&line(
            &format!("{}: {}", calls.component, calls.runner),
            calls,
        ));
    }
    if !report.languages.is_empty() {
        text.push('\n');
        text.push_str(&head("judge of `plugin new`, deterministic"));
        for one in &report.languages {
            for calls in &one.calls {
                text.push_str(&line(&calls.component, calls));
            }
        }
        text.push_str(&format!(
            "\n{:<40} {:>14} {:>14} {:>14} {:>20}\n",
            "", "component MB", "compile ms", "from cache ms", "MB per live instance"
        ));
        for one in &report.languages {
            text.push_str(&format!(
                "{:<40} {:>14} {:>14} {:>14} {:>20}\n",
                format!("judge in {}", one.language),
                number(one.component_bytes as f64 / 1e6),
                number(one.compile_ms),
                number(one.cached_ms),
                one.bytes_per_instance
                    .map_or_else(|| "–".to_owned(), |bytes| number(bytes / 1e6)),
            ));
        }
    }
    for absent in &report.absent {
        text.push_str(&format!("skipped: {}\n", absent.reason));
    }
    if let Some(failing) = &report.failing {
        text.push_str(&format!(
            "\n{} failing calls, {}/s: resident memory {}\n",
            failing.calls,
            number(failing.per_second),
            resident(&failing.resident_bytes)
        ));
    }
    if let Some(looping) = &report.looping {
        text.push_str(&format!(
            "\n{} concurrent endless calls: first token {} ms, idle {} ms, ratio {}\n",
            looping.at_once,
            number(looping.under_ms.median),
            number(looping.idle_ms.median),
            number(looping.ratio)
        ));
    }
    text
}

/// The memory samples, and their maximum deviation from the middle.
fn resident(samples: &[u64]) -> String {
    let (Some(low), Some(high)) = (samples.iter().min(), samples.iter().max()) else {
        return "unknown".to_owned();
    };
    let megabytes: Vec<String> = samples.iter().map(|b| number(*b as f64 / 1e6)).collect();
    let middle = (low + high) as f64 / 2.0;
    format!(
        "{} MB, before the calls and after each tenth: ±{:.1} %",
        megabytes.join(" "),
        100.0 * (*high as f64 - middle) / middle.max(1.0)
    )
}

fn head(what: &str) -> String {
    format!(
        "{what:<54} {:>9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>9} {:>6}\n",
        "concurr.", "run p50 µs", "run p99 µs", "p50 µs", "p99 µs", "calls/s", "peak MB", "failed"
    )
}

fn line(name: &str, calls: &Calls) -> String {
    format!(
        "{name:<54} {:>9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>9} {:>6}\n",
        calls.concurrency,
        number(calls.run_p50_us.median),
        number(calls.run_p99_us.median),
        number(calls.p50_us.median),
        number(calls.p99_us.median),
        number(calls.per_second.median),
        if calls.peak_bytes == 0 {
            "–".to_owned()
        } else {
            number(calls.peak_bytes as f64 / 1e6)
        },
        calls.failed
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_samples_are_listed_with_their_spread() {
        assert_eq!(
            resident(&[19_000_000, 21_000_000, 20_500_000]),
            "19.0 21.0 20.5 MB, before the calls and after each tenth: ±5.0 %"
        );
        assert_eq!(resident(&[]), "unknown");
    }
}
