//! The forward pass over packed sequences, for scores and for training, with the buffers that it needs.

use std::sync::Arc;

use clawhost_engine::backend::{Sequence, SequenceScores};
use clawhost_engine::background;

use crate::adapters::DeviceAdapter;
use crate::attention::{self, HeadShape, PlacedTiles, Tiles};
use crate::base::Base;
use crate::device::{Address, Buffer, Driver, Precision, Result, Stream, StreamPriority, Values};
use crate::gradient_workspace::GradientWorkspace;
use crate::head::{LogitsChunk, Positions};
use crate::inputs::{Inputs, List, Lists};
use crate::kernels::{AttentionArguments, DecodeWorkspace};
use crate::layers::{Lora, Pass, QkvTarget, Selection};
use crate::packing::{Packed, pack};
use crate::weights::DeviceModel;
use crate::workspace::Workspace;

/// Tokens and rank of the buffers before the first pass.
const SMALLEST: (usize, usize) = (16, 8);

/// A stream with the buffers of passes over packed sequences.
#[derive(Debug)]
pub(crate) struct Scorer {
    pub(crate) stream: Stream,
    pub(crate) work: Workspace,
    pub(crate) chunk: LogitsChunk,
    /// Made by the first backward pass.
    pub(crate) gradients: Option<GradientWorkspace>,
    /// Buffers of passes that have been differentiated.
    pub(crate) stored: Vec<StoredPass>,
}

/// What a forward pass stores for its backward pass.
#[derive(Debug)]
pub(crate) struct StoredPass {
    /// Residual stream before each layer, one after the other.
    pub(crate) layer_inputs: Buffer<f32>,
    /// Residual stream at the scored positions, before and after the final norm.
    pub(crate) outputs: Buffer<f32>,
    pub(crate) normed: Values,
}

impl StoredPass {
    fn new(
        driver: &Arc<dyn Driver>,
        precision: Precision,
        [inputs, outputs]: [usize; 2],
    ) -> Result<Self> {
        Ok(Self {
            layer_inputs: Buffer::new(driver, inputs)?,
            outputs: Buffer::new(driver, outputs)?,
            normed: Values::new(driver, precision, outputs)?,
        })
    }

    fn fits(&self, [inputs, outputs]: [usize; 2]) -> bool {
        inputs <= self.layer_inputs.len() && outputs <= self.outputs.len()
    }
}

/// The lists of a micro-batch on the device.
#[derive(Debug)]
pub(crate) struct PackedInputs {
    inputs: Inputs,
    tokens: List,
    positions: List,
    starts: List,
    rows: List,
    prefill: (List, usize),
    general: (List, usize),
    /// Tiles of keys and of queries.
    backward: (List, List, usize),
    pub(crate) token_count: usize,
    pub(crate) row_count: usize,
}

impl PackedInputs {
    pub(crate) fn new(stream: &Stream, shape: HeadShape, packed: &Packed) -> Result<Self> {
        let lengths = || packed.lengths.iter().copied();
        let mut starts = vec![0];
        for length in lengths() {
            starts.push(starts[starts.len() - 1] + length);
        }
        let tiles = Tiles::new(shape, lengths(), false);
        let [keys, queries] = Tiles::backward(shape, lengths());
        let mut lists = Lists::default();
        let mut push_tiles = |tiles: Vec<i32>| {
            let count = attention::count(&tiles);
            (lists.push(tiles), count)
        };
        let (prefill, general) = (push_tiles(tiles.prefill), push_tiles(tiles.general));
        let ((keys, _), (queries, count)) = (push_tiles(keys), push_tiles(queries));
        let backward = (keys, queries, count);
        let tokens = lists.push_sizes(packed.tokens.iter().map(|id| *id as usize));
        let positions = lists.push_sizes(lengths().flat_map(|length| 0..length));
        let (starts, rows) = (
            lists.push_sizes(starts),
            lists.push_sizes(packed.rows.iter().copied()),
        );
        let inputs = Inputs::new(&stream.driver, lists.len())?;
        inputs.upload(stream, &lists)?;
        Ok(Self {
            inputs,
            tokens,
            positions,
            starts,
            rows,
            prefill,
            general,
            backward,
            token_count: packed.tokens.len(),
            row_count: packed.rows.len(),
        })
    }

    /// The tokens' ids.
    pub(crate) fn tokens(&self) -> Address {
        self.inputs.at(self.tokens)
    }

    /// The tokens' positions in their sequences.
    pub(crate) fn positions(&self) -> Address {
        self.inputs.at(self.positions)
    }

    /// The packed row of each scored position.
    pub(crate) fn rows(&self) -> Address {
        self.inputs.at(self.rows)
    }

