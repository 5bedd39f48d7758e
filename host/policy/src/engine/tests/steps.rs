//! What goes into a step, and in which order.

use std::sync::Mutex;

use super::*;

/// Token counts of the rows of each step.
type Log = Arc<Mutex<Vec<Vec<usize>>>>;

fn logged(options: EngineOptions) -> (Bench, Log) {
    let log = Log::default();
    let (seen, model) = (Arc::clone(&log), model());
    let bench = Bench::with(
        model,
        options,
        Box::new(move |model, rows| {
            seen.lock()
                .unwrap()
                .push(rows.iter().map(|row| row.tokens.len()).collect());
            model.forward(rows)
        }),
    );
    (bench, log)
}

fn admits(bench: &Bench, priority: Priority) -> bool {
    bench.batcher.admits(priority, &None).is_some()
}

#[test]
fn a_batch_gives_each_request_what_it_gets_alone() {
    let requests: Vec<GenerateRequest> = (0..7)
        .map(|i| {
            let mut request = request(prompt(3 + 17 * i, i as u32), i as u64, 20);
            request.served = [base(), version(1), version(2)][i % 3].clone();
            request.sampling.temperature = [0.7, 1.0, 0.0][i % 3];
            request.sampling.top_p = if i % 2 == 0 { 0.9 } else { 1.0 };
            request.sampling.repetition_penalty = if i == 4 { 1.3 } else { 1.0 };
            request
        })
        .collect();
    let mut bench = Bench::new(EngineOptions {
        max_batch: 7,
        prefill_chunk: 40,
        ..EngineOptions::default()
    });
    let generations: Vec<Generation> = requests.iter().map(|r| bench.admit(r.clone())).collect();
    bench.finish();
    for (request, generation) in requests.into_iter().zip(generations) {
        Reply::all(generation).agrees(&alone(request));
    }
    assert!(bench.batcher.stats.mean_batch() > 4.0);
}

#[test]
fn a_prompt_in_chunks_gives_what_it_gives_in_one_go() {
    let whole = alone(request(prompt(100, 1), 5, 12));
    for prefill_chunk in [1, 7, 64, 99, 100] {
        let options = EngineOptions {
            prefill_chunk,
            ..EngineOptions::default()
        };
        Bench::new(options)
            .reply(request(prompt(100, 1), 5, 12))
            .agrees(&whole);
    }
}

#[test]
fn a_reply_never_waits_for_more_than_one_chunk() {
    let options = EngineOptions {
        prefill_chunk: 16,
        ..EngineOptions::default()
    };
    let (mut bench, log) = logged(options);
    let mut talking = bench.admit(request(prompt(4, 1), 1, 60));
    bench.step();
    let _long = bench.admit(request(prompt(100, 2), 2, 5));
    let _short = bench.admit(request(prompt(9, 3), 3, 5));
    let mut reply = Reply::default();
    reply.poll(&mut talking);
    for _ in 0..9 {
        let before = reply.tokens.len();
        bench.step();
        reply.poll(&mut talking);
        assert_eq!(reply.tokens.len(), before + 1);
    }
    for rows in log.lock().unwrap().iter() {
        assert!(
            rows.iter().filter(|n| **n > 1).sum::<usize>() <= 16,
            "{rows:?}"
        );
    }
    // 109 tokens of prompt at 16 a step are 7 steps; nothing of a chunk is left unused.
    assert_eq!(bench.batcher.stats.prefill_tokens, 4 + 100 + 9);
    assert_eq!(
        log.lock().unwrap()[1..8]
            .iter()
            .map(|rows| rows.iter().sum::<usize>())
            .sum::<usize>(),
        109 + 7
    );
}

#[test]
fn beside_replies_a_prompt_gets_more_of_a_step_the_fuller_the_batch_is() {
    for (replies, expected) in [(1, 32), (9, 32), (20, 63), (31, 96)] {
        let (mut bench, log) = logged(EngineOptions {
            max_batch: 32,
            ..EngineOptions::default()
        });
        let _talking: Vec<Generation> = (0..replies)
            .map(|salt| bench.admit(request(prompt(4, salt), u64::from(salt), 60)))
            .collect();
        bench.step();
        let _long = bench.admit(request(prompt(300, 99), 2, 5));
        bench.step();
        let rows = log.lock().unwrap().pop().unwrap();
        let mut lengths = rows.clone();
        lengths.sort_unstable();
        assert_eq!(lengths.pop(), Some(expected), "{rows:?}");
        assert_eq!(lengths, vec![1; replies as usize]);
    }
}

#[test]
fn people_pause_teachers_who_then_go_on_where_they_were() {
    let mut bench = Bench::new(EngineOptions {
        max_batch: 1,
        ..EngineOptions::default()
    });
    let ask = |priority, salt: u32| GenerateRequest {
        priority,
        ..request(prompt(20, salt), u64::from(salt), 10)
    };
    let mut teacher = bench.admit(ask(Priority::Teacher, 1));
    bench.step();
    bench.step();
    let mut reply = Reply::default();
    reply.poll(&mut teacher);
    let so_far = reply.tokens.len();
    assert_eq!(so_far, 2);
    assert!(admits(&bench, Priority::Judge) && admits(&bench, Priority::Person));
    assert!(!admits(&bench, Priority::Teacher));
    let person = bench.admit(ask(Priority::Person, 2));
    assert!(!admits(&bench, Priority::Person) && !admits(&bench, Priority::Judge));
    while person.events.len() < 5 {
        bench.step();
    }
    reply.poll(&mut teacher);
    assert_eq!(reply.tokens.len(), so_far);
    bench.finish();
    reply.poll(&mut teacher);
    reply.agrees(&alone(ask(Priority::Teacher, 1)));
    Reply::all(person).agrees(&alone(ask(Priority::Person, 2)));
    assert_eq!(bench.batcher.stats.prefill_tokens, 40);
}

#[test]
fn among_equals_the_earlier_goes_first() {
    let mut bench = Bench::new(EngineOptions {
        max_batch: 1,
        ..EngineOptions::default()
    });
    let mut generations: Vec<Generation> = (0..3)
        .map(|i| bench.admit(request(prompt(5, i), u64::from(i), 4)))
        .collect();
    let mut replies = vec![Reply::default(); 3];
    let mut order = Vec::new();
    while !bench.batcher.is_idle() {
        bench.step();
        for (index, (generation, reply)) in generations.iter_mut().zip(&mut replies).enumerate() {
            let before = reply.finished.is_some();
            reply.poll(generation);
            if reply.finished.is_some() != before {
                order.push(index);
            }
        }
    }
    assert_eq!(order, [0, 1, 2]);
}

#[test]
fn a_reader_that_goes_away_frees_its_memory_before_the_next_step() {
    let (mut bench, log) = logged(EngineOptions::default());
    let gone = bench.admit(request(prompt(80, 1), 1, 100));
    let stays = bench.admit(request(prompt(10, 2), 2, 6));
    bench.step();
    let both = bench.batcher.stats.active_cache_bytes;
    drop(gone);
    bench.step();
    let stats = &bench.batcher.stats;
    assert_eq!(
        (stats.cancelled, stats.running, stats.cache_entries),
        (1, 1, 0)
    );
    assert!(stats.active_cache_bytes < both / 2);
    assert_eq!(log.lock().unwrap().last().unwrap(), &[1]);
    bench.finish();
    assert_eq!(Reply::all(stays).tokens.len(), 6);
}
