//! The number formats of ggml: how many bytes a block has, and its values. Formulas as in ggml's `ggml-quants.c`.
//!
//! A block is a group of consecutive values of a row with one scale (and, in some formats, one minimum). Unlike ggml,
//! which keeps partial sums in the formats of its dot products, this only restores the values.

use crate::half::f16_to_f32;

/// The number format of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "the formats' own names")]
pub(crate) enum GgmlType {
    F32,
    F16,
    BF16,
    F64,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
}

/// Values of a block of the formats with one scale.
pub(crate) const BLOCK: usize = 32;

/// Values of a block of the K formats.
const SUPER_BLOCK: usize = 256;

/// Formats that exist and are not supported, by their number in a file.
const UNSUPPORTED: &[(u32, &str)] = &[
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
    (40, "NVFP4"),
];

impl GgmlType {
    /// The format with this number.
    ///
    /// # Errors
    /// An unknown or unsupported format, by name, as the end of a sentence about a tensor.
    pub(crate) fn from_id(id: u32) -> Result<Self, String> {
        Ok(match id {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            10 => Self::Q2_K,
            11 => Self::Q3_K,
            12 => Self::Q4_K,
            13 => Self::Q5_K,
            14 => Self::Q6_K,
            28 => Self::F64,
            30 => Self::BF16,
            other => {
                let named = UNSUPPORTED.iter().find(|(id, _)| *id == other);
                let name =
                    named.map_or_else(|| format!("number {other}"), |(_, name)| (*name).to_owned());
                return Err(format!(
                    "has type {name}, which is not supported; use a file in F16, BF16, Q8_0, Q6_K, Q5_K, Q4_K, Q4_0 or \
                     Q4_1, or convert this one: llama-quantize --allow-requantize IN.gguf OUT.gguf Q8_0"
                ));
            }
        })
    }

    /// The format's name in ggml.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::F64 => "F64",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2_K => "Q2_K",
            Self::Q3_K => "Q3_K",
            Self::Q4_K => "Q4_K",
            Self::Q5_K => "Q5_K",
            Self::Q6_K => "Q6_K",
        }
    }

    /// Values per block.
    pub(crate) fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 | Self::F64 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => BLOCK,
            Self::Q2_K | Self::Q3_K | Self::Q4_K | Self::Q5_K | Self::Q6_K => SUPER_BLOCK,
        }
    }

    /// Bytes per block.
    pub(crate) fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::F64 => 8,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2_K => 84,
            Self::Q3_K => 110,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
        }
    }

    /// Restores the values of whole blocks.
    ///
    /// # Panics
    /// When `bytes` is not a whole number of blocks, or `values` has another length than they have values.
    pub(crate) fn dequantize(self, bytes: &[u8], values: &mut [f32]) {
        assert_eq!(bytes.len() % self.block_bytes(), 0);
        assert_eq!(
            bytes.len() / self.block_bytes() * self.block_len(),
            values.len()
        );
        match self {
            Self::F32 => scalars(bytes, values, f32::from_le_bytes),
            Self::F16 => scalars(bytes, values, |bytes| f16_to_f32(u16::from_le_bytes(bytes))),
            Self::BF16 => scalars(bytes, values, |bytes| {
                f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
            }),
            Self::F64 => scalars(bytes, values, |bytes| f64::from_le_bytes(bytes) as f32),
            Self::Q4_0 => blocks(bytes, values, q4_0),
            Self::Q4_1 => blocks(bytes, values, q4_1),
            Self::Q5_0 => blocks(bytes, values, q5_0),
            Self::Q5_1 => blocks(bytes, values, q5_1),
            Self::Q8_0 => blocks(bytes, values, q8_0),
            Self::Q2_K => blocks(bytes, values, q2_k),
            Self::Q3_K => blocks(bytes, values, q3_k),
            Self::Q4_K => blocks(bytes, values, q4_k),
            Self::Q5_K => blocks(bytes, values, q5_k),
            Self::Q6_K => blocks(bytes, values, q6_k),
        }
    }
}

