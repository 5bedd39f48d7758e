//! The sequences of a pass, and the lists that its kernels read.

use std::ops::Range;
use std::sync::Arc;

use clawhost_engine::backend::{AdapterSlot, BLOCK_TOKENS, Row};

use crate::adapters::DeviceAdapter;
use crate::attention::{self, HeadShape, Tiles};
use crate::inputs::{List, Lists};
use crate::weights::DeviceModel;

/// A row and its weights.
pub(super) struct LoadedRow<'a> {
    pub(super) index: usize,
    pub(super) row: &'a Row<'a>,
    /// A full copy of the model that the row runs on.
    pub(super) copy: Option<(AdapterSlot, Arc<DeviceModel>)>,
    pub(super) adapter: Option<Arc<DeviceAdapter>>,
}

/// The lists of one pass.
pub(super) struct StepLists {
    pub(super) tokens: List,
    pub(super) positions: List,
    pub(super) slots: List,
    pub(super) starts: List,
    pub(super) past: List,
    pub(super) tables: List,
    pub(super) table_stride: usize,
    pub(super) ends: List,
    pub(super) lora_slots: List,
    pub(super) lora_ends: List,
    pub(super) tiles: [(List, usize); 3],
    pub(super) token_count: usize,
    pub(super) row_count: usize,
}

/// A sequence of a pass: its tokens after `past` cached ones, and its blocks.
pub(super) struct PassRow<'a> {
    pub(super) tokens: &'a [u32],
    pub(super) past: usize,
    pub(super) blocks: Vec<i32>,
    /// Index in the table of adapters; negative for none.
    pub(super) lora: i32,
}

/// The sequences of a pass, with padding rows at the end, which write to the spare block.
pub(super) fn pass_rows<'a>(
    rows: &[LoadedRow<'a>],
    slots: &[AdapterSlot],
    (padded, spare_block): (usize, usize),
) -> Vec<PassRow<'a>> {
    let lora = |row: &LoadedRow<'_>| {
        let index = slots.iter().position(|slot| *slot == row.row.slot);
        index
            .filter(|_| row.adapter.is_some())
            .map_or(-1, |index| i32::try_from(index).expect("few adapters"))
    };
    let block = |id: u32| i32::try_from(id).expect("a block that was allocated");
    let mut pass: Vec<PassRow<'a>> = rows
        .iter()
        .map(|row| {
            let count = (row.row.computed + row.row.tokens.len()).div_ceil(BLOCK_TOKENS);
            let blocks = row.row.blocks[..count].iter();
            PassRow {
                tokens: row.row.tokens,
                past: row.row.computed,
                blocks: blocks.map(|id| block(id.0)).collect(),
                lora: lora(row),
            }
        })
        .collect();
    pass.resize_with(padded, || PassRow {
        tokens: &[0],
        past: 0,
        blocks: vec![i32::try_from(spare_block).expect("blocks fit")],
        lora: -1,
    });
    pass
}

/// The lists of a pass; `rounded` makes the tables of blocks alike in more steps.
pub(super) fn step_lists(
    shape: HeadShape,
    rows: &[PassRow<'_>],
    rounded: bool,
) -> (Lists, StepLists) {
    let lengths = || rows.iter().map(|row| row.tokens.len());
    let most = rows.iter().map(|row| row.blocks.len()).max().unwrap_or(1);
    let table_stride = if rounded {
        most.next_power_of_two()
    } else {
        most
    };
    let positions = || {
        let rows = rows.iter();
        rows.flat_map(|row| (row.past..row.past + row.tokens.len()).map(move |at| (row, at)))
    };
    let slot = |(row, at): (&PassRow<'_>, usize)| {
        row.blocks[at / BLOCK_TOKENS] as usize * BLOCK_TOKENS + at % BLOCK_TOKENS
    };
    let mut starts = vec![0];
    for length in lengths() {
        starts.push(starts[starts.len() - 1] + length);
    }
    let tiles = Tiles::new(shape, lengths(), true);
    let mut lists = Lists::default();
    let ids = rows.iter().flat_map(|row| row.tokens);
    let step = StepLists {
        tokens: lists.push_sizes(ids.map(|id| *id as usize)),
        positions: lists.push_sizes(positions().map(|(_, at)| at)),
        slots: lists.push_sizes(positions().map(slot)),
        past: lists.push_sizes(rows.iter().map(|row| row.past)),
        ends: lists.push_sizes(starts[1..].iter().map(|end| end - 1)),
        lora_slots: lists.push(positions().map(|(row, _)| row.lora)),
        lora_ends: lists.push(rows.iter().map(|row| row.lora)),
        tables: lists.push(rows.iter().flat_map(|row| {
            let padding = std::iter::repeat_n(&0, table_stride - row.blocks.len());
            row.blocks.iter().chain(padding).copied()
        })),
        tiles: [&tiles.prefill, &tiles.decode, &tiles.general]
            .map(|list| (lists.push(list.iter().copied()), attention::count(list))),
        token_count: *starts.last().expect("one more than rows"),
        starts: lists.push_sizes(starts),
        table_stride,
        row_count: rows.len(),
    };
    (lists, step)
}

/// Consecutive rows with the same adapter.
pub(super) type AdapterGroup<'a> = (Range<usize>, &'a DeviceAdapter);

/// The packed tokens of each adapter.
pub(super) fn adapter_groups<'a>(
    rows: &'a [LoadedRow<'_>],
    pass: &[PassRow<'_>],
) -> Vec<AdapterGroup<'a>> {
    let mut groups: Vec<AdapterGroup<'a>> = Vec::new();
    let mut at = 0;
    for (row, pass) in rows.iter().zip(pass) {
        let range = at..at + pass.tokens.len();
        at = range.end;
        let Some(adapter) = row.adapter.as_deref() else {
            continue;
        };
        match groups.last_mut() {
            Some((own, last)) if std::ptr::eq(*last, adapter) && own.end == range.start => {
                own.end = range.end;
            }
            _ => groups.push((range, adapter)),
        }
    }
    groups
}

/// The groups of each sequence's last token.
pub(super) fn end_groups<'a>(
    groups: &[AdapterGroup<'a>],
    pass: &[PassRow<'_>],
) -> Vec<AdapterGroup<'a>> {
    let mut ends = Vec::with_capacity(pass.len());
    let mut at = 0;
    for row in pass {
        at += row.tokens.len();
        ends.push(at - 1);
    }
    let select = |(range, adapter): &AdapterGroup<'a>| {
        let from = ends.partition_point(|end| *end < range.start);
        let to = ends.partition_point(|end| *end < range.end);
        (from..to, *adapter)
    };
    groups.iter().map(select).collect()
}
