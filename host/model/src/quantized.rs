//! Weights of linear layers in 16, 8 or 4 bits: they stay so in memory, and a backend restores the rows that it is about to
//! multiply with. Activations, adapters, norms, biases, the embedding and the head are in f32.
//!
//! A row is a sequence of blocks of 32 values. `int8` and `int4` are as in ggml: Q8_0 (one scale, symmetric) and Q4_1
//! (scale and minimum). So a file with these blocks is kept as it is. Of Q4_0 only the minimum is added. `bf16` holds a
//! checkpoint in bf16 without loss.

use clawhost_config::Quantization;

use crate::gguf::blocks::{self, BLOCK, GgmlType};
use crate::half::{f16_from_f32, f16_to_f32};
use crate::stored::bf16_bits;

/// Bytes of a block of [`QuantizedWeight`].
const BF16_BYTES: usize = 64;
const INT8_BYTES: usize = 34;
const INT4_BYTES: usize = 20;

/// Values of `bf16` in the low halves of consecutive words; as many follow in the high halves, so that a vector of words
/// restores two vectors of values by a shift and a mask.
pub const BF16_GROUP: usize = 8;

/// Scales that are tried per block of 4 bits, relative to that of the extreme values.
const SCALES: [f32; 9] = [1.0, 0.97, 0.94, 0.91, 0.88, 0.85, 0.82, 0.79, 0.76];

/// The number format of weights that take less memory than f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuantizedFormat {
    /// The upper halves of f32, rounded to nearest even. Only in host memory.
    Bf16,
    /// A scale and 32 values of 8 bits.
    Int8,
    /// A scale, a minimum and 32 values of 4 bits.
    Int4,
}

impl QuantizedFormat {
    /// That of a configuration; `None` for weights that are not quantized.
    #[must_use]
    pub fn of(quantization: Quantization) -> Option<Self> {
        match quantization {
            Quantization::None => None,
            Quantization::Int8 => Some(Self::Int8),
            Quantization::Int4 => Some(Self::Int4),
        }
    }

    /// Bytes of a block of 32 values.
    #[must_use]
    pub fn block_bytes(self) -> usize {
        match self {
            Self::Bf16 => BF16_BYTES,
            Self::Int8 => INT8_BYTES,
            Self::Int4 => INT4_BYTES,
        }
    }

    /// Bytes of a weight with these numbers of rows and inputs.
    pub(crate) fn weight_bytes(self, rows: usize, inputs: usize) -> usize {
        rows * inputs.div_ceil(BLOCK) * self.block_bytes()
    }
}

/// The weight of a linear layer, `[outputs, inputs]`, in 16, 8 or 4 bits.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizedWeight {
    format: QuantizedFormat,
    inputs: usize,
    /// Whole blocks per row; values beyond the last input are zero or unused.
    blocks: Vec<u8>,
}

/// The weights of the four products of a decoder layer.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizedLayer {
    /// `[query + 2 key widths, hidden]`.
    pub qkv: QuantizedWeight,
    /// `[hidden, query width]`.
    pub o: QuantizedWeight,
    /// `[2 * intermediate, hidden]`.
    pub gate_up: QuantizedWeight,
    /// `[hidden, intermediate]`.
    pub down: QuantizedWeight,
}

impl QuantizedWeight {
    /// A weight without rows, with memory for `rows`.
    pub(crate) fn with_capacity(format: QuantizedFormat, rows: usize, inputs: usize) -> Self {
        Self {
            format,
            inputs,
            blocks: Vec::with_capacity(format.weight_bytes(rows, inputs)),
        }
    }

    /// Quantizes a row-major weight.
    ///
    /// # Panics
    /// When `quantization` is none, or `values` is not a whole number of rows.
    pub fn quantize(values: &[f32], inputs: usize, quantization: Quantization) -> Self {
        let format = QuantizedFormat::of(quantization).expect("a format to quantize to");
        Self::from_f32(values, inputs, format)
    }

