//! The half of the backend that one engine thread owns: KV memory and samplers.

use std::collections::BTreeMap;
use std::sync::Arc;

use clawhost_engine::backend::{
    BLOCK_TOKENS, Batch, RequestId, Row, RowOutput, Runner, SamplerSpec,
};
use clawhost_engine::{ForwardError, TokenBitmask};
use clawhost_model::TrainedWeights;

use crate::kv::{BlockShape, KvMemory, RowKv};
use crate::model::{Decoder, PassRow};
use crate::ops::thread_pool::{self, Threads};
use crate::sampling::Sampler;
use crate::shared::Shared;

/// Cost of sampling per logit, in multiply-adds.
const SAMPLE_COST_PER_LOGIT: usize = 16;

pub(crate) struct CpuRunner {
    shared: Arc<Shared>,
    memory: KvMemory,
    samplers: BTreeMap<RequestId, Sampler>,
}

/// A row, and the weights to run it with.
type WeightedRow<'a> = (usize, &'a Row<'a>, Option<TrainedWeights>);

impl CpuRunner {
    pub(crate) fn new(shared: Arc<Shared>, blocks: usize) -> Self {
        Self {
            memory: KvMemory::new(BlockShape::new(shared.model.config()), blocks),
            shared,
            samplers: BTreeMap::new(),
        }
    }

    /// The rows in the order in which they run. Rows of one model form one pass, and rows of one adapter are adjacent in
    /// it, so each adapter's matrices are multiplied once.
    fn order_rows<'a>(&self, rows: &'a [Row<'a>]) -> Vec<WeightedRow<'a>> {
        let weighted = |(index, row): (usize, &'a Row<'a>)| {
            let weights = self.shared.weights(row.slot);
            (index, row, weights)
        };
        let mut rows: Vec<_> = rows.iter().enumerate().map(weighted).collect();
        rows.sort_by_key(|(_, row, weights)| {
            let full = matches!(weights, Some(TrainedWeights::Full(_)));
            (full, row.slot)
        });
        rows
    }

    /// Runs the rows, and returns the logits of each row's last token.
    fn forward(&mut self, rows: &[WeightedRow<'_>]) -> Result<Vec<f32>, ForwardError> {
        let base = &*self.shared.model;
        let model = |weights: &Option<TrainedWeights>| match weights {
            Some(TrainedWeights::Full(model)) => Arc::clone(model),
            _ => Arc::clone(&self.shared.model),
        };
        for (_, row, weights) in rows {
            let model = model(weights);
            if !model.same_shape(base) {
                return Err(ForwardError::Adapter);
            }
            let adapter = weights.as_ref().and_then(TrainedWeights::adapter);
            Decoder::new(&model).check_row(row.tokens, adapter.map(Arc::as_ref))?;
        }
        let written = |row: &Row<'_>| {
            let end = (row.computed + row.tokens.len()).div_ceil(BLOCK_TOKENS);
            row.computed / BLOCK_TOKENS..end
        };
        for (_, row, _) in rows {
            self.memory.take(&row.blocks[written(row)]);
        }
        let shape = self.memory.shape();
        let (shared, mut taken) = self.memory.split();
        let mut pass_rows = Vec::with_capacity(rows.len());
        for (_, row, weights) in rows {
            let written = written(row);
            let (own, later) = taken.split_at_mut(written.len());
            taken = later;
            pass_rows.push(PassRow {
                tokens: row.tokens,
                kv: RowKv {
                    shape,
                    shared,
                    table: &row.blocks[..written.start],
                    own,
                    len: row.computed,
                },
                adapter: weights
                    .as_ref()
                    .and_then(TrainedWeights::adapter)
                    .map(Arc::as_ref),
            });
        }
        let (mut rest, mut logits) = (pass_rows.as_mut_slice(), Vec::new());
        let same_model = |(_, a, one): &WeightedRow<'_>, (_, b, other): &WeightedRow<'_>| {
            let full = |weights: &Option<_>| matches!(weights, Some(TrainedWeights::Full(_)));
            a.slot == b.slot || !full(one) && !full(other)
        };
        for group in rows.chunk_by(same_model) {
            let (pass, later) = rest.split_at_mut(group.len());
            rest = later;
            let own = Decoder::new(&model(&group[0].2)).forward(pass);
            if logits.is_empty() {
                logits = own;
            } else {
                logits.extend(own);
            }
        }
        Ok(logits)
    }

    /// Samples after the rows that want it. No sampler changes before all have sampled.
    fn sample(&mut self, rows: &[WeightedRow<'_>], logits: &[f32]) -> Vec<RowOutput> {
        let vocab = self.shared.model.config().vocab_size;
        let sampled = rows.iter().zip(logits.chunks_exact(vocab));
        let mut sampled: Vec<_> = sampled.filter(|((_, row, _), _)| row.sample).collect();
        sampled.sort_unstable_by_key(|((_, row, _), _)| row.request);
        let mut sampled = sampled.into_iter().peekable();
        let mut tasks = Vec::with_capacity(sampled.len());
        for (request, sampler) in &mut self.samplers {
            let next = sampled.next_if(|((_, row, _), _)| row.request == *request);
            if let Some(((index, row, _), logits)) = next {
                tasks.push(SampleTask {
                    index: *index,
                    sampler,
                    logits,
                    bitmask: row.bitmask,
                    output: None,
                });
            }
        }
        assert!(
            sampled.next().is_none(),
            "requests are added before they run"
        );
        let threads = Threads(self.shared.model.threads());
        let cost = logits.len() * SAMPLE_COST_PER_LOGIT;
        // Every request has its own random stream, so they can be sampled in parallel.
        thread_pool::parallel_for_each(threads, &mut tasks, cost, |task| {
            task.output = Some(task.sampler.sample(task.logits, task.bitmask));
        });
        let mut outputs: Vec<RowOutput> = vec![None; rows.len()];
        for task in tasks {
            let SampleTask {
                index,
                sampler,
                output,
                ..
            } = task;
            if let Some(Ok(token)) = &output {
                sampler.accept(token.id);
            }
            outputs[index] = output;
        }
        outputs
    }
}

/// A request to sample.
struct SampleTask<'a> {
    index: usize,
    sampler: &'a mut Sampler,
    logits: &'a [f32],
    bitmask: Option<&'a TokenBitmask>,
    output: RowOutput,
}

impl Runner for CpuRunner {
    fn add_request(&mut self, request: RequestId, sampler: SamplerSpec) {
        let before = self.samplers.insert(request, Sampler::new(sampler));
        assert!(before.is_none(), "requests are added once");
    }

    fn remove_request(&mut self, request: RequestId) {
        let sampler = self.samplers.remove(&request);
        assert!(sampler.is_some(), "requests are removed once");
    }

    fn step(&mut self, batch: Batch<'_>) -> Result<Vec<RowOutput>, ForwardError> {
        self.memory.put_back();
        for (from, to) in batch.copies {
            self.memory.copy(*from, *to);
        }
        let rows = self.order_rows(batch.rows);
        let logits = self.forward(&rows)?;
        self.memory.put_back();
        Ok(self.sample(&rows, &logits))
    }
}
