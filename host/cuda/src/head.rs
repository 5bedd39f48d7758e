//! The language-model head over scored positions, in chunks: logits of a chunk exist only while it is scored or
//! differentiated, never tokens times vocabulary.

use std::sync::Arc;

use clawhost_engine::backend::SequenceScores;
use clawhost_model::ModelConfig;

use crate::device::{Address, Buffer, Driver, Operand, Precision, Product, Result, Stream, Values};
use crate::kernels::{HeadArguments, HeadGradients};
use crate::layers::Pass;
use crate::layout::logits_stride;
use crate::packing::Packed;
use crate::weights::DeviceModel;

/// Bytes of the logits that are in memory at once.
const LOGITS_BYTES: usize = 256 << 20;

/// The logits of a chunk of positions, and their gradient.
#[derive(Debug)]
pub(crate) struct LogitsChunk {
    positions: usize,
    logits: Buffer<f32>,
    /// Made by the first backward pass.
    dlogits: Option<Values>,
}

/// Rows of a tile of the products, which compute whole tiles.
const TILE_ROWS: usize = 128;

/// Positions whose logits are in memory at once, for rows of this many values.
fn chunk_positions(stride: usize) -> usize {
    let most = (LOGITS_BYTES / (stride * size_of::<f32>())).clamp(1, 512);
    match most / TILE_ROWS {
        0 => most,
        tiles => tiles * TILE_ROWS,
    }
}

/// Bytes of a chunk of logits and their gradient.
pub(crate) fn logits_bytes(c: &ModelConfig, precision: Precision) -> usize {
    let stride = logits_stride(c);
    chunk_positions(stride) * stride * (size_of::<f32>() + precision.bytes())
}

impl LogitsChunk {
    pub(crate) fn new(driver: &Arc<dyn Driver>, model: &DeviceModel) -> Result<Self> {
        let stride = model.logits_stride();
        let positions = chunk_positions(stride);
        Ok(Self {
            positions,
            logits: Buffer::new(driver, positions * stride)?,
            dlogits: None,
        })
    }

    /// Makes room for the gradient of the logits.
    pub(crate) fn reserve_gradients(
        &mut self,
        driver: &Arc<dyn Driver>,
        model: &DeviceModel,
    ) -> Result<()> {
        if self.dlogits.is_none() {
            let values = self.positions * model.logits_stride();
            self.dlogits = Some(Values::new(driver, model.precision(), values)?);
        }
        Ok(())
    }
}

/// The scored positions of a micro-batch on the device, and their scores.
#[derive(Debug)]
pub(crate) struct Positions {
    count: usize,
    targets: Buffer<u32>,
    inverse_temperatures: Buffer<f32>,
    first_candidates: Buffer<i32>,
    find_top: Buffer<i32>,
    candidates: Buffer<u32>,
    candidate_logprobs: Buffer<f32>,
    logprobs: Buffer<f32>,
    entropies: Buffer<f32>,
    largest: Buffer<f32>,
    log_sums: Buffer<f32>,
}

/// dL/dlogprob, dL/dentropy and dL/dlogprob of the candidates; without candidates the last is empty.
#[derive(Debug, Default)]
pub(crate) struct Partials {
    pub(crate) logprobs: Vec<f32>,
    pub(crate) entropies: Vec<f32>,
    pub(crate) candidates: Vec<f32>,
}

fn int(value: usize) -> i32 {
    i32::try_from(value).expect("positions of a micro-batch fit")
}

impl Positions {
    pub(crate) fn new(stream: &Stream, packed: &Packed) -> Result<Self> {
        let driver = &stream.driver;
        let count = packed.rows.len();
        let floats = |len: usize| Buffer::new(driver, len);
        let own = Self {
            count,
            targets: Buffer::new(driver, count)?,
            inverse_temperatures: floats(count)?,
            first_candidates: Buffer::new(driver, count + 1)?,
            find_top: Buffer::new(driver, count)?,
            candidates: Buffer::new(driver, packed.candidates.len())?,
            candidate_logprobs: floats(packed.candidates.len())?,
            logprobs: floats(count)?,
            entropies: floats(count)?,
            largest: floats(count)?,
            log_sums: floats(count)?,
        };
        let firsts: Vec<i32> = packed.first_candidates.iter().map(|at| int(*at)).collect();
        let find: Vec<i32> = packed.find_top.iter().map(|top| i32::from(*top)).collect();
        stream.upload(&own.targets, 0, &packed.targets)?;
        stream.upload(&own.inverse_temperatures, 0, &packed.inverse_temperatures)?;
        stream.upload(&own.first_candidates, 0, &firsts)?;
        stream.upload(&own.find_top, 0, &find)?;
        stream.upload(&own.candidates, 0, &packed.candidates)?;
        Ok(own)
    }

    /// The arguments of the kernels for positions from `first` on.
    fn arguments(&self, model: &DeviceModel, chunk: &LogitsChunk, first: usize) -> HeadArguments {
        HeadArguments {
            logits: chunk.logits.address(),
            stride: int(model.logits_stride()),
            vocab: int(model.config.vocab_size),
            targets: self.targets.at(first),
            inverse_temperatures: self.inverse_temperatures.at(first),
            logprobs: self.logprobs.at(first),
            entropies: self.entropies.at(first),
            largest: self.largest.at(first),
            log_sums: self.log_sums.at(first),
            first_candidates: self.first_candidates.at(first),
            candidates: self.candidates.address(),
            candidate_logprobs: self.candidate_logprobs.address(),
        }
    }

