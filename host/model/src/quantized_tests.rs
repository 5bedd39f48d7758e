//! The error of quantization, and rows that are kept as they are in a file.

use super::*;

fn values(rows: usize, inputs: usize) -> Vec<f32> {
    (0..rows * inputs)
        .map(|i| 0.04 * ((i as f32 * 0.37).sin() + 0.3 * (i as f32 * 1.9).cos()))
        .collect()
}

fn restored(weight: &QuantizedWeight) -> Vec<f32> {
    let (rows, inputs) = weight.shape();
    let mut values = vec![f32::NAN; rows * inputs];
    weight.dequantize(0..rows, &mut values);
    values
}

fn quantized(format: QuantizedFormat, values: &[f32], inputs: usize) -> QuantizedWeight {
    let mut weight = QuantizedWeight::with_capacity(format, values.len() / inputs, inputs);
    weight.push_rows(values);
    weight
}

#[test]
fn the_error_is_within_half_a_step_and_shrinks_with_bits() {
    // 80 inputs end inside a block.
    for inputs in [32, 80, 576] {
        let values = values(37, inputs);
        let worst = |format| {
            let weight = quantized(format, &values, inputs);
            assert_eq!(weight.shape(), (37, inputs));
            let restored = restored(&weight);
            let pairs = restored.iter().zip(&values);
            pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
        };
        let (eight, four) = (worst(QuantizedFormat::Int8), worst(QuantizedFormat::Int4));
        // Largest magnitude 0.052: steps of 0.052 / 127 and of twice that over 15.
        assert!(eight < 0.055 / 127.0 / 2.0 * 1.05, "{eight}");
        assert!(four < 0.11 / 15.0 * 1.2 && four > 4.0 * eight, "{four}");
    }
}

#[test]
fn rows_are_independent_and_appended_in_order() {
    let values = values(9, 64);
    for format in [
        QuantizedFormat::Bf16,
        QuantizedFormat::Int8,
        QuantizedFormat::Int4,
    ] {
        let all = quantized(format, &values, 64);
        let mut parts = QuantizedWeight::with_capacity(format, 9, 64);
        for rows in values.chunks(2 * 64) {
            parts.push_rows(rows);
        }
        assert!(parts == all);
        let mut two = vec![0f32; 2 * 64];
        all.dequantize(4..6, &mut two);
        assert_eq!(two, restored(&all)[4 * 64..6 * 64]);
        assert_eq!(all.bytes(), 9 * 2 * format.block_bytes());
    }
}

#[test]
fn values_in_bf16_are_kept_and_others_are_rounded_to_nearest_even() {
    // 37 inputs end inside a block, a group of 16 values and a vector of 8.
    for inputs in [16, 32, 37, 80] {
        let exact: Vec<f32> = (0..3 * inputs)
            .map(|i| f32::from_bits((i as u32 * 0x9e37 + 0x3c12) << 16 & 0xbfff_0000))
            .collect();
        let weight = quantized(QuantizedFormat::Bf16, &exact, inputs);
        assert_eq!(weight.shape(), (3, inputs));
        assert_eq!(restored(&weight), exact);
        assert!(weight.is_finite());
    }
    let between = [1.001, -1.001, 1.003_906_2, 1.011_718_8];
    let rounded = restored(&quantized(QuantizedFormat::Bf16, &between, 4));
    assert_eq!(rounded, [1.0, -1.0, 1.0, 1.015_625]);
    assert!(!quantized(QuantizedFormat::Bf16, &[1.0, f32::MAX], 2).is_finite());
}

#[test]
fn constant_and_zero_rows_are_exact() {
    for format in [QuantizedFormat::Int8, QuantizedFormat::Int4] {
        for value in [0.0f32, 0.5, -2.0] {
            let weight = quantized(format, &[value; 64], 64);
            let restored = restored(&weight);
            let error = restored
                .iter()
                .map(|v| (v - value).abs())
                .fold(0.0, f32::max);
            assert!(
                error <= value.abs() * 1e-3,
                "{format:?} {value}: {restored:?}"
            );
        }
    }
}

#[test]
fn blocks_of_a_file_are_kept() {
    // One block of each: scale 0.25, and for Q4_1 the minimum 1.
    let q8: Vec<u8> = [0x00, 0x34]
        .into_iter()
        .chain((0..32).map(|i| i * 7))
        .collect();
    let q4: Vec<u8> = [0x00, 0x34]
        .into_iter()
        .chain((0..16).map(|i| i * 15))
        .collect();
    let q4_1: Vec<u8> = [0x00, 0x34, 0x00, 0x3c]
        .into_iter()
        .chain((0..16).map(|i| i * 13))
        .collect();
    for (format, kind, bytes) in [
        (QuantizedFormat::Int8, GgmlType::Q8_0, q8),
        (QuantizedFormat::Int4, GgmlType::Q4_0, q4),
        (QuantizedFormat::Int4, GgmlType::Q4_1, q4_1),
    ] {
        let mut weight = QuantizedWeight::with_capacity(format, 1, 32);
        weight.push_blocks(kind, &bytes);
        let mut expected = [0f32; 32];
        kind.dequantize(&bytes, &mut expected);
        assert_eq!(restored(&weight), expected, "{}", kind.name());
        assert!(weight.is_finite());
    }
    let mut weight = QuantizedWeight::with_capacity(QuantizedFormat::Int8, 1, 32);
    assert!(!weight.takes_blocks(GgmlType::Q4_0) && !weight.takes_blocks(GgmlType::Q6_K));
    let infinite: Vec<u8> = [0x00, 0x7c].into_iter().chain([1; 32]).collect();
    weight.push_blocks(GgmlType::Q8_0, &infinite);
    assert!(!weight.is_finite());
}

#[test]
fn numbers_are_rounded_as_by_the_standard_library() {
    for i in -200_000..200_000 {
        let value = i as f32 / 1024.0;
        assert_eq!(round(value), value.round_ties_even(), "{value}");
        for near in [value.next_up(), value.next_down()] {
            assert_eq!(round(near), near.round_ties_even(), "{near}");
        }
    }
    assert!(round(f32::NAN).is_nan());
}
