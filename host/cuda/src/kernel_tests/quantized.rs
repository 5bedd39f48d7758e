//! Weights in 8 and 4 bits: products of few rows, and restored weights.

use clawhost_model::{Quantization, QuantizedFormat, QuantizedWeight};

use super::*;
use crate::kernels::QuantizedGemvArguments;
use crate::quantized::DeviceWeight;

const FORMATS: [(Quantization, QuantizedFormat); 2] = [
    (Quantization::Int8, QuantizedFormat::Int8),
    (Quantization::Int4, QuantizedFormat::Int4),
];

/// A weight with one block of zeros, one without a spread, and the values that the host restores.
fn weight(n: usize, k: usize, quantization: Quantization) -> (QuantizedWeight, Vec<f32>) {
    let mut values = random(2, n * k, 0.5);
    values[..8].fill(0.0);
    values[k..k + 8].fill(0.25);
    let weight = QuantizedWeight::quantize(&values, k, quantization);
    weight.dequantize(0..n, &mut values);
    (weight, values)
}

#[test]
fn a_restored_weight_has_the_values_of_the_host() {
    for (quantization, format) in FORMATS {
        for (n, k) in [(5, 8), (33, 48), (16, 128), (70, 264), (3, 1000)] {
            for precision in BOTH {
                let (weight, expected) = weight(n, k, quantization);
                let Some(found) = in_both_orders(|b| {
                    let weight = DeviceWeight::new(&b.stream, format, &weight).unwrap();
                    let to = b.empty(precision, n * k);
                    let matrix = weight.matrix(format);
                    b.stream
                        .dequantize(precision, format, matrix, to.address())
                        .unwrap();
                    b.read_values(&to)
                }) else {
                    return;
                };
                let expected = precision.decode(&precision.encode(&expected));
                assert!(found == expected, "{format:?} {n} {k} {precision:?}");
            }
        }
    }
}

#[test]
fn few_rows_with_quantized_weights() {
    for (quantization, format) in FORMATS {
        for (tokens, n, k) in [(1, 48, 264), (8, 33, 1000), (13, 16, 64), (16, 100, 72)] {
            for residual in [false, true] {
                let (weight, values) = weight(n, k, quantization);
                let x = random(1, tokens * k, 1.0);
                let before = random(5, tokens * n, 1.0);
                let output = if residual {
                    Precision::F32
                } else {
                    Precision::Bf16
                };
                let Some(found) = in_both_orders(|b| {
                    let weight = DeviceWeight::new(&b.stream, format, &weight).unwrap();
                    let xs = b.values(Precision::Bf16, &x);
                    let y = b.values(output, &before);
                    let arguments = QuantizedGemvArguments {
                        w: weight.matrix(format),
                        x: xs.address(),
                        x_stride: k as i32,
                        y: y.address(),
                        y_stride: n as i32,
                        tokens: tokens as i32,
                        residual: i32::from(residual),
                    };
                    b.stream.quantized_gemv(format, arguments).unwrap();
                    b.read_values(&y)
                }) else {
                    return;
                };
                let mut expected = gemv::product(&x, &values, k);
                if residual {
                    expected.iter_mut().zip(&before).for_each(|(y, b)| *y += b);
                }
                let what = format!("{format:?} {tokens} {n} {k}");
                assert_close(&what, &found, &expected, rounding(output));
            }
        }
    }
}
