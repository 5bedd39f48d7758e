//! Where keys and values lie: in one piece, or block by block.
//!
//! Attention works in tiles. A tile is some pieces of memory with the same number of rows in each, so that the
//! loops are the same for all, and so are the bits that come out.

use super::HeadKv;
use super::few::TILE;
use crate::cache::BLOCK_TOKENS;

/// Most pieces of a tile.
const PARTS: usize = TILE / BLOCK_TOKENS;

const _: () = assert!(TILE.is_multiple_of(BLOCK_TOKENS) && BLOCK_TOKENS.is_multiple_of(2));

/// Consecutive rows in pieces.
#[derive(Clone, Copy)]
pub(crate) struct Tile<'a> {
    parts: [&'a [f32]; PARTS],
    count: usize,
    each: usize,
}

impl<'a> Tile<'a> {
    /// A tile without pieces yet; all but the last will have `each` rows.
    #[inline(always)]
    pub(crate) fn new(each: usize) -> Self {
        Self {
            parts: [&[]; PARTS],
            count: 0,
            each,
        }
    }

    /// Adds a piece; its rows may be followed by what does not belong to it.
    #[inline(always)]
    pub(crate) fn push(&mut self, part: &'a [f32]) {
        if let Some(slot) = self.parts.get_mut(self.count) {
            *slot = part;
            self.count += 1;
        }
    }

    /// Rows of each piece but the last.
    #[inline(always)]
    pub(super) fn each(&self) -> usize {
        self.each
    }

    /// The pieces.
    #[inline(always)]
    pub(super) fn parts(&self) -> &[&'a [f32]] {
        self.parts.get(..self.count).unwrap_or_default()
    }
}

/// Keys and values of one key head. Tiles begin at multiples of their length.
pub(crate) trait KeyValues<'a>: Copy + Sync {
    /// From one row of values to the next.
    fn stride(self) -> usize;

    /// From one key to the next, and from one number of a key to the next.
    fn key_steps(self) -> (usize, usize);

    /// Keys from `first` on, `last` not among them.
    fn keys(self, first: usize, last: usize) -> Tile<'a>;

    /// Values from `first` on, `last` not among them.
    fn values(self, first: usize, last: usize) -> Tile<'a>;
}

/// One piece of rows that begins at row `first`.
#[inline(always)]
fn whole(rows: &[f32], first: usize, stride: usize) -> Tile<'_> {
    let mut tile = Tile::new(usize::MAX);
    tile.push(rows.get(first * stride..).unwrap_or_default());
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
        whole(self.keys, first, self.stride)
    }

    #[inline(always)]
    fn values(self, first: usize, _last: usize) -> Tile<'a> {
        whole(self.values, first, self.stride)
    }
}
