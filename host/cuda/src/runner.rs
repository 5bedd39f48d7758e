//! The half of the backend that one engine thread owns: KV memory, samplers, and the graphs of decoding steps.
//!
//! A step of single tokens runs in a bucket of rows, padded with rows that write to a block of nobody, so that the same
//! work serves all steps of that size: it is recorded once and replayed. All that changes between steps is in buffers.
//! `rows.rs` lists what the kernels of a step read, `sampling.rs` samples after it.

mod rows;
mod sampling;

use std::collections::HashMap;
use std::sync::Arc;

use clawhost_engine::ForwardError;
use clawhost_engine::backend::{
    AdapterSlot, BLOCK_TOKENS, Batch, RequestId, Row, RowOutput, Runner, SamplerSpec,
};

use crate::adapters::{DeviceAdapter, table};
use crate::attention::{self, PlacedTiles, decode_splits};
use crate::device::{Address, Buffer, Graph, Result, Stream, StreamPriority, Values};
use crate::inputs::{Inputs, List, Lists};
use crate::kernels::{AttentionArguments, DecodeWorkspace, LoraMatrices};
use crate::layers::{Lora, Pass, QkvTarget, Selection};
use crate::packing::check_tokens;
use crate::shared::{Loaded, Shared};
use crate::weights::DeviceModel;
use crate::workspace::Workspace;
use rows::{AdapterGroup, LoadedRow, StepLists, adapter_groups, end_groups, pass_rows, step_lists};
use sampling::Samplers;

/// Numbers of rows for which decoding steps are recorded.
const BUCKETS: [usize; 13] = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256];
/// Most tokens of a step whose rows take their adapters from the table.
const TABLE_TOKENS: usize = 256;

/// Places for adapters in the smallest table.
const MIN_TABLE_ADAPTERS: usize = 4;

pub(crate) struct CudaRunner {
    shared: Arc<Shared>,
    stream: Stream,
    kv: Values,
    /// The block that padding rows write to.
    spare_block: usize,
    work: Workspace,
    inputs: Inputs,
    logits: Buffer<f32>,
    attention: AttentionWorkspace,
    lora: LoraTable,
    samplers: Samplers,
    /// Recorded steps; `None` where a step has run once.
    graphs: HashMap<GraphKey, Option<Graph>>,
}

#[derive(Debug)]
struct AttentionWorkspace {
    outputs: Buffer<f32>,
    sums: Buffer<f32>,
    finished: Buffer<u32>,
}

/// The table of the adapters of recent steps.
#[derive(Debug)]
struct LoraTable {
    slots: Vec<AdapterSlot>,
    adapters: Vec<Arc<DeviceAdapter>>,
    buffer: Buffer<LoraMatrices>,
}

/// What a recorded step depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct GraphKey {
    rows: usize,
    table_stride: usize,
    /// Adapters in the table, and their largest rank; (0, 0) without.
    adapters: (usize, usize),
    first_logits: usize,
}

impl CudaRunner {
    pub(crate) fn new(shared: Arc<Shared>, blocks: usize) -> Result<Self> {
        let stream = Stream::new(&shared.base.driver, StreamPriority::Serving)?;
        let (driver, c) = (&shared.base.driver, shared.base.model.config());
        let precision = shared.base.precision;
        let kv = Values::new(driver, precision, (blocks + 1) * shared.base.block_values())?;
        // Masked keys are multiplied by zero, which must not give what is not a number.
        stream.clear_values(&kv)?;
        let stride = shared.base.device_model.logits_stride();
        let runner = Self {
            spare_block: blocks,
            work: Workspace::new(driver, c, precision, (BUCKETS[4], 8))?,
            inputs: Inputs::new(driver, 4096)?,
            logits: Buffer::new(driver, BUCKETS[4] * stride)?,
            attention: AttentionWorkspace {
                outputs: Buffer::new(driver, 0)?,
                sums: Buffer::new(driver, 0)?,
                finished: Buffer::new(driver, 0)?,
            },
            lora: LoraTable {
                slots: Vec::new(),
                adapters: Vec::new(),
                buffer: Buffer::new(driver, 0)?,
            },
            samplers: Samplers::new(driver)?,
            graphs: HashMap::new(),
            kv,
            stream,
            shared,
        };
        runner.stream.synchronize()?;
        Ok(runner)
    }

