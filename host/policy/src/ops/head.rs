//! The language-model head in closed form: log-probability and entropy of each position from its
//! hidden state, and from the loss's partial derivatives straight back to the hidden state. Logits
//! exist for one chunk of positions at a time, never for all of them.
//!
//! With z = logits / temperature and p = softmax(z): `d logprob / dz_i = [i = target] - p_i` and
//! `d entropy / dz_i = -p_i (ln p_i + entropy)`. The log-probability of any other token (a candidate) has
//! the derivative of a target's.

use super::linear::{self, Mat, Threads};
use super::simd;

/// Positions whose logits are held at once.
const CHUNK: usize = 64;

/// One scored position.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Position {
    pub(crate) target: u32,
    pub(crate) inverse_temperature: f32,
    /// Where its candidates begin in the list of all of them, and how many there are.
    pub(crate) first: usize,
    pub(crate) count: usize,
    /// The candidates are the most likely tokens, to be found; else they are given.
    pub(crate) top: bool,
}

impl Position {
    fn candidates(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.count
    }
}

/// What [`forward`] finds.
pub(crate) struct Values {
    pub(crate) values: Vec<Value>,
    /// Log-probabilities of the candidates, in their order.
    pub(crate) candidates: Vec<f32>,
}

/// Log-probability and entropy (nats) of a position.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Value {
    pub(crate) logprob: f32,
    pub(crate) entropy: f32,
}

/// dL/dlogprob and dL/dentropy of a position.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Partial {
    pub(crate) logprob: f32,
    pub(crate) entropy: f32,
}

/// Turns a row of logits into (z - max), its exponentials' sum and the log of that sum.
#[inline(always)]
fn normalise(z: &mut [f32], p: &mut [f32], inverse_temperature: f32) -> (f32, f32) {
    for z in z.iter_mut() {
        *z *= inverse_temperature;
    }
    let top = simd::max(z);
    for z in z.iter_mut() {
        *z -= top;
    }
    p.copy_from_slice(z);
    let sum = simd::exp_sum(p, 0.0);
    (sum, sum.ln())
}

#[inline(always)]
fn value(z: &[f32], p: &[f32], (sum, log_sum): (f32, f32), target: u32) -> Value {
    Value {
        logprob: z[target as usize] - log_sum,
        entropy: log_sum - simd::dot(p, z) / sum,
    }
}

/// The most likely tokens, best first; of equal ones the lower id. `z` has at least as many entries.
fn most_likely(z: &[f32], ids: &mut [u32]) {
    let mut found = 0;
    for (id, value) in z.iter().enumerate() {
        let worst = |at: usize| z[ids[at] as usize];
        if found == ids.len() && (found == 0 || *value <= worst(found - 1)) {
            continue;
        }
        let place = ids[..found].partition_point(|other| z[*other as usize] >= *value);
        if place >= ids.len() {
            continue; // not a number
        }
        found = (found + 1).min(ids.len());
        ids[place..found].rotate_right(1);
        ids[place] = id as u32;
    }
}

/// Values of every position; `hidden [positions, width]` is already normalised, `weight [vocab, width]`.
/// `candidates` are those of all positions; where they are to be found they are written here.
pub(crate) fn forward(
    hidden: &[f32],
    weight: Mat<'_>,
    (width, vocab): (usize, usize),
    positions: &[Position],
    candidates: &mut [u32],
    threads: Threads,
) -> Values {
    let mut values = Vec::with_capacity(positions.len());
    let mut looked_at = vec![0f32; candidates.len()];
    let mut logits = vec![0f32; CHUNK.min(positions.len()) * vocab];
    let mut p = vec![0f32; vocab];
    let chunks = positions.chunks(CHUNK).zip(hidden.chunks(CHUNK * width));
    for (positions, hidden) in chunks {
        let x = Mat::new(hidden, positions.len(), width);
        linear::forward(&mut logits, vocab, x, weight, false, 1.0, threads);
        simd::vectorised(
            #[inline(always)]
            || {
                for (z, position) in logits.chunks_exact_mut(vocab).zip(positions) {
                    let sums = normalise(z, &mut p, position.inverse_temperature);
                    values.push(value(z, &p, sums, position.target));
                    let ids = &mut candidates[position.candidates()];
                    if position.top {
                        most_likely(z, ids);
                    }
                    for (out, id) in looked_at[position.candidates()].iter_mut().zip(ids) {
                        *out = z[*id as usize] - sums.1;
                    }
                }
            },
        );
    }
    Values {
        values,
        candidates: looked_at,
    }
}

