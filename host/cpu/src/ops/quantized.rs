//! Products with weights in 8 or 4 bits: rows are restored to f32 next to where they are multiplied, a few for a small
//! batch and a few megabytes for a large one, so that memory holds and delivers only the quantized weight.
//!
//! The restored rows are multiplied as f32 weights are, with the same sums in the same order. Activations stay in f32.

use std::cell::RefCell;
use std::ops::Range;

use clawhost_model::{QuantizedFormat, QuantizedWeight};

use super::simd;
use super::small_batch::{BatchRows, TILE_OUTPUTS, Tile, restore_bf16_rows};
use super::thread_pool::{self, Threads};

/// Values restored at once for a large batch: 4 MiB.
const CHUNK_VALUES: usize = 1 << 20;

/// Rows restored by one task.
const TASK_ROWS: usize = 16;

thread_local! {
    /// Restored rows, reused between products.
    static ROWS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// [`BatchRows::multiply`] with a range of outputs.
pub(super) fn multiply(
    rows: &BatchRows<'_>,
    weight: &QuantizedWeight,
    outputs: Range<usize>,
    mut store: impl FnMut(usize, usize, usize, &Tile),
) {
    if weight.format() == QuantizedFormat::Bf16 && rows.takes_bf16() {
        rows.multiply_bf16(weight, outputs, store);
        return;
    }
    let inputs = weight.shape().1;
    ROWS.with_borrow_mut(|restored| {
        if restored.len() < TILE_OUTPUTS * inputs {
            restored.resize(TILE_OUTPUTS * inputs, 0.0);
        }
        for start in outputs.clone().step_by(TILE_OUTPUTS) {
            let count = TILE_OUTPUTS.min(outputs.end - start);
            let restored = &mut restored[..count * inputs];
            dequantize(weight, start..start + count, restored);
            rows.multiply(restored, inputs, 0..count, |output, row, rows, tile| {
                store(start + output, row, rows, tile);
            });
        }
    });
}

/// Passes the rows of the weight to `each` in parts, restored: the range of rows, and their values.
pub(super) fn for_each_part(
    weight: &QuantizedWeight,
    threads: Threads,
    mut each: impl FnMut(Range<usize>, &[f32]),
) {
    let (outputs, inputs) = weight.shape();
    let part_rows = (CHUNK_VALUES / inputs.max(1)).max(1);
    ROWS.with_borrow_mut(|restored| {
        for start in (0..outputs).step_by(part_rows) {
            let rows = start..outputs.min(start + part_rows);
            let values = rows.len() * inputs;
            if restored.len() < values {
                restored.resize(values, 0.0);
            }
            let restored = &mut restored[..values];
            let mut tasks: Vec<_> = restored
                .chunks_mut((TASK_ROWS * inputs).max(1))
                .enumerate()
                .collect();
            thread_pool::parallel_for_each(threads, &mut tasks, values, |(task, values)| {
                let first = start + *task * TASK_ROWS;
                dequantize(weight, first..first + values.len() / inputs.max(1), values);
            });
            each(rows, restored);
        }
    });
}

fn dequantize(weight: &QuantizedWeight, rows: Range<usize>, values: &mut [f32]) {
    if weight.format() == QuantizedFormat::Bf16 && restore_bf16_rows(weight, rows.clone(), values) {
        return;
    }
    simd::vectorized(
        #[inline(always)]
        || weight.dequantize(rows, values),
    );
}
