//! Blocks against candle's implementation of ggml's formats, and against values worked out by hand.

use candle_core::Device;
use candle_core::quantized::{GgmlDType, ggml_file::qtensor_from_ggml};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;

/// Random blocks with finite scales: byte offsets of the half-precision floats in a block.
fn random(kind: GgmlType, blocks: usize, halves: &[usize]) -> Vec<u8> {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut bytes: Vec<u8> = (0..blocks * kind.block_bytes())
        .map(|_| rng.random())
        .collect();
    for block in bytes.chunks_exact_mut(kind.block_bytes()) {
        for at in halves {
            // Below 2.0, so that no exponent is that of infinity.
            block[at + 1] &= 0xbf;
        }
    }
    bytes
}

#[test]
fn every_format_restores_the_values_that_candle_does() {
    for (kind, dtype, halves) in [
        (GgmlType::F16, GgmlDType::F16, [0].as_slice()),
        (GgmlType::Q4_0, GgmlDType::Q4_0, &[0]),
        (GgmlType::Q4_1, GgmlDType::Q4_1, &[0, 2]),
        (GgmlType::Q5_0, GgmlDType::Q5_0, &[0]),
        (GgmlType::Q5_1, GgmlDType::Q5_1, &[0, 2]),
        (GgmlType::Q8_0, GgmlDType::Q8_0, &[0]),
        (GgmlType::Q2_K, GgmlDType::Q2K, &[80, 82]),
        (GgmlType::Q3_K, GgmlDType::Q3K, &[108]),
        (GgmlType::Q4_K, GgmlDType::Q4K, &[0, 2]),
        (GgmlType::Q5_K, GgmlDType::Q5K, &[0, 2]),
        (GgmlType::Q6_K, GgmlDType::Q6K, &[208]),
    ] {
        let count = 512 / kind.block_len();
        let bytes = random(kind, count, halves);
        let mut own = vec![0f32; 512];
        kind.dequantize(&bytes, &mut own);
        let theirs = qtensor_from_ggml(dtype, &bytes, vec![512], &Device::Cpu).unwrap();
        let theirs = theirs
            .dequantize(&Device::Cpu)
            .unwrap()
            .to_vec1::<f32>()
            .unwrap();
        let largest = theirs
            .iter()
            .fold(0f32, |most, value| most.max(value.abs()));
        assert!(largest > 0.0 && largest.is_finite(), "{}", kind.name());
        for (own, theirs) in own.iter().zip(&theirs) {
            assert!(
                (own - theirs).abs() <= 1e-6 * largest,
                "{}: {own} {theirs}",
                kind.name()
            );
        }
    }
}

#[test]
fn known_blocks_have_known_values() {
    // Scale 0.5 is 0x3800, minimum -1 is 0xbc00.
    let mut block = vec![0x00, 0x38, 0x00, 0xbc];
    block.extend([0xf0; 16]);
    let mut values = [0f32; 32];
    GgmlType::Q4_1.dequantize(&block, &mut values);
    assert_eq!(
        (values[0], values[15], values[16], values[31]),
        (-1.0, -1.0, 6.5, 6.5)
    );
    let mut block = vec![0x00, 0x38];
    block.extend([0x80; 32]);
    GgmlType::Q8_0.dequantize(&block, &mut values);
    assert_eq!(values, [-64.0; 32]);
    let mut block = vec![0x00, 0x38];
    block.extend([0x08; 16]);
    GgmlType::Q4_0.dequantize(&block, &mut values);
    assert_eq!((values[0], values[16]), (0.0, -4.0));
    let mut two = [0f32; 2];
    GgmlType::BF16.dequantize(&[0x80, 0x3f, 0x00, 0xc0], &mut two);
    assert_eq!(two, [1.0, -2.0]);
    GgmlType::F32.dequantize(&[0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0], &mut two);
    assert_eq!(two, [1.0, -2.0]);
}
