//! Products of few rows, and LoRA with a different adapter per row.

use super::*;
use crate::device::Address;
use crate::kernels::{GemvArguments, LoraArguments, LoraMatrices};

const EPS: f32 = 1e-5;

pub(super) fn product(x: &[f32], w: &[f32], k: usize) -> Vec<f32> {
    let dot = |x: &[f32], w: &[f32]| -> f32 {
        let sum: f64 = x.iter().zip(w).map(|(x, w)| f64::from(x * w)).sum();
        sum as f32
    };
    x.chunks_exact(k)
        .flat_map(|x| w.chunks_exact(k).map(move |w| dot(x, w)))
        .collect()
}

/// Rounds to values that bf16 represents.
fn rounded(values: &mut [f32]) {
    for value in values {
        *value = half::bf16::from_f32(*value).to_f32();
    }
}

#[test]
fn few_rows_with_norm_residual_and_activation() {
    for (tokens, n, k, gated, norm, residual) in [
        (1, 48, 264, false, false, true),
        (1, 48, 264, false, true, false),
        (2, 35, 1000, false, true, false),
        // Every warp has more copies than are under way at once.
        (1, 20, 4232, false, true, false),
        (9, 20, 2600, false, false, true),
        (8, 33, 1000, false, false, false),
        (13, 16, 64, false, false, true),
        (16, 100, 72, false, false, false),
        (1, 40, 512, true, true, false),
        (2, 24, 96, true, true, false),
        (3, 40, 512, true, false, false),
        (11, 24, 96, true, false, false),
    ] {
        let parts = if gated { 2 } else { 1 };
        let (x, w) = (random(1, tokens * k, 1.0), random(2, parts * n * k, 0.5));
        let (gain, before) = (random(3, k, 1.5), random(5, tokens * n, 1.0));
        // The residual stream has more digits than bf16.
        let x: Vec<f32> = if norm {
            x.iter().map(|v| v * 1.0001).collect()
        } else {
            x
        };
        let Some(y) = in_both_orders(|b| {
            let input = if norm {
                Precision::F32
            } else {
                Precision::Bf16
            };
            let output = if residual {
                Precision::F32
            } else {
                Precision::Bf16
            };
            let (xs, ws) = (b.values(input, &x), b.values(Precision::Bf16, &w));
            let (gains, y) = (b.upload(&gain), b.values(output, &before));
            let arguments = GemvArguments {
                w: ws.address(),
                x: xs.address(),
                x_stride: k as i32,
                y: y.address(),
                y_stride: n as i32,
                n: n as i32,
                k: k as i32,
                tokens: tokens as i32,
                gain: if norm { gains.address() } else { Address::NULL },
                eps: EPS,
                accumulate: i32::from(residual),
                f32_output: i32::from(residual),
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
                rounded(row);
            }
        }
        let mut all = product(&input, &w, k);
        if gated {
            rounded(&mut all);
        }
        let expected: Vec<f32> = (0..tokens * n)
            .map(|i| {
                let row = &all[i / n * parts * n..];
                let first = row[i % n];
                if gated {
                    first / (1.0 + (-first).exp()) * row[n + i % n]
                } else if residual {
                    first + before[i]
                } else {
                    first
                }
            })
            .collect();
        let bound = if residual { 1e-5 } else { 4e-3 };
        let what = format!("{tokens} {n} {k} {gated} {norm}");
        assert_close(&what, &y, &expected, bound);
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
                residual: 0,
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