/// Overwrites `dhidden [positions, width]` with the gradient, and adds dL/dweight when it is wanted.
/// `dcandidates` has dL/dlogprob of each of `candidates`, or is empty.
#[allow(clippy::too_many_arguments, reason = "operands of one fused operation")]
pub(crate) fn backward(
    dhidden: &mut [f32],
    mut dweight: Option<&mut [f32]>,
    hidden: &[f32],
    weight: Mat<'_>,
    (width, vocab): (usize, usize),
    positions: &[Position],
    partials: &[Partial],
    (candidates, dcandidates): (&[u32], &[f32]),
    threads: Threads,
) {
    let mut logits = vec![0f32; CHUNK.min(positions.len()) * vocab];
    let mut p = vec![0f32; vocab];
    let chunks = positions.chunks(CHUNK).zip(partials.chunks(CHUNK));
    let buffers = hidden
        .chunks(CHUNK * width)
        .zip(dhidden.chunks_mut(CHUNK * width));
    for ((positions, partials), (hidden, dhidden)) in chunks.zip(buffers) {
        let rows = positions.len();
        let x = Mat::new(hidden, rows, width);
        linear::forward(&mut logits, vocab, x, weight, false, 1.0, threads);
        simd::vectorised(
            #[inline(always)]
            || {
                let rows = logits.chunks_exact_mut(vocab).zip(positions).zip(partials);
                for ((z, position), partial) in rows {
                    let (sum, log_sum) = normalise(z, &mut p, position.inverse_temperature);
                    let entropy = value(z, &p, (sum, log_sum), position.target).entropy;
                    let (inverse, back) = (1.0 / sum, position.inverse_temperature);
                    let looked_at = match dcandidates {
                        [] => &[],
                        all => &all[position.candidates()],
                    };
                    let pull = partial.logprob + looked_at.iter().sum::<f32>();
                    let constant = pull + partial.entropy * (entropy - log_sum);
                    for (z, p) in z.iter_mut().zip(&p) {
                        *z = -back * p * inverse * partial.entropy.mul_add(*z, constant);
                    }
                    z[position.target as usize] += back * partial.logprob;
                    for (id, d) in candidates[position.candidates()].iter().zip(looked_at) {
                        z[*id as usize] += back * d;
                    }
                }
            },
        );
        let dlogits = Mat::new(&logits, rows, vocab);
        linear::product(dhidden, width, dlogits, weight, false, 1.0, threads);
        if let Some(dweight) = dweight.as_deref_mut() {
            linear::outer(dweight, width, dlogits, x, true, 1.0, threads);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_likely_come_best_first_and_the_lower_id_wins() {
        let z = [0.5, 2.0, -1.0, 2.0, 0.75, 2.5];
        let mut ids = [0; 4];
        most_likely(&z, &mut ids);
        assert_eq!(ids, [5, 1, 3, 4]);
        let mut all = [0; 6];
        most_likely(&z, &mut all);
        assert_eq!(all, [5, 1, 3, 4, 0, 2]);
        most_likely(&z, &mut []);
    }

    #[test]
    fn what_is_not_a_number_ends_nothing() {
        let mut ids = [0; 2];
        most_likely(&[f32::NAN, 1.0, f32::NAN, 3.0, 2.0], &mut ids);
        assert!(ids.iter().all(|id| *id < 5));
    }
}
