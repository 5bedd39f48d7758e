//! The allocator of components: a block of their initial memory first, then the standard allocator.
//!
//! The host creates a fresh instance for each call. The standard allocator takes its first page by growing the memory, which
//! is a system call before the plugin has done anything, and another one when the instance is reset; both wait for each other
//! in a process that runs many calls. Most calls fit into the block and never grow the memory. What is freed in the block is
//! used again only if it was allocated last: a call ends soon, and an instance that lives longer goes on with the standard
//! allocator.

#![allow(
    unsafe_code,
    reason = "a global allocator has an unsafe interface; each use says why it holds"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};

/// Bytes of the block.
const SIZE: usize = 64 << 10;

/// The allocator.
pub(crate) struct FirstBlock {
    bytes: UnsafeCell<Bytes>,
    /// Bytes from the start that are in use.
    used: Cell<usize>,
}

#[repr(align(16))]
struct Bytes {
    _content: [u8; SIZE],
}

// SAFETY: components have one thread; the contract has no way to start another. Tests use an allocator in one thread.
unsafe impl Sync for FirstBlock {}

impl FirstBlock {
    pub(crate) const fn new() -> FirstBlock {
        FirstBlock {
            bytes: UnsafeCell::new(Bytes {
                _content: [0; SIZE],
            }),
            used: Cell::new(0),
        }
    }

    fn start(&self) -> usize {
        self.bytes.get().addr()
    }

    /// The offset of an allocation; none if it is not in the block.
    fn offset(&self, allocated: *mut u8) -> Option<usize> {
        let offset = allocated.addr().checked_sub(self.start())?;
        (offset < SIZE).then_some(offset)
    }
}

// SAFETY: a part of the block is handed out once, aligned and within its bounds, and is handed out again only after it was
// freed; everything else is the standard allocator's.
unsafe impl GlobalAlloc for FirstBlock {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let start = self.start();
        let offset = (start + self.used.get()).next_multiple_of(layout.align()) - start;
        match offset.checked_add(layout.size()) {
            Some(end) if end <= SIZE => {
                self.used.set(end);
                // SAFETY: the offset is within the block.
                unsafe { self.bytes.get().cast::<u8>().add(offset) }
            }
            // SAFETY: the caller's promises are those of the standard allocator.
            _ => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn dealloc(&self, allocated: *mut u8, layout: Layout) {
        match self.offset(allocated) {
            Some(offset) if offset + layout.size() == self.used.get() => self.used.set(offset),
            Some(_) => {}
            // SAFETY: it is not of the block, so the standard allocator allocated it.
            None => unsafe { System.dealloc(allocated, layout) },
        }
    }

    unsafe fn realloc(&self, allocated: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some(offset) = self.offset(allocated) else {
            // SAFETY: it is not of the block, so the standard allocator allocated it.
            return unsafe { System.realloc(allocated, layout, size) };
        };
        let is_last = offset + layout.size() == self.used.get();
        if is_last && offset.checked_add(size).is_some_and(|end| end <= SIZE) {
            self.used.set(offset + size);
            return allocated;
        }
        if size <= layout.size() {
            return allocated;
        }
        // SAFETY: the caller promises that the size is valid for the alignment.
        let moved = unsafe { self.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
        if !moved.is_null() {
            // SAFETY: the new allocation is larger, and neither of both overlaps the other.
            unsafe { std::ptr::copy_nonoverlapping(allocated, moved, layout.size()) };
            // SAFETY: it was allocated here with this layout.
            unsafe { self.dealloc(allocated, layout) };
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    #[test]
    fn allocations_are_aligned_apart_and_reused_when_they_were_last() {
        let block = FirstBlock::new();
        // SAFETY: the layouts are valid, and each allocation is freed with its own.
        unsafe {
            let one = block.alloc(layout(3, 1));
            let two = block.alloc(layout(8, 8));
            assert_eq!(two.addr() % 8, 0);
            assert!(two.addr() >= one.addr() + 3);
            one.write_bytes(1, 3);
            two.write_bytes(2, 8);
            assert_eq!(one.read(), 1);
            // The last one grows in place; another one moves and keeps its content.
            assert_eq!(block.realloc(two, layout(8, 8), 64), two);
            let moved = block.realloc(one, layout(3, 1), 100);
            assert!(moved != one && moved.read() == 1 && two.read() == 2);
            block.dealloc(moved, layout(100, 1));
            assert_eq!(block.alloc(layout(1, 1)), moved);
        }
    }

    #[test]
    fn what_does_not_fit_is_of_the_standard_allocator() {
        let block = FirstBlock::new();
        // SAFETY: the layouts are valid, and each allocation is freed with its own.
        unsafe {
            let large = block.alloc(layout(SIZE + 1, 1));
            assert_eq!(block.offset(large), None);
            block.dealloc(large, layout(SIZE + 1, 1));
            let most = block.alloc(layout(SIZE - 8, 1));
            assert!(block.offset(most).is_some());
            let other = block.alloc(layout(16, 16));
            assert_eq!(block.offset(other), None);
            block.dealloc(other, layout(16, 16));
            // It leaves the block when it grows beyond it.
            most.write(7);
            let grown = block.realloc(most, layout(SIZE - 8, 1), SIZE + 8);
            assert_eq!((block.offset(grown), grown.read()), (None, 7));
            block.dealloc(grown, layout(SIZE + 8, 1));
        }
    }
}
