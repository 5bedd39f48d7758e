//! Memory read bandwidth of this machine: the upper bound of decode speed, because every step reads all weights.

use std::hint::black_box;
use std::time::Instant;

use clawhost_engine::measure::Spread;

/// Buffer size that exceeds all CPU caches.
pub const BEYOND_CACHES: usize = 512 << 20;

/// Minimum bytes read per measurement.
const READ: usize = 1 << 30;

/// Bandwidth in bytes per second with which `threads` threads together read a buffer of `bytes` repeatedly; one value
/// per round, after a warmup round.
pub fn measure_read_bandwidth(bytes: usize, threads: usize, rounds: usize) -> Spread {
    let threads = threads.max(1);
    let each = (bytes / size_of::<f32>() / threads).max(1);
    let sweeps = READ.div_ceil(each * threads * size_of::<f32>());
    let buffers: Vec<Vec<f32>> = (0..threads).map(|_| vec![1.0; each]).collect();
    let rates: Vec<f64> = (0..=rounds)
        .map(|_| {
            let begun = Instant::now();
            std::thread::scope(|scope| {
                for buffer in &buffers {
                    scope.spawn(move || {
                        for _ in 0..sweeps {
                            black_box(sum(black_box(buffer)));
                        }
                    });
                }
            });
            let read = each * threads * size_of::<f32>() * sweeps;
            read as f64 / begun.elapsed().as_secs_f64().max(1e-9)
        })
        .collect();
    Spread::of(rates.get(1..).unwrap_or_default())
}

/// Sums with enough parallel accumulators to keep every load port busy.
fn sum(values: &[f32]) -> f32 {
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let mut lanes = [0f32; 64];
            let (main, rest) = values.as_chunks::<64>();
            for chunk in main {
                for (lane, value) in lanes.iter_mut().zip(chunk) {
                    *lane += value;
                }
            }
            lanes.iter().chain(rest).sum()
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_reads_every_value() {
        for count in [0usize, 1, 63, 64, 1000] {
            let values: Vec<f32> = (0..count).map(|v| v as f32).collect();
            assert_eq!(sum(&values), (count * count.saturating_sub(1) / 2) as f32);
        }
        assert!(measure_read_bandwidth(1 << 20, 2, 1).low > 0.0);
    }
}