fn scalars<const N: usize>(bytes: &[u8], values: &mut [f32], read: impl Fn([u8; N]) -> f32) {
    for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
        *value = read(*bytes);
    }
}

#[inline(always)]
fn blocks<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    values: &mut [f32],
    each: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    for (block, values) in bytes.as_chunks().0.iter().zip(values.as_chunks_mut().0) {
        each(block, values);
    }
}

#[inline(always)]
fn half_at(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

fn q4_0(block: &[u8; 18], values: &mut [f32; BLOCK]) {
    let scale = half_at(block, 0);
    for (j, q) in block[2..].iter().enumerate() {
        values[j] = scale * (f32::from(q & 15) - 8.0);
        values[j + 16] = scale * (f32::from(q >> 4) - 8.0);
    }
}

/// Scale, minimum, and 32 values of 4 bits: value `j` in the low half of byte `j`, value `j + 16` in the high half.
#[inline(always)]
pub(crate) fn q4_1(block: &[u8; 20], values: &mut [f32; BLOCK]) {
    let (scale, min) = (half_at(block, 0), half_at(block, 2));
    let (low, high) = values.split_at_mut(16);
    let quants: &[u8; 16] = block[4..]
        .as_array()
        .expect("a block has 16 bytes of values");
    for j in 0..16 {
        // The product is exact, so a fused multiply-add gives the same bits.
        low[j] = scale * f32::from(quants[j] & 15) + min;
        high[j] = scale * f32::from(quants[j] >> 4) + min;
    }
}

/// The fifth bits of 32 values.
fn fifth_bits(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

fn q5_0(block: &[u8; 22], values: &mut [f32; BLOCK]) {
    let (scale, high) = (half_at(block, 0), fifth_bits(block, 2));
    for (j, q) in block[6..].iter().enumerate() {
        let bit = |at: usize| (high >> at & 1) as u8 * 16;
        values[j] = scale * (f32::from(q & 15 | bit(j)) - 16.0);
        values[j + 16] = scale * (f32::from(q >> 4 | bit(j + 16)) - 16.0);
    }
}

fn q5_1(block: &[u8; 24], values: &mut [f32; BLOCK]) {
    let (scale, min, high) = (half_at(block, 0), half_at(block, 2), fifth_bits(block, 4));
    for (j, q) in block[8..].iter().enumerate() {
        let bit = |at: usize| (high >> at & 1) as u8 * 16;
        values[j] = scale * f32::from(q & 15 | bit(j)) + min;
        values[j + 16] = scale * f32::from(q >> 4 | bit(j + 16)) + min;
    }
}

/// Scale, and 32 signed values of 8 bits.
#[inline(always)]
pub(crate) fn q8_0(block: &[u8; 34], values: &mut [f32; BLOCK]) {
    let scale = half_at(block, 0);
    let quants: &[u8; BLOCK] = block[2..]
        .as_array()
        .expect("a block has 32 bytes of values");
    for (value, q) in values.iter_mut().zip(quants) {
        *value = scale * f32::from(q.cast_signed());
    }
}

fn q2_k(block: &[u8; 84], values: &mut [f32; SUPER_BLOCK]) {
    let (scales, quants) = (&block[..16], &block[16..80]);
    let (scale, min) = (half_at(block, 80), half_at(block, 82));
    for (group, values) in values.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let (low, high) = (scales[group] & 15, scales[group] >> 4);
        let (scale, min) = (scale * f32::from(low), min * f32::from(high));
        // Groups 0 and 1 share the bytes of groups 2 to 7, two bits each.
        let first = group / 8 * 32 + group % 2 * 16;
        let shift = group % 8 / 2 * 2;
        for (value, q) in values.iter_mut().zip(&quants[first..]) {
            *value = scale * f32::from(q >> shift & 3) - min;
        }
    }
}

fn q3_k(block: &[u8; 110], values: &mut [f32; SUPER_BLOCK]) {
    let (high, quants, packed) = (&block[..32], &block[32..96], &block[96..108]);
    let all = half_at(block, 108);
    for (group, values) in values.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        // Four low bits in the first 8 bytes, two high bits in the last 4.
        let low = packed[group % 8] >> (group / 8 * 4) & 15;
        let top = packed[8 + group % 4] >> (group / 4 * 2) & 3;
        let scale = all * (f32::from(low | top << 4) - 32.0);
        let first = group / 8 * 32 + group % 2 * 16;
        let shift = group % 8 / 2 * 2;
        let bit = 1u8 << (group / 2);
        let bytes = quants[first..].iter().zip(&high[group % 2 * 16..]);
        for (value, (q, high)) in values.iter_mut().zip(bytes) {
            let low = f32::from(q >> shift & 3);
            *value = scale * if high & bit == 0 { low - 4.0 } else { low };
        }
    }
}

