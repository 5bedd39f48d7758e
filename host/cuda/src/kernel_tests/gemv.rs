//! Products of few rows, and LoRA with a different adapter per row.

use super::*;
use crate::device::Address;
use crate::kernels::{GemvArguments, LoraArguments, LoraMatrices};

const EPS: f32 = 1e-5;

fn product(x: &[f32], w: &[f32], k: usize) -> Vec<f32> {
    let dot = |x: &[f32], w: &[f32]| -> f32 {
        let sum: f64 = x.iter().zip(w).map(|(x, w)| f64::from(x * w)).sum();
        sum as f32
    };
    x.chunks_exact(k)
        .flat_map(|x| w.chunks_exact(k).map(move |w| dot(x, w)))
        .collect()
}

#[test]
fn few_rows_with_norm_bias_residual_and_activation() {
    for (tokens, n, k, gated) in [
        (1, 48, 264, false),
        (8, 33, 1000, false),
        (13, 16, 64, false),
        (16, 100, 72, false),
        (3, 40, 512, true),
        (11, 24, 96, true),
    ] {
        let parts = if gated { 2 } else { 1 };
        let (x, w) = (random(1, tokens * k, 1.0), random(2, parts * n * k, 0.5));
        let (gain, bias) = (random(3, k, 1.5), random(4, n, 1.0));
        let before = random(5, tokens * n, 1.0);
        for (norm, extra, f32_output) in [
            (false, false, true),
            (true, false, false),
            (true, true, true),
        ] {
            let extra = extra && !gated;
            let Some(y) = in_both_orders(|b| {
                let (xs, ws) = (b.values(Precision::Bf16, &x), b.values(Precision::Bf16, &w));
                let (gains, biases) = (b.upload(&gain), b.upload(&bias));
                let precision = if f32_output {
                    Precision::F32
                } else {
                    Precision::Bf16
                };
                let y = b.values(precision, &before);
                let optional = |there: bool, at: &Buffer<f32>| {
                    if there { at.address() } else { Address::NULL }
                };
                let arguments = GemvArguments {
                    w: ws.address(),
                    x: xs.address(),
                    x_stride: k as i32,
                    y: y.address(),
                    y_stride: n as i32,
                    n: n as i32,
                    k: k as i32,
                    tokens: tokens as i32,
                    gain: optional(norm, &gains),
                    eps: EPS,
                    bias: optional(extra, &biases),
                    accumulate: i32::from(extra),
                    f32_output: i32::from(f32_output),
                };
                b.stream.gemv(arguments, gated).unwrap();
                b.read_values(&y)
            }) else {
                return;
            };
            let mut input = x.clone();
            if norm {
                for row in input.chunks_exact_mut(k) {
                    let squares: f32 = row.iter().map(|v| v * v).sum();
                    let scale = 1.0 / (squares / k as f32 + EPS).sqrt();
                    row.iter_mut().zip(&gain).for_each(|(v, g)| *v *= scale * g);
                }
            }
            let all = product(&input, &w, k);
            let expected: Vec<f32> = (0..tokens * n)
                .map(|i| {
                    let row = &all[i / n * parts * n..];
                    let first = row[i % n];
                    let value = if gated {
                        first / (1.0 + (-first).exp()) * row[n + i % n]
                    } else {
                        first
                    };
                    if extra {
                        value + bias[i % n] + before[i]
                    } else {
                        value
                    }
                })
                .collect();
            let bound = if norm || !f32_output { 8e-3 } else { 1e-5 };
            assert_close(&format!("{tokens} {n} {k} {gated}"), &y, &expected, bound);
        }
    }
}

#[test]
fn every_row_has_its_own_adapter() {
    for precision in BOTH {
        let (inputs, columns, tokens) = (72, [0usize, 40, 56, 72], 4);
        let (x, before) = (random(1, tokens * inputs, 1.0), random(2, tokens * 80, 1.0));
        // Two adapters; the second leaves the second target alone.
        let ranks = [[8, 16, 8], [24, 0, 8]];
        let slots = [1, -1, 0, 1];
        let matrices = |slot: usize, target: usize| {
            let (rank, outputs) = (ranks[slot][target], columns[target + 1] - columns[target]);
            let seed = (10 + 2 * (3 * slot + target)) as u64;
            (
                random(seed, rank * inputs, 0.5),
                random(seed + 1, outputs * rank, 0.5),
            )
        };
        let scale = |slot: usize| 0.5 + slot as f32;
        let Some(y) = in_both_orders(|b| {
            let mut kept = Vec::new();
            let mut table = Vec::new();
            for (slot, ranks) in ranks.iter().enumerate() {
                for (target, rank) in ranks.iter().enumerate() {
                    let (a, m) = matrices(slot, target);
                    if a.is_empty() {
                        table.push(LoraMatrices::default());
                        continue;
                    }
                    let (a, m) = (b.values(precision, &a), b.values(precision, &m));
                    table.push(LoraMatrices {
                        a: a.address(),
                        b: m.address(),
                        rank: *rank as i32,
                        scale: scale(slot),
                    });
                    kept.push((a, m));
                }
            }
            let table = b.upload(&table);
            let slots = b.upload(&slots);
            let (xs, y) = (b.values(precision, &x), b.values(precision, &before));
            let inner = Buffer::<f32>::new(&b.driver, tokens * 3 * 24).unwrap();
            let arguments = LoraArguments {
                table: table.address(),
                slots: slots.address(),
                x: xs.address(),
                x_stride: inputs as i32,
                inputs: inputs as i32,
                inner: inner.address(),
                max_rank: 24,
                y: y.address(),
                y_stride: 80,
                targets: 3,
                width: columns[3] as i32,
                second: columns[1] as i32,
                third: columns[2] as i32,
            };
            b.stream.lora_shrink(precision, arguments, tokens).unwrap();
            b.stream.lora_expand(precision, arguments, tokens).unwrap();
            b.read_values(&y)
        }) else {
            return;
        };
        let mut expected = before.clone();
        for (token, slot) in slots.iter().enumerate() {
            let Ok(slot) = usize::try_from(*slot) else {
                continue;
            };
            for target in 0..3 {
                let (a, m) = matrices(slot, target);
                if a.is_empty() {
                    continue;
                }
                let inner = product(&x[token * inputs..(token + 1) * inputs], &a, inputs);
                let out = product(&inner, &m, inner.len());
                for (i, value) in out.iter().enumerate() {
                    expected[token * 80 + columns[target] + i] += scale(slot) * value;
                }
            }
        }
        assert_close("lora", &y, &expected, rounding(precision));
    }
}
