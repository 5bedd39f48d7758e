//! The KV-cache blocks of a runner, and how many there are. The memory behind the ids is the backend's.
//!
//! Blocks are reference counted; the id of a freed block is used for the next one. The pool only counts; the scheduler
//! decides who gets a block.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::backend::BlockId;

/// The pool has no free block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutOfBlocks;

/// At most `capacity` blocks in use.
#[derive(Debug)]
pub(crate) struct BlockPool {
    capacity: usize,
    /// Ids of freed blocks. All ids that were used are below the sum of this list and `used`.
    freed: Mutex<Vec<BlockId>>,
    /// Blocks in use: active or cached.
    used: AtomicUsize,
    /// Blocks in the block table of at least one cache.
    active: AtomicUsize,
    /// Blocks in more than one block table.
    shared: AtomicUsize,
}

impl BlockPool {
    /// A pool of the blocks `0..capacity`.
    pub(crate) fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self {
            capacity,
            freed: Mutex::default(),
            used: AtomicUsize::new(0),
            active: AtomicUsize::new(0),
            shared: AtomicUsize::new(0),
        })
    }

    /// Number of blocks in the pool.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Number of free blocks.
    pub(crate) fn free(&self) -> usize {
        self.capacity - self.used.load(Ordering::Relaxed)
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
        self.used.load(Ordering::Relaxed) - self.active()
    }

    /// Allocates a block; its content is undefined.
    pub(crate) fn allocate(self: &Arc<Self>) -> Result<BlockRef, OutOfBlocks> {
        let mut freed = self.freed();
        let used = self.used.load(Ordering::Relaxed);
        if used >= self.capacity {
            return Err(OutOfBlocks);
        }
        let id = freed.pop().unwrap_or_else(|| {
            let id = u32::try_from(used).expect("a pool has fewer than 2^32 blocks");
            BlockId(id)
        });
        self.used.store(used + 1, Ordering::Relaxed);
        drop(freed);
        Ok(BlockRef::new(Arc::new(Block {
            id,
            ref_count: AtomicUsize::new(0),
            pool: Arc::clone(self),
        })))
    }

    fn freed(&self) -> std::sync::MutexGuard<'_, Vec<BlockId>> {
        self.freed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A block that is in use.
#[derive(Debug)]
pub(crate) struct Block {
    id: BlockId,
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
        let mut freed = self.pool.freed();
        freed.push(self.id);
        self.pool.used.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A block in a block table. The prefix cache holds a plain [`Arc`] of the block instead; that is how the pool tells
/// active from cached blocks.
#[derive(Debug)]
pub(crate) struct BlockRef(Arc<Block>);

impl BlockRef {
    pub(crate) fn new(block: Arc<Block>) -> Self {
        match block.ref_count.fetch_add(1, Ordering::Relaxed) {
            0 => block.pool.active.fetch_add(1, Ordering::Relaxed),
            1 => block.pool.shared.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        Self(block)
    }

    pub(crate) fn block(&self) -> &Arc<Block> {
        &self.0
    }

    pub(crate) fn id(&self) -> BlockId {
        self.0.id
    }

    /// Whether there is no other reference.
    pub(crate) fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1
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
