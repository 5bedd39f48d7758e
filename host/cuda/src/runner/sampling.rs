//! Sampling after the rows of a step.

use std::collections::BTreeMap;
use std::sync::Arc;

use clawhost_engine::backend::{RequestId, Row, RowOutput, SamplerSpec};

use crate::device::{Buffer, Driver, Result, Stream};
use crate::kernels::{
    SAMPLE_CHUNKS, SAMPLE_PART_THREADS, SampleArguments, SampleOutput, SamplePart, SampleRow,
    sample_parts,
};
use crate::sampler::{Sampler, Words};
use crate::weights::DeviceModel;

/// The samplers of all requests, and the buffers of their kernel.
#[derive(Debug)]
pub(super) struct Samplers {
    samplers: BTreeMap<RequestId, Sampler>,
    rows: Buffer<SampleRow>,
    words: Buffer<u32>,
    adjusted: Buffer<f32>,
    saved: Buffer<f32>,
    outputs: Buffer<SampleOutput>,
    parts: Buffer<SamplePart>,
    keys: Buffer<u32>,
    chunks: Buffer<u64>,
}

impl Samplers {
    pub(super) fn new(driver: &Arc<dyn Driver>) -> Result<Self> {
        Ok(Self {
            samplers: BTreeMap::new(),
            rows: Buffer::new(driver, 0)?,
            words: Buffer::new(driver, 1)?,
            adjusted: Buffer::new(driver, 0)?,
            saved: Buffer::new(driver, 0)?,
            outputs: Buffer::new(driver, 0)?,
            parts: Buffer::new(driver, 0)?,
            keys: Buffer::new(driver, 0)?,
            chunks: Buffer::new(driver, 0)?,
        })
    }

    pub(super) fn add(&mut self, request: RequestId, spec: SamplerSpec) {
        let before = self.samplers.insert(request, Sampler::new(spec));
        assert!(before.is_none(), "requests are added once");
    }

    pub(super) fn remove(&mut self, request: RequestId) {
        let sampler = self.samplers.remove(&request);
        assert!(sampler.is_some(), "requests are removed once");
    }

    /// Samples after the rows that want it, from the logits of a model. `places` has the row of logits of every row of the
    /// batch. No sampler changes before all have sampled.
    pub(super) fn sample(
        &mut self,
        stream: &Stream,
        logits: (&Buffer<f32>, &DeviceModel),
        rows: &[Row<'_>],
        places: &[usize],
    ) -> Result<Vec<RowOutput>> {
        let mut outputs: Vec<RowOutput> = vec![None; rows.len()];
        let (mut words, mut sampled, mut kernel_rows) = (Words::new(), Vec::new(), Vec::new());
        for (index, row) in rows.iter().enumerate().filter(|(_, row)| row.sample) {
            let sampler = self.samplers.get(&row.request);
            let sampler = sampler.expect("requests are added before they run");
            match sampler.row(places[index], row.bitmask, &mut words) {
                Ok(kernel_row) => {
                    sampled.push(index);
                    kernel_rows.push(kernel_row);
                }
                Err(error) => outputs[index] = Some(Err(error)),
            }
        }
        if !kernel_rows.is_empty() {
            let results = self.run(stream, logits, &kernel_rows, &words)?;
            for (index, result) in sampled.iter().zip(&results) {
                let sampler = &self.samplers[&rows[*index].request];
                outputs[*index] = Some(sampler.output(result));
            }
        }
        for (row, output) in rows.iter().zip(&outputs) {
            if let Some(Ok(token)) = output {
                let sampler = self.samplers.get_mut(&row.request);
                sampler.expect("it has sampled").accept(token.id);
            }
        }
        Ok(outputs)
    }

    fn run(
        &mut self,
        stream: &Stream,
        (logits, model): (&Buffer<f32>, &DeviceModel),
        rows: &[SampleRow],
        words: &[u32],
    ) -> Result<Vec<SampleOutput>> {
        let driver = &stream.driver;
        let stride = model.logits_stride();
        let suppressed = rows.iter().map(|row| row.suppressed_count).max();
        let saved_stride = suppressed.unwrap_or(0).max(1);
        let buffers = self;
        let parts = sample_parts(driver.processors(), rows.len());
        if rows.len() > buffers.rows.len() {
            let count = rows.len().next_power_of_two();
            buffers.rows = Buffer::new(driver, count)?;
            buffers.outputs = Buffer::new(driver, count)?;
            buffers.adjusted = Buffer::new(driver, count * stride)?;
            buffers.chunks = Buffer::new(driver, count * SAMPLE_CHUNKS)?;
        }
        if rows.len() * parts > buffers.parts.len() {
            let count = (rows.len() * parts).next_power_of_two();
            buffers.parts = Buffer::new(driver, count)?;
            buffers.keys = Buffer::new(driver, count * SAMPLE_PART_THREADS)?;
        }
        if words.len() > buffers.words.len() {
            buffers.words = Buffer::new(driver, words.len().next_power_of_two())?;
        }
        let saved = rows.len() * saved_stride as usize;
        if saved > buffers.saved.len() {
            buffers.saved = Buffer::new(driver, saved.next_power_of_two())?;
        }
        stream.upload(&buffers.rows, 0, rows)?;
        stream.upload(&buffers.words, 0, words)?;
        let int = |value: usize| i32::try_from(value).expect("checked by the memory plan");
        let arguments = SampleArguments {
            logits: logits.address(),
            stride: int(stride),
            vocab: int(model.config.vocab_size),
            rows: buffers.rows.address(),
            words: buffers.words.address(),
            adjusted: buffers.adjusted.address(),
            saved: buffers.saved.address(),
            saved_stride,
            outputs: buffers.outputs.address(),
            parts: buffers.parts.address(),
            part_count: int(parts),
            keys: buffers.keys.address(),
            chunks: buffers.chunks.address(),
        };
        stream.sample(arguments, rows.len())?;
        let mut outputs = vec![SampleOutput::default(); rows.len()];
        stream.download(&buffers.outputs, 0, &mut outputs)?;
        Ok(outputs)
    }
}
