//! Blocks are shared, copied on write, counted, and reused.

use super::*;

/// Runs tokens: reserves blocks for them and counts them as cached.
fn run(table: &mut BlockTable, tokens: usize) -> Vec<BlockCopy> {
    let mut copies = Vec::new();
    table.reserve(tokens, &mut copies).unwrap();
    table.advance(tokens);
    copies
}

fn reserve(table: &mut BlockTable, tokens: usize) -> Result<(), OutOfBlocks> {
    table.reserve(tokens, &mut Vec::new())
}

#[test]
fn sequences_share_prefix_blocks_with_copy_on_write() {
    let pool = BlockPool::new(16);
    // A prefix that ends inside a block, and one that ends at a block boundary.
    for held in [70, 64] {
        let mut first = BlockTable::new(&pool);
        assert!(run(&mut first, held).is_empty());
        let mut second = first.share_prefix(held);
        let whole = held.div_ceil(BLOCK_TOKENS);
        assert_eq!((pool.active(), pool.shared()), (whole, whole));
        let inside = usize::from(held % BLOCK_TOKENS > 0);
        assert_eq!(second.blocks_needed(1), 1);
        let copies = run(&mut second, 5);
        assert_eq!((copies.len(), pool.shared()), (inside, whole - inside));
        for (from, to) in copies {
            assert_eq!(
                (from, to),
                (first.ids()[whole - 1], second.ids()[whole - 1])
            );
            assert_ne!(from, to);
        }
        // The first is alone in its last block now.
        assert!(run(&mut first, 9).is_empty());
        assert_eq!(pool.free(), 16 - whole - 1 - (1 - inside));
        drop(first);
        assert_eq!((pool.active(), pool.shared()), (whole + 1 - inside, 0));
        drop(second);
        assert_eq!((pool.free(), pool.active(), pool.cached()), (16, 0, 0));
    }
}

#[test]
fn cached_and_active_blocks_are_counted_and_freed_blocks_are_reused() {
    let pool = BlockPool::new(3);
    let mut table = BlockTable::new(&pool);
    run(&mut table, 40);
    let kept: Vec<_> = table.blocks().cloned().collect();
    drop(table);
    assert_eq!((pool.active(), pool.cached(), pool.free()), (0, 2, 1));
    let again = BlockTable::from_blocks(&pool, kept.iter().cloned(), 40);
    assert_eq!((again.len(), pool.active(), pool.cached()), (40, 2, 0));
    drop(again);
    drop(kept);
    assert_eq!((pool.cached(), pool.free()), (0, 3));
    let mut table = BlockTable::new(&pool);
    reserve(&mut table, 96).unwrap();
    let mut ids: Vec<u32> = table.ids().iter().map(|id| id.0).collect();
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2]);
}

#[test]
fn an_exhausted_pool_returns_an_error_and_keeps_the_table() {
    let pool = BlockPool::new(3);
    let mut first = BlockTable::new(&pool);
    run(&mut first, 70);
    assert_eq!(reserve(&mut BlockTable::new(&pool), 1), Err(OutOfBlocks));
    let mut second = first.share_prefix(70);
    assert_eq!(
        (second.blocks_needed(1), reserve(&mut second, 1)),
        (1, Err(OutOfBlocks))
    );
    assert_eq!(second.len(), 70);
    // Whole blocks can be shared without a free one.
    assert_eq!(first.share_prefix(64).blocks_needed(0), 0);
    second.truncate(64);
    assert_eq!(second.blocks_needed(1), 1);
    drop(second);
    assert_eq!(
        (first.blocks_needed(26), reserve(&mut first, 26)),
        (0, Ok(()))
    );
    assert_eq!(reserve(&mut first, 27), Err(OutOfBlocks));
    assert_eq!(first.len(), 70);
}
