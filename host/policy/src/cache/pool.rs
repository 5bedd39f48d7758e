//! The blocks that attention memory is made of, and the pool that bounds them.
//!
//! A block holds the keys and values of [`BLOCK_TOKENS`] consecutive tokens, all layers together. Whoever reads
//! one holds it; the last who lets go hands its memory back for the next, so that what the process takes stays
//! flat. The pool counts, it refuses to decide who gets a block.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::config::ModelConfig;

/// Tokens of a block. Divides the tiles that attention works in, so that a tile is whole blocks.
pub(crate) const BLOCK_TOKENS: usize = 32;

/// Sizes of a block. Keys of one layer and key head lie together, the same number of all tokens side by side
/// (`[dim, tokens]`), and its values behind them, token by token (`[tokens, dim]`).
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

    /// Values of one head's keys, and as many of its values.
    fn plane(self) -> usize {
        BLOCK_TOKENS * self.dim
    }

    /// Where the keys of a head begin; its values begin one plane later.
    pub(crate) fn keys(self, layer: usize, head: usize) -> Range<usize> {
        let at = (layer * self.kv_heads + head) * 2 * self.plane();
        at..at + self.plane()
    }

    /// Where the values of a head begin.
    pub(crate) fn values(self, layer: usize, head: usize) -> Range<usize> {
        let keys = self.keys(layer, head);
        keys.end..keys.end + self.plane()
    }

    fn len(self) -> usize {
        self.layers * self.kv_heads * 2 * self.plane()
    }

    /// Bytes of a block.
    pub(crate) fn bytes(self) -> usize {
        self.len() * size_of::<f32>()
    }
}

/// There is no block left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exhausted;

/// Blocks of one shape, at most `capacity` of them in use at a time.
#[derive(Debug)]
pub(crate) struct Pool {
    shape: BlockShape,
    capacity: usize,
    /// Memory of blocks that nobody uses.
    spare: Mutex<Vec<Box<[f32]>>>,
    /// Blocks in use: held or kept.
    used: AtomicUsize,
    /// Blocks that some cache holds.
    held: AtomicUsize,
    /// Blocks that more than one cache holds.
    shared: AtomicUsize,
}

impl Pool {
    /// A pool of `capacity` blocks, none of which takes memory yet.
    pub(crate) fn new(shape: BlockShape, capacity: usize) -> Arc<Self> {
        Arc::new(Self {
            shape,
            capacity,
            spare: Mutex::default(),
            used: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            shared: AtomicUsize::new(0),
        })
    }

    pub(crate) fn shape(&self) -> BlockShape {
        self.shape
    }

    /// Blocks that can be taken.
    pub(crate) fn free(&self) -> usize {
        self.capacity
            .saturating_sub(self.used.load(Ordering::Relaxed))
    }

    /// Blocks that caches hold.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Blocks that more than one cache holds.
    pub(crate) fn shared(&self) -> usize {
        self.shared.load(Ordering::Relaxed)
    }

    /// Blocks in use that no cache holds.
    pub(crate) fn kept(&self) -> usize {
        let used = self.used.load(Ordering::Relaxed);
        used.saturating_sub(self.held())
    }

    /// A block whose content is left over from whoever had it before.
    pub(super) fn take(self: &Arc<Self>) -> Result<Held, Exhausted> {
        let more = |used: usize| (used < self.capacity).then_some(used + 1);
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .map_err(|_| Exhausted)?;
        let spare = self.spare().pop();
        let values = spare.unwrap_or_else(|| vec![0.0; self.shape.len()].into_boxed_slice());
        Ok(Held::new(Arc::new(Block {
            values,
            holders: AtomicUsize::new(0),
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
    /// Caches that hold it.
    holders: AtomicUsize,
    pool: Arc<Pool>,
}

impl Block {
    /// Whether some cache holds it.
    pub(crate) fn is_held(&self) -> bool {
        self.holders.load(Ordering::Relaxed) > 0
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let values = std::mem::take(&mut self.values);
        self.pool.spare().push(values);
        self.pool.used.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A block in the table of a cache. What is kept for later is a plain [`Arc`] of the block instead: that is how
/// the pool tells them apart.
#[derive(Debug)]
pub(super) struct Held(Arc<Block>);

impl Held {
    pub(super) fn new(block: Arc<Block>) -> Self {
        match block.holders.fetch_add(1, Ordering::Relaxed) {
            0 => block.pool.held.fetch_add(1, Ordering::Relaxed),
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

    /// Whether nobody else reads it.
    pub(super) fn is_own(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Its values, to be written; none while somebody else reads them.
    pub(super) fn values_mut(&mut self) -> Option<&mut [f32]> {
        Arc::get_mut(&mut self.0).map(|block| &mut *block.values)
    }
}

impl Clone for Held {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.0))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        match self.0.holders.fetch_sub(1, Ordering::Relaxed) {
            1 => self.0.pool.held.fetch_sub(1, Ordering::Relaxed),
            2 => self.0.pool.shared.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
    }
}
