//! The head of a model with a large vocabulary: log-probs, entropies and the gradient of the log-prob, one block of the
//! vocabulary at a time with an online softmax (Dao et al. 2022), as if every row of the weight were key and value of an
//! attention. The logits of a position never exist at once, and the weight is read twice for many positions instead of
//! once for a few.
//!
//! Positions with candidates need all their logits: [`super::head`].

use super::head::{Position, TokenValue};
use super::linear::{self, Mat};
use super::simd;
use super::thread_pool::{self, Threads};

/// Positions multiplied at once.
const ROWS: usize = 512;

/// Tokens of the vocabulary whose logits are in memory at once.
const BLOCK: usize = 1024;

/// Positions per task of the online softmax.
const TASK_ROWS: usize = 32;

/// Cost of the online softmax per logit, in multiply-adds.
const SOFTMAX_COST: usize = 16;

/// Logits in memory at once for this many positions.
pub(crate) fn scratch_values(positions: usize) -> usize {
    ROWS.min(positions) * BLOCK
}

/// Whether [`forward`] is the faster way to score these positions, and possible.
pub(crate) fn applies(weight: Mat<'_>, vocab: usize, positions: &[Position]) -> bool {
    !weight.is_packed() && vocab > BLOCK && positions.iter().all(|p| p.candidate_count == 0)
}

/// The online softmax of one position over the blocks so far.
#[derive(Clone, Copy)]
struct Softmax {
    max: f32,
    /// Sum of `exp(z - max)`.
    sum: f32,
    /// Sum of `(z - max) exp(z - max)`.
    weighted: f32,
    target: f32,
}

impl Softmax {
    const EMPTY: Self = Self {
        max: f32::NEG_INFINITY,
        sum: 0.0,
        weighted: 0.0,
        target: 0.0,
    };

    /// Adds a block of logits and replaces them by `exp(z - max)`. Returns the factor for what was accumulated with the
    /// exponentials of earlier blocks.
    #[inline(always)]
    fn add(&mut self, z: &mut [f32], first: usize, position: &Position) -> f32 {
        for z in z.iter_mut() {
            *z *= position.inverse_temperature;
        }
        let target = (position.target as usize).wrapping_sub(first);
        if let Some(z) = z.get(target) {
            self.target = *z;
        }
        let top = simd::max(z);
        let mut correction = 0.0;
        if self.sum == 0.0 {
            self.max = top;
        } else if top > self.max {
            let change = self.max - top;
            correction = simd::exp(change);
            self.weighted = correction * (self.weighted + change * self.sum);
            self.sum *= correction;
            self.max = top;
        } else {
            correction = 1.0;
        }
        let (sum, weighted) = simd::exp_sums(z, self.max);
        self.sum += sum;
        self.weighted += weighted;
        correction
    }

    fn value(self) -> TokenValue {
        let log_sum = self.sum.ln();
        TokenValue {
            logprob: self.target - self.max - log_sum,
            entropy: log_sum - self.weighted / self.sum,
        }
    }
}

