//! Prefetches memory that is about to be read.

#![allow(
    unsafe_code,
    reason = "the instruction takes a raw pointer; it has no effect that the program could observe"
)]

/// f32 values per cache line.
const LINE: usize = 16;

/// Prefetches these values. Pass only a few lines at a time: outstanding prefetches are limited.
#[inline(always)]
pub(crate) fn prefetch(values: &[f32]) {
    for line in values.chunks(LINE) {
        fetch(line.as_ptr());
    }
}

#[inline(always)]
fn fetch(line: *const f32) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch of any address is allowed and changes nothing; the instruction is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _fetched_when_read = line;
}
