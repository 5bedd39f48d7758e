//! What the benchmarks share: their flags, their figures and how numbers are printed.

use clap::Args;
use clawhost_engine::measure::Spread;
use serde::Serialize;

/// Flags of every benchmark.
#[derive(Debug, Clone, Args)]
pub(super) struct Shared {
    /// Measured repetitions
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) rounds: u32,
    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,
}

/// One figure of a table.
#[derive(Serialize)]
pub(super) struct Figure {
    pub(super) name: String,
    pub(super) unit: &'static str,
    #[serde(flatten)]
    pub(super) spread: Spread,
}

/// A number with three or four digits.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

pub(super) fn streams_label(streams: usize) -> String {
    format!("{streams} stream{}", if streams == 1 { "" } else { "s" })
}

/// A field of /proc/self/status in MiB; None where the system has none.
pub(super) fn resident(line: &str) -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let value = status.lines().find_map(|one| one.strip_prefix(line))?;
    let kib: f64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024.0)
}