    /// The rows with their weights: rows of one model form one pass, and rows of one adapter are adjacent in it.
    fn load_rows<'a>(&self, rows: &'a [Row<'a>]) -> Result<Vec<LoadedRow<'a>>> {
        let mut loaded = Vec::with_capacity(rows.len());
        for (index, row) in rows.iter().enumerate() {
            let (copy, adapter) = match self.shared.loaded(row.slot) {
                None => (None, None),
                Some(Loaded::Adapter(adapter)) => (None, Some(adapter)),
                Some(Loaded::Model(model)) => (Some((row.slot, model)), None),
                Some(Loaded::Misfit) => return Err(ForwardError::Adapter),
            };
            check_tokens(self.shared.base.model.config(), row.tokens)?;
            loaded.push(LoadedRow {
                index,
                row,
                copy,
                adapter,
            });
        }
        loaded.sort_by_key(|loaded| (loaded.copy.is_some(), loaded.row.slot));
        Ok(loaded)
    }

    /// Runs rows of one model; their logits are rows of the buffer from `first_logits` on.
    fn forward(&mut self, rows: &[LoadedRow<'_>], first_logits: usize) -> Result<()> {
        let model = match &rows[0].copy {
            Some((_, model)) => Arc::clone(model),
            None => Arc::clone(&self.shared.base.device_model),
        };
        let tokens: usize = rows.iter().map(|row| row.row.tokens.len()).sum();
        let decoding = rows.iter().all(|row| row.row.tokens.len() == 1);
        let bucket = BUCKETS.into_iter().find(|size| *size >= rows.len());
        let padded = bucket.filter(|_| decoding).unwrap_or(rows.len());
        let by_table = tokens <= TABLE_TOKENS;
        let adapters = if by_table {
            self.place_adapters(rows)?
        } else {
            Vec::new()
        };
        let pass_rows = pass_rows(rows, &adapters, (padded, self.spare_block));
        let rounded = padded > rows.len() || decoding;
        let (lists, step) = step_lists(
            self.shared.base.device_model.head_shape(),
            &pass_rows,
            rounded,
        );
        let rank = rows
            .iter()
            .filter_map(|row| row.adapter.as_ref())
            .map(|adapter| adapter.layout.max_stacked)
            .max()
            .unwrap_or(8)
            .max(self.max_rank());
        self.reserve(&lists, &step, (first_logits, rank))?;
        self.inputs.upload(&self.stream, &lists)?;
        let sizes = match (by_table, adapters.is_empty()) {
            (true, false) => (self.lora.adapters.len(), self.max_rank()),
            _ => (0, 0),
        };
        let groups = if by_table {
            Vec::new()
        } else {
            adapter_groups(rows, &pass_rows)
        };
        let ends = end_groups(&groups, &pass_rows);
        if !decoding || bucket.is_none() || rows[0].copy.is_some() {
            return self.run(&model, &step, sizes, (&groups, &ends), first_logits);
        }
        let key = GraphKey {
            rows: padded,
            table_stride: step.table_stride,
            adapters: sizes,
            first_logits,
        };
        let run = || self.run(&model, &step, sizes, (&[], &[]), first_logits);
        match self.graphs.get(&key) {
            Some(Some(graph)) => return self.stream.run_graph(graph),
            // The first step loads the kernels and chooses the algorithms of the products, which cannot be recorded.
            None => {
                run()?;
                self.graphs.insert(key, None);
                return Ok(());
            }
            Some(None) => {}
        }
        let Some(graph) = self.stream.capture(&mut { run })? else {
            return self.run(&model, &step, sizes, (&[], &[]), first_logits);
        };
        self.stream.run_graph(&graph)?;
        self.graphs.insert(key, Some(graph));
        Ok(())
    }

    /// Puts the adapters of the rows into the table. Returns the slots of the table; empty where no row has an adapter.
    fn place_adapters(&mut self, rows: &[LoadedRow<'_>]) -> Result<Vec<AdapterSlot>> {
        let mut slots: Vec<AdapterSlot> = Vec::new();
        let mut adapters = Vec::new();
        for row in rows {
            if let Some(adapter) = &row.adapter
                && slots.last() != Some(&row.row.slot)
            {
                slots.push(row.row.slot);
                adapters.push(Arc::clone(adapter));
            }
        }
        let known = slots.iter().all(|slot| self.lora.slots.contains(slot));
        if slots.is_empty() || known && !self.lora.slots.is_empty() {
            // A slot's number is never used for other weights.
            return Ok(if slots.is_empty() {
                slots
            } else {
                self.lora.slots.clone()
            });
        }
        // A power of two, so that few steps need other recorded work: none when a version is published, whose rows run beside
        // those of the version before. What fills it up is used by no row.
        let count = adapters.len().next_power_of_two().max(MIN_TABLE_ADAPTERS);
        let last = adapters.last().map(Arc::clone);
        adapters.resize_with(count, || {
            Arc::clone(last.as_ref().expect("there is an adapter"))
        });
        let entries = table(self.shared.base.model.config().num_hidden_layers, &adapters);
        if entries.len() > self.lora.buffer.len() {
            self.graphs.clear();
            self.stream.synchronize()?;
            self.lora.buffer = Buffer::new(&self.shared.base.driver, entries.len())?;
        }
        self.stream.upload(&self.lora.buffer, 0, &entries)?;
        self.lora.slots.clone_from(&slots);
        self.lora.adapters = adapters;
        Ok(slots)
    }

    fn max_rank(&self) -> usize {
        let ranks = self.lora.adapters.iter().map(|a| a.layout.max_rank);
        ranks.max().unwrap_or(8)
    }

    /// Makes room for a pass. Recorded work uses the buffers, so it is dropped when one of them is replaced.
    fn reserve(
        &mut self,
        lists: &Lists,
        step: &StepLists,
        (first_logits, rank): (usize, usize),
    ) -> Result<()> {
        let (driver, c) = (&self.shared.base.driver, self.shared.base.model.config());
        let size = (step.token_count, rank);
        if !self.work.fits(size) {
            self.graphs.clear();
            self.stream.synchronize()?;
            let size = self.work.grown(size);
            self.work = Workspace::new(driver, c, self.shared.base.precision, size)?;
        }
        if !self.inputs.fits(lists) {
            self.graphs.clear();
            self.stream.synchronize()?;
            self.inputs = Inputs::new(driver, lists.len().next_power_of_two())?;
        }
        let logits =
            (first_logits + step.row_count) * self.shared.base.device_model.logits_stride();
        if logits > self.logits.len() {
            self.graphs.clear();
            self.stream.synchronize()?;
            // The rows of other models that have run in this step stay.
            let larger = Buffer::new(driver, logits.next_power_of_two())?;
            let bytes = self.logits.len() * size_of::<f32>();
            self.stream
                .copy_bytes(self.logits.address(), larger.address(), bytes)?;
            self.stream.synchronize()?;
            self.logits = larger;
        }
        let tiles = step.tiles[1].1;
        let partials = tiles * c.num_attention_heads * self.splits(step);
        if partials * c.head_dim > self.attention.outputs.len() {
            self.graphs.clear();
            self.stream.synchronize()?;
            self.attention.outputs = Buffer::new(driver, partials * c.head_dim)?;
            self.attention.sums = Buffer::new(driver, 2 * partials)?;
        }
        if tiles * c.num_key_value_heads > self.attention.finished.len() {
            self.graphs.clear();
            self.stream.synchronize()?;
            self.attention.finished = Buffer::new(driver, tiles * c.num_key_value_heads)?;
            self.stream.clear_buffer(&self.attention.finished)?;
        }
        Ok(())
    }

    fn splits(&self, step: &StepLists) -> usize {
        let kv_heads = self.shared.base.model.config().num_key_value_heads;
        let (tiles, tokens) = (step.tiles[1].1, step.table_stride * BLOCK_TOKENS);
        let processors = self.shared.base.driver.processors();
        decode_splits(processors, tiles.max(1), kv_heads, tokens)
    }

    /// Puts a pass on the stream.
    fn run(
        &self,
        model: &DeviceModel,
        step: &StepLists,
        (adapters, max_rank): (usize, usize),
        (groups, end_groups): (&[AdapterGroup<'_>], &[AdapterGroup<'_>]),
        first_logits: usize,
    ) -> Result<()> {
        let c = &model.config;
        let at = |list: List| self.inputs.at(list);
        let lora = |slots: List, groups| match adapters {
            0 => Lora::Groups(groups),
            _ => Lora::Table {
                table: self.lora.buffer.address(),
                slots: at(slots),
                adapters,
                max_rank,
            },
        };
        let pass = Pass {
            stream: &self.stream,
            model,
            work: &self.work,
            tokens: step.token_count,
            lora: lora(step.lora_slots, groups),
        };
        let selection = Selection {
            rows: at(step.ends),
            count: step.row_count,
            lora: lora(step.lora_ends, end_groups),
        };
        let plane = 2 * c.key_width() * BLOCK_TOKENS;
        let block_stride = c.num_hidden_layers * plane;
        let int = |value: usize| i32::try_from(value).expect("checked by the memory plan");
        let placed = step.tiles.map(|(list, count)| (at(list), count));
        let workspace = DecodeWorkspace {
            outputs: self.attention.outputs.address(),
            sums: self.attention.sums.address(),
            finished: self.attention.finished.address(),
        };
        let splits = self.splits(step);
        // Where every row is one token, there is nothing to select.
        let selection = (step.row_count < step.token_count).then_some(&selection);
        pass.embed(at(step.tokens), at(step.positions))?;
        let mut x = self.work.x.address();
        for layer in 0..c.num_hidden_layers {
            let kv = self.kv.at(layer * plane);
            let arguments = AttentionArguments {
                qkv: self.work.qkv.address(),
                qkv_stride: int(model.qkv_width()),
                out: self.work.attended.address(),
                kv,
                block_stride: block_stride as i64,
                starts: at(step.starts),
                past: at(step.past),
                tables: at(step.tables),
                table_stride: int(step.table_stride),
                tiles: Address::NULL,
                lse: Address::NULL,
                lse_stride: 0,
                heads: int(c.num_attention_heads),
                kv_heads: int(c.num_key_value_heads),
                dim: int(c.head_dim),
                scale: 1.0 / (c.head_dim as f32).sqrt(),
            };
            let target = QkvTarget {
                raw: Address::NULL,
                kv,
                block_stride,
                slots: at(step.slots),
            };
            let last = layer + 1 == c.num_hidden_layers;
            x = pass.layer(
                layer,
                x,
                target,
                selection.filter(|_| last),
                false,
                &mut || {
                    let tiles = PlacedTiles {
                        prefill: placed[0],
                        decode: placed[1],
                        general: placed[2],
                    };
                    let precision = model.precision();
                    let workspace = (workspace, splits);
                    attention::forward(&self.stream, precision, arguments, tiles, workspace)
                },
            )?;
        }
        let head = Pass {
            tokens: step.row_count,
            ..pass
        };
        let logits = self.logits.at(first_logits * model.logits_stride());
        head.head(x, self.work.normed.address(), logits)
    }
}

impl Runner for CudaRunner {
    fn add_request(&mut self, request: RequestId, sampler: SamplerSpec) {
        self.samplers.add(request, sampler);
    }

    fn remove_request(&mut self, request: RequestId) {
        self.samplers.remove(request);
    }

    fn step(&mut self, batch: Batch<'_>) -> Result<Vec<RowOutput>> {
        let size = self.shared.base.block_values();
        let bytes = size * self.shared.base.precision.bytes();
        for (from, to) in batch.copies {
            let [from, to] = [from, to].map(|id| self.kv.at(id.0 as usize * size));
            self.stream.copy_bytes(from, to, bytes)?;
        }
        let rows = self.load_rows(batch.rows)?;
        let mut places = vec![0; rows.len()];
        let mut first = 0;
        let same_model = |one: &LoadedRow<'_>, other: &LoadedRow<'_>| {
            let copy = |row: &LoadedRow<'_>| row.copy.as_ref().map(|(slot, _)| *slot);
            copy(one) == copy(other)
        };
        for group in rows.chunk_by(same_model) {
            self.forward(group, first)?;
            for (at, row) in group.iter().enumerate() {
                places[row.index] = first + at;
            }
            first += group.len();
        }
        let logits = (&self.logits, &*self.shared.base.device_model);
        self.samplers
            .sample(&self.stream, logits, batch.rows, &places)
    }
}

#[cfg(test)]
#[path = "runner/swap_tests.rs"]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests;
