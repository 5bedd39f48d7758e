//! Users share the engine: no user waits behind all requests of another.

use super::*;

fn with_user(user: &str, request: GenerateRequest) -> GenerateRequest {
    GenerateRequest {
        user: Some(user.to_owned()),
        ..request
    }
}

pub fn many_requests_of_one_user_do_not_delay_another_user(suite: Suite) {
    let mut engine = suite.test_engine(EngineOptions {
        max_num_seqs: 4,
        ..EngineOptions::default()
    });
    let ask = |salt: u32| request(prompt(10, salt), u64::from(salt), 30);
    let mut many: Vec<Generation> = (0..100)
        .map(|salt| engine.submit(with_user("many", ask(salt))).unwrap())
        .collect();
    for _ in 0..3 {
        engine.step();
    }
    let mut single = engine.submit(with_user("single", ask(200))).unwrap();
    let mut reply = Reply::default();
    // One token per step from the next step on, although the batch is full.
    for step in 1..=30 {
        engine.step();
        reply.poll(&mut single);
        if reply.finished.is_some() {
            break;
        }
        assert_eq!(reply.tokens.len(), step);
    }
    reply.assert_agrees(
        &suite.run_alone(with_user("single", ask(200))),
        suite.tolerance,
    );
    // The others continue meanwhile, in order of arrival.
    let mut begun: Vec<bool> = Vec::new();
    for generation in &mut many {
        begun.push(generation.events.try_recv().is_ok());
    }
    let count = begun.iter().filter(|begun| **begun).count();
    assert!((4..12).contains(&count), "{count}");
    assert!(begun.iter().take(count).all(|begun| *begun));
    while !engine.is_idle() {
        engine.step();
    }
    assert_eq!(engine.scheduler.inner.stats.finished, 101);
}

pub fn prompt_tokens_are_shared_between_users(suite: Suite) {
    let mut engine = suite.test_engine(EngineOptions {
        max_num_batched_tokens: 16,
        ..EngineOptions::default()
    });
    let mut long: Vec<Generation> = (0..3)
        .map(|salt| {
            engine
                .submit(with_user("long", request(prompt(200, salt), 1, 2)))
                .unwrap()
        })
        .collect();
    engine.step();
    let mut short = engine
        .submit(with_user("short", request(prompt(40, 9), 1, 2)))
        .unwrap();
    let mut steps = 0;
    while short.events.try_recv().is_err() {
        engine.step();
        steps += 1;
    }
    // Its three chunks alternate with those of the other user.
    assert!(steps <= 6, "{steps}");
    assert!(long.iter_mut().all(|one| one.events.try_recv().is_err()));
}

pub fn interactive_requests_leave_an_eighth_to_lower_priorities(suite: Suite) {
    let mut engine = suite.test_engine(EngineOptions {
        max_num_seqs: 8,
        max_num_batched_tokens: 32,
        ..EngineOptions::default()
    });
    let ask = |priority, salt: u32| GenerateRequest {
        priority,
        ..request(prompt(20, salt), u64::from(salt), 20)
    };
    let interactive: Vec<Generation> = (0..40)
        .map(|salt| engine.submit(ask(Priority::Interactive, salt)).unwrap())
        .collect();
    engine.step();
    let mut judge = engine.submit(ask(Priority::Judge, 50)).unwrap();
    let mut reply = Reply::default();
    while reply.finished.is_none() {
        engine.step();
        reply.poll(&mut judge);
    }
    assert!(engine.waiting_queue.lock().waiting() > 10);
    reply.assert_agrees(&suite.run_alone(ask(Priority::Judge, 50)), suite.tolerance);
    drop(interactive);
}

pub fn waiting_queue_is_bounded_per_priority(suite: Suite) {
    let mut engine = suite.test_engine(EngineOptions {
        max_num_seqs: 2,
        max_waiting_requests: 3,
        ..EngineOptions::default()
    });
    let mut held = Vec::new();
    // The number of users does not matter: waiting and running requests are bounded.
    for number in 0..200 {
        let ask = with_user(&number.to_string(), request(prompt(5, number), 1, 400));
        held.extend(engine.submit(ask));
        if number % 3 == 0 {
            engine.step();
        }
        assert!(engine.waiting_queue.lock().waiting() <= 3);
        assert!(engine.scheduler.inner.running.len() <= 2 * 4);
    }
}
