//! Products against a plain loop, and batch invariance of the results.

use clawhost_model::{QuantizedFormat, QuantizedWeight};

use super::*;

fn values(n: usize, seed: f32) -> Vec<f32> {
    (0..n).map(|i| ((i as f32 + seed) * 0.7).sin()).collect()
}

fn reference_matmul(a: &[f32], b: &[f32], (m, n, k): (usize, usize, usize)) -> Vec<f64> {
    let mut y = vec![0f64; m * n];
    for i in 0..m {
        for j in 0..n {
            for l in 0..k {
                y[i * n + j] += f64::from(a[i * k + l]) * f64::from(b[l * n + j]);
            }
        }
    }
    y
}

fn transpose(a: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    (0..cols)
        .flat_map(|c| (0..rows).map(move |r| a[r * cols + c]))
        .collect()
}

#[test]
fn the_three_products_match_a_plain_loop() {
    for (m, n, k) in [
        (1, 5, 7),
        (6, 33, 64),
        (7, 40, 33),
        (50, 70, 90),
        (80, 70, 90),
    ] {
        let (a, b) = (values(m * k, 0.1), values(k * n, 3.0));
        let right = reference_matmul(&a, &b, (m, n, k));
        let check = |y: &[f32]| {
            for (y, r) in y.iter().zip(&right) {
                assert!((f64::from(*y) - 2.0 * r - 1.0).abs() < 1e-4, "{y} {r}");
            }
        };
        let (at, bt) = (transpose(&a, m, k), transpose(&b, k, n));
        for threads in [Threads(1), Threads(2)] {
            let mut y = vec![1f32; m * n];
            forward(
                &mut y,
                n,
                Mat::new(&a, m, k),
                Mat::new(&bt, n, k),
                true,
                2.0,
                threads,
            );
            check(&y);
            y.fill(1.0);
            matmul(
                &mut y,
                n,
                Mat::new(&a, m, k),
                Mat::new(&b, k, n),
                true,
                2.0,
                threads,
            );
            check(&y);
            y.fill(1.0);
            matmul_at_b(
                &mut y,
                n,
                Mat::new(&at, k, m),
                Mat::new(&b, k, n),
                true,
                2.0,
                threads,
            );
            check(&y);
        }
    }
}

/// A weight with padded rows, and its packed copy.
fn weight(outputs: usize, inner: usize, stride: usize) -> (Vec<f32>, PackedWeights) {
    let w = values(outputs * stride, 0.3);
    let dense: Vec<f32> = w
        .chunks(stride)
        .flat_map(|row| &row[..inner])
        .copied()
        .collect();
    let packed = PackedWeights::new(&dense, (outputs, inner));
    (w, packed)
}

#[test]
fn results_are_bit_identical_for_every_batch_size() {
    for (outputs, inner, stride) in [(1, 3, 5), (13, 40, 40), (40, 100, 104), (100, 16, 16)] {
        let (w, packed) = weight(outputs, inner, stride);
        let w = Mat::strided(&w, outputs, inner, stride);
        for (w, max_rows) in [
            (w, SMALL_BATCH),
            (w.with_packed(Some(&packed)), 2 * SMALL_BATCH),
        ] {
            let x = values(max_rows * inner, 5.0);
            let mut alone = vec![0f32; max_rows * outputs];
            for (x, y) in x.chunks(inner).zip(alone.chunks_mut(outputs)) {
                let x = Mat::new(x, 1, inner);
                forward(y, outputs, x, w, false, 0.5, Threads(1));
            }
            for rows in 1..=max_rows {
                // Results lie inside wider rows, whose other values must not change.
                let mut y = vec![7f32; rows * (outputs + 2)];
                let x = Mat::new(&x[..rows * inner], rows, inner);
                let threads = Threads(1 + rows % 3);
                forward(&mut y, outputs + 2, x, w, false, 0.5, threads);
                for (y, alone) in y.chunks(outputs + 2).zip(alone.chunks(outputs)) {
                    assert_eq!(y[..outputs], *alone, "{rows} rows");
                    assert_eq!(y[outputs..], [7.0; 2]);
                }
            }
        }
    }
}

#[test]
fn packed_weights_match_a_plain_loop() {
    for (rows, outputs, inner) in [
        (1, 300, 50),
        (2, 70, 9),
        (3, 33, 64),
        (21, 31, 7),
        (5, 9, 0),
    ] {
        let (w, packed) = weight(outputs, inner, inner.max(1));
        let x = values(rows * inner, 1.0);
        let wt = transpose(&w[..outputs * inner], outputs, inner);
        let right = reference_matmul(&x, &wt, (rows, outputs, inner));
        let mut y = vec![1f32; rows * outputs];
        let w = Mat::strided(&w, outputs, inner, inner.max(1)).with_packed(Some(&packed));
        let x = Mat::strided(&x, rows, inner, inner);
        forward(&mut y, outputs, x, w, true, 2.0, Threads(2));
        for (y, right) in y.iter().zip(&right) {
            assert!((f64::from(*y) - 2.0 * right - 1.0).abs() < 1e-4);
        }
    }
}

/// A weight in fewer bits, and the values that it restores.
fn quantized(
    outputs: usize,
    inputs: usize,
    format: QuantizedFormat,
) -> (QuantizedWeight, Vec<f32>) {
    let weight = QuantizedWeight::from_f32(&values(outputs * inputs, 0.3), inputs, format);
    let mut restored = vec![0f32; outputs * inputs];
    weight.dequantize(0..outputs, &mut restored);
    (weight, restored)
}

#[test]
fn quantized_weights_give_what_their_restored_values_do() {
    // The last shape takes several parts; others end in each part of a group of 16 values.
    for (outputs, inputs) in [(13, 40), (9, 37), (9, 52), (100, 64), (1500, 1056)] {
        for format in [
            QuantizedFormat::Bf16,
            QuantizedFormat::Int8,
            QuantizedFormat::Int4,
        ] {
            let (weight, restored) = quantized(outputs, inputs, format);
            let dense = Mat::new(&restored, outputs, inputs);
            let weight = Mat::weight(&[], Some(&weight), outputs, inputs);
            for rows in [1, 2, 5, 8, 9, SMALL_BATCH, SMALL_BATCH + 3] {
                let x = values(rows * inputs, 5.0);
                let x = Mat::new(&x, rows, inputs);
                let product = |w: Mat<'_>, threads| {
                    // Results lie inside wider rows, whose other values must not change.
                    let mut y = vec![7f32; rows * (outputs + 2)];
                    forward(&mut y, outputs + 2, x, w, true, 0.5, Threads(threads));
                    y
                };
                let (own, right) = (product(weight, 2), product(dense, 1));
                assert!(
                    own.chunks(outputs + 2)
                        .all(|row| row[outputs..] == [7.0; 2])
                );
                if rows <= SMALL_BATCH {
                    assert_eq!(own, right);
                }
                let near = |own: &[f32], right: &[f32]| {
                    let pairs = own.iter().zip(right);
                    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) < 1e-3
                };
                assert!(near(&own, &right), "{outputs} x {inputs}, {rows} rows");
                let dy = values(rows * outputs, 2.0);
                let dy = Mat::new(&dy, rows, outputs);
                let gradient = |w: Mat<'_>, threads, accumulate| {
                    let mut dx = vec![1f32; rows * inputs];
                    matmul(&mut dx, inputs, dy, w, accumulate, 0.5, Threads(threads));
                    dx
                };
                for accumulate in [false, true] {
                    let own = gradient(weight, 2, accumulate);
                    assert!(near(&own, &gradient(dense, 1, accumulate)));
                }
            }
        }
    }
}
