//! The block table of one sequence: which KV-cache blocks hold its tokens.
//!
//! Sequences with a common prefix hold the same blocks; a sequence that continues in a shared block takes a copy of it
//! first. No sequence writes to what another one reads.

use std::sync::Arc;

use crate::backend::{BLOCK_TOKENS, BlockId};
use crate::block_pool::{Block, BlockPool, BlockRef, OutOfBlocks};

/// The block table of one sequence. It grows as tokens are run; it belongs to one adapter version, which its owner keeps
/// track of.
#[derive(Debug)]
pub(crate) struct BlockTable {
    pool: Arc<BlockPool>,
    blocks: Vec<BlockRef>,
    /// The ids of `blocks`.
    ids: Vec<BlockId>,
    len: usize,
}

/// A block to copy to another, before either is written.
pub(crate) type BlockCopy = (BlockId, BlockId);

impl BlockTable {
    /// An empty table that allocates from `pool`.
    pub(crate) fn new(pool: &Arc<BlockPool>) -> Self {
        Self::with_blocks(pool, Vec::new(), 0)
    }

    /// A table of `len` tokens in these blocks of the pool.
    pub(crate) fn from_blocks(
        pool: &Arc<BlockPool>,
        blocks: impl IntoIterator<Item = Arc<Block>>,
        len: usize,
    ) -> Self {
        Self::with_blocks(pool, blocks.into_iter().map(BlockRef::new).collect(), len)
    }

    fn with_blocks(pool: &Arc<BlockPool>, blocks: Vec<BlockRef>, len: usize) -> Self {
        assert_eq!(
            blocks.len(),
            len.div_ceil(BLOCK_TOKENS),
            "the blocks hold {len} tokens"
        );
        Self {
            pool: Arc::clone(pool),
            ids: blocks.iter().map(BlockRef::id).collect(),
            blocks,
            len,
        }
    }

    /// Number of cached tokens.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether no tokens are cached.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Drops all but the first `len` tokens; does nothing when there are fewer.
    pub(crate) fn truncate(&mut self, len: usize) {
        if len < self.len {
            self.blocks.truncate(len.div_ceil(BLOCK_TOKENS));
            self.ids.truncate(self.blocks.len());
            self.len = len;
        }
    }

    /// A table of the first `len` tokens that shares the blocks.
    pub(crate) fn share_prefix(&self, len: usize) -> Self {
        let blocks = &self.blocks[..len.div_ceil(BLOCK_TOKENS)];
        Self::with_blocks(&self.pool, blocks.to_vec(), len)
    }

    /// The blocks.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &Arc<Block>> {
        self.blocks.iter().map(BlockRef::block)
    }

    /// The ids of the blocks.
    pub(crate) fn ids(&self) -> &[BlockId] {
        &self.ids
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

    /// Allocates blocks for `tokens` more. If the last block is shared, replaces it with a new one and appends the copy
    /// to make to `copies` (copy-on-write).
    ///
    /// # Errors
    /// When the pool has too few free blocks; the cached tokens stay.
    pub(crate) fn reserve(
        &mut self,
        tokens: usize,
        copies: &mut Vec<BlockCopy>,
    ) -> Result<(), OutOfBlocks> {
        if tokens > 0 && self.last_block_is_shared() {
            let own = self.pool.allocate()?;
            let last = self.len / BLOCK_TOKENS;
            copies.push((self.ids[last], own.id()));
            self.ids[last] = own.id();
            self.blocks[last] = own;
        }
        let total_blocks = (self.len + tokens).div_ceil(BLOCK_TOKENS);
        while self.blocks.len() < total_blocks {
            let block = self.pool.allocate()?;
            self.ids.push(block.id());
            self.blocks.push(block);
        }
        Ok(())
    }

    /// Adds `tokens` to the length, once they have run.
    pub(crate) fn advance(&mut self, tokens: usize) {
        self.len += tokens;
        assert!(
            self.len <= self.blocks.len() * BLOCK_TOKENS,
            "blocks are reserved before tokens run"
        );
    }
}

#[cfg(test)]
#[path = "block_table_tests.rs"]
mod tests;
