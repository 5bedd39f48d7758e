//! Call statistics of one plugin: the sum of its receipts, in memory that does not grow with their number.
//!
//! The host keeps one per component for metrics; `clawhost plugin top` builds them from recorded receipts. No decision
//! depends on them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::receipt::{Outcome, Receipt};

/// The sum of a plugin's receipts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CallStats {
    /// Calls that returned a result.
    pub ok: u64,
    /// Calls for which the plugin returned an error, by error kind.
    pub refused: BTreeMap<String, u64>,
    /// Calls that ended with a fault, by fault kind.
    pub faults: BTreeMap<String, u64>,
    /// Calls of the deterministic profile that the host ended at the wall limit; not counted as faults.
    pub deadline_exceeded: u64,
    /// Run time of each call.
    pub wall: LatencyHistogram,
    /// Time that each call waited for a free instance.
    pub queued: LatencyHistogram,
    /// CPU time of all calls, in microseconds: per call the larger of its ticks (10 ms each) and its fuel at 1,000
    /// units per microsecond, the ratio of the default limits.
    pub cpu_us: u64,
    /// CPU ticks of 10 ms.
    pub ticks: u64,
    /// Units of fuel; 0 in the fast profile.
    pub fuel: u64,
    /// Largest sum of linear memory of a call, in bytes.
    pub peak_memory_bytes: u64,
    /// Calls from the guest into the host.
    pub host_calls: u64,
    /// Requests to models.
    pub model_calls: u64,
    /// Model tokens, prompt and completion.
    pub model_tokens: u64,
    /// HTTP exchanges.
    pub http_calls: u64,
    /// Log lines that were dropped.
    pub log_lines_dropped: u64,
}

/// The counters of one receipt.
#[derive(Debug, Clone, Copy, Deserialize)]
struct ReceiptCounters {
    ticks: u64,
    fuel: Option<u64>,
    peak_memory_bytes: u64,
    host_calls: u64,
    model_calls: u32,
    model_tokens: u64,
    http_calls: u32,
    log_lines_dropped: u64,
    queued_us: u64,
    wall_us: u64,
}

/// A receipt read from the journal. Only the fields that every recorded receipt has are required.
#[derive(Deserialize)]
struct RecordedReceipt {
    #[serde(flatten)]
    counters: ReceiptCounters,
    outcome: RecordedOutcome,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is", content = "kind")]
enum RecordedOutcome {
    Ok,
    Refused(String),
    Fault(String),
    DeadlineExceeded,
}

impl CallStats {
    /// All calls, whatever their outcome.
    pub fn calls(&self) -> u64 {
        self.wall.count
    }

    /// Adds a call.
    pub fn add(&mut self, receipt: &Receipt) {
        match receipt.outcome {
            Outcome::Ok => self.ok += 1,
            Outcome::Refused(kind) => *self.refused.entry(kind.to_string()).or_default() += 1,
            Outcome::Fault(kind) => *self.faults.entry(kind.to_owned()).or_default() += 1,
            Outcome::DeadlineExceeded => self.deadline_exceeded += 1,
        }
        self.add_counters(ReceiptCounters {
            ticks: receipt.ticks,
            fuel: receipt.fuel,
            peak_memory_bytes: receipt.peak_memory_bytes,
            host_calls: receipt.host_calls,
            model_calls: receipt.model_calls,
            model_tokens: receipt.model_tokens,
            http_calls: receipt.http_calls,
            log_lines_dropped: receipt.log_lines_dropped,
            queued_us: receipt.queued_us,
            wall_us: receipt.wall_us,
        });
    }

    /// Adds a call from its recorded receipt. Returns false if the value is not a receipt.
    pub fn add_recorded(&mut self, receipt: &Value) -> bool {
        let Ok(recorded) = RecordedReceipt::deserialize(receipt) else {
            return false;
        };
        match recorded.outcome {
            RecordedOutcome::Ok => self.ok += 1,
            RecordedOutcome::Refused(kind) => *self.refused.entry(kind).or_default() += 1,
            RecordedOutcome::Fault(kind) => *self.faults.entry(kind).or_default() += 1,
            RecordedOutcome::DeadlineExceeded => self.deadline_exceeded += 1,
        }
        self.add_counters(recorded.counters);
        true
    }

