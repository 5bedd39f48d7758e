//! The sampler against a plain one that sorts, with the random stream of `rand_chacha`.

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::*;
use crate::kernels::{
    MODE_GREEDY, MODE_RECORDED, MODE_SAMPLE, SAMPLE_CHUNKS, SAMPLE_PART_THREADS, STATUS_NO_TOKEN,
    STATUS_NOT_FINITE, SampleArguments, SampleOutput, SamplePart, SampleRow, sample_parts,
};

/// The number in [0, 1) that the CPU backend uses for a position.
fn uniform(seed: u64, position: u32) -> f64 {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..].copy_from_slice(b"clawhost token sampling\0");
    let mut random = ChaCha12Rng::from_seed(key);
    random.set_word_pos(2 * u128::from(position));
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// The remaining tokens with their weights, in the order of their ids.
fn truncate(logits: &[f32], row: &SampleRow) -> Vec<(usize, f64)> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: f32| (f64::from(logit - largest) / f64::from(row.temperature)).exp();
    let mut all: Vec<(usize, f64)> = logits.iter().map(|l| weight(*l)).enumerate().collect();
    all.retain(|(_, w)| *w > 1e-37 && *w >= f64::from(row.min_p));
    all.sort_by(|a, b| logits[b.0].total_cmp(&logits[a.0]).then(a.0.cmp(&b.0)));
    if row.top_k > 0 {
        all.truncate(row.top_k as usize);
    }
    if row.top_p < 1.0 {
        let target = f64::from(row.top_p) * all.iter().map(|(_, w)| w).sum::<f64>();
        let mut reached = 0.0;
        let last = all.iter().position(|(_, w)| {
            reached += w;
            reached >= target
        });
        all.truncate(last.map_or(all.len(), |last| last + 1));
    }
    all.sort_by_key(|(id, _)| *id);
    all
}

fn plain(logits: &[f32], row: &SampleRow) -> (Option<usize>, Vec<(usize, f64)>) {
    let all = truncate(logits, row);
    let seed = u64::from(row.seed_high) << 32 | u64::from(row.seed_low);
    let total: f64 = all.iter().map(|(_, w)| w).sum();
    let target = uniform(seed, row.position) * total;
    let mut reached = 0.0;
    for (id, weight) in &all {
        reached += weight;
        // Too close to the boundary of two tokens to say which one it is.
        if (reached - target).abs() < 1e-6 * total {
            return (None, all);
        }
        if reached > target {
            return (Some(*id), all.clone());
        }
    }
    (None, all)
}

fn base() -> SampleRow {
    SampleRow {
        mode: MODE_SAMPLE,
        temperature: 1.0,
        top_p: 1.0,
        repetition_penalty: 1.0,
        bitmask: -1,
        ..SampleRow::default()
    }
}

/// One row of logits per sampled row.
fn sample(logits: &[Vec<f32>], rows: &[SampleRow], words: &[u32]) -> Option<Vec<SampleOutput>> {
    let vocab = logits[0].len();
    let stride = vocab.next_multiple_of(8);
    let run = in_both_orders(|b| {
        let mut padded = vec![f32::NAN; stride * logits.len()];
        for (i, row) in logits.iter().enumerate() {
            padded[i * stride..i * stride + vocab].copy_from_slice(row);
        }
        let rows: Vec<SampleRow> = rows.to_vec();
        let count = rows.len();
        let (logits, rows, words) = (b.upload(&padded), b.upload(&rows), b.upload(words));
        let adjusted = Buffer::<f32>::new(&b.driver, count * stride).unwrap();
        let saved = Buffer::<f32>::new(&b.driver, count * 4).unwrap();
        let outputs = b.upload(&vec![SampleOutput::default(); count]);
        let part_count = sample_parts(b.driver.processors(), count);
        let parts = Buffer::<SamplePart>::new(&b.driver, count * part_count).unwrap();
        let keys = count * part_count * SAMPLE_PART_THREADS;
        let keys = Buffer::<u32>::new(&b.driver, keys).unwrap();
        let chunks = Buffer::<u64>::new(&b.driver, count * SAMPLE_CHUNKS).unwrap();
        let arguments = SampleArguments {
            logits: logits.address(),
            stride: stride as i32,
            vocab: vocab as i32,
            rows: rows.address(),
            words: words.address(),
            adjusted: adjusted.address(),
            saved: saved.address(),
            saved_stride: 4,
            outputs: outputs.address(),
            parts: parts.address(),
            part_count: part_count as i32,
            keys: keys.address(),
            chunks: chunks.address(),
        };
        b.stream.sample(arguments, count).unwrap();
        // NaN is not equal to itself.
        let outputs = b.read(&outputs);
        outputs
            .iter()
            .map(|o| (bits(o), *o))
            .map(|(bits, o)| Same(bits, o))
            .collect::<Vec<_>>()
    })?;
    Some(run.into_iter().map(|same| same.1).collect())
}

