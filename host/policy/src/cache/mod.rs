//! Keys and values of the tokens that one row has seen, in blocks that rows can share.
//!
//! A cache is a table of blocks. Rows that begin alike hold the same blocks; whoever goes on in a block that
//! somebody else reads too gets its own copy of it first. Nobody can write what another one reads.

mod pool;

use std::sync::Arc;

use crate::config::ModelConfig;
use crate::ops::attention::{KeyValues, Tile};

use pool::Held;
pub(crate) use pool::{BLOCK_TOKENS, Block, BlockShape, Exhausted, Pool};

/// The attention memory of one conversation. Grows as tokens are run and shrinks with
/// [`KvCache::truncate`]; belongs to one adapter version, which its holder keeps track of. A clone shares
/// what both have in common.
#[derive(Debug)]
pub struct KvCache {
    pool: Arc<Pool>,
    blocks: Vec<Held>,
    len: usize,
}

impl Clone for KvCache {
    fn clone(&self) -> Self {
        self.share(self.len)
    }
}

impl KvCache {
    /// An empty cache with memory of its own, as much as it needs.
    pub(crate) fn new(config: &ModelConfig) -> Self {
        Self::within(&Pool::new(BlockShape::new(config), usize::MAX))
    }

    /// An empty cache in a pool.
    pub(crate) fn within(pool: &Arc<Pool>) -> Self {
        Self {
            pool: Arc::clone(pool),
            blocks: Vec::new(),
            len: 0,
        }
    }

    /// A cache of `len` tokens that lie in these blocks of the pool.
    pub(crate) fn of(
        pool: &Arc<Pool>,
        blocks: impl IntoIterator<Item = Arc<Block>>,
        len: usize,
    ) -> Self {
        let blocks: Vec<Held> = blocks
            .into_iter()
            .take(len.div_ceil(BLOCK_TOKENS))
            .map(Held::new)
            .collect();
        Self {
            pool: Arc::clone(pool),
            len: len.min(blocks.len() * BLOCK_TOKENS),
            blocks,
        }
    }

    /// Tokens remembered.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets all but the first `len` tokens; does nothing when fewer are remembered.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len {
            self.blocks.truncate(len.div_ceil(BLOCK_TOKENS));
            self.len = len;
        }
    }

    /// Bytes of the blocks that it holds, shared ones included.
    pub fn bytes(&self) -> usize {
        self.blocks.len() * self.pool.shape().bytes()
    }

    /// A cache of the first `len` tokens, in the same blocks.
    pub(crate) fn share(&self, len: usize) -> Self {
        let len = len.min(self.len);
        let blocks = self.blocks.iter().take(len.div_ceil(BLOCK_TOKENS));
        Self {
            pool: Arc::clone(&self.pool),
            blocks: blocks.cloned().collect(),
            len,
        }
    }

    /// Its blocks, in order.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &Arc<Block>> {
        self.blocks.iter().map(Held::block)
    }

    /// Blocks that `tokens` more would take from the pool.
    pub(crate) fn missing(&self, tokens: usize) -> usize {
        let wanted = (self.len + tokens).div_ceil(BLOCK_TOKENS);
        wanted.saturating_sub(self.blocks.len())
            + usize::from(tokens > 0 && self.border_is_shared())
    }

    /// Whether the next token goes into a block that somebody else reads.
    fn border_is_shared(&self) -> bool {
        let border = self.blocks.get(self.len / BLOCK_TOKENS);
        border.is_some_and(|block| !block.is_own())
    }

    /// Makes room for `tokens` more.
    ///
    /// # Errors
    /// When the pool has too few blocks; what was there stays.
    pub(crate) fn reserve(&mut self, tokens: usize) -> Result<(), Exhausted> {
        if tokens > 0 && self.border_is_shared() {
            let mut own = self.pool.take()?;
            if let Some(border) = self.blocks.get_mut(self.len / BLOCK_TOKENS) {
                let taken = self.len % BLOCK_TOKENS * self.pool.shape().dim();
                copy_tokens(&mut own, border, taken, self.pool.shape());
                *border = own;
            }
        }
        let wanted = (self.len + tokens).div_ceil(BLOCK_TOKENS);
        while self.blocks.len() < wanted {
            self.blocks.push(self.pool.take()?);
        }
        Ok(())
    }

    /// Writes keys and values of `layer` behind what is remembered, each `[tokens, kv_heads * dim]` inside rows of
    /// `stride`. There must be room for them.
    pub(crate) fn append(&mut self, layer: usize, keys: &[f32], values: &[f32], stride: usize) {
        let shape = self.pool.shape();
        let dim = shape.dim();
        let mut rows = keys.chunks(stride).zip(values.chunks(stride));
        let mut at = self.len % BLOCK_TOKENS;
        for block in self.blocks.iter_mut().skip(self.len / BLOCK_TOKENS) {
            // Only a reserved block is written, and that nobody else reads.
            let Some(own) = block.values_mut() else {
                return;
            };
            let fits = BLOCK_TOKENS - at;
            for (token, (keys, values)) in (at..).zip(rows.by_ref().take(fits)) {
                for head in 0..shape.kv_heads() {
                    for (plane, row) in [
                        (shape.keys(layer, head), keys),
                        (shape.values(layer, head), values),
                    ] {
                        let to = own
                            .get_mut(plane)
                            .and_then(|plane| plane.get_mut(token * dim..(token + 1) * dim));
                        let from = row.get(head * dim..(head + 1) * dim);
                        if let (Some(to), Some(from)) = (to, from) {
                            to.copy_from_slice(from);
                        }
                    }
                }
            }
            at = 0;
        }
    }

    /// What attention reads of one key head.
    pub(crate) fn head(&self, layer: usize, head: usize) -> PagedHead<'_> {
        let shape = self.pool.shape();
        PagedHead {
            blocks: &self.blocks,
            keys: shape.keys(layer, head).start,
            values: shape.values(layer, head).start,
            dim: shape.dim(),
        }
    }

    /// Counts `tokens` more, once every layer has appended them.
    pub(crate) fn advance(&mut self, tokens: usize) {
        self.len += tokens;
    }
}

/// Copies the first `taken` values of each head's keys and values.
fn copy_tokens(to: &mut Held, from: &Held, taken: usize, shape: BlockShape) {
    let plane = shape.keys(0, 0).len().max(1);
    let Some(to) = to.values_mut() else { return };
    let planes = to.chunks_mut(plane).zip(from.values().chunks(plane));
    for (to, from) in planes {
        if let (Some(to), Some(from)) = (to.get_mut(..taken), from.get(..taken)) {
            to.copy_from_slice(from);
        }
    }
}

/// Keys and values of one key head, block by block.
#[derive(Clone, Copy)]
pub(crate) struct PagedHead<'a> {
    blocks: &'a [Held],
    keys: usize,
    values: usize,
    dim: usize,
}

impl<'a> PagedHead<'a> {
    #[inline(always)]
    fn tile(self, plane: usize, first: usize, last: usize) -> Tile<'a> {
        let mut tile = Tile::new(BLOCK_TOKENS);
        // Tiles begin where blocks do.
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