    /// The tiles of the backward pass: of keys, of queries, and their number.
    pub(crate) fn backward_tiles(&self) -> (Address, Address, usize) {
        let (keys, queries, count) = self.backward;
        (self.inputs.at(keys), self.inputs.at(queries), count)
    }

    /// The arguments of attention without tiles; `lse` may be null.
    pub(crate) fn attention(
        &self,
        model: &DeviceModel,
        work: &Workspace,
        lse: Address,
    ) -> AttentionArguments {
        let c = &model.config;
        let int = |value: usize| i32::try_from(value).expect("checked by the memory plan");
        AttentionArguments {
            qkv: work.qkv.address(),
            qkv_stride: int(model.qkv_width()),
            out: work.attended.address(),
            kv: Address::NULL,
            block_stride: 0,
            starts: self.inputs.at(self.starts),
            past: Address::NULL,
            tables: Address::NULL,
            table_stride: 0,
            tiles: Address::NULL,
            lse,
            lse_stride: int(self.token_count),
            heads: int(c.num_attention_heads),
            kv_heads: int(c.num_key_value_heads),
            dim: int(c.head_dim),
            scale: 1.0 / (c.head_dim as f32).sqrt(),
        }
    }

    /// Computes attention.
    pub(crate) fn attend(
        &self,
        stream: &Stream,
        model: &DeviceModel,
        arguments: AttentionArguments,
    ) -> Result<()> {
        let at = |(list, count): (List, usize)| (self.inputs.at(list), count);
        let tiles = PlacedTiles {
            prefill: at(self.prefill),
            decode: (Address::NULL, 0),
            general: at(self.general),
        };
        let none = DecodeWorkspace {
            outputs: Address::NULL,
            sums: Address::NULL,
            finished: Address::NULL,
        };
        attention::forward(stream, model.precision(), arguments, tiles, (none, 0))
    }
}

impl Scorer {
    pub(crate) fn new(base: &Base) -> Result<Self> {
        let (driver, c) = (&base.driver, base.model.config());
        Ok(Self {
            stream: Stream::new(driver, StreamPriority::Background)?,
            work: Workspace::new(driver, c, base.precision, SMALLEST)?,
            chunk: LogitsChunk::new(driver, &base.device_model)?,
            gradients: None,
            stored: Vec::new(),
        })
    }

    /// Makes room for a micro-batch.
    fn reserve(
        &mut self,
        model: &DeviceModel,
        tokens: usize,
        adapter: Option<&DeviceAdapter>,
    ) -> Result<()> {
        let rank = adapter.map_or(8, |adapter| adapter.layout.max_stacked);
        if !self.work.fits((tokens, rank)) {
            self.stream.synchronize()?;
            let size = self.work.grown((tokens, rank));
            let (driver, c, precision) = (&self.stream.driver, &model.config, model.precision());
            // Frees the smaller one first.
            self.work = Workspace::new(driver, c, precision, SMALLEST)?;
            self.work = Workspace::new(driver, c, precision, size)?;
        }
        Ok(())
    }

    /// Makes room for the backward pass of a micro-batch.
    pub(crate) fn reserve_gradients(
        &mut self,
        model: &DeviceModel,
        tokens: usize,
        adapter: Option<&DeviceAdapter>,
    ) -> Result<()> {
        let rank = adapter.map_or(8, |adapter| adapter.layout.max_stacked);
        let fits = |work: &GradientWorkspace| work.fits((tokens, rank));
        if !self.gradients.as_ref().is_some_and(fits) {
            self.stream.synchronize()?;
            // Frees the smaller one first.
            self.gradients = None;
            let (driver, size) = (&self.stream.driver, (tokens, rank));
            let work = GradientWorkspace::new(driver, &model.config, model.precision(), size)?;
            self.gradients = Some(work);
        }
        self.chunk.reserve_gradients(&self.stream.driver, model)
    }

    /// Runs all layers; `before_layer` gets the residual stream before each. The rows that predict scored tokens end in
    /// `work.selected`, and their norm in `work.normed`.
    pub(crate) fn forward(
        &self,
        model: &DeviceModel,
        adapter: Option<&DeviceAdapter>,
        inputs: &PackedInputs,
        before_layer: &mut dyn FnMut(Address) -> Result<()>,
    ) -> Result<()> {
        let (tokens, rows) = (inputs.token_count, inputs.row_count);
        let groups: Vec<_> = adapter
            .iter()
            .map(|adapter| (0..tokens, *adapter))
            .collect();
        let ends: Vec<_> = adapter.iter().map(|adapter| (0..rows, *adapter)).collect();
        let pass = Pass {
            stream: &self.stream,
            model,
            work: &self.work,
            tokens,
            lora: Lora::Groups(&groups),
        };
        let selection = Selection {
            rows: inputs.rows(),
            count: rows,
            lora: Lora::Groups(&ends),
        };
        let arguments = inputs.attention(model, &self.work, Address::NULL);
        pass.embed(inputs.tokens(), inputs.positions())?;
        let layers = model.config.num_hidden_layers;
        let mut x = self.work.x.address();
        for layer in 0..layers {
            self.yield_to_requests()?;
            before_layer(x)?;
            let selection = (layer + 1 == layers).then_some(&selection);
            let attend = &mut || inputs.attend(&self.stream, model, arguments);
            x = pass.layer(layer, x, QkvTarget::default(), selection, false, attend)?;
        }
        self.yield_to_requests()?;
        let shape = (rows, model.config.hidden_size);
        let gain = model.exact(model.layout.final_norm);
        let at = (x, gain, self.work.normed.address());
        let eps = model.config.rms_norm_eps;
        self.stream.rms_norm(model.precision(), at, shape, eps)
    }