    /// Adds all calls of other statistics.
    pub fn merge(&mut self, other: &CallStats) {
        self.ok += other.ok;
        for (kind, count) in &other.refused {
            *self.refused.entry(kind.clone()).or_default() += count;
        }
        for (kind, count) in &other.faults {
            *self.faults.entry(kind.clone()).or_default() += count;
        }
        self.deadline_exceeded += other.deadline_exceeded;
        self.wall.merge(&other.wall);
        self.queued.merge(&other.queued);
        self.cpu_us += other.cpu_us;
        self.ticks += other.ticks;
        self.fuel = self.fuel.saturating_add(other.fuel);
        self.peak_memory_bytes = self.peak_memory_bytes.max(other.peak_memory_bytes);
        self.host_calls += other.host_calls;
        self.model_calls += other.model_calls;
        self.model_tokens = self.model_tokens.saturating_add(other.model_tokens);
        self.http_calls += other.http_calls;
        self.log_lines_dropped += other.log_lines_dropped;
    }

    /// The statistics as the fields of a JSON object, with the quantiles of the histograms.
    pub fn to_json(&self) -> Map<String, Value> {
        let fields = json!({
            "calls": self.calls(),
            "ok": self.ok,
            "refused": self.refused,
            "faults": self.faults,
            "deadline_exceeded": self.deadline_exceeded,
            "wall_p50_us": self.wall.quantile_us(0.5),
            "wall_p99_us": self.wall.quantile_us(0.99),
            "wall_total_us": self.wall.total_us(),
            "queued_p50_us": self.queued.quantile_us(0.5),
            "queued_p99_us": self.queued.quantile_us(0.99),
            "cpu_us": self.cpu_us,
            "ticks": self.ticks,
            "fuel": self.fuel,
            "peak_memory_bytes": self.peak_memory_bytes,
            "host_calls": self.host_calls,
            "model_calls": self.model_calls,
            "model_tokens": self.model_tokens,
            "http_calls": self.http_calls,
            "log_lines_dropped": self.log_lines_dropped,
        });
        match fields {
            Value::Object(fields) => fields,
            _ => unreachable!("the value is an object"),
        }
    }

    fn add_counters(&mut self, call: ReceiptCounters) {
        let fuel = call.fuel.unwrap_or(0);
        self.wall.add(call.wall_us);
        self.queued.add(call.queued_us);
        let ticks_us = call.ticks.saturating_mul(10_000);
        self.cpu_us = self.cpu_us.saturating_add(ticks_us.max(fuel / 1_000));
        self.ticks = self.ticks.saturating_add(call.ticks);
        self.fuel = self.fuel.saturating_add(fuel);
        self.peak_memory_bytes = self.peak_memory_bytes.max(call.peak_memory_bytes);
        self.host_calls = self.host_calls.saturating_add(call.host_calls);
        self.model_calls += u64::from(call.model_calls);
        self.model_tokens = self.model_tokens.saturating_add(call.model_tokens);
        self.http_calls += u64::from(call.http_calls);
        self.log_lines_dropped = self
            .log_lines_dropped
            .saturating_add(call.log_lines_dropped);
    }
}

/// Bits of precision below the highest set bit: quantiles are exact up to 63 µs and within 1/32 above.
const PRECISION_BITS: u32 = 5;

/// A histogram of durations in microseconds, with buckets of equal relative width.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LatencyHistogram {
    count: u64,
    total: u64,
    max: u64,
    /// Grows to the bucket of the longest duration.
    buckets: Vec<u64>,
}

impl LatencyHistogram {
    /// Adds one duration.
    pub fn add(&mut self, us: u64) {
        self.count += 1;
        self.total = self.total.saturating_add(us);
        self.max = self.max.max(us);
        let bucket = bucket(us);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        if let Some(count) = self.buckets.get_mut(bucket) {
            *count += 1;
        }
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Sum of the durations, in microseconds.
    pub fn total_us(&self) -> u64 {
        self.total
    }

    /// The quantile `q` (0 to 1), in microseconds; 0 when the histogram is empty.
    pub fn quantile_us(&self, q: f64) -> u64 {
        let rank = (q.clamp(0.0, 1.0) * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return bucket_end(bucket).min(self.max);
            }
        }
        self.max
    }

