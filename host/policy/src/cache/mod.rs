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
                if let Some(own) = own.values_mut() {
                    own.copy_from_slice(border.values());
                }
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
        let mut rows = keys.chunks(stride).zip(values.chunks(stride)).peekable();
        let mut at = self.len % BLOCK_TOKENS;
        for block in self.blocks.iter_mut().skip(self.len / BLOCK_TOKENS) {
            if rows.peek().is_none() {
                return;
            }
            // Only a reserved block is written, and that nobody else reads.
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
