//! Rotary positions in the half-split layout of Hugging Face (Su et al. 2021): within a head,
//! value `i` is rotated with value `i + dim / 2` by `position * theta^(-2 i / dim)`.

use super::simd::vectorised;

/// Cosines and sines for the positions in use, grown on demand.
#[derive(Debug, Clone)]
pub(crate) struct Rope {
    frequencies: Vec<f64>,
}

/// One pair of tables, `[tokens, dim / 2]` each.
pub(crate) struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
    half: usize,
}

impl Rope {
    pub(crate) fn new(head_dim: usize, theta: f32) -> Self {
        let frequencies = (0..head_dim / 2)
            .map(|i| f64::from(theta).powf(-2.0 * i as f64 / head_dim as f64))
            .collect();
        Self { frequencies }
    }

    /// Tables for these positions, in this order.
    pub(crate) fn angles(&self, positions: impl Iterator<Item = usize>) -> Angles {
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for position in positions {
            for f in &self.frequencies {
                // f32 product as the reference implementations compute it, so that long
                // contexts agree with checkpoints trained on them.
                let angle = position as f32 * *f as f32;
                cos.push(angle.cos());
                sin.push(angle.sin());
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
    /// Rotates every head of `x [tokens, heads * dim]` whose rows are `stride` apart. `inverse`
    /// rotates back, which is also the gradient.
    pub(crate) fn rotate(&self, x: &mut [f32], heads: usize, stride: usize, inverse: bool) {
        let half = self.half;
        let sign = if inverse { -1.0 } else { 1.0 };
        vectorised(
            #[inline(always)]
            || {
                let tables = self.cos.chunks_exact(half).zip(self.sin.chunks_exact(half));
                for (row, (cos, sin)) in x.chunks_mut(stride).zip(tables) {
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
    }
}