/// Scale and minimum of one of the 8 groups of a block of Q4_K or Q5_K, 6 bits each.
fn six_bit_pair(packed: &[u8], group: usize) -> (f32, f32) {
    let (scale, min) = if group < 4 {
        (packed[group] & 63, packed[group + 4] & 63)
    } else {
        let (low, scale, min) = (packed[group + 4], packed[group - 4], packed[group]);
        (low & 15 | scale >> 6 << 4, low >> 4 | min >> 6 << 4)
    };
    (f32::from(scale), f32::from(min))
}

fn q4_k(block: &[u8; 144], values: &mut [f32; SUPER_BLOCK]) {
    let (all, all_min) = (half_at(block, 0), half_at(block, 2));
    let (packed, quants) = (&block[4..16], &block[16..]);
    for (group, values) in values.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
        let (scale, min) = six_bit_pair(packed, group);
        let (scale, min) = (all * scale, all_min * min);
        let shift = group % 2 * 4;
        for (value, q) in values.iter_mut().zip(&quants[group / 2 * BLOCK..]) {
            *value = scale * f32::from(q >> shift & 15) - min;
        }
    }
}

fn q5_k(block: &[u8; 176], values: &mut [f32; SUPER_BLOCK]) {
    let (all, all_min) = (half_at(block, 0), half_at(block, 2));
    let (packed, high, quants) = (&block[4..16], &block[16..48], &block[48..]);
    for (group, values) in values.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
        let (scale, min) = six_bit_pair(packed, group);
        let (scale, min) = (all * scale, all_min * min);
        let shift = group % 2 * 4;
        let bytes = quants[group / 2 * BLOCK..].iter().zip(high);
        for (value, (q, high)) in values.iter_mut().zip(bytes) {
            let q = q >> shift & 15 | (high >> group & 1) << 4;
            *value = scale * f32::from(q) - min;
        }
    }
}

fn q6_k(block: &[u8; 210], values: &mut [f32; SUPER_BLOCK]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let all = half_at(block, 208);
    for (group, values) in values.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = all * f32::from(scales[group].cast_signed());
        // Each half of the block has 8 groups: the first 4 in the low halves of 64 bytes, the others in the high halves.
        let (half, within) = (group / 8, group % 8);
        let low = &low[half * 64 + within % 4 * 16..];
        let high = &high[half * 32 + within % 2 * 16..];
        let (low_shift, high_shift) = (within / 4 * 4, within / 2 * 2);
        for (value, (low, high)) in values.iter_mut().zip(low.iter().zip(high)) {
            let q = low >> low_shift & 15 | (high >> high_shift & 3) << 4;
            *value = scale * (f32::from(q) - 32.0);
        }
    }
}

#[cfg(test)]
#[path = "blocks_tests.rs"]
mod tests;