/// The log-prob and entropy of every position. `hidden [positions, width]` is already normalized, `weight [vocab,
/// width]`. With `gradients [positions, width]`, also writes the gradient of each log-prob with respect to the hidden
/// state.
pub(crate) fn forward(
    hidden: &[f32],
    weight: Mat<'_>,
    (width, vocab): (usize, usize),
    positions: &[Position],
    mut gradients: Option<&mut [f32]>,
    threads: Threads,
) -> Vec<TokenValue> {
    let mut values = Vec::with_capacity(positions.len());
    let mut logits = vec![0f32; scratch_values(positions.len())];
    let chunks = positions.chunks(ROWS).zip(hidden.chunks(ROWS * width));
    for (chunk, (positions, hidden)) in chunks.enumerate() {
        let rows = positions.len();
        let mut sums = gradients
            .as_deref_mut()
            .map(|all| &mut all[chunk * ROWS * width..][..rows * width]);
        let mut softmaxes = vec![Softmax::EMPTY; rows];
        let x = Mat::new(hidden, rows, width);
        for first in (0..vocab).step_by(BLOCK) {
            let block = weight.row_range(first..vocab.min(first + BLOCK));
            let count = block.rows();
            let logits = &mut logits[..rows * count];
            linear::forward(logits, count, x, block, false, 1.0, threads);
            let sum_rows: Vec<&mut [f32]> = match sums.as_deref_mut() {
                Some(sums) => sums.chunks_mut(TASK_ROWS * width).collect(),
                None => Vec::new(),
            };
            let mut sum_rows = sum_rows.into_iter();
            let mut tasks: Vec<_> = logits
                .chunks_mut(TASK_ROWS * count)
                .zip(softmaxes.chunks_mut(TASK_ROWS))
                .zip(positions.chunks(TASK_ROWS))
                .map(|((logits, softmaxes), positions)| {
                    (logits, softmaxes, positions, sum_rows.next())
                })
                .collect();
            let cost = rows * count * SOFTMAX_COST;
            thread_pool::parallel_for_each(threads, &mut tasks, cost, |task| {
                let (logits, softmaxes, positions, sums) = task;
                simd::vectorized(
                    #[inline(always)]
                    || {
                        let rows = logits.chunks_exact_mut(count).zip(softmaxes.iter_mut());
                        for (row, ((z, softmax), position)) in rows.zip(*positions).enumerate() {
                            let correction = softmax.add(z, first, position);
                            if let Some(sums) = sums {
                                let sums = &mut sums[row * width..][..width];
                                sums.iter_mut().for_each(|sum| *sum *= correction);
                            }
                        }
                    },
                );
            });
            if let Some(sums) = sums.as_deref_mut() {
                let p = Mat::new(logits, rows, count);
                linear::matmul(sums, width, p, block, first > 0, 1.0, threads);
            }
        }
        if let Some(sums) = sums {
            let rows = sums.chunks_exact_mut(width).zip(&softmaxes);
            for ((sums, softmax), position) in rows.zip(positions) {
                let (inverse, back) = (1.0 / softmax.sum, position.inverse_temperature);
                let target = weight.row(position.target as usize);
                for (sum, target) in sums.iter_mut().zip(target) {
                    *sum = back * (target - *sum * inverse);
                }
            }
        }
        values.extend(softmaxes.into_iter().map(Softmax::value));
    }
    values
}

#[cfg(test)]
mod tests {
    use super::super::head;
    use super::*;

    #[test]
    fn scores_and_gradients_equal_those_of_whole_logits() {
        let (width, vocab, rows) = (24, 2 * BLOCK + 77, ROWS + 9);
        let wave =
            |n: usize, k: f32| -> Vec<f32> { (0..n).map(|i| (i as f32 * k).sin()).collect() };
        let (weight, hidden) = (wave(vocab * width, 0.37), wave(rows * width, 0.11));
        let positions: Vec<Position> = (0..rows)
            .map(|i| Position {
                target: (i * 131 % vocab) as u32,
                inverse_temperature: 0.5 + (i % 3) as f32,
                first_candidate: 0,
                candidate_count: 0,
                find_top: false,
            })
            .collect();
        let weight = Mat::new(&weight, vocab, width);
        assert!(applies(weight, vocab, &positions));
        let sizes = (width, vocab);
        let right = head::forward(&hidden, weight, sizes, &positions, &mut [], Threads(1));
        let mut right_gradient = vec![0f32; hidden.len()];
        let partial = head::Partial {
            logprob: 1.0,
            entropy: 0.0,
        };
        head::backward(
            &mut right_gradient,
            None,
            &hidden,
            weight,
            sizes,
            &positions,
            &vec![partial; rows],
            (&[], &[]),
            Threads(1),
        );
        let run = |threads| {
            let mut gradient = vec![f32::NAN; hidden.len()];
            let values = forward(
                &hidden,
                weight,
                sizes,
                &positions,
                Some(&mut gradient),
                Threads(threads),
            );
            let values = values.into_iter().map(|v| (v.logprob, v.entropy));
            (values.collect::<Vec<_>>(), gradient)
        };
        let (values, gradient) = run(1);
        for ((logprob, entropy), right) in values.iter().zip(&right.values) {
            assert!(
                (logprob - right.logprob).abs() < 2e-4,
                "{logprob} {right:?}"
            );
            assert!(
                (entropy - right.entropy).abs() < 2e-4,
                "{entropy} {right:?}"
            );
        }
        for (own, right) in gradient.iter().zip(&right_gradient) {
            assert!((own - right).abs() < 1e-4, "{own} {right}");
        }
        assert!(run(3) == (values, gradient));
    }
}