struct Same(Vec<u8>, SampleOutput);
impl PartialEq for Same {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl std::fmt::Debug for Same {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.1.fmt(f)
    }
}
fn bits(output: &SampleOutput) -> Vec<u8> {
    crate::device::bytes_of(std::slice::from_ref(output)).to_vec()
}

fn logprob(logits: &[f32], id: usize, temperature: f32) -> f32 {
    let z: Vec<f64> = logits
        .iter()
        .map(|l| f64::from(*l) / f64::from(temperature))
        .collect();
    let top = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (z[id] - top - z.iter().map(|z| (z - top).exp()).sum::<f64>().ln()) as f32
}

#[test]
fn truncations_match_sorting() {
    let vocab = 5003;
    let mut logits: Vec<Vec<f32>> = (0..14).map(|i| random(20 + i, vocab, 9.0)).collect();
    // Rounded to bf16 there are many ties; a flat row has nothing else.
    logits[3] = vec![1.5; vocab];
    logits[4] = vec![1.5; vocab];
    let rows: Vec<SampleRow> = [
        (1.0, 0, 1.0, 0.0),
        (0.7, 40, 1.0, 0.0),
        (1.0, 0, 0.9, 0.0),
        (1.0, 7, 1.0, 0.0),
        (1.0, 0, 0.3, 0.0),
        (2.5, 0, 0.999, 0.0),
        (1.0, 20, 0.95, 0.0),
        (0.3, 0, 1.0, 0.05),
        (1.3, 50, 0.8, 0.02),
        (5.0, 3000, 1.0, 0.0),
        (5.0, 2000, 0.97, 0.0),
        (0.01, 5, 0.5, 0.0),
        (1.0, 1, 1.0, 0.0),
        (1.0, 0, 0.0001, 0.0),
    ]
    .into_iter()
    .enumerate()
    .map(|(i, (temperature, top_k, top_p, min_p))| SampleRow {
        logits: i as i32,
        seed_low: 7 + i as u32,
        seed_high: 3,
        position: 11 * i as u32,
        temperature,
        top_k,
        top_p,
        min_p,
        top_logprobs: (i % 3 * 10) as i32,
        ..base()
    })
    .collect();
    let Some(outputs) = sample(&logits, &rows, &[0]) else {
        return;
    };
    let mut decided = 0;
    for (i, (row, output)) in rows.iter().zip(&outputs).enumerate() {
        assert_eq!(output.status, 0);
        let (id, rest) = plain(&logits[i], row);
        if let Some(id) = id {
            decided += 1;
            assert_eq!(output.id as usize, id, "row {i}");
        }
        let id = output.id as usize;
        let total: f64 = rest.iter().map(|(_, w)| w).sum();
        let (_, weight) = rest.iter().find(|(other, _)| *other == id).unwrap();
        let expected = (weight / total).ln() as f32;
        assert!(
            (output.logprob - expected).abs() < 1e-4,
            "row {i}: {} {expected}",
            output.logprob
        );
        let full = logprob(&logits[i], id, row.temperature);
        assert!(
            (output.full_logprob - full).abs() < 1e-4 * full.abs().max(1.0),
            "row {i}"
        );
        let model = logprob(&logits[i], id, 1.0);
        assert!((output.model_logprob - model).abs() < 1e-4, "row {i}");
        let mut order: Vec<usize> = (0..vocab).collect();
        order.sort_by(|a, b| logits[i][*b].total_cmp(&logits[i][*a]).then(a.cmp(b)));
        for (at, id) in order.iter().take(row.top_logprobs as usize).enumerate() {
            assert_eq!(output.top_ids[at] as usize, *id, "row {i}");
            assert!((output.top_logprobs[at] - logprob(&logits[i], *id, 1.0)).abs() < 1e-4);
        }
    }
    assert!(decided >= 12, "{decided} rows are decided");
}

#[test]
fn positions_follow_the_stream() {
    let vocab = 997;
    let logits = vec![random(1, vocab, 3.0)];
    let rows: Vec<SampleRow> = (0..40)
        .map(|position| SampleRow {
            position: position * 13,
            seed_low: 0xdead_beef,
            seed_high: 0x1234,
            ..base()
        })
        .collect();
    let Some(outputs) = sample(&logits, &rows, &[0]) else {
        return;
    };
    let same = rows.iter().zip(&outputs).filter(|(row, output)| {
        let (id, _) = plain(&logits[0], row);
        id.is_none_or(|id| id == output.id as usize)
    });
    assert_eq!(same.count(), rows.len());
}