    fn merge(&mut self, other: &LatencyHistogram) {
        self.count += other.count;
        self.total = self.total.saturating_add(other.total);
        self.max = self.max.max(other.max);
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (own, count) in self.buckets.iter_mut().zip(&other.buckets) {
            *own += count;
        }
    }
}

/// Durations below `2^(PRECISION_BITS + 1)` µs have a bucket each; above, every doubling has `1 << PRECISION_BITS`.
fn bucket(us: u64) -> usize {
    let shift = (u64::BITS - us.leading_zeros()).saturating_sub(PRECISION_BITS + 1);
    ((u64::from(shift) << PRECISION_BITS) + (us >> shift)) as usize
}

/// The longest duration of a bucket.
fn bucket_end(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket >> PRECISION_BITS).saturating_sub(1);
    let first = bucket - (shift << PRECISION_BITS);
    let next = u128::from(first + 1) << shift;
    u64::try_from(next - 1).expect("the last bucket ends at u64::MAX")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::PluginErrorKind;
    use clawhost_config::Profile;
    use proptest::prelude::*;
    use serde_json::json;

    fn receipt(outcome: Outcome, wall_us: u64) -> Receipt {
        Receipt {
            plugin: "j".into(),
            digest: "d".into(),
            world: "judge-plugin",
            call: "r/s/0".into(),
            profile: Profile::Deterministic,
            ticks: 1,
            fuel: Some(30_000_000),
            peak_memory_bytes: wall_us,
            host_calls: 2,
            model_calls: 1,
            model_tokens: 100,
            http_calls: 3,
            log_lines_dropped: 4,
            queued_us: 5,
            wall_us,
            outcome,
        }
    }

    #[test]
    fn recorded_receipts_give_the_same_statistics_as_live_ones() {
        let receipts = [
            receipt(Outcome::Ok, 70),
            receipt(Outcome::Refused(PluginErrorKind::InvalidInput), 80),
            receipt(Outcome::Fault("cpu"), 10),
            receipt(Outcome::Ok, 20),
            receipt(Outcome::DeadlineExceeded, 0),
        ];
        let (mut live, mut recorded) = (CallStats::default(), CallStats::default());
        for receipt in &receipts {
            live.add(receipt);
            assert!(recorded.add_recorded(&json!(receipt)));
        }
        assert_eq!(live, recorded);
        assert_eq!((live.calls(), live.ok, live.cpu_us), (5, 2, 150_000));
        assert_eq!(live.refused, [("invalid-input".to_owned(), 1)].into());
        assert_eq!(live.faults, [("cpu".to_owned(), 1)].into());
        assert_eq!(live.deadline_exceeded, 1);
        assert_eq!((live.peak_memory_bytes, live.model_tokens), (80, 500));
        assert_eq!(
            (live.wall.total_us(), live.wall.quantile_us(0.5)),
            (180, 20)
        );
        let mut both = CallStats::default();
        both.merge(&live);
        assert_eq!(both, live);
        both.merge(&live);
        assert_eq!((both.calls(), both.fuel), (10, 300_000_000));
        assert!(!both.add_recorded(&json!({"cpu_ms": 3})));
        assert_eq!(both.calls(), 10);
    }

    proptest! {
        #[test]
        fn quantile_error_is_at_most_one_32nd(mut times in prop::collection::vec(any::<u64>(), 1..50), q in 0.0..1.0_f64) {
            let mut all = LatencyHistogram::default();
            for time in &mut times {
                *time >>= *time % 64;
                all.add(*time);
            }
            times.sort_unstable();
            let rank = (q * times.len() as f64).ceil().max(1.0) as usize;
            let exact = times[rank - 1];
            let quantile = all.quantile_us(q);
            prop_assert!(quantile >= exact && quantile - exact <= exact / 32, "{quantile} for {exact}");
        }
    }
}
