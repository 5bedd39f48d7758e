//! Loads the weights of a checkpoint into host memory. Weights that are to be quantized are quantized while they are read.

use std::sync::{Mutex, PoisonError};

use crate::checkpoint::{Checkpoint, Piece};
use crate::error::LoadError;
use crate::quantized::{QuantizedFormat, QuantizedWeight};
use crate::stored::ReadBuffer;
use crate::weights::{Weights, tensor_entries};

/// Values that are read and converted at a time.
const PIECE_VALUES: usize = 1 << 20;

/// Reads a checkpoint and converts it to f32, or the weights of its linear layers to `format`.
pub(crate) fn load(
    checkpoint: &Checkpoint,
    format: Option<QuantizedFormat>,
) -> Result<Weights, LoadError> {
    let config = checkpoint.config();
    let mut weights = match format {
        None => Weights::zeros(config),
        Some(format) => Weights::quantized(config, format),
    };
    // In the order of the entries, so that the parts of a fused weight are appended in order.
    let entries = tensor_entries(config);
    let mut in_f32 = Vec::new();
    for (tensor, entry) in entries.iter().enumerate() {
        match weights.quantized_mut(entry) {
            Some(weight) => read_quantized(checkpoint, tensor, weight)?,
            None => in_f32.push(tensor),
        }
    }
    let mut tasks = Vec::new();
    for (tensor, (_, mut rest)) in in_f32.into_iter().zip(weights.tensors_mut(config)) {
        for piece in checkpoint.tensor_pieces(tensor, PIECE_VALUES) {
            let (values, after) = rest.split_at_mut(piece.values.len());
            tasks.push((piece, values));
            rest = after;
        }
    }
    read_in_parallel(checkpoint, tasks)?;
    checkpoint.check_tied_head()?;
    Ok(weights)
}

/// Reads pieces on all processors. Of several errors, reports that of the first piece.
fn read_in_parallel(
    checkpoint: &Checkpoint,
    tasks: Vec<(Piece, &mut [f32])>,
) -> Result<(), LoadError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.min(tasks.len());
    let tasks = Mutex::new(tasks.into_iter().enumerate());
    let next = || tasks.lock().unwrap_or_else(PoisonError::into_inner).next();
    let failures = std::thread::scope(|scope| {
        let read = || {
            let mut buffer = ReadBuffer::default();
            while let Some((index, (piece, values))) = next() {
                if let Err(error) = checkpoint.read_f32(&piece, &mut buffer, values) {
                    return Some((index, error));
                }
            }
            None
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(read)).collect();
        let results = threads.into_iter().map(|thread| thread.join());
        let results = results.filter_map(|result| result.expect("reading does not panic"));
        results.collect::<Vec<_>>()
    });
    let first = failures.into_iter().min_by_key(|(index, _)| *index);
    first.map_or(Ok(()), |(_, error)| Err(error))
}

/// Appends the rows of a tensor to a quantized weight. Blocks of its own format are kept as they are.
fn read_quantized(
    checkpoint: &Checkpoint,
    tensor: usize,
    weight: &mut QuantizedWeight,
) -> Result<(), LoadError> {
    let (mut buffer, mut values) = (ReadBuffer::default(), Vec::new());
    let own = checkpoint.tensor(tensor);
    for piece in checkpoint.tensor_pieces(tensor, PIECE_VALUES) {
        if weight.takes_blocks(own.stored.kind) {
            let bytes = checkpoint.read_rows(&piece, &mut buffer)?;
            weight.push_blocks(own.stored.kind, bytes);
        } else {
            values.resize(piece.values.len(), 0.0);
            checkpoint.read_f32(&piece, &mut buffer, &mut values)?;
            weight.push_rows(&values);
        }
    }
    if weight.is_finite() {
        return Ok(());
    }
    Err(checkpoint.not_finite(own))
}