    fn chunks(&self, size: usize) -> impl Iterator<Item = (usize, usize)> {
        let count = self.count;
        (0..count)
            .step_by(size)
            .map(move |first| (first, size.min(count - first)))
    }

    /// Scores normalized rows, one per position.
    pub(crate) fn score(
        &self,
        pass: &Pass<'_>,
        chunk: &LogitsChunk,
        normed: Address,
    ) -> Result<()> {
        let (model, stream) = (pass.model, pass.stream);
        let row = model.config.hidden_size * model.precision().bytes();
        for (first, count) in self.chunks(chunk.positions) {
            let pass = Pass {
                tokens: count,
                ..*pass
            };
            pass.logits(normed.plus(first * row), chunk.logits.address())?;
            let arguments = self.arguments(model, chunk, first);
            stream.head_scores(arguments, count)?;
            stream.head_top(arguments, self.find_top.at(first), count)?;
            stream.head_candidates(arguments, count)?;
        }
        Ok(())
    }

    /// Reads the scores of every sequence.
    pub(crate) fn read(&self, stream: &Stream, packed: &Packed) -> Result<Vec<SequenceScores>> {
        let floats = |buffer: &Buffer<f32>| {
            let mut values = vec![0.0; buffer.len()];
            stream.download(buffer, 0, &mut values).map(|()| values)
        };
        let (logprobs, entropies) = (floats(&self.logprobs)?, floats(&self.entropies)?);
        let candidate_logprobs = floats(&self.candidate_logprobs)?;
        let mut candidates = vec![0u32; self.candidates.len()];
        stream.download(&self.candidates, 0, &mut candidates)?;
        let mut at = 0;
        let mut scores = Vec::with_capacity(packed.counts.len());
        for count in &packed.counts {
            let own = at..at + count;
            let range = packed.first_candidates[own.start]..packed.first_candidates[own.end];
            scores.push(SequenceScores {
                logprobs: logprobs[own.clone()].to_vec(),
                entropies: entropies[own.clone()].to_vec(),
                candidates: candidates[range.clone()].to_vec(),
                candidate_logprobs: candidate_logprobs[range].to_vec(),
            });
            at = own.end;
        }
        Ok(scores)
    }

    /// `dnormed` = the gradient of the normalized rows; adds the gradient of the head's weight unless it is null.
    pub(crate) fn backward(
        &self,
        pass: &Pass<'_>,
        chunk: &LogitsChunk,
        partials: &Partials,
        (normed, dnormed): (Address, Address),
        dhead: Address,
    ) -> Result<()> {
        let (model, stream) = (pass.model, pass.stream);
        let (driver, stride, precision) =
            (&stream.driver, model.logits_stride(), model.precision());
        let upload = |values: &[f32]| -> Result<Buffer<f32>> {
            let buffer = Buffer::new(driver, values.len())?;
            stream.upload(&buffer, 0, values)?;
            Ok(buffer)
        };
        let (d_logprobs, d_entropies) = (upload(&partials.logprobs)?, upload(&partials.entropies)?);
        let d_candidates = upload(&partials.candidates)?;
        let dlogits = chunk.dlogits.as_ref();
        let dlogits = dlogits.expect("there is room for gradients").address();
        let (h, head) = (model.config.hidden_size, model.matrix(model.layout.head));
        for (first, count) in self.chunks(chunk.positions) {
            let offset = first * h * precision.bytes();
            let rows = Pass {
                tokens: count,
                ..*pass
            };
            rows.logits(normed.plus(offset), chunk.logits.address())?;
            let gradients = HeadGradients {
                d_logprobs: d_logprobs.at(first),
                d_entropies: d_entropies.at(first),
                d_candidates: if partials.candidates.is_empty() {
                    Address::NULL
                } else {
                    d_candidates.address()
                },
                dlogits,
            };
            let arguments = self.arguments(model, chunk, first);
            stream.head_backward(precision, arguments, gradients, count)?;
            stream.product(&Product {
                m: count,
                n: h,
                k: model.config.vocab_size,
                a: Operand::rows(dlogits, stride),
                b: Operand::rows(head, h),
                c: dnormed.plus(offset),
                c_stride: h,
                alpha: 1.0,
                beta: 0.0,
                inputs: precision,
                output: precision,
            })?;
            if dhead != Address::NULL {
                stream.product(&Product {
                    m: model.config.vocab_size,
                    n: h,
                    k: count,
                    a: Operand::transposed(dlogits, stride),
                    b: Operand::rows(normed.plus(offset), h),
                    c: dhead,
                    c_stride: h,
                    alpha: 1.0,
                    beta: 1.0,
                    inputs: precision,
                    output: Precision::F32,
                })?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_whole_tiles_where_one_fits() {
        // The vocabularies of Qwen3, SmolLM2 and the tests, and one that is larger than any.
        let strides = [151_936, 49_152, 104, 1 << 20];
        assert_eq!(strides.map(chunk_positions), [384, 512, 512, 64]);
    }
}
