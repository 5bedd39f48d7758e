//! Many calls, some at a time, and the times they took.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::task::JoinSet;

/// What a number of calls took.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Spread {
    /// Calls at a time.
    pub concurrency: usize,
    /// Calls measured.
    pub calls: usize,
    /// Calls that ended with a fault.
    pub failed: usize,
    /// Median time of a call, in microseconds. With many at a time it includes waiting.
    pub p50_us: f64,
    /// 99th percentile, in microseconds.
    pub p99_us: f64,
    /// Median time from the start of the instance to its end, in microseconds: what is left without waiting.
    pub run_p50_us: f64,
    /// 99th percentile of it, in microseconds.
    pub run_p99_us: f64,
    /// Calls per second.
    pub per_second: f64,
    /// Largest sum of linear memory of a call, in bytes; 0 where nothing counts it.
    pub peak_bytes: u64,
}

/// How one call ended.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ended {
    pub(super) failed: bool,
    /// From the start of the instance to its end.
    pub(super) run: Duration,
    pub(super) peak_bytes: u64,
}

/// Calls left to make, shared by the drivers of one measurement.
#[derive(Clone)]
pub(super) struct Left(Arc<AtomicUsize>);

impl Left {
    pub(super) fn new(calls: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(calls)))
    }

    /// The number of the call to make next, or none when all are made.
    pub(super) fn take(&self) -> Option<usize> {
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
            .ok()
    }
}

/// Times and ends of the calls of one driver.
type Driven = Vec<(Duration, Ended)>;

/// Makes `calls` calls with `at_once` drivers, after a warm-up of a tenth.
pub(super) async fn measure<F, W>(at_once: usize, calls: usize, call: F) -> Spread
where
    F: Fn() -> W + Clone + Send + 'static,
    W: Future<Output = Ended> + Send,
{
    round(at_once, calls.div_ceil(10), call.clone()).await;
    let started = Instant::now();
    let driven = round(at_once, calls, call).await;
    spread(at_once, driven, started.elapsed())
}

async fn round<F, W>(at_once: usize, calls: usize, call: F) -> Vec<Driven>
where
    F: Fn() -> W + Clone + Send + 'static,
    W: Future<Output = Ended> + Send,
{
    let left = Left::new(calls);
    let mut drivers = JoinSet::new();
    for _ in 0..at_once.max(1) {
        let (left, call) = (left.clone(), call.clone());
        drivers.spawn(async move {
            let mut driven = Driven::new();
            while left.take().is_some() {
                let started = Instant::now();
                let ended = call().await;
                driven.push((started.elapsed(), ended));
            }
            driven
        });
    }
    drivers.join_all().await
}

fn spread(at_once: usize, driven: Vec<Driven>, took: Duration) -> Spread {
    let (mut times, mut runs) = (Vec::new(), Vec::new());
    let (mut failed, mut peak_bytes) = (0, 0);
    for (time, ended) in driven.into_iter().flatten() {
        times.push(time);
        runs.push(ended.run);
        failed += usize::from(ended.failed);
        peak_bytes = ended.peak_bytes.max(peak_bytes);
    }
    times.sort_unstable();
    runs.sort_unstable();
    Spread {
        concurrency: at_once,
        calls: times.len(),
        failed,
        p50_us: percentile(&times, 0.5),
        p99_us: percentile(&times, 0.99),
        run_p50_us: percentile(&runs, 0.5),
        run_p99_us: percentile(&runs, 0.99),
        per_second: times.len() as f64 / took.as_secs_f64().max(1e-9),
        peak_bytes,
    }
}

/// Of sorted times, in microseconds.
fn percentile(times: &[Duration], share: f64) -> f64 {
    let place = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
    times
        .get(place)
        .map_or(0.0, |time| time.as_secs_f64() * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_all_drivers_together() {
        let call = |us: u64| {
            let ended = Ended {
                failed: us.is_multiple_of(25),
                run: Duration::from_micros(us / 2),
                peak_bytes: us,
            };
            (Duration::from_micros(us), ended)
        };
        let driven = vec![
            (1..=50).map(call).collect(),
            (51..=100).map(call).collect::<Driven>(),
        ];
        let spread = spread(2, driven, Duration::from_secs(2));
        assert_eq!((spread.calls, spread.failed), (100, 4));
        assert_eq!((spread.p50_us, spread.p99_us), (51.0, 100.0));
        assert_eq!((spread.run_p50_us, spread.run_p99_us), (25.0, 50.0));
        assert_eq!((spread.per_second, spread.peak_bytes), (50.0, 100));
    }

    #[tokio::test]
    async fn every_call_is_made_once() {
        let made = Arc::new(AtomicUsize::new(0));
        let counted = made.clone();
        let spread = measure(7, 100, move || {
            let made = counted.clone();
            async move {
                made.fetch_add(1, Ordering::Relaxed);
                Ended::default()
            }
        })
        .await;
        assert_eq!(spread.calls, 100);
        assert_eq!(made.load(Ordering::Relaxed), 110, "with the warm-up");
    }
}
