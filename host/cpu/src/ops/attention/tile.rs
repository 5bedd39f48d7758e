//! Access to keys and values, whether contiguous or in blocks.
//!
//! Attention works in tiles. A tile consists of parts with the same number of rows each, so that the loops, and
//! therefore the resulting bits, are the same for both layouts.

use super::shape::HeadKv;
use clawhost_engine::backend::BLOCK_TOKENS;

/// Rows of values per tile: how many terms are summed before they are added to the result, which limits rounding
/// errors.
pub(super) const TILE: usize = 128;

/// Maximum number of parts per tile.
const PARTS: usize = TILE / BLOCK_TOKENS;

const _: () = assert!(TILE.is_multiple_of(BLOCK_TOKENS) && BLOCK_TOKENS.is_multiple_of(2));

/// Consecutive rows in parts.
#[derive(Clone, Copy)]
pub(crate) struct Tile<'a> {
    parts: [&'a [f32]; PARTS],
    count: usize,
    each: usize,
}

impl<'a> Tile<'a> {
    /// An empty tile; every part but the last will have `each` rows.
    #[inline(always)]
    pub(crate) fn new(each: usize) -> Self {
        Self {
            parts: [&[]; PARTS],
            count: 0,
            each,
        }
    }

    /// Adds a part; data after its rows is ignored.
    #[inline(always)]
    pub(crate) fn push(&mut self, part: &'a [f32]) {
        self.parts[self.count] = part;
        self.count += 1;
    }

    /// Rows per part, except the last.
    #[inline(always)]
    pub(super) fn each(&self) -> usize {
        self.each
    }

    /// The parts.
    #[inline(always)]
    pub(super) fn parts(&self) -> &[&'a [f32]] {
        &self.parts[..self.count]
    }
}

/// Keys and values of one key head. Tiles begin at multiples of their length.
pub(crate) trait KeyValues<'a>: Copy + Sync {
    /// Distance from one row of values to the next.
    fn stride(self) -> usize;

    /// Distance from one key to the next, and from one value of a key to the next.
    fn key_steps(self) -> (usize, usize);

    /// The keys `first..last`.
    fn keys(self, first: usize, last: usize) -> Tile<'a>;

    /// The values `first..last`.
    fn values(self, first: usize, last: usize) -> Tile<'a>;
}

/// A tile of one part that starts at row `first`.
#[inline(always)]
fn contiguous_tile(rows: &[f32], first: usize, stride: usize) -> Tile<'_> {
    let mut tile = Tile::new(usize::MAX);
    tile.push(&rows[first * stride..]);
    tile
}

impl<'a> KeyValues<'a> for HeadKv<'a> {
    #[inline(always)]
    fn stride(self) -> usize {
        self.stride
    }

    #[inline(always)]
    fn key_steps(self) -> (usize, usize) {
        (self.stride, 1)
    }

    #[inline(always)]
    fn keys(self, first: usize, _last: usize) -> Tile<'a> {
        contiguous_tile(self.keys, first, self.stride)
    }

    #[inline(always)]
    fn values(self, first: usize, _last: usize) -> Tile<'a> {
        contiguous_tile(self.values, first, self.stride)
    }
}
