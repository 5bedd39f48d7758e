//! Rotary position embeddings in the half-split layout of Hugging Face (Su et al. 2021): within a head, value `i` is
//! rotated with value `i + dim / 2` by `position * frequency[i]`.

use super::simd::vectorized;
use super::thread_pool::{Threads, parallel_rows};

/// Work of one value, in multiply-adds.
const COST: usize = 2;

/// The rotary frequencies of a model.
#[derive(Debug, Clone)]
pub(crate) struct Rope {
    frequencies: Vec<f32>,
    scale: f32,
}

/// Cosine and sine tables, `[tokens, dim / 2]` each.
pub(crate) struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
    half: usize,
}

impl Rope {
    /// Takes the radians per position of each pair of values, and the factor that scales rotated values.
    pub(crate) fn new(frequencies: Vec<f32>, scale: f32) -> Self {
        Self { frequencies, scale }
    }

    /// Tables for these positions, in this order.
    pub(crate) fn angles(&self, positions: impl Iterator<Item = usize>) -> Angles {
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for position in positions {
            for f in &self.frequencies {
                // f32 product as the reference implementations compute it, so that long
                // contexts agree with checkpoints trained on them.
                let angle = position as f32 * f;
                cos.push(angle.cos() * self.scale);
                sin.push(angle.sin() * self.scale);
            }
        }
        Angles {
            cos,
            sin,
            half: self.frequencies.len(),
        }
    }
}

impl Angles {
    /// Rotates every head of `x [tokens, heads * dim]`, whose rows are `stride` apart. With `inverse` it rotates back
    /// with the same scale, which is the gradient.
    pub(crate) fn rotate(
        &self,
        x: &mut [f32],
        heads: usize,
        stride: usize,
        inverse: bool,
        threads: Threads,
    ) {
        let half = self.half;
        let sign = if inverse { -1.0 } else { 1.0 };
        parallel_rows(threads, x, stride, COST, |x, rows| {
            let range = rows.start * half..rows.end * half;
            let (cos, sin) = (&self.cos[range.clone()], &self.sin[range]);
            vectorized(
                #[inline(always)]
                || {
                    let tables = cos.chunks_exact(half).zip(sin.chunks_exact(half));
                    for (row, (cos, sin)) in x.chunks_exact_mut(stride).zip(tables) {
                        for head in row[..heads * 2 * half].chunks_exact_mut(2 * half) {
                            let (low, high) = head.split_at_mut(half);
                            for i in 0..half {
                                let (a, b, s) = (low[i], high[i], sign * sin[i]);
                                low[i] = a * cos[i] - b * s;
                                high[i] = b * cos[i] + a * s;
                            }
                        }
                    }
                },
            );
        });
    }
}
