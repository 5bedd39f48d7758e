//! The language-model head in closed form: the log-prob and entropy of each position from its hidden state, and the
//! gradient of the hidden state from the loss's partial derivatives. Logits exist for one chunk of positions at a time,
//! never for all of them.
//!
//! With z = logits / temperature and p = softmax(z): `d logprob / dz_i = [i = target] - p_i` and `d entropy / dz_i =
//! -p_i (ln p_i + entropy)`. The log-prob of a candidate token has the same derivative as that of the target.

use super::linear::{self, Mat};
use super::simd;
use super::thread_pool::Threads;

/// Positions whose logits are in memory at once.
const CHUNK: usize = 64;

/// Values of the logits of a chunk.
fn chunk_values(positions: usize, vocab: usize) -> usize {
    CHUNK.min(positions) * vocab
}

/// Values in memory at once for this many positions.
pub(crate) fn scratch_values(positions: usize, vocab: usize) -> usize {
    chunk_values(positions, vocab) + vocab
}

/// One scored position.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Position {
    pub(crate) target: u32,
    pub(crate) inverse_temperature: f32,
    /// Index of its first candidate in the list of all candidates.
    pub(crate) first_candidate: usize,
    /// Number of its candidates.
    pub(crate) candidate_count: usize,
    /// Whether [`forward`] finds the most likely tokens as candidates; otherwise the candidates are inputs.
    pub(crate) find_top: bool,
}

impl Position {
    fn candidates(&self) -> std::ops::Range<usize> {
        self.first_candidate..self.first_candidate + self.candidate_count
    }
}

/// The results of [`forward`].
pub(crate) struct HeadOutput {
    pub(crate) values: Vec<TokenValue>,
    /// Log-probs of the candidates, in their order.
    pub(crate) candidates: Vec<f32>,
}

/// Log-prob and entropy (nats) of a position.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenValue {
    pub(crate) logprob: f32,
    pub(crate) entropy: f32,
}

/// dL/dlogprob and dL/dentropy of a position.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Partial {
    pub(crate) logprob: f32,
    pub(crate) entropy: f32,
}

