//! How fast this machine reads memory: the roof under which decoding stands, since every step reads all weights.

use std::hint::black_box;
use std::time::Instant;

use super::Spread;

/// What stands for memory that no cache holds.
pub const BEYOND_CACHES: usize = 512 << 20;

/// Bytes that one measurement reads at least.
const READ: usize = 1 << 30;

/// Bytes a second with which `threads` threads together read a buffer of `bytes`, over and over; one value a
/// round, after one to warm up.
pub fn read_bandwidth(bytes: usize, threads: usize, rounds: usize) -> Spread {
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

/// As many sums side by side as keep every load port busy.
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
    fn every_value_is_read() {
        for count in [0usize, 1, 63, 64, 1000] {
            let values: Vec<f32> = (0..count).map(|v| v as f32).collect();
            assert_eq!(sum(&values), (count * count.saturating_sub(1) / 2) as f32);
        }
        assert!(read_bandwidth(1 << 20, 2, 1).low > 0.0);
    }
}