    /// Converts a row-major weight.
    ///
    /// # Panics
    /// When `values` is not a whole number of rows.
    pub fn from_f32(values: &[f32], inputs: usize, format: QuantizedFormat) -> Self {
        let mut weight = Self::with_capacity(format, values.len() / inputs, inputs);
        weight.push_rows(values);
        weight
    }

    /// Quantizes rows and appends them.
    ///
    /// # Panics
    /// When `values` is not a whole number of rows.
    pub(crate) fn push_rows(&mut self, values: &[f32]) {
        assert_eq!(values.len() % self.inputs, 0);
        let (row_bytes, inputs, format) = (self.row_bytes(), self.inputs, self.format);
        let start = self.blocks.len();
        self.blocks
            .resize(start + values.len() / inputs * row_bytes, 0);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let rows = (values.len() / inputs).div_ceil(threads).max(1);
        let parts = self.blocks[start..].chunks_mut(rows * row_bytes);
        std::thread::scope(|scope| {
            for (blocks, values) in parts.zip(values.chunks(rows * inputs)) {
                let mut quantize = move || {
                    for (blocks, values) in blocks
                        .chunks_exact_mut(row_bytes)
                        .zip(values.chunks_exact(inputs))
                    {
                        quantize_row(format, values, blocks);
                    }
                };
                // A thread costs more than a few rows.
                if values.len() < 1 << 16 {
                    quantize();
                } else {
                    scope.spawn(quantize);
                }
            }
        });
    }

    /// Appends the rows of a GGUF tensor as they are.
    ///
    /// # Panics
    /// When the weight does not take blocks of this type.
    pub(crate) fn push_blocks(&mut self, kind: GgmlType, bytes: &[u8]) {
        assert!(self.takes_blocks(kind));
        if kind == GgmlType::Q4_0 {
            for block in bytes.as_chunks::<18>().0 {
                let scale = u16::from_le_bytes([block[0], block[1]]);
                let min = f16_from_f32(-8.0 * f16_to_f32(scale));
                self.blocks.extend_from_slice(&scale.to_le_bytes());
                self.blocks.extend_from_slice(&min.to_le_bytes());
                self.blocks.extend_from_slice(&block[2..]);
            }
        } else {
            self.blocks.extend_from_slice(bytes);
        }
    }

    /// Whether a GGUF tensor of this type is kept without loss.
    pub(crate) fn takes_blocks(&self, kind: GgmlType) -> bool {
        matches!(
            (self.format, kind),
            (QuantizedFormat::Int8, GgmlType::Q8_0)
                | (QuantizedFormat::Int4, GgmlType::Q4_0 | GgmlType::Q4_1)
        )
    }

    /// `(outputs, inputs)`.
    pub fn shape(&self) -> (usize, usize) {
        (self.blocks.len() / self.row_bytes().max(1), self.inputs)
    }

    /// The blocks of all rows, each row in whole blocks, as in ggml: `int8` in Q8_0 (scale, 32 values of 8 bits), `int4` in
    /// Q4_1 (scale, minimum, 16 bytes with value `i` in the low half of byte `i` and value `i + 16` in the high half). Of
    /// `bf16`, word `i` of each eight words in little endian has value `i` in its low half and value `i + 8` in its high half.
    pub fn blocks(&self) -> &[u8] {
        &self.blocks
    }

    /// Its number format.
    pub fn format(&self) -> QuantizedFormat {
        self.format
    }