/// Replaces logits by `z - max`, writes their exponentials to `p`, and returns the sum of the exponentials and its
/// logarithm.
#[inline(always)]
fn exp_logits(z: &mut [f32], p: &mut [f32], inverse_temperature: f32) -> (f32, f32) {
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
fn value(z: &[f32], p: &[f32], (sum, log_sum): (f32, f32), target: u32) -> TokenValue {
    TokenValue {
        logprob: z[target as usize] - log_sum,
        entropy: log_sum - simd::dot(p, z) / sum,
    }
}

/// Writes the most likely tokens to `ids`, best first; of equal ones the lower id comes first. `z` has at least as many
/// entries.
fn top_k(z: &[f32], ids: &mut [u32]) {
    let mut len = 0;
    for (id, value) in z.iter().enumerate() {
        let worst = |at: usize| z[ids[at] as usize];
        if len == ids.len() && (len == 0 || *value <= worst(len - 1)) {
            continue;
        }
        let place = ids[..len].partition_point(|other| z[*other as usize] >= *value);
        if place >= ids.len() {
            continue; // NaN
        }
        len = (len + 1).min(ids.len());
        ids[place..len].rotate_right(1);
        ids[place] = id as u32;
    }
}

/// The log-prob and entropy of every position. `hidden [positions, width]` is already normalized, `weight [vocab,
/// width]`. `candidates` contains those of all positions; where `find_top` is set they are written here.
pub(crate) fn forward(
    hidden: &[f32],
    weight: Mat<'_>,
    (width, vocab): (usize, usize),
    positions: &[Position],
    candidates: &mut [u32],
    threads: Threads,
) -> HeadOutput {
    let mut values = Vec::with_capacity(positions.len());
    let mut candidate_logprobs = vec![0f32; candidates.len()];
    let mut logits = vec![0f32; chunk_values(positions.len(), vocab)];
    let mut p = vec![0f32; vocab];
    let chunks = positions.chunks(CHUNK).zip(hidden.chunks(CHUNK * width));
    for (positions, hidden) in chunks {
        let x = Mat::new(hidden, positions.len(), width);
        linear::forward(&mut logits, vocab, x, weight, false, 1.0, threads);
        simd::vectorized(
            #[inline(always)]
            || {
                for (z, position) in logits.chunks_exact_mut(vocab).zip(positions) {
                    let sums = exp_logits(z, &mut p, position.inverse_temperature);
                    values.push(value(z, &p, sums, position.target));
                    let ids = &mut candidates[position.candidates()];
                    if position.find_top {
                        top_k(z, ids);
                    }
                    for (out, id) in candidate_logprobs[position.candidates()]
                        .iter_mut()
                        .zip(ids)
                    {
                        *out = z[*id as usize] - sums.1;
                    }
                }
            },
        );
    }
    HeadOutput {
        values,
        candidates: candidate_logprobs,
    }
}

/// Overwrites `dhidden [positions, width]` with the gradient, and adds dL/dweight if requested. `dcandidates` has
/// dL/dlogprob of each of `candidates`, or is empty.
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
    let mut logits = vec![0f32; chunk_values(positions.len(), vocab)];
    let mut p = vec![0f32; vocab];
    let chunks = positions.chunks(CHUNK).zip(partials.chunks(CHUNK));
    let buffers = hidden
        .chunks(CHUNK * width)
        .zip(dhidden.chunks_mut(CHUNK * width));
    for ((positions, partials), (hidden, dhidden)) in chunks.zip(buffers) {
        let rows = positions.len();
        let x = Mat::new(hidden, rows, width);
        linear::forward(&mut logits, vocab, x, weight, false, 1.0, threads);
        simd::vectorized(
            #[inline(always)]
            || {
                let rows = logits.chunks_exact_mut(vocab).zip(positions).zip(partials);
                for ((z, position), partial) in rows {
                    let (sum, log_sum) = exp_logits(z, &mut p, position.inverse_temperature);
                    let entropy = value(z, &p, (sum, log_sum), position.target).entropy;
                    let (inverse, back) = (1.0 / sum, position.inverse_temperature);
                    let candidate_logprobs = match dcandidates {
                        [] => &[],
                        all => &all[position.candidates()],
                    };
                    let d_logprobs = partial.logprob + candidate_logprobs.iter().sum::<f32>();
                    let constant = d_logprobs + partial.entropy * (entropy - log_sum);
                    for (z, p) in z.iter_mut().zip(&p) {
                        *z = -back * p * inverse * partial.entropy.mul_add(*z, constant);
                    }
                    z[position.target as usize] += back * partial.logprob;
                    for (id, d) in candidates[position.candidates()]
                        .iter()
                        .zip(candidate_logprobs)
                    {
                        z[*id as usize] += back * d;
                    }
                }
            },
        );
        let dlogits = Mat::new(&logits, rows, vocab);
        linear::matmul(dhidden, width, dlogits, weight, false, 1.0, threads);
        if let Some(dweight) = dweight.as_deref_mut() {
            linear::matmul_at_b(dweight, width, dlogits, x, true, 1.0, threads);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_k_is_sorted_and_ties_go_to_the_lower_id() {
        let z = [0.5, 2.0, -1.0, 2.0, 0.75, 2.5];
        let mut ids = [0; 4];
        top_k(&z, &mut ids);
        assert_eq!(ids, [5, 1, 3, 4]);
        let mut all = [0; 6];
        top_k(&z, &mut all);
        assert_eq!(all, [5, 1, 3, 4, 0, 2]);
        top_k(&z, &mut []);
    }

    #[test]
    fn top_k_skips_nan() {
        let mut ids = [0; 2];
        top_k(&[f32::NAN, 1.0, f32::NAN, 3.0, 2.0], &mut ids);
        assert!(ids.iter().all(|id| *id < 5));
    }
}
