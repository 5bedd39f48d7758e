//! Users share the engine; nobody waits behind all requests of another.

use super::*;

fn of(user: &str, request: GenerateRequest) -> GenerateRequest {
    GenerateRequest {
        user: Some(user.to_owned()),
        ..request
    }
}

#[test]
fn a_hundred_requests_of_one_user_do_not_hold_up_the_one_of_another() {
    let mut counter = Counter::new(EngineOptions {
        max_batch: 4,
        ..EngineOptions::default()
    });
    let ask = |salt: u32| request(prompt(10, salt), u64::from(salt), 30);
    let mut many: Vec<Generation> = (0..100)
        .map(|salt| counter.ask(of("many", ask(salt))).unwrap())
        .collect();
    for _ in 0..3 {
        counter.step();
    }
    let mut single = counter.ask(of("single", ask(200))).unwrap();
    let mut reply = Reply::default();
    // A token a step from the next step on, though the batch was full.
    for step in 1..=30 {
        counter.step();
        reply.poll(&mut single);
        if reply.finished.is_some() {
            break;
        }
        assert_eq!(reply.tokens.len(), step);
    }
    reply.agrees(&alone(of("single", ask(200))));
    // The others have gone on meanwhile, in the order in which they came.
    let mut begun: Vec<bool> = Vec::new();
    for generation in &mut many {
        begun.push(generation.events.try_recv().is_ok());
    }
    let count = begun.iter().filter(|begun| **begun).count();
    assert!((4..12).contains(&count), "{count}");
    assert!(begun.iter().take(count).all(|begun| *begun));
    while !counter.is_idle() {
        counter.step();
    }
    assert_eq!(counter.bench.batcher.stats.finished, 101);
}

#[test]
fn prompt_tokens_are_shared_between_users() {
    let mut counter = Counter::new(EngineOptions {
        prefill_chunk: 16,
        ..EngineOptions::default()
    });
    let mut long: Vec<Generation> = (0..3)
        .map(|salt| {
            counter
                .ask(of("long", request(prompt(200, salt), 1, 2)))
                .unwrap()
        })
        .collect();
    counter.step();
    let mut short = counter
        .ask(of("short", request(prompt(40, 9), 1, 2)))
        .unwrap();
    let mut steps = 0;
    while short.events.try_recv().is_err() {
        counter.step();
        steps += 1;
    }
    // Its three chunks take turns with those of the other.
    assert!(steps <= 6, "{steps}");
    assert!(long.iter_mut().all(|one| one.events.try_recv().is_err()));
}

#[test]
fn people_leave_an_eighth_to_judges_and_teachers() {
    let mut counter = Counter::new(EngineOptions {
        max_batch: 8,
        prefill_chunk: 32,
        ..EngineOptions::default()
    });
    let ask = |priority, salt: u32| GenerateRequest {
        priority,
        ..request(prompt(20, salt), u64::from(salt), 20)
    };
    let people: Vec<Generation> = (0..40)
        .map(|salt| counter.ask(ask(Priority::Person, salt)).unwrap())
        .collect();
    counter.step();
    let mut judge = counter.ask(ask(Priority::Judge, 50)).unwrap();
    let mut reply = Reply::default();
    while reply.finished.is_none() {
        counter.step();
        reply.poll(&mut judge);
    }
    assert!(counter.intake.lock().waiting() > 10);
    reply.agrees(&alone(ask(Priority::Judge, 50)));
    drop(people);
}

#[test]
fn the_queue_is_bounded_for_each_priority() {
    let mut counter = Counter::new(EngineOptions {
        max_batch: 2,
        max_waiting: 3,
        ..EngineOptions::default()
    });
    let mut held = Vec::new();
    // Users in any number change nothing: what waits is bounded, and what runs is.
    for number in 0..200 {
        let ask = of(&number.to_string(), request(prompt(5, number), 1, 400));
        held.extend(counter.ask(ask));
        if number % 3 == 0 {
            counter.step();
        }
        assert!(counter.intake.lock().waiting() <= 3);
        assert!(counter.bench.batcher.active.len() <= 2 * 4);
    }
}
