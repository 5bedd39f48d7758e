//! Runs many calls concurrently and summarizes their latencies.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::task::JoinSet;

/// Latencies and throughput of a number of calls.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CallLatencies {
    /// Concurrent calls.
    pub concurrency: usize,
    /// Calls measured.
    pub calls: usize,
    /// Calls that ended with a fault.
    pub failed: usize,
    /// Median latency of a call, in microseconds, including queueing.
    pub p50_us: f64,
    /// 99th percentile of the latency, in microseconds.
    pub p99_us: f64,
    /// Median run time, in microseconds: from creating the instance to its end, without queueing.
    pub run_p50_us: f64,
    /// 99th percentile of the run time, in microseconds.
    pub run_p99_us: f64,
    /// Calls per second.
    pub per_second: f64,
    /// Largest sum of linear memory of a call, in bytes; 0 if it is not counted.
    pub peak_bytes: u64,
}

impl CallLatencies {
    /// Measurements that took turns with others, as one: calls per second over all of their time, and the medians of their
    /// percentiles.
    ///
    /// # Panics
    /// Without a turn.
    pub fn of_turns(turns: &[CallLatencies]) -> CallLatencies {
        let median = |value: fn(&CallLatencies) -> f64| {
            let mut values: Vec<f64> = turns.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let calls = turns.iter().map(|turn| turn.calls).sum();
        let seconds: f64 = turns
            .iter()
            .map(|turn| turn.calls as f64 / turn.per_second)
            .sum();
        CallLatencies {
            concurrency: turns[0].concurrency,
            calls,
            failed: turns.iter().map(|turn| turn.failed).sum(),
            p50_us: median(|turn| turn.p50_us),
            p99_us: median(|turn| turn.p99_us),
            run_p50_us: median(|turn| turn.run_p50_us),
            run_p99_us: median(|turn| turn.run_p99_us),
            per_second: calls as f64 / seconds,
            peak_bytes: turns.iter().map(|turn| turn.peak_bytes).max().unwrap_or(0),
        }
    }
}

/// The outcome of one call.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CallOutcome {
    pub(super) failed: bool,
    /// Run time, from creating the instance to its end.
    pub(super) run: Duration,
    pub(super) peak_bytes: u64,
}

/// The number of calls left to make, shared by the drivers of one measurement.
#[derive(Clone)]
pub(super) struct CallCounter(Arc<AtomicUsize>);

impl CallCounter {
    pub(super) fn new(calls: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(calls)))
    }

    /// Takes the next call and returns its number; none when all calls are made.
    pub(super) fn next_call(&self) -> Option<usize> {
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
            .ok()
    }
}

/// Latencies and outcomes of the calls of one driver.
type DriverCalls = Vec<(Duration, CallOutcome)>;

/// Makes `calls` calls with `concurrency` drivers, after a warm-up of a tenth of them.
pub(super) async fn measure<F, W>(concurrency: usize, calls: usize, call: F) -> CallLatencies
where
    F: Fn() -> W + Clone + Send + 'static,
    W: Future<Output = CallOutcome> + Send,
{
    run_drivers(concurrency, calls.div_ceil(10), call.clone()).await;
    let started = Instant::now();
    let per_driver = run_drivers(concurrency, calls, call).await;
    summarize(concurrency, per_driver, started.elapsed())
}

async fn run_drivers<F, W>(concurrency: usize, calls: usize, call: F) -> Vec<DriverCalls>
where
    F: Fn() -> W + Clone + Send + 'static,
    W: Future<Output = CallOutcome> + Send,
{
    let left = CallCounter::new(calls);
    let mut drivers = JoinSet::new();
    for _ in 0..concurrency.max(1) {
        let (left, call) = (left.clone(), call.clone());
        drivers.spawn(async move {
            let mut calls = DriverCalls::new();
            while left.next_call().is_some() {
                let started = Instant::now();
                let outcome = call().await;
                calls.push((started.elapsed(), outcome));
            }
            calls
        });
    }
    drivers.join_all().await
}

fn summarize(concurrency: usize, per_driver: Vec<DriverCalls>, elapsed: Duration) -> CallLatencies {
    let (mut times, mut runs) = (Vec::new(), Vec::new());
    let (mut failed, mut peak_bytes) = (0, 0);
    for (time, outcome) in per_driver.into_iter().flatten() {
        times.push(time);
        runs.push(outcome.run);
        failed += usize::from(outcome.failed);
        peak_bytes = outcome.peak_bytes.max(peak_bytes);
    }
    times.sort_unstable();
    runs.sort_unstable();
    CallLatencies {
        concurrency,
        calls: times.len(),
        failed,
        p50_us: percentile(&times, 0.5),
        p99_us: percentile(&times, 0.99),
        run_p50_us: percentile(&runs, 0.5),
        run_p99_us: percentile(&runs, 0.99),
        per_second: times.len() as f64 / elapsed.as_secs_f64().max(1e-9),
        peak_bytes,
    }
}

/// The quantile `q` of sorted durations, in microseconds.
fn percentile(times: &[Duration], q: f64) -> f64 {
    let index = ((times.len() as f64 * q) as usize).min(times.len().saturating_sub(1));
    times
        .get(index)
        .map_or(0.0, |time| time.as_secs_f64() * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_computed_over_all_drivers() {
        let call = |us: u64| {
            let outcome = CallOutcome {
                failed: us.is_multiple_of(25),
                run: Duration::from_micros(us / 2),
                peak_bytes: us,
            };
            (Duration::from_micros(us), outcome)
        };
        let per_driver = vec![
            (1..=50).map(call).collect(),
            (51..=100).map(call).collect::<DriverCalls>(),
        ];
        let spread = summarize(2, per_driver, Duration::from_secs(2));
        assert_eq!((spread.calls, spread.failed), (100, 4));
        assert_eq!((spread.p50_us, spread.p99_us), (51.0, 100.0));
        assert_eq!((spread.run_p50_us, spread.run_p99_us), (25.0, 50.0));
        assert_eq!((spread.per_second, spread.peak_bytes), (50.0, 100));
    }

    #[test]
    fn turns_are_summarized_over_all_of_their_time() {
        let turn = |p50_us: f64, calls: usize, per_second: f64| CallLatencies {
            concurrency: 2,
            calls,
            failed: 1,
            p50_us,
            p99_us: 2.0 * p50_us,
            run_p50_us: p50_us,
            run_p99_us: p50_us,
            per_second,
            peak_bytes: calls as u64,
        };
        let all = CallLatencies::of_turns(&[
            turn(3.0, 100, 100.0),
            turn(1.0, 50, 25.0),
            turn(2.0, 150, 50.0),
        ]);
        assert_eq!((all.calls, all.failed, all.peak_bytes), (300, 3, 150));
        assert_eq!((all.p50_us, all.p99_us, all.per_second), (2.0, 4.0, 50.0));
    }

    #[tokio::test]
    async fn each_call_is_made_exactly_once() {
        let made = Arc::new(AtomicUsize::new(0));
        let counted = made.clone();
        let spread = measure(7, 100, move || {
            let made = counted.clone();
            async move {
                made.fetch_add(1, Ordering::Relaxed);
                CallOutcome::default()
            }
        })
        .await;
        assert_eq!(spread.calls, 100);
        assert_eq!(made.load(Ordering::Relaxed), 110, "with the warm-up");
    }
}