#[test]
fn adjustments_are_applied_in_the_order_of_the_cpu_backend() {
    let vocab = 200;
    let logits: Vec<Vec<f32>> = (0..8).map(|i| random(60 + i, vocab, 4.0)).collect();
    // Words: a bias, two penalties, a bitmask, suppressed tokens.
    let mut words = vec![9, 50f32.to_bits(), 9, 3, 4, 0];
    let bitmask = words.len();
    // Tokens 5, 9 and 70 are allowed; what is beyond the words is not.
    words.extend([1 << 5 | 1 << 9, 0, 1 << 6]);
    let single = words.len();
    words.push(1 << 9);
    let suppressed = words.len();
    words.extend([9, 5]);
    let with = |logits: i32, mode: i32| SampleRow {
        mode,
        logits,
        adjusts: 1,
        position: 3,
        ..base()
    };
    let rows = [
        SampleRow {
            biases: 0,
            bias_count: 1,
            ..with(0, MODE_GREEDY)
        },
        SampleRow {
            biases: 0,
            bias_count: 1,
            penalties: 2,
            penalty_count: 2,
            presence_penalty: 0.5,
            frequency_penalty: 40.0,
            repetition_penalty: 1.25,
            ..with(1, MODE_GREEDY)
        },
        SampleRow {
            bitmask: bitmask as i32,
            bitmask_words: 3,
            constrained: 1,
            ..with(2, MODE_SAMPLE)
        },
        SampleRow {
            bitmask: single as i32,
            bitmask_words: 1,
            constrained: 1,
            ..with(3, MODE_SAMPLE)
        },
        SampleRow {
            bitmask: bitmask as i32,
            bitmask_words: 3,
            constrained: 1,
            suppressed: suppressed as i32,
            suppressed_count: 2,
            ..with(4, MODE_SAMPLE)
        },
        // Nothing else is allowed, so it is not suppressed.
        SampleRow {
            bitmask: single as i32,
            bitmask_words: 1,
            constrained: 1,
            suppressed: suppressed as i32,
            suppressed_count: 2,
            ..with(5, MODE_SAMPLE)
        },
        SampleRow {
            mode: MODE_RECORDED,
            recorded: 17,
            ..base()
        },
        SampleRow {
            bitmask: 0,
            bitmask_words: 0,
            ..with(6, MODE_SAMPLE)
        },
    ];
    let Some(outputs) = sample(&logits, &rows, &words) else {
        return;
    };
    assert_eq!((outputs[0].id, outputs[0].logprob), (9, 0.0));
    assert!((outputs[0].full_logprob - logprob(&logits[0], 9, 1.0)).abs() < 1e-4);
    let mut adjusted = logits[1].clone();
    adjusted[9] += 50.0;
    for id in [9, 4] {
        adjusted[id] = if adjusted[id] > 0.0 {
            adjusted[id] / 1.25
        } else {
            adjusted[id] * 1.25
        };
    }
    adjusted[9] -= 0.5 + 3.0 * 40.0;
    let best = (0..vocab).max_by(|a, b| adjusted[*a].total_cmp(&adjusted[*b]).then(b.cmp(a)));
    assert_eq!(outputs[1].id as usize, best.unwrap());
    let mut masked = vec![f32::NEG_INFINITY; vocab];
    for id in [5, 9, 70] {
        masked[id] = logits[2][id];
    }
    let (id, _) = plain(&masked, &rows[2]);
    assert_eq!(Some(outputs[2].id as usize), id);
    assert_eq!(outputs[2].forced, 0);
    assert_eq!(
        (outputs[3].id, outputs[3].forced, outputs[3].logprob),
        (9, 1, 0.0)
    );
    assert_eq!((outputs[4].id, outputs[4].forced), (70, 1));
    assert_eq!((outputs[5].id, outputs[5].forced), (9, 1));
    assert_eq!((outputs[6].id, outputs[6].logprob), (17, 0.0));
    assert!((outputs[6].full_logprob - logprob(&logits[0], 17, 1.0)).abs() < 1e-4);
    assert_eq!(outputs[7].status, STATUS_NO_TOKEN);
}

#[test]
fn logits_that_are_not_finite_are_reported() {
    let mut logits: Vec<Vec<f32>> = (0..3).map(|i| random(80 + i, 300, 4.0)).collect();
    logits[0][40] = f32::NAN;
    logits[0][41] = f32::NAN;
    logits[1][299] = f32::NEG_INFINITY;
    let rows = [0, 1, 2].map(|logits| SampleRow { logits, ..base() });
    let Some(outputs) = sample(&logits, &rows, &[0]) else {
        return;
    };
    assert_eq!(
        (outputs[0].status, outputs[0].bad_id),
        (STATUS_NOT_FINITE, 40)
    );
    assert_eq!(
        (outputs[1].status, outputs[1].bad_id),
        (STATUS_NOT_FINITE, 299)
    );
    assert_eq!(outputs[2].status, 0);
}
