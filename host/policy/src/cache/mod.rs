//! The paged KV cache: keys and values of the tokens of one sequence, in blocks that sequences can share.
//!
//! A cache is a block table. Sequences with a common prefix hold the same blocks; a sequence that continues in a shared
//! block copies it first. No sequence can write to what another one reads.

mod pool;

use std::sync::Arc;

use crate::config::ModelConfig;
use crate::ops::attention::{KeyValues, Tile};

use pool::BlockRef;
pub(crate) use pool::{BLOCK_TOKENS, Block, BlockPool, BlockShape, OutOfBlocks};

/// The KV cache of one sequence. It grows as tokens are run and shrinks with [`KvCache::truncate`]; it belongs to one
/// adapter version, which its owner keeps track of. A clone shares all blocks.
#[derive(Debug)]
pub struct KvCache {
    pool: Arc<BlockPool>,
    blocks: Vec<BlockRef>,
    len: usize,
}

impl Clone for KvCache {
    fn clone(&self) -> Self {
        self.share_prefix(self.len)
    }
}

impl KvCache {
    /// An empty cache with its own unbounded pool.
    pub(crate) fn new(config: &ModelConfig) -> Self {
        Self::with_pool(&BlockPool::new(BlockShape::new(config), usize::MAX))
    }

    /// An empty cache that allocates from `pool`.
    pub(crate) fn with_pool(pool: &Arc<BlockPool>) -> Self {
        Self {
            pool: Arc::clone(pool),
            blocks: Vec::new(),
            len: 0,
        }
    }

    /// A cache of `len` tokens in these blocks of the pool.
    pub(crate) fn from_blocks(
        pool: &Arc<BlockPool>,
        blocks: impl IntoIterator<Item = Arc<Block>>,
        len: usize,
    ) -> Self {
        let blocks: Vec<BlockRef> = blocks
            .into_iter()
            .take(len.div_ceil(BLOCK_TOKENS))
            .map(BlockRef::new)
            .collect();
        Self {
            pool: Arc::clone(pool),
            len: len.min(blocks.len() * BLOCK_TOKENS),
            blocks,
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
        if len < self.len {
            self.blocks.truncate(len.div_ceil(BLOCK_TOKENS));
            self.len = len;
        }
    }

    /// Bytes of its blocks, shared ones included.
    pub fn bytes(&self) -> usize {
        self.blocks.len() * self.pool.shape().bytes()
    }

    /// A cache of the first `len` tokens that shares the blocks.
    pub(crate) fn share_prefix(&self, len: usize) -> Self {
        let len = len.min(self.len);
        let blocks = self.blocks.iter().take(len.div_ceil(BLOCK_TOKENS));
        Self {
            pool: Arc::clone(&self.pool),
            blocks: blocks.cloned().collect(),
            len,
        }
    }

    /// The block table.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &Arc<Block>> {
        self.blocks.iter().map(BlockRef::block)
    }

    /// The number of blocks that `tokens` more would allocate.
    pub(crate) fn blocks_needed(&self, tokens: usize) -> usize {
        let total_blocks = (self.len + tokens).div_ceil(BLOCK_TOKENS);
        total_blocks.saturating_sub(self.blocks.len())
            + usize::from(tokens > 0 && self.last_block_is_shared())
    }

    /// Whether the next token would be written to a shared block.
    fn last_block_is_shared(&self) -> bool {
        let last_block = self.blocks.get(self.len / BLOCK_TOKENS);
        last_block.is_some_and(|block| !block.is_unique())
    }

    /// Allocates blocks for `tokens` more and copies the last block if it is shared (copy-on-write).
    ///
    /// # Errors
    /// When the pool has too few free blocks; the cached tokens stay.
    pub(crate) fn reserve(&mut self, tokens: usize) -> Result<(), OutOfBlocks> {
        if tokens > 0 && self.last_block_is_shared() {
            let mut own = self.pool.allocate()?;
            if let Some(last_block) = self.blocks.get_mut(self.len / BLOCK_TOKENS) {
                if let Some(own) = own.values_mut() {
                    own.copy_from_slice(last_block.values());
                }
                *last_block = own;
            }
        }
        let total_blocks = (self.len + tokens).div_ceil(BLOCK_TOKENS);
        while self.blocks.len() < total_blocks {
            self.blocks.push(self.pool.allocate()?);
        }
        Ok(())
    }

    /// Appends keys and values of `layer`, each `[tokens, kv_heads * dim]` inside rows of `stride`. Blocks must be
    /// reserved for them.
    pub(crate) fn append(&mut self, layer: usize, keys: &[f32], values: &[f32], stride: usize) {
        let shape = self.pool.shape();
        let dim = shape.dim();
        let mut rows = keys.chunks(stride).zip(values.chunks(stride)).peekable();
        let mut at = self.len % BLOCK_TOKENS;
        for block in self.blocks.iter_mut().skip(self.len / BLOCK_TOKENS) {
            if rows.peek().is_none() {
                return;
            }
            // Only reserved blocks are written, and those are not shared.
            let Some(own) = block.values_mut() else {
                return;
            };
            for (token, (keys, values)) in (at..BLOCK_TOKENS).zip(rows.by_ref()) {
                for head in 0..shape.kv_heads() {
                    let part = head * dim..(head + 1) * dim;
                    let (keys, values) = (keys.get(part.clone()), values.get(part));
                    if let (Some(to), Some(keys)) = (own.get_mut(shape.keys(layer, head)), keys) {
                        let lane = to.iter_mut().skip(token).step_by(BLOCK_TOKENS);
                        lane.zip(keys).for_each(|(to, key)| *to = *key);
                    }
                    if let (Some(to), Some(values)) =
                        (own.get_mut(shape.values(layer, head)), values)
                        && let Some(to) = to.get_mut(token * dim..(token + 1) * dim)
                    {
                        to.copy_from_slice(values);
                    }
                }
            }
            at = 0;
        }
    }

    /// The keys and values of one key head, for attention.
    pub(crate) fn head(&self, layer: usize, head: usize) -> PagedHead<'_> {
        let shape = self.pool.shape();
        PagedHead {
            blocks: &self.blocks,
            keys: shape.keys(layer, head).start,
            values: shape.values(layer, head).start,
            dim: shape.dim(),
        }
    }

    /// Adds `tokens` to the length, once every layer has appended them.
    pub(crate) fn advance(&mut self, tokens: usize) {
        self.len += tokens;
    }
}

/// Paged keys and values of one key head.
#[derive(Clone, Copy)]
pub(crate) struct PagedHead<'a> {
    blocks: &'a [BlockRef],
    keys: usize,
    values: usize,
    dim: usize,
}

impl<'a> PagedHead<'a> {
    #[inline(always)]
    fn tile(self, plane: usize, first: usize, last: usize) -> Tile<'a> {
        let mut tile = Tile::new(BLOCK_TOKENS);
        // Tiles start at block boundaries.
        let blocks = self.blocks.iter().skip(first / BLOCK_TOKENS);
        for block in blocks.take((last - first).div_ceil(BLOCK_TOKENS)) {
            tile.push(block.values().get(plane..).unwrap_or_default());
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

#[cfg(test)]
mod tests;
