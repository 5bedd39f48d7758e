//! Blocks are shared, copied at the border, counted, and handed back.

use super::*;
use crate::model::tests::tiny;
use crate::model::{Model, Row};

fn run(model: &Model, cache: &mut KvCache, tokens: &[u32]) -> Vec<f32> {
    let row = Row {
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
fn rows_that_begin_alike_share_blocks_and_neither_sees_the_other_go_on() {
    let model = Model::random(tiny(), 3);
    let pool = Pool::new(BlockShape::new(model.config()), 16);
    // A border inside a block, and one between two.
    for held in [70, 64] {
        let mut first = KvCache::within(&pool);
        run(&model, &mut first, &tokens(held as u32, 1));
        let mut second = first.share(held);
        let whole = held.div_ceil(BLOCK_TOKENS);
        assert_eq!((pool.held(), pool.shared()), (whole, whole));
        let inside = usize::from(held % BLOCK_TOKENS > 0);
        assert_eq!(second.missing(1), 1);
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
        assert_eq!((pool.held(), pool.shared()), (whole + 1 - inside, 0));
        drop(second);
        assert_eq!((pool.free(), pool.held(), pool.kept()), (16, 0, 0));
    }
}

#[test]
fn what_is_kept_is_told_from_what_is_held_and_freed_blocks_are_used_again() {
    let model = Model::random(tiny(), 3);
    let pool = Pool::new(BlockShape::new(model.config()), 3);
    let mut cache = KvCache::within(&pool);
    run(&model, &mut cache, &tokens(40, 1));
    let kept: Vec<_> = cache.blocks().cloned().collect();
    drop(cache);
    assert_eq!((pool.held(), pool.kept(), pool.free()), (0, 2, 1));
    let again = KvCache::of(&pool, kept.iter().cloned(), 40);
    assert_eq!((again.len(), pool.held(), pool.kept()), (40, 2, 0));
    drop(again);
    drop(kept);
    assert_eq!((pool.kept(), pool.free(), pool.spare().len()), (0, 3, 2));
    let mut cache = KvCache::within(&pool);
    cache.reserve(64).unwrap();
    assert_eq!(pool.spare().len(), 0);
}

#[test]
fn an_empty_pool_refuses_and_leaves_the_cache_as_it_was() {
    let model = Model::random(tiny(), 3);
    let pool = Pool::new(BlockShape::new(model.config()), 3);
    let mut first = KvCache::within(&pool);
    run(&model, &mut first, &tokens(70, 1));
    assert_eq!(KvCache::within(&pool).reserve(1), Err(Exhausted));
    let mut second = first.share(70);
    assert_eq!((second.missing(1), second.reserve(1)), (1, Err(Exhausted)));
    assert_eq!(second.len(), 70);
    // Whole blocks can be shared without a free one.
    assert_eq!(first.share(64).missing(0), 0);
    second.truncate(64);
    assert_eq!(second.missing(1), 1);
    drop(second);
    assert_eq!((first.missing(26), first.reserve(26)), (0, Ok(())));
    let row = Row {
        tokens: &tokens(27, 1),
        cache: &mut first,
        adapter: None,
    };
    let error = model.forward(&mut [row]).unwrap_err();
    assert!(error.to_string().contains("attention memory"), "{error}");
    assert_eq!(first.len(), 70);
}
