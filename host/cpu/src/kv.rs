//! The memory of KV-cache blocks: keys and values of [`BLOCK_TOKENS`] consecutive tokens for all layers each.
//!
//! The engine decides which block holds what; this module only stores. A pass takes the blocks that it writes out of the
//! memory and puts them back afterwards, so no row can write to what another one reads.

use std::ops::Range;

use clawhost_engine::backend::{BLOCK_TOKENS, BlockId};
use clawhost_model::ModelConfig;

use crate::ops::attention::{KeyValues, Tile};

/// The values of one block.
type BlockValues = Box<[f32]>;

/// The layout of a block. The keys of one layer and key head are stored transposed (`[dim, tokens]`), followed by its
/// values token by token (`[tokens, dim]`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockShape {
    layers: usize,
    kv_heads: usize,
    dim: usize,
}

impl BlockShape {
    pub(crate) fn new(config: &ModelConfig) -> Self {
        Self {
            layers: config.num_hidden_layers,
            kv_heads: config.num_key_value_heads,
            dim: config.head_dim,
        }
    }

    pub(crate) fn kv_heads(self) -> usize {
        self.kv_heads
    }

    pub(crate) fn dim(self) -> usize {
        self.dim
    }

    /// Number of f32 values of one head's keys (and of its values).
    fn plane(self) -> usize {
        BLOCK_TOKENS * self.dim
    }

    /// The range of a head's keys; its values follow.
    pub(crate) fn keys(self, layer: usize, head: usize) -> Range<usize> {
        let at = (layer * self.kv_heads + head) * 2 * self.plane();
        at..at + self.plane()
    }

    /// The range of a head's values.
    pub(crate) fn values(self, layer: usize, head: usize) -> Range<usize> {
        let keys = self.keys(layer, head);
        keys.end..keys.end + self.plane()
    }

    /// Number of f32 values of a block.
    pub(crate) fn len(self) -> usize {
        self.layers * self.kv_heads * 2 * self.plane()
    }

    /// Bytes per block.
    pub(crate) fn bytes(self) -> usize {
        self.len() * size_of::<f32>()
    }
}

/// Bytes of one KV-cache block of this model.
pub fn block_bytes(config: &ModelConfig) -> usize {
    BlockShape::new(config).bytes()
}

/// The blocks of one runner, by id. Memory is allocated when a block is first written, and never returned.
#[derive(Debug)]
pub(crate) struct KvMemory {
    shape: BlockShape,
    capacity: usize,
    /// Empty before the first use, and while taken.
    blocks: Vec<BlockValues>,
    /// Blocks that the current pass writes, in the order of its rows.
    taken: Vec<BlockValues>,
    taken_ids: Vec<BlockId>,
}

impl KvMemory {
    pub(crate) fn new(shape: BlockShape, capacity: usize) -> Self {
        Self {
            shape,
            capacity,
            blocks: Vec::new(),
            taken: Vec::new(),
            taken_ids: Vec::new(),
        }
    }

    pub(crate) fn shape(&self) -> BlockShape {
        self.shape
    }

    fn allocate(&mut self, id: BlockId) -> &mut BlockValues {
        let index = id.0 as usize;
        assert!(index < self.capacity, "block {index} of {}", self.capacity);
        if index >= self.blocks.len() {
            self.blocks.resize_with(index + 1, Box::default);
        }
        let block = &mut self.blocks[index];
        if block.is_empty() {
            *block = vec![0.0; self.shape.len()].into_boxed_slice();
        }
        block
    }

    /// Copies a block.
    pub(crate) fn copy(&mut self, from: BlockId, to: BlockId) {
        let mut copy = std::mem::take(self.allocate(to));
        copy.copy_from_slice(&self.blocks[from.0 as usize]);
        self.blocks[to.0 as usize] = copy;
    }

    /// Takes the blocks out that a row writes.
    pub(crate) fn take(&mut self, ids: &[BlockId]) {
        for id in ids {
            assert!(
                !self.taken_ids.contains(id),
                "two rows write block {}",
                id.0
            );
            let block = std::mem::take(self.allocate(*id));
            self.taken.push(block);
            self.taken_ids.push(*id);
        }
    }

    /// All blocks, and those that were taken.
    pub(crate) fn split(&mut self) -> (&[BlockValues], &mut [BlockValues]) {
        (&self.blocks, &mut self.taken)
    }

    /// Puts the taken blocks back, also those of a pass that panicked.
    pub(crate) fn put_back(&mut self) {
        for (id, block) in self.taken_ids.drain(..).zip(self.taken.drain(..)) {
            self.blocks[id.0 as usize] = block;
        }
    }
}

