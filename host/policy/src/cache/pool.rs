//! The blocks of the KV cache, and the pool that bounds their number.
//!
//! A block holds the keys and values of [`BLOCK_TOKENS`] consecutive tokens for all layers. Blocks are reference
//! counted; the memory of a freed block is reused for the next one, so the memory of the process stays flat. The pool
//! only counts; the engine decides who gets a block.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::config::ModelConfig;

/// Tokens per block. Divides the tile size of attention, so that a tile is whole blocks.
pub(crate) const BLOCK_TOKENS: usize = 32;

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

    fn len(self) -> usize {
        self.layers * self.kv_heads * 2 * self.plane()
    }

    /// Bytes per block.
    pub(crate) fn bytes(self) -> usize {
        self.len() * size_of::<f32>()
    }
}

/// The pool has no free block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutOfBlocks;

/// Blocks of one shape, at most `capacity` of them in use.
#[derive(Debug)]
pub(crate) struct BlockPool {
    shape: BlockShape,
    capacity: usize,
    /// Memory of freed blocks, for reuse.
    spare: Mutex<Vec<Box<[f32]>>>,
    /// Blocks in use: active or cached.
    used: AtomicUsize,
    /// Blocks in the block table of at least one cache.
    active: AtomicUsize,
    /// Blocks in more than one block table.
    shared: AtomicUsize,
}

impl BlockPool {
    /// A pool of `capacity` blocks; memory is allocated on first use.
    pub(crate) fn new(shape: BlockShape, capacity: usize) -> Arc<Self> {
        Arc::new(Self {
            shape,
            capacity,
            spare: Mutex::default(),
            used: AtomicUsize::new(0),
            active: AtomicUsize::new(0),
            shared: AtomicUsize::new(0),
        })
    }

    pub(crate) fn shape(&self) -> BlockShape {
        self.shape
    }

    /// Number of free blocks.
    pub(crate) fn free(&self) -> usize {
        self.capacity
            .saturating_sub(self.used.load(Ordering::Relaxed))
    }

    /// Number of blocks in a block table.
    pub(crate) fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// Number of blocks in more than one block table.
    pub(crate) fn shared(&self) -> usize {
        self.shared.load(Ordering::Relaxed)
    }

    /// Number of blocks in use by the prefix cache only.
    pub(crate) fn cached(&self) -> usize {
        let used = self.used.load(Ordering::Relaxed);
        used.saturating_sub(self.active())
    }

    /// Allocates a block; its content is undefined.
    pub(super) fn allocate(self: &Arc<Self>) -> Result<BlockRef, OutOfBlocks> {
        let increment = |used: usize| (used < self.capacity).then_some(used + 1);
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, increment)
            .map_err(|_| OutOfBlocks)?;
        let spare = self.spare().pop();
        let values = spare.unwrap_or_else(|| vec![0.0; self.shape.len()].into_boxed_slice());
        Ok(BlockRef::new(Arc::new(Block {
            values,
            ref_count: AtomicUsize::new(0),
            pool: Arc::clone(self),
        })))
    }

    pub(super) fn spare(&self) -> std::sync::MutexGuard<'_, Vec<Box<[f32]>>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keys and values of [`BLOCK_TOKENS`] tokens.
#[derive(Debug)]
pub(crate) struct Block {
    values: Box<[f32]>,
    /// Number of block tables that contain it.
    ref_count: AtomicUsize,
    pool: Arc<BlockPool>,
}

impl Block {
    /// Whether a block table contains it.
    pub(crate) fn is_active(&self) -> bool {
        self.ref_count.load(Ordering::Relaxed) > 0
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let values = std::mem::take(&mut self.values);
        self.pool.spare().push(values);
        self.pool.used.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A block in a block table. The prefix cache holds a plain [`Arc`] of the block instead; that is how the pool tells
/// active from cached blocks.
#[derive(Debug)]
pub(super) struct BlockRef(Arc<Block>);

impl BlockRef {
    pub(super) fn new(block: Arc<Block>) -> Self {
        match block.ref_count.fetch_add(1, Ordering::Relaxed) {
            0 => block.pool.active.fetch_add(1, Ordering::Relaxed),
            1 => block.pool.shared.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        Self(block)
    }

    pub(super) fn block(&self) -> &Arc<Block> {
        &self.0
    }

    #[inline(always)]
    pub(super) fn values(&self) -> &[f32] {
        &self.0.values
    }

    /// Whether there is no other reference.
    pub(super) fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Mutable access to its values; none while the block is shared.
    pub(super) fn values_mut(&mut self) -> Option<&mut [f32]> {
        Arc::get_mut(&mut self.0).map(|block| &mut *block.values)
    }
}

impl Clone for BlockRef {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.0))
    }
}

impl Drop for BlockRef {
    fn drop(&mut self) {
        match self.0.ref_count.fetch_sub(1, Ordering::Relaxed) {
            1 => self.0.pool.active.fetch_sub(1, Ordering::Relaxed),
            2 => self.0.pool.shared.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
    }
}