    /// Bytes in memory.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.blocks.len()
    }

    /// The blocks of some rows.
    pub(crate) fn rows(&self, rows: std::ops::Range<usize>) -> &[u8] {
        let bytes = self.row_bytes();
        &self.blocks[rows.start * bytes..rows.end * bytes]
    }

    /// Whether all scales and minima are finite.
    pub(crate) fn is_finite(&self) -> bool {
        let finite = |block: &[u8], at: usize| {
            f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]])).is_finite()
        };
        let mut blocks = self.blocks.chunks_exact(self.format.block_bytes());
        match self.format {
            QuantizedFormat::Bf16 => blocks.all(|block| {
                let mut values = [0.0; BLOCK];
                bf16(block.as_array().expect("a block"), &mut values);
                values.iter().all(|value| value.is_finite())
            }),
            QuantizedFormat::Int8 => blocks.all(|block| finite(block, 0)),
            QuantizedFormat::Int4 => blocks.all(|block| finite(block, 0) && finite(block, 2)),
        }
    }

    /// Restores a range of rows to `values`, row-major. Inlined, so that a caller compiled for wider vectors gets them.
    ///
    /// # Panics
    /// When `values` has another length, or there are fewer rows.
    #[inline(always)]
    pub fn dequantize(&self, rows: std::ops::Range<usize>, values: &mut [f32]) {
        assert_eq!(values.len(), rows.len() * self.inputs);
        let (bytes, row_bytes) = (self.rows(rows), self.row_bytes());
        if self.inputs == 0 {
            return;
        }
        for (blocks, values) in bytes
            .chunks_exact(row_bytes)
            .zip(values.chunks_exact_mut(self.inputs))
        {
            match self.format {
                QuantizedFormat::Bf16 => restore::<BF16_BYTES>(blocks, values, bf16),
                QuantizedFormat::Int8 => restore::<INT8_BYTES>(blocks, values, blocks::q8_0),
                QuantizedFormat::Int4 => restore::<INT4_BYTES>(blocks, values, blocks::q4_1),
            }
        }
    }

    /// Bytes of the blocks of a row.
    pub fn row_bytes(&self) -> usize {
        self.inputs.div_ceil(BLOCK) * self.format.block_bytes()
    }
}

