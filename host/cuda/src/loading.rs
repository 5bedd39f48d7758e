//! Fills the memory of a device from a checkpoint: several threads read tensors in pieces and convert them in pinned memory,
//! from which they are uploaded to their places. The host never has a copy of the model.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use clawhost_model::{Checkpoint, LoadError, Piece, ReadBuffer};

use crate::device::{Buffer, HostBuffer, Precision, Stream, Uploads};
use crate::layout::ModelLayout;
use crate::weights::{DeviceModel, device_error};

/// Values of a piece.
const PIECE_VALUES: usize = 2 << 20;
/// Most threads that read.
const MAX_THREADS: usize = 16;

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |count| usize::from(count).min(MAX_THREADS))
}

/// Bytes of host memory that loading takes.
pub(crate) fn staging_bytes(precision: Precision) -> usize {
    // A buffer and the values of each thread, and a buffer that is uploaded.
    threads() * PIECE_VALUES * (2 * precision.bytes() + size_of::<f32>())
}

/// A piece that has been read into a buffer.
type Filled = (Piece, HostBuffer, Result<(), LoadError>);

impl DeviceModel {
    /// Reads a checkpoint into the memory of the device.
    pub(crate) fn from_checkpoint(
        stream: &Stream,
        checkpoint: &Checkpoint,
        precision: Precision,
    ) -> Result<Self, LoadError> {
        let config = checkpoint.config();
        let layout = ModelLayout::new(config);
        let allocate = || {
            let exact = Buffer::new(&stream.driver, layout.total - layout.matrices)?;
            let exact = (Arc::new(exact), layout.matrices);
            Self::allocate(stream, config, (precision, layout.matrices), exact)
        };
        let model = allocate().map_err(device_error)?;
        upload(stream, checkpoint, &model)?;
        Ok(model)
    }
}

/// Reads all tensors to their places in the model.
///
/// # Errors
/// A tensor that cannot be read or is not finite, by name; or a failure of the device. Of several tensors, the first.
fn upload(stream: &Stream, checkpoint: &Checkpoint, model: &DeviceModel) -> Result<(), LoadError> {
    let threads = threads();
    // A row longer than a piece is read at once.
    let bytes = checkpoint.pieces(PIECE_VALUES);
    let bytes = bytes.map(|piece| piece.values.len() * value_bytes(model, &piece));
    let bytes = bytes.max().unwrap_or(0);
    let (give_back, free) = mpsc::channel();
    for _ in 0..2 * threads {
        let buffer = HostBuffer::new(&stream.driver, bytes).map_err(device_error)?;
        // The receiver is alive.
        let _ = give_back.send(buffer);
    }
    let (free, pieces) = (
        Mutex::new(free),
        Mutex::new(checkpoint.pieces(PIECE_VALUES)),
    );
    let failed = AtomicBool::new(false);
    let take = || {
        let free = free.lock().unwrap_or_else(PoisonError::into_inner);
        let buffer = free.recv().ok()?;
        let mut pieces = pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let piece = pieces.next().filter(|_| !failed.load(Ordering::Relaxed));
        Some((piece?, buffer))
    };
    std::thread::scope(|scope| {
        let (filled, arrived) = mpsc::channel::<Filled>();
        for _ in 0..threads {
            let (filled, take, failed) = (filled.clone(), &take, &failed);
            scope.spawn(move || {
                let (mut scratch, mut values) = (ReadBuffer::default(), Vec::new());
                while let Some((piece, mut buffer)) = take() {
                    let scratch = (&mut scratch, &mut values);
                    let read = read(checkpoint, model, &piece, scratch, &mut buffer);
                    failed.fetch_or(read.is_err(), Ordering::Relaxed);
                    if filled.send((piece, buffer, read)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(filled);
        // Dropped at the end of this closure, also after an error, which ends the threads.
        let give_back = give_back;
        let mut uploads = Uploads::new(stream);
        let mut first: Option<(Piece, LoadError)> = None;
        for (piece, buffer, read) in arrived {
            if let Err(error) = read {
                let is_first = first.as_ref().is_none_or(|(other, _)| {
                    (piece.tensor, piece.values.start) < (other.tensor, other.values.start)
                });
                if is_first {
                    first = Some((piece, error));
                }
                // Each thread waits for a buffer before it sees that one has failed.
                let _ = give_back.send(buffer);
                continue;
            }
            start(&mut uploads, model, &piece, buffer).map_err(device_error)?;
            if uploads.len() >= threads {
                for buffer in uploads.finish().map_err(device_error)? {
                    // The threads may have ended.
                    let _ = give_back.send(buffer);
                }
            }
        }
        uploads.finish().map_err(device_error)?;
        first.map_or(Ok(()), |(_, error)| Err(error))
    })
}

fn is_matrix(model: &DeviceModel, piece: &Piece) -> bool {
    model.layout.tensors[piece.tensor].at < model.layout.matrices
}

/// Bytes of a value in its place: gains and biases are in f32.
fn value_bytes(model: &DeviceModel, piece: &Piece) -> usize {
    if is_matrix(model, piece) {
        return model.precision().bytes();
    }
    size_of::<f32>()
}

/// Reads a piece in the precision of its place.
fn read(
    checkpoint: &Checkpoint,
    model: &DeviceModel,
    piece: &Piece,
    (scratch, values): (&mut ReadBuffer, &mut Vec<f32>),
    buffer: &mut HostBuffer,
) -> Result<(), LoadError> {
    let count = piece.values.len();
    if is_matrix(model, piece) && model.precision() == Precision::Bf16 {
        return checkpoint.read_bf16(piece, scratch, buffer.bytes_mut(2 * count));
    }
    values.resize(count, 0.0);
    checkpoint.read_f32(piece, scratch, values)?;
    let bytes = buffer.bytes_mut(size_of_val(values.as_slice()));
    for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
        *bytes = value.to_ne_bytes();
    }
    Ok(())
}

/// Starts the upload of a piece to its place.
fn start(
    uploads: &mut Uploads<'_>,
    model: &DeviceModel,
    piece: &Piece,
    buffer: HostBuffer,
) -> crate::device::Result<()> {
    let place = model.layout.tensors[piece.tensor];
    let at = place.at + piece.values.start;
    let count = piece.values.len();
    if is_matrix(model, piece) {
        let size = model.precision().bytes();
        return uploads.start(model.values.bytes(), at * size, buffer, count * size);
    }
    let (to, at) = model.exact_values(at);
    uploads.start(to, at, buffer, count)
}

#[cfg(test)]
#[path = "loading_tests.rs"]
mod tests;
