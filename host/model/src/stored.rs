//! A tensor in a weight file, safetensors or GGUF, as rows of bytes that are read in any order and by several threads.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::gguf::blocks::GgmlType;

/// The bytes of a weight file. Read with positioned reads instead of a mapping, so that a file that is truncated while it is
/// read gives an error.
#[derive(Debug)]
pub(crate) enum FileData {
    Embedded(&'static [u8]),
    Disk(File),
}

impl FileData {
    /// Fills `bytes` from this offset on.
    pub(crate) fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        match self {
            Self::Disk(file) => file.read_exact_at(bytes, offset),
            Self::Embedded(all) => {
                let from = usize::try_from(offset)
                    .ok()
                    .and_then(|from| all.get(from..));
                let from = from.and_then(|rest| rest.get(..bytes.len()));
                bytes.copy_from_slice(from.ok_or(Error::from(ErrorKind::UnexpectedEof))?);
                Ok(())
            }
        }
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> Result<u64> {
        match self {
            Self::Disk(file) => Ok(file.metadata()?.len()),
            Self::Embedded(all) => Ok(all.len() as u64),
        }
    }
}

/// Where a tensor is in its file.
#[derive(Debug, Clone)]
pub(crate) struct StoredTensor {
    pub(crate) kind: GgmlType,
    /// Rows per head whose two rotated halves are interleaved.
    pub(crate) interleaved: Option<usize>,
    /// Offset in the file.
    pub(crate) start: u64,
    pub(crate) rows: usize,
    pub(crate) row_bytes: usize,
}

/// Buffers of a thread that reads tensors.
#[derive(Debug, Default)]
pub struct ReadBuffer {
    bytes: Vec<u8>,
    ordered: Vec<u8>,
    values: Vec<f32>,
}

impl StoredTensor {
    /// Values of a row.
    pub(crate) fn row_values(&self) -> usize {
        self.row_bytes / self.kind.block_bytes() * self.kind.block_len()
    }

    /// Consecutive ranges of rows with at most about this many values, each of which can be read on its own.
    pub(crate) fn pieces(&self, values: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        // A head is within one piece, so its rows can be ordered there.
        let unit = self.interleaved.unwrap_or(1);
        let step = (values / self.row_values().max(1)).max(1);
        let (step, rows) = (step.next_multiple_of(unit), self.rows);
        (0..rows)
            .step_by(step)
            .map(move |first| first..rows.min(first + step))
    }

    /// Reads rows as they are, in the order of a Hugging Face checkpoint.
    pub(crate) fn read_rows<'b>(
        &self,
        data: &FileData,
        rows: Range<usize>,
        buffer: &'b mut ReadBuffer,
    ) -> Result<&'b [u8]> {
        let ReadBuffer { bytes, ordered, .. } = buffer;
        bytes.resize(rows.len() * self.row_bytes, 0);
        self.read_stored(data, rows, bytes)?;
        let Some(head) = self.interleaved else {
            return Ok(bytes);
        };
        ordered.clear();
        for head_rows in bytes.chunks_exact(head * self.row_bytes) {
            for place in 0..head {
                let (half, pair) = (place / (head / 2), place % (head / 2));
                let from = (2 * pair + half) * self.row_bytes;
                ordered.extend_from_slice(&head_rows[from..from + self.row_bytes]);
            }
        }
        Ok(ordered)
    }

    fn read_stored(&self, data: &FileData, rows: Range<usize>, bytes: &mut [u8]) -> Result<()> {
        let offset = rows.start as u64 * self.row_bytes as u64;
        data.read_at(self.start + offset, bytes)
    }

    /// Reads rows as f32. Returns whether all values are finite.
    pub(crate) fn read_f32(
        &self,
        data: &FileData,
        rows: Range<usize>,
        buffer: &mut ReadBuffer,
        values: &mut [f32],
    ) -> Result<bool> {
        let bytes = self.read_rows(data, rows, buffer)?;
        self.kind.dequantize(bytes, values);
        Ok(all_finite(values))
    }

    /// Reads rows as bf16, rounded to nearest even. Returns whether all values are finite.
    pub(crate) fn read_bf16(
        &self,
        data: &FileData,
        rows: Range<usize>,
        buffer: &mut ReadBuffer,
        bytes: &mut [u8],
    ) -> Result<bool> {
        if (self.kind, self.interleaved) == (GgmlType::BF16, None) {
            self.read_stored(data, rows, bytes)?;
            let largest = bytes.as_chunks::<2>().0.iter();
            let largest = largest.fold(0, |m, b| m.max(u16::from_le_bytes(*b) & 0x7fff));
            return Ok(largest < 0x7f80);
        }
        let mut values = std::mem::take(&mut buffer.values);
        values.resize(bytes.len() / 2, 0.0);
        let finite = self.read_f32(data, rows, buffer, &mut values);
        for (bytes, value) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(&values) {
            *bytes = bf16_bits(*value).to_le_bytes();
        }
        buffer.values = values;
        finite
    }
}

/// The nearest bf16 of a finite value, ties to even.
pub(crate) fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    // The exponent of the largest finite values overflows to that of infinity.
    (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Without an early end, so that it is compiled for vectors.
fn all_finite(values: &[f32]) -> bool {
    values
        .iter()
        .fold(true, |all, value| all & value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_rounded_to_the_nearest_bf16() {
        for (value, bits) in [
            (0.0, 0),
            (-0.0, 0x8000),
            (1.0, 0x3f80),
            (1.0 + 2f32.powi(-8), 0x3f80),
            (1.0 + 3.0 * 2f32.powi(-8), 0x3f82),
            (-(1.0 + 2f32.powi(-8) + 2f32.powi(-20)), 0xbf81),
            (f32::MAX, 0x7f80),
            (f32::from_bits(1), 0),
        ] {
            assert_eq!(bf16_bits(value), bits, "{value}");
        }
    }
}
