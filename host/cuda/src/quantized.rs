//! Weights of linear layers in 8 or 4 bits in device memory, in the order in which the kernels of `quantized.cu` read them:
//! products of few rows restore them in registers, and products of many rows multiply with one restored weight at a time.

use clawhost_model::{ModelConfig, QuantizedFormat, QuantizedLayer, QuantizedWeight};

use crate::device::{Address, Buffer, Precision, Result, Stream};
use crate::kernels::{MAX_GEMV_ROWS, QuantizedGemvArguments, QuantizedMatrix};
use crate::projection::Projection;

/// Values of a block.
const BLOCK: usize = 32;
/// Bytes of a unit: 16 for each of the four threads that share a row of a product.
const UNIT_BYTES: usize = 64;
/// Most rows that are multiplied [`MAX_GEMV_ROWS`] at a time; more are multiplied with the restored weight, which is written
/// and read in 16 bits a value.
const MAX_ROWS: usize = 4 * MAX_GEMV_ROWS;

/// Blocks of a unit.
fn unit_blocks(format: QuantizedFormat) -> usize {
    match format {
        QuantizedFormat::Int8 => 2,
        QuantizedFormat::Int4 => 4,
        QuantizedFormat::Bf16 => unreachable!("it is a format of host memory"),
    }
}

/// Bytes of a block's scale and minimum.
fn scale_bytes(format: QuantizedFormat) -> usize {
    format.block_bytes() - UNIT_BYTES / unit_blocks(format)
}

/// Units of a row with this number of inputs.
fn units(format: QuantizedFormat, inputs: usize) -> usize {
    inputs.div_ceil(BLOCK * unit_blocks(format))
}

/// Bytes of the values and of the scales of a row.
fn row_bytes(format: QuantizedFormat, inputs: usize) -> (usize, usize) {
    let units = units(format, inputs);
    let scales = unit_blocks(format) * scale_bytes(format);
    (units * UNIT_BYTES, units * scales)
}

/// Bytes of the linear layers of a model.
pub(crate) fn layer_bytes(format: QuantizedFormat, c: &ModelConfig) -> usize {
    let bytes = Projection::ALL.map(|projection| {
        let (inputs, outputs) = projection.widths(c);
        let (values, scales) = row_bytes(format, inputs);
        outputs * (values + scales)
    });
    c.num_hidden_layers * bytes.iter().sum::<usize>()
}

/// Values of the largest weight of a layer.
pub(crate) fn largest_weight(c: &ModelConfig) -> usize {
    let values = Projection::ALL.map(|projection| {
        let (inputs, outputs) = projection.widths(c);
        inputs * outputs
    });
    values.into_iter().max().unwrap_or(0)
}

/// A weight on the device.
#[derive(Debug)]
pub(crate) struct DeviceWeight {
    values: Buffer<u8>,
    scales: Buffer<u8>,
    outputs: usize,
    inputs: usize,
}

/// The linear layers of a model on the device.
#[derive(Debug)]
pub(crate) struct QuantizedLayers {
    format: QuantizedFormat,
    layers: Vec<[DeviceWeight; 4]>,
}

impl QuantizedLayers {
    /// Uploads the layers of a quantized model.
    pub(crate) fn new<'a>(
        stream: &Stream,
        format: QuantizedFormat,
        layers: impl Iterator<Item = &'a QuantizedLayer>,
    ) -> Result<Self> {
        let upload = |layer: &QuantizedLayer| -> Result<[DeviceWeight; 4]> {
            Ok([
                DeviceWeight::new(stream, format, &layer.qkv)?,
                DeviceWeight::new(stream, format, &layer.o)?,
                DeviceWeight::new(stream, format, &layer.gate_up)?,
                DeviceWeight::new(stream, format, &layer.down)?,
            ])
        };
        Ok(Self {
            format,
            layers: layers.map(upload).collect::<Result<_>>()?,
        })
    }

    pub(crate) fn format(&self) -> QuantizedFormat {
        self.format
    }

    pub(crate) fn matrix(&self, (layer, projection): (usize, Projection)) -> QuantizedMatrix {
        self.layers[layer][projection as usize].matrix(self.format)
    }

    /// Whether a product of this many rows restores the weight in registers.
    pub(crate) fn has_gemv(precision: Precision, rows: usize) -> bool {
        precision == Precision::Bf16 && rows <= MAX_ROWS
    }

    /// `y = x wᵀ` of few rows in bf16, with an output in this precision; adds to y where that is the residual stream.
    pub(crate) fn gemv(
        &self,
        stream: &Stream,
        at: (usize, Projection),
        (x, y): (Address, Address),
        (rows, output): (usize, Precision),
    ) -> Result<()> {
        let w = self.matrix(at);
        let DeviceWeight {
            inputs, outputs, ..
        } = self.layers[at.0][at.1 as usize];
        for first in (0..rows).step_by(MAX_GEMV_ROWS) {
            let arguments = QuantizedGemvArguments {
                w,
                x: x.plus(first * inputs * Precision::Bf16.bytes()),
                x_stride: int(inputs),
                y: y.plus(first * outputs * output.bytes()),
                y_stride: int(outputs),
                tokens: int((rows - first).min(MAX_GEMV_ROWS)),
                residual: i32::from(at.1.adds_to_residual()),
            };
            stream.quantized_gemv(self.format, arguments)?;
        }
        Ok(())
    }
}

