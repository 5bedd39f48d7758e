//! Device memory that is kept after it is freed, because the driver takes milliseconds to map large allocations and every
//! training step needs the same ones. What is kept is given back before the pool grows, so that buffers which grew with
//! longer and longer passes do not add up.

use std::collections::{BTreeMap, HashMap};

use cudarc::driver::{DriverError, result as cu};

/// Sizes up to this are powers of two, larger ones multiples of it.
const LARGE: usize = 2 << 20;
/// The smallest allocation; the driver aligns to this.
const SMALLEST: usize = 512;

/// Allocations of a device, in use or kept.
#[derive(Debug, Default)]
pub(super) struct MemoryPool {
    /// Bytes of every allocation.
    sizes: HashMap<u64, usize>,
    /// Allocations that no work uses, by size.
    ready: BTreeMap<usize, Vec<u64>>,
    /// Freed allocations that work under way may still use.
    freed: Vec<u64>,
    /// Bytes of `ready` and `freed`.
    kept: usize,
}

fn rounded(bytes: usize) -> usize {
    match bytes {
        0..=LARGE => bytes.next_power_of_two().max(SMALLEST),
        _ => bytes.next_multiple_of(LARGE),
    }
}

impl MemoryPool {
    /// Bytes that are kept and not in use.
    pub(super) fn kept(&self) -> usize {
        self.kept
    }

    /// Memory for this many bytes, which another use may have had.
    ///
    /// # Errors
    /// The device has none left, also when all that is kept is given back.
    ///
    /// # Safety
    /// The context of the device is current on this thread.
    pub(super) unsafe fn allocate(&mut self, bytes: usize) -> Result<u64, DriverError> {
        let size = rounded(bytes);
        if let Some(at) = self.take(size) {
            return Ok(at);
        }
        if !self.freed.is_empty() {
            self.settle()?;
            if let Some(at) = self.take(size) {
                return Ok(at);
            }
        }
        for kept in self.take_largest(size) {
            self.sizes.remove(&kept);
            // SAFETY: the caller's; nothing uses the allocation.
            unsafe { cu::free_sync(kept) }?;
        }
        // SAFETY: the caller's.
        let at = match unsafe { cu::malloc_sync(size) } {
            Ok(at) => at,
            Err(_) if self.kept > 0 => {
                // SAFETY: the caller's.
                unsafe {
                    self.release()?;
                    cu::malloc_sync(size)?
                }
            }
            Err(error) => return Err(error),
        };
        self.sizes.insert(at, size);
        Ok(at)
    }

    /// A kept allocation of at least this size, and at most a quarter more.
    fn take(&mut self, size: usize) -> Option<u64> {
        let (&found, addresses) = self.ready.range_mut(size..=size + size / 4).next()?;
        let at = addresses.pop()?;
        if addresses.is_empty() {
            self.ready.remove(&found);
        }
        self.kept -= found;
        Some(at)
    }

    /// Allocations that are ready, the largest first, until they have this size together.
    fn take_largest(&mut self, size: usize) -> Vec<u64> {
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while bytes < size
            && let Some(mut largest) = self.ready.last_entry()
        {
            let found = *largest.key();
            taken.extend(largest.get_mut().pop());
            if largest.get().is_empty() {
                largest.remove();
            }
            bytes += found;
        }
        self.kept -= bytes;
        taken
    }

    /// Keeps an allocation. Work under way may still use it.
    pub(super) fn free(&mut self, at: u64) {
        self.kept += self.sizes[&at];
        self.freed.push(at);
    }

    /// Waits for all work of the device, after which nothing uses what was freed.
    fn settle(&mut self) -> Result<(), DriverError> {
        cu::ctx::synchronize()?;
        for at in self.freed.drain(..) {
            self.ready.entry(self.sizes[&at]).or_default().push(at);
        }
        Ok(())
    }

    /// Gives everything that is kept back to the driver.
    ///
    /// # Errors
    /// The device does not work any more.
    ///
    /// # Safety
    /// The context of the device is current on this thread.
    pub(super) unsafe fn release(&mut self) -> Result<(), DriverError> {
        self.settle()?;
        for at in std::mem::take(&mut self.ready).into_values().flatten() {
            self.sizes.remove(&at);
            // SAFETY: the caller's; nothing uses the allocation.
            unsafe { cu::free_sync(at) }?;
        }
        self.kept = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_to_few_different_ones() {
        let cases = [
            (0, 512),
            (513, 1024),
            (LARGE, LARGE),
            (LARGE + 1, 2 * LARGE),
            (5 * LARGE, 5 * LARGE),
        ];
        for (bytes, size) in cases {
            assert_eq!(rounded(bytes), size);
        }
    }

    #[test]
    fn the_largest_that_are_kept_make_room() {
        let mut pool = MemoryPool::default();
        for (at, size) in [(1, 4), (2, 7), (3, 7), (4, 1)] {
            pool.ready.entry(size * LARGE).or_default().push(at);
            pool.kept += size * LARGE;
        }
        assert_eq!(pool.take_largest(8 * LARGE), [3, 2]);
        assert_eq!(pool.kept(), 5 * LARGE);
        assert_eq!(pool.take_largest(100 * LARGE), [1, 4]);
        assert_eq!((pool.kept(), pool.ready.len()), (0, 0));
        assert!(pool.take_largest(LARGE).is_empty());
    }

    #[test]
    fn an_allocation_serves_sizes_that_are_little_smaller() {
        let mut pool = MemoryPool::default();
        pool.sizes.insert(1, 10 * LARGE);
        pool.ready.insert(10 * LARGE, vec![1]);
        pool.kept = 10 * LARGE;
        assert_eq!(pool.take(7 * LARGE), None);
        assert_eq!(pool.take(9 * LARGE), Some(1));
        assert_eq!((pool.kept(), pool.ready.len()), (0, 0));
        // Freed memory is not handed out before the work that uses it has ended.
        pool.free(1);
        assert_eq!(pool.kept(), 10 * LARGE);
        assert_eq!(pool.take(10 * LARGE), None);
    }
}
