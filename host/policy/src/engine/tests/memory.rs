//! The pool of attention memory bounds everything, and nobody can tell from a reply that it was full.

use super::*;

fn small(count: usize) -> EngineOptions {
    EngineOptions {
        cache_budget: blocks(count),
        ..EngineOptions::default()
    }
}

#[test]
fn who_outgrows_the_pool_is_paused_and_what_it_sent_stays() {
    // Two prompts of one block that both want three.
    let mut bench = Bench::new(small(5));
    let ask = |salt: u32| request(prompt(20, salt), u64::from(salt), 70);
    let mut first = bench.admit(ask(1));
    let mut second = bench.admit(ask(2));
    let (mut one, mut two) = (Reply::default(), Reply::default());
    while bench.batcher.stats.pauses == 0 {
        assert!(!bench.batcher.is_idle(), "the pool was never full");
        bench.step();
        one.poll(&mut first);
        two.poll(&mut second);
    }
    // The later one waits; the earlier one goes on.
    let sent = two.clone();
    assert!(sent.tokens.len() > 40 && bench.batcher.stats.paused == 1);
    bench.step();
    one.poll(&mut first);
    two.poll(&mut second);
    assert_eq!(two, sent);
    assert_eq!(one.tokens.len(), sent.tokens.len() + 2);
    bench.finish();
    one.poll(&mut first);
    two.poll(&mut second);
    one.agrees(&alone(ask(1)));
    two.agrees(&alone(ask(2)));
    assert_eq!(two.tokens[..sent.tokens.len()], sent.tokens[..]);
    assert_eq!(bench.batcher.stats.paused, 0);
}

#[test]
fn a_person_takes_the_memory_of_a_judge() {
    let mut bench = Bench::new(small(6));
    let ask = |priority, salt: u32| GenerateRequest {
        priority,
        ..request(prompt(100, salt), u64::from(salt), 20)
    };
    let judge = bench.admit(ask(Priority::Judge, 1));
    bench.step();
    bench.step();
    let mut person = bench.admit(ask(Priority::Person, 2));
    bench.step();
    assert!(matches!(person.events.try_recv(), Ok(Event::Token(_))));
    assert_eq!(
        (bench.batcher.stats.pauses, bench.batcher.stats.paused),
        (1, 1)
    );
    // Another judge would have to wait for both.
    let late = bench.admit(ask(Priority::Judge, 3));
    bench.finish();
    Reply::all(judge).agrees(&alone(ask(Priority::Judge, 1)));
    Reply::all(late).agrees(&alone(ask(Priority::Judge, 3)));
}

#[test]
fn a_request_begins_when_its_memory_is_there_and_those_after_it_do_not_overtake() {
    let mut bench = Bench::new(small(8));
    let ask = |length, salt: u32| request(prompt(length, salt), u64::from(salt), 12);
    let mut running = bench.admit(ask(130, 1));
    bench.step();
    // Five blocks are taken; this one wants six, the next a single one.
    let mut large = bench.admit(ask(170, 2));
    let mut little = bench.admit(ask(5, 3));
    let mut replies = [Reply::default(), Reply::default(), Reply::default()];
    while replies[0].finished.is_none() {
        bench.step();
        replies[0].poll(&mut running);
        replies[1].poll(&mut large);
        replies[2].poll(&mut little);
        if replies[0].finished.is_none() {
            assert!(replies[1].tokens.is_empty() && replies[2].tokens.is_empty());
        }
    }
    bench.finish();
    replies[1].poll(&mut large);
    replies[2].poll(&mut little);
    for (reply, (length, salt)) in replies.iter().zip([(130, 1), (170, 2), (5, 3)]) {
        reply.agrees(&alone(ask(length, salt)));
    }
    assert_eq!(bench.batcher.stats.pauses, 0);
}

#[test]
fn what_is_kept_makes_room_for_what_runs() {
    let mut bench = Bench::new(small(6));
    for salt in 0..5 {
        let ask = request(prompt(60, salt), u64::from(salt), 5);
        bench.reply(ask.clone()).agrees(&alone(ask));
        let stats = &bench.batcher.stats;
        assert_eq!(stats.active_cache_bytes, 0);
        assert!(stats.cache_bytes <= blocks(6));
    }
    // Two blocks are kept of each; the latest are there.
    assert!(bench.batcher.stats.evictions >= 4);
    let again = bench.reply(request(prompt(60, 4), 4, 5));
    assert_eq!(again.finished.unwrap().cached_tokens, 59);
}

#[test]
fn a_prompt_that_can_never_fit_is_refused_at_once_and_a_reply_ends_where_memory_does() {
    let engine = start(small(3));
    let max = 3 * BLOCK_TOKENS;
    let refused = engine.generate(request(prompt(max, 1), 1, 5)).unwrap_err();
    assert_eq!(refused, Refused::MemoryTooSmall { prompt: max, max });
    assert!(refused.to_string().contains("engine.cache_megabytes"));
    let mut ask = request(prompt(max - 10, 1), 1, 50);
    ask.sampling.temperature = 0.0;
    let reply = Reply::all(engine.generate(ask.clone()).unwrap());
    assert_eq!(reply.finished.unwrap().reason, FinishReason::Length);
    assert_eq!(reply.tokens.len(), 10);
    // The same again shares its last block with what is kept, and there is no other left.
    let again = Reply::all(engine.generate(ask).unwrap());
    assert_eq!(again.tokens, reply.tokens);
}

#[test]
fn who_goes_away_while_waiting_or_paused_leaves_nothing_behind() {
    let mut bench = Bench::new(EngineOptions {
        prefix_reuse: false,
        ..small(5)
    });
    let ask = |salt: u32| request(prompt(20, salt), u64::from(salt), 70);
    let first = bench.admit(ask(1));
    let paused = bench.admit(ask(2));
    while bench.batcher.stats.pauses == 0 {
        bench.step();
    }
    let waiting = bench.admit(request(prompt(90, 3), 3, 5));
    bench.step();
    assert_eq!(
        (bench.batcher.stats.running, bench.batcher.stats.paused),
        (3, 2)
    );
    drop(paused);
    drop(waiting);
    bench.step();
    let stats = &bench.batcher.stats;
    assert_eq!((stats.running, stats.paused, stats.cancelled), (1, 0, 2));
    bench.finish();
    Reply::all(first).agrees(&alone(ask(1)));
    assert_eq!(bench.batcher.stats.blocks_free, 5);
}
