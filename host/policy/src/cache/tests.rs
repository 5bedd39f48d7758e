//! Blocks are shared, copied on write, counted, and reused.

use super::*;
use crate::model::tests::tiny;
use crate::model::{BatchRow, Model};

fn run(model: &Model, cache: &mut KvCache, tokens: &[u32]) -> Vec<f32> {
    let row = BatchRow {
        tokens,
        cache,
        adapter: None,
    };
    model.forward(&mut [row]).unwrap()
}

fn tokens(count: u32, salt: u32) -> Vec<u32> {
    (0..count).map(|i| (i * 37 + salt * 11 + 5) % 97).collect()
}

#[test]
fn sequences_share_prefix_blocks_with_copy_on_write() {
    let model = Model::random(tiny(), 3);
    let pool = BlockPool::new(BlockShape::new(model.config()), 16);
    // A prefix that ends inside a block, and one that ends at a block boundary.
    for held in [70, 64] {
        let mut first = KvCache::with_pool(&pool);
        run(&model, &mut first, &tokens(held as u32, 1));
        let mut second = first.share_prefix(held);
        let whole = held.div_ceil(BLOCK_TOKENS);
        assert_eq!((pool.active(), pool.shared()), (whole, whole));
        let inside = usize::from(held % BLOCK_TOKENS > 0);
        assert_eq!(second.blocks_needed(1), 1);
        let (one, two) = (tokens(5, 2), tokens(9, 3));
        let ours = run(&model, &mut second, &one);
        assert_eq!(pool.shared(), whole - inside);
        let theirs = run(&model, &mut first, &two);
        assert_eq!(pool.free(), 16 - whole - 1 - (1 - inside));
        for (more, logits) in [(one, ours), (two, theirs)] {
            let all = [tokens(held as u32, 1), more.clone()].concat();
            let mut alone = model.new_cache();
            run(&model, &mut alone, &all[..held]);
            assert_eq!(run(&model, &mut alone, &more), logits);
        }
        drop(first);
        assert_eq!((pool.active(), pool.shared()), (whole + 1 - inside, 0));
        drop(second);
        assert_eq!((pool.free(), pool.active(), pool.cached()), (16, 0, 0));
    }
}

#[test]
fn cached_and_active_blocks_are_counted_and_freed_blocks_are_reused() {
    let model = Model::random(tiny(), 3);
    let pool = BlockPool::new(BlockShape::new(model.config()), 3);
    let mut cache = KvCache::with_pool(&pool);
    run(&model, &mut cache, &tokens(40, 1));
    let kept: Vec<_> = cache.blocks().cloned().collect();
    drop(cache);
    assert_eq!((pool.active(), pool.cached(), pool.free()), (0, 2, 1));
    let again = KvCache::from_blocks(&pool, kept.iter().cloned(), 40);
    assert_eq!((again.len(), pool.active(), pool.cached()), (40, 2, 0));
    drop(again);
    drop(kept);
    assert_eq!((pool.cached(), pool.free(), pool.spare().len()), (0, 3, 2));
    let mut cache = KvCache::with_pool(&pool);
    cache.reserve(64).unwrap();
    assert_eq!(pool.spare().len(), 0);
}

#[test]
fn an_exhausted_pool_returns_an_error_and_keeps_the_cache() {
    let model = Model::random(tiny(), 3);
    let pool = BlockPool::new(BlockShape::new(model.config()), 3);
    let mut first = KvCache::with_pool(&pool);
    run(&model, &mut first, &tokens(70, 1));
    assert_eq!(KvCache::with_pool(&pool).reserve(1), Err(OutOfBlocks));
    let mut second = first.share_prefix(70);
    assert_eq!(
        (second.blocks_needed(1), second.reserve(1)),
        (1, Err(OutOfBlocks))
    );
    assert_eq!(second.len(), 70);
    // Whole blocks can be shared without a free one.
    assert_eq!(first.share_prefix(64).blocks_needed(0), 0);
    second.truncate(64);
    assert_eq!(second.blocks_needed(1), 1);
    drop(second);
    assert_eq!((first.blocks_needed(26), first.reserve(26)), (0, Ok(())));
    let row = BatchRow {
        tokens: &tokens(27, 1),
        cache: &mut first,
        adapter: None,
    };
    let error = model.forward(&mut [row]).unwrap_err();
    assert!(
        error.to_string().contains("KV cache is out of blocks"),
        "{error}"
    );
    assert_eq!(first.len(), 70);
}