fn int(value: usize) -> i32 {
    i32::try_from(value).expect("a size that the backend has checked")
}

impl DeviceWeight {
    pub(crate) fn new(
        stream: &Stream,
        format: QuantizedFormat,
        weight: &QuantizedWeight,
    ) -> Result<Self> {
        let (outputs, inputs) = weight.shape();
        let (values, scales) = reorder(format, inputs, weight.blocks());
        let upload = |bytes: &[u8]| -> Result<Buffer<u8>> {
            let buffer = Buffer::new(&stream.driver, bytes.len())?;
            stream.upload(&buffer, 0, bytes)?;
            Ok(buffer)
        };
        Ok(Self {
            values: upload(&values)?,
            scales: upload(&scales)?,
            outputs,
            inputs,
        })
    }

    pub(crate) fn matrix(&self, format: QuantizedFormat) -> QuantizedMatrix {
        QuantizedMatrix {
            values: self.values.address(),
            scales: self.scales.address(),
            n: int(self.outputs),
            k: int(self.inputs),
            units: int(units(format, self.inputs)),
        }
    }
}

/// The blocks of a weight in the order of the kernels, values and scales apart. Runs on all processors.
fn reorder(format: QuantizedFormat, inputs: usize, blocks: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let from_row = inputs.div_ceil(BLOCK) * format.block_bytes();
    let (value_row, scale_row) = row_bytes(format, inputs);
    let rows = blocks.len() / from_row;
    let mut values = vec![0; rows * value_row];
    let mut scales = vec![0; rows * scale_row];
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let part = rows.div_ceil(threads).max(64);
    std::thread::scope(|scope| {
        let parts = values
            .chunks_mut(part * value_row)
            .zip(scales.chunks_mut(part * scale_row))
            .zip(blocks.chunks(part * from_row));
        for ((values, scales), blocks) in parts {
            scope.spawn(move || {
                let rows = values
                    .chunks_exact_mut(value_row)
                    .zip(scales.chunks_exact_mut(scale_row))
                    .zip(blocks.chunks_exact(from_row));
                for ((values, scales), blocks) in rows {
                    reorder_row(format, blocks, values, scales);
                }
            });
        }
    });
    (values, scales)
}

fn reorder_row(format: QuantizedFormat, blocks: &[u8], values: &mut [u8], scales: &mut [u8]) {
    let (unit_blocks, scale_bytes) = (unit_blocks(format), scale_bytes(format));
    // Bytes of a block that one thread has.
    let part = 16 / unit_blocks;
    for (at, block) in blocks.chunks_exact(format.block_bytes()).enumerate() {
        let (scale, quants) = block.split_at(scale_bytes);
        scales[at * scale_bytes..][..scale_bytes].copy_from_slice(scale);
        let unit = &mut values[at / unit_blocks * UNIT_BYTES..][..UNIT_BYTES];
        for thread in 0..4 {
            let to = &mut unit[16 * thread + at % unit_blocks * part..][..part];
            match format {
                // The kernels have no sign: 128 is zero.
                QuantizedFormat::Int8 => {
                    for (to, value) in to.iter_mut().zip(&quants[8 * thread..]) {
                        *to = value ^ 0x80;
                    }
                }
                QuantizedFormat::Int4 => {
                    let value = |i: usize| {
                        let byte = quants[i % 16];
                        u32::from(if i < 16 { byte & 15 } else { byte >> 4 })
                    };
                    let word = (0..4).fold(0, |word, r| {
                        let first = 8 * thread + 2 * r;
                        word | value(first) << (4 * r) | value(first + 1) << (16 + 4 * r)
                    });
                    to.copy_from_slice(&word.to_le_bytes());
                }
                QuantizedFormat::Bf16 => unreachable!("it is a format of host memory"),
            }
        }
    }
}

#[cfg(test)]
#[path = "quantized_tests.rs"]
mod tests;
