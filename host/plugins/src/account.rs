//! What the calls of one plugin came to: receipts added up, in a space that does not grow with their number.
//!
//! The host keeps one for each component that it runs, for metrics; `clawhost plugin top` makes them of recorded
//! receipts. Nothing is decided by them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::receipt::{Outcome, Receipt};

/// The sum of a plugin's receipts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Account {
    /// Calls that gave a result.
    pub ok: u64,
    /// Calls that the plugin answered with an error of its own, by its kind.
    pub refused: BTreeMap<String, u64>,
    /// Calls that ended with a fault, by its kind.
    pub faults: BTreeMap<String, u64>,
    /// Calls of the deterministic profile that the host ended at their wall limit: no fault of the plugin.
    pub deadline_exceeded: u64,
    /// From start to end of each call.
    pub wall: Times,
    /// Waiting for a free instance.
    pub queued: Times,
    /// CPU time of all calls, in microseconds: ticks of 10 ms, or fuel at a thousand units a microsecond where
    /// that is more, which is how the default limits relate.
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
    /// Tokens of models, prompt and completion.
    pub model_tokens: u64,
    /// HTTP exchanges.
    pub http_calls: u64,
    /// Log lines that were dropped.
    pub log_lines_dropped: u64,
}

/// The numbers of one receipt.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Numbers {
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

/// A receipt as it was recorded. Fields that came later are not asked for.
#[derive(Deserialize)]
struct Recorded {
    #[serde(flatten)]
    numbers: Numbers,
    outcome: Ended,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is", content = "kind")]
enum Ended {
    Ok,
    Refused(String),
    Fault(String),
    DeadlineExceeded,
}

impl Account {
    /// Calls, however they ended.
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
        self.count(Numbers {
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

    /// Adds a call from its recorded receipt. Tells whether it was one.
    pub fn add_recorded(&mut self, receipt: &Value) -> bool {
        let Ok(recorded) = Recorded::deserialize(receipt) else {
            return false;
        };
        match recorded.outcome {
            Ended::Ok => self.ok += 1,
            Ended::Refused(kind) => *self.refused.entry(kind).or_default() += 1,
            Ended::Fault(kind) => *self.faults.entry(kind).or_default() += 1,
            Ended::DeadlineExceeded => self.deadline_exceeded += 1,
        }
        self.count(recorded.numbers);
        true
    }

    /// Adds all calls of another account.
    pub fn merge(&mut self, other: &Account) {
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

    fn count(&mut self, call: Numbers) {
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

/// Bits of a time that are kept below its highest: quantiles are exact up to 63 µs and within a thirty-second above.
const KEPT: u32 = 5;

/// How long things took, in microseconds, counted in buckets of equal relative width.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Times {
    count: u64,
    total: u64,
    longest: u64,
    /// As many as the longest time needs.
    buckets: Vec<u64>,
}

impl Times {
    /// Adds one time.
    pub fn add(&mut self, us: u64) {
        self.count += 1;
        self.total = self.total.saturating_add(us);
        self.longest = self.longest.max(us);
        let bucket = bucket(us);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        if let Some(count) = self.buckets.get_mut(bucket) {
            *count += 1;
        }
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their sum, in microseconds.
    pub fn total_us(&self) -> u64 {
        self.total
    }

    /// The time that this share of them (0 to 1) does not exceed, in microseconds; 0 when there are none.
    pub fn quantile_us(&self, share: f64) -> u64 {
        let rank = (share.clamp(0.0, 1.0) * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return end_of(bucket).min(self.longest);
            }
        }
        self.longest
    }

    fn merge(&mut self, other: &Times) {
        self.count += other.count;
        self.total = self.total.saturating_add(other.total);
        self.longest = self.longest.max(other.longest);
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (own, count) in self.buckets.iter_mut().zip(&other.buckets) {
            *own += count;
        }
    }
}

/// Times below two to the power of `KEPT + 1` have a bucket each; above, every doubling has `1 << KEPT`.
fn bucket(us: u64) -> usize {
    let shift = (u64::BITS - us.leading_zeros()).saturating_sub(KEPT + 1);
    ((u64::from(shift) << KEPT) + (us >> shift)) as usize
}

/// The longest time of a bucket.
fn end_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket >> KEPT).saturating_sub(1);
    let first = bucket - (shift << KEPT);
    let next = u128::from(first + 1) << shift;
    u64::try_from(next - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::PluginErrorKind;
    use crate::profile::Profile;
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
    fn what_is_recorded_adds_up_to_what_was_run() {
        let receipts = [
            receipt(Outcome::Ok, 70),
            receipt(Outcome::Refused(PluginErrorKind::InvalidInput), 80),
            receipt(Outcome::Fault("cpu"), 10),
            receipt(Outcome::Ok, 20),
            receipt(Outcome::DeadlineExceeded, 0),
        ];
        let (mut live, mut recorded) = (Account::default(), Account::default());
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
        let mut both = Account::default();
        both.merge(&live);
        assert_eq!(both, live);
        both.merge(&live);
        assert_eq!((both.calls(), both.fuel), (10, 300_000_000));
        assert!(!both.add_recorded(&json!({"cpu_ms": 3})));
        assert_eq!(both.calls(), 10);
    }

    proptest! {
        #[test]
        fn a_quantile_is_within_its_bucket(mut times in prop::collection::vec(any::<u64>(), 1..50), share in 0.0..1.0_f64) {
            let mut all = Times::default();
            for time in &mut times {
                *time >>= *time % 64;
                all.add(*time);
            }
            times.sort_unstable();
            let rank = (share * times.len() as f64).ceil().max(1.0) as usize;
            let exact = times[rank - 1];
            let told = all.quantile_us(share);
            prop_assert!(told >= exact && told - exact <= exact / 32, "{told} for {exact}");
        }
    }
}