    /// Lets requests run, if there are any. The work so far is finished first: its time is what the share of background work
    /// bounds.
    pub(crate) fn yield_to_requests(&self) -> Result<()> {
        if background::is_throttled() {
            self.stream.synchronize()?;
        }
        background::yield_device();
        Ok(())
    }

    /// Begins a pass: only what follows is work on the device.
    pub(crate) fn begin_pass(&self) {
        background::begin_device_work();
    }

    /// Computes the scores of sequences.
    pub(crate) fn score(
        &mut self,
        model: &DeviceModel,
        adapter: Option<&DeviceAdapter>,
        sequences: &[Sequence<'_>],
    ) -> Result<Vec<SequenceScores>> {
        let mut scores = Vec::with_capacity(sequences.len());
        self.begin_pass();
        for packed in pack(&model.config, sequences)? {
            self.reserve(model, packed.tokens.len(), adapter)?;
            let inputs = PackedInputs::new(&self.stream, model.head_shape(), &packed)?;
            self.forward(model, adapter, &inputs, &mut |_| Ok(()))?;
            let positions = self.score_rows(model, &packed)?;
            scores.extend(positions.read(&self.stream, &packed)?);
            self.yield_to_requests()?;
        }
        Ok(scores)
    }

    /// Scores the rows of the last forward pass.
    pub(crate) fn score_rows(&self, model: &DeviceModel, packed: &Packed) -> Result<Positions> {
        let positions = Positions::new(&self.stream, packed)?;
        let pass = Pass {
            stream: &self.stream,
            model,
            work: &self.work,
            tokens: packed.rows.len(),
            lora: Lora::None,
        };
        positions.score(&pass, &self.chunk, self.work.normed.address())?;
        Ok(positions)
    }
}

/// The state of a forward pass that its backward pass needs.
#[derive(Debug)]
pub(crate) struct MicroBatch {
    pub(crate) inputs: PackedInputs,
    pub(crate) positions: Positions,
    pub(crate) stored: StoredPass,
}

impl Scorer {
    /// As [`Scorer::score`] for one micro-batch, and keeps what its backward pass needs.
    pub(crate) fn forward_train(
        &mut self,
        model: &DeviceModel,
        adapter: Option<&DeviceAdapter>,
        packed: Packed,
    ) -> Result<(MicroBatch, Vec<SequenceScores>)> {
        self.begin_pass();
        self.reserve(model, packed.tokens.len(), adapter)?;
        let inputs = PackedInputs::new(&self.stream, model.head_shape(), &packed)?;
        let (precision, h) = (model.precision(), model.config.hidden_size);
        let width = inputs.token_count * h;
        let layers = model.config.num_hidden_layers;
        let sizes = [layers * width, inputs.row_count * h];
        let stored = match self.stored.iter().position(|stored| stored.fits(sizes)) {
            Some(at) => self.stored.swap_remove(at),
            None => {
                // Too small; it makes room for the larger one.
                self.stored.pop();
                StoredPass::new(&self.stream.driver, precision, sizes)?
            }
        };
        let mut layer = 0;
        self.forward(model, adapter, &inputs, &mut |x| {
            let kept = stored.layer_inputs.at(layer * width);
            layer += 1;
            self.stream.copy_bytes(x, kept, width * size_of::<f32>())
        })?;
        let len = inputs.row_count * h;
        let keep = |from, to, bytes| self.stream.copy_bytes(from, to, bytes);
        let (selected, normed) = (&self.work.selected, &self.work.normed);
        keep(
            selected.address(),
            stored.outputs.address(),
            len * size_of::<f32>(),
        )?;
        keep(
            normed.address(),
            stored.normed.address(),
            len * precision.bytes(),
        )?;
        let positions = self.score_rows(model, &packed)?;
        let scores = positions.read(&self.stream, &packed)?;
        self.yield_to_requests()?;
        let micro_batch = MicroBatch {
            inputs,
            positions,
            stored,
        };
        Ok((micro_batch, scores))
    }
}