#[inline(always)]
fn restore<const BYTES: usize>(
    blocks: &[u8],
    values: &mut [f32],
    each: impl Fn(&[u8; BYTES], &mut [f32; BLOCK]),
) {
    let (whole, rest) = values.as_chunks_mut();
    let blocks = blocks.as_chunks().0;
    for (block, values) in blocks.iter().zip(&mut *whole) {
        each(block, values);
    }
    if let (false, Some(block)) = (rest.is_empty(), blocks.get(whole.len())) {
        let mut last = [0.0; BLOCK];
        each(block, &mut last);
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

fn quantize_row(format: QuantizedFormat, values: &[f32], blocks: &mut [u8]) {
    let groups = values
        .chunks(BLOCK)
        .zip(blocks.chunks_exact_mut(format.block_bytes()));
    for (group, block) in groups {
        match format {
            QuantizedFormat::Bf16 => round_bf16(group, block),
            QuantizedFormat::Int8 => quantize_int8(group, block),
            QuantizedFormat::Int4 => quantize_int4(group, block),
        }
    }
}

/// Values from the halves of words, [`BF16_GROUP`] words at a time.
#[inline(always)]
fn bf16(block: &[u8; BF16_BYTES], values: &mut [f32; BLOCK]) {
    let groups = values.as_chunks_mut::<{ 2 * BF16_GROUP }>().0;
    let words = block.as_chunks::<{ 4 * BF16_GROUP }>().0;
    for (values, words) in groups.iter_mut().zip(words) {
        let (low, high) = values.split_at_mut(BF16_GROUP);
        for (at, word) in words.as_chunks::<4>().0.iter().enumerate() {
            let word = u32::from_le_bytes(*word);
            low[at] = f32::from_bits(word << 16);
            high[at] = f32::from_bits(word & 0xffff_0000);
        }
    }
}

/// The nearest values in bf16, ties to even.
fn round_bf16(values: &[f32], block: &mut [u8]) {
    for (at, value) in values.iter().enumerate() {
        let (group, within) = (at / (2 * BF16_GROUP), at % (2 * BF16_GROUP));
        let word = group * BF16_GROUP + within % BF16_GROUP;
        let byte = 4 * word + 2 * (within / BF16_GROUP);
        block[byte..byte + 2].copy_from_slice(&bf16_bits(*value).to_le_bytes());
    }
}

/// The nearest multiples of the scale that makes the largest magnitude 127.
fn quantize_int8(values: &[f32], block: &mut [u8]) {
    let largest = values
        .iter()
        .fold(0f32, |largest, value| largest.max(value.abs()));
    let scale = f16_from_f32(largest / 127.0);
    block[..2].copy_from_slice(&scale.to_le_bytes());
    let inverse = inverse(f16_to_f32(scale));
    for (byte, value) in block[2..].iter_mut().zip(values) {
        let q = round((value * inverse).clamp(-127.0, 127.0));
        *byte = (q as i8).cast_unsigned();
    }
}

/// Scale and minimum with the least squared error among some: those of the extreme values and of narrower ranges, which
/// clip the extremes and are finer between them.
fn quantize_int4(values: &[f32], block: &mut [u8]) {
    let low = values.iter().copied().fold(f32::INFINITY, f32::min);
    let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let (middle, range) = (f32::midpoint(low, high), high - low);
    let mut best = (f32::INFINITY, 0u16, 0u16);
    for share in SCALES {
        let mut scale = range * share / 15.0;
        let mut min = middle - range * share / 2.0;
        // With the values assigned, the best scale and minimum follow from a linear regression.
        for refined in [false, true] {
            if refined {
                let Some(fit) = regression(values, scale, min) else {
                    continue;
                };
                (scale, min) = fit;
            }
            let (stored_scale, stored_min) = (f16_from_f32(scale), f16_from_f32(min));
            (scale, min) = (f16_to_f32(stored_scale), f16_to_f32(stored_min));
            let error: f32 = values
                .iter()
                .map(|value| (value - (scale * nearest(*value, scale, min) + min)).powi(2))
                .sum();
            if error < best.0 {
                best = (error, stored_scale, stored_min);
            }
        }
    }
    let (_, scale, min) = best;
    block[..2].copy_from_slice(&scale.to_le_bytes());
    block[2..4].copy_from_slice(&min.to_le_bytes());
    let (scale, min) = (f16_to_f32(scale), f16_to_f32(min));
    let q = |at: usize| {
        values
            .get(at)
            .map_or(0, |value| nearest(*value, scale, min) as u8)
    };
    for (at, byte) in block[4..].iter_mut().enumerate() {
        *byte = q(at) | q(at + 16) << 4;
    }
}

#[inline(always)]
fn nearest(value: f32, scale: f32, min: f32) -> f32 {
    round(((value - min) * inverse(scale)).clamp(0.0, 15.0))
}

/// The nearest whole number, ties to even, of a value between -2^21 and 2^21. `f32::round_ties_even` is a call of a function
/// where the instructions of every x86-64 processor are compiled for, and takes most of the time of quantizing.
#[inline(always)]
fn round(value: f32) -> f32 {
    // Values of this size have no fraction.
    const WHOLE: f32 = 12_582_912.0;
    (value + WHOLE) - WHOLE
}

#[inline(always)]
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// The scale and minimum with the least squared error for the assignment of values under another pair. `None` when all
/// values are assigned alike.
fn regression(values: &[f32], scale: f32, min: f32) -> Option<(f32, f32)> {
    let (mut q1, mut q2, mut x1, mut xq) = (0f32, 0f32, 0f32, 0f32);
    for value in values {
        let q = nearest(*value, scale, min);
        q1 += q;
        q2 += q * q;
        x1 += value;
        xq += value * q;
    }
    let n = values.len() as f32;
    let determinant = n * q2 - q1 * q1;
    if determinant <= 0.0 {
        return None;
    }
    let scale = (n * xq - x1 * q1) / determinant;
    let min = (x1 - scale * q1) / n;
    (scale.is_finite() && min.is_finite()).then_some((scale, min))
}

#[cfg(test)]
#[path = "quantized_tests.rs"]
mod tests;