/// Keys and values of one row of a pass.
pub(crate) struct RowKv<'a> {
    pub(crate) shape: BlockShape,
    /// All blocks of the memory.
    pub(crate) shared: &'a [BlockValues],
    /// The row's whole blocks, which are only read.
    pub(crate) table: &'a [BlockId],
    /// The blocks that the row writes; they follow those of `table`.
    pub(crate) own: &'a mut [BlockValues],
    /// Cached tokens.
    pub(crate) len: usize,
}

impl RowKv<'_> {
    /// Appends keys and values of `layer`, each `[tokens, kv_heads * dim]` inside rows of `stride`.
    pub(crate) fn append(&mut self, layer: usize, keys: &[f32], values: &[f32], stride: usize) {
        let shape = self.shape;
        let dim = shape.dim();
        let mut rows = keys.chunks(stride).zip(values.chunks(stride)).peekable();
        let mut at = self.len % BLOCK_TOKENS;
        for own in &mut self.own[self.len / BLOCK_TOKENS - self.table.len()..] {
            for (token, (keys, values)) in (at..BLOCK_TOKENS).zip(rows.by_ref()) {
                for head in 0..shape.kv_heads() {
                    let part = head * dim..(head + 1) * dim;
                    let to = &mut own[shape.keys(layer, head)];
                    let lane = to.iter_mut().skip(token).step_by(BLOCK_TOKENS);
                    lane.zip(&keys[part.clone()])
                        .for_each(|(to, key)| *to = *key);
                    let to = &mut own[shape.values(layer, head)];
                    to[token * dim..(token + 1) * dim].copy_from_slice(&values[part]);
                }
            }
            at = 0;
        }
        assert!(rows.peek().is_none(), "the row has blocks for its tokens");
    }

    /// The keys and values of one key head, for attention.
    pub(crate) fn head(&self, layer: usize, head: usize) -> PagedHead<'_> {
        PagedHead {
            shared: self.shared,
            table: self.table,
            own: &*self.own,
            keys: self.shape.keys(layer, head).start,
            values: self.shape.values(layer, head).start,
            dim: self.shape.dim(),
        }
    }
}

/// Paged keys and values of one key head.
#[derive(Clone, Copy)]
pub(crate) struct PagedHead<'a> {
    shared: &'a [BlockValues],
    table: &'a [BlockId],
    own: &'a [BlockValues],
    keys: usize,
    values: usize,
    dim: usize,
}

impl<'a> PagedHead<'a> {
    #[inline(always)]
    fn tile(self, plane: usize, first: usize, last: usize) -> Tile<'a> {
        let mut tile = Tile::new(BLOCK_TOKENS);
        // Tiles start at block boundaries.
        for index in first / BLOCK_TOKENS..last.div_ceil(BLOCK_TOKENS) {
            let block = match self.table.get(index) {
                Some(id) => &self.shared[id.0 as usize],
                None => &self.own[index - self.table.len()],
            };
            tile.push(&block[plane..]);
        }
        tile
    }
}

impl<'a> KeyValues<'a> for PagedHead<'a> {
    #[inline(always)]
    fn stride(self) -> usize {
        self.dim
    }

    #[inline(always)]
    fn key_steps(self) -> (usize, usize) {
        (1, BLOCK_TOKENS)
    }

    #[inline(always)]
    fn keys(self, first: usize, last: usize) -> Tile<'a> {
        self.tile(self.keys, first, last)
    }

    #[inline(always)]
    fn values(self, first: usize, last: usize) -> Tile<'a> {
        self.tile(self.values, first, last)
    }
}

/// The KV cache of one sequence outside an engine, in its own blocks.
#[derive(Debug, Clone)]
pub struct KvCache {
    shape: BlockShape,
    blocks: Vec<BlockValues>,
    len: usize,
}

impl KvCache {
    pub(crate) fn new(config: &ModelConfig) -> Self {
        Self {
            shape: BlockShape::new(config),
            blocks: Vec::new(),
            len: 0,
        }
    }

    /// Number of cached tokens.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no tokens are cached.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Drops all but the first `len` tokens; does nothing when there are fewer.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.blocks.truncate(self.len.div_ceil(BLOCK_TOKENS));
    }

    /// Its memory, with room for `tokens` more.
    pub(crate) fn row(&mut self, tokens: usize) -> RowKv<'_> {
        let blocks = (self.len + tokens).div_ceil(BLOCK_TOKENS);
        let zeros = || vec![0.0; self.shape.len()].into_boxed_slice();
        self.blocks.resize_with(blocks, zeros);
        RowKv {
            shape: self.shape,
            shared: &[],
            table: &[],
            own: &mut self.blocks,
            len: self.len,
        }
    }

    pub(crate) fn advance(&mut self, tokens: usize) {
        self.len += tokens;
    }
}
