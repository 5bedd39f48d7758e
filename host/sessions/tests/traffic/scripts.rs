//! Conversations without any header, as data: each step is a request, our reply, and the expected result.

use crate::builder::{Server, decision, request, talk};

/// One request of a script.
struct Step {
    /// Messages sent.
    ask: &'static [&'static str],
    /// Our reply.
    reply: &'static str,
    /// `continue`, `fork`, `retry` or `new`.
    decision: &'static str,
    /// Expected session, by letter.
    session: char,
    /// Turn (by step, from 0) that got a next state from this request, and its texts.
    next: Option<(usize, &'static [&'static str])>,
}

const fn step(
    ask: &'static [&'static str],
    reply: &'static str,
    decision: &'static str,
    session: char,
    next: Option<(usize, &'static [&'static str])>,
) -> Step {
    Step {
        ask,
        reply,
        decision,
        session,
        next,
    }
}

const SCRIPTS: &[(&str, &[Step])] = &[
    (
        "three plain turns of a stock OpenAI client",
        &[
            step(
                &["u:What is 12 + 7?"],
                "a:The answer is 19.",
                "new",
                'a',
                None,
            ),
            step(
                &[
                    "u:What is 12 + 7?",
                    "a:The answer is 19.",
                    "u:Shorter please",
                ],
                "a:19",
                "continue",
                'a',
                Some((0, &["Shorter please"])),
            ),
            step(
                &[
                    "u:What is 12 + 7?",
                    "a:The answer is 19.",
                    "u:Shorter please",
                    "a:19",
                    "u:Thanks!",
                ],
                "a:You are welcome.",
                "continue",
                'a',
                Some((1, &["Thanks!"])),
            ),
        ],
    ),
    (
        "every message after our reply is next state",
        &[
            step(
                &["s:be kind", "u:look around"],
                "c:list {\"path\": \".\"}",
                "new",
                'a',
                None,
            ),
            step(
                &[
                    "s:be kind",
                    "u:look around",
                    "c:list {\"path\":\".\"}",
                    "t:a.md",
                    "t:b.md",
                    "u:only markdown",
                ],
                "a:Two files.",
                "continue",
                'a',
                Some((0, &["a.md", "b.md", "only markdown"])),
            ),
        ],
    ),
    (
        "the same first message again proves nothing: another conversation, and no feedback",
        &[
            step(
                &["s:be kind", "u:tell me a joke about cats"],
                "a:No.",
                "new",
                'a',
                None,
            ),
            step(
                &["s:be kind", "u:tell me a joke about cats"],
                "a:A cat walks in.",
                "new",
                'b',
                None,
            ),
            step(
                &[
                    "s:be kind",
                    "u:tell me a joke about cats",
                    "a:A cat walks in.",
                    "u:ha",
                ],
                "a:Glad.",
                "continue",
                'b',
                Some((1, &["ha"])),
            ),
        ],
    ),
    (
        "a retry further on leaves the next state alone",
        &[
            step(&["u:count to two"], "a:one two", "new", 'a', None),
            step(
                &["u:count to two", "a:one two", "u:and on"],
                "a:three",
                "continue",
                'a',
                Some((0, &["and on"])),
            ),
            step(
                &["u:count to two", "a:one two", "u:and on"],
                "a:three four",
                "retry",
                'a',
                None,
            ),
            step(
                &[
                    "u:count to two",
                    "a:one two",
                    "u:and on",
                    "a:three",
                    "u:good",
                ],
                "a:yes",
                "continue",
                'a',
                Some((1, &["good"])),
            ),
        ],
    ),
    (
        "an opening asked again after the talk went on is another conversation",
        &[
            step(&["u:count to two"], "a:one two", "new", 'a', None),
            step(
                &["u:count to two", "a:one two", "u:and on"],
                "a:three",
                "continue",
                'a',
                Some((0, &["and on"])),
            ),
            step(&["u:count to two"], "a:1 2", "new", 'b', None),
        ],
    ),
    (
        "an edited later message forks",
        &[
            step(&["u:plan a trip"], "a:Where to?", "new", 'a', None),
            step(
                &["u:plan a trip", "a:Where to?", "u:Rome"],
                "a:Take the train.",
                "continue",
                'a',
                Some((0, &["Rome"])),
            ),
            step(
                &["u:plan a trip", "a:Where to?", "u:Oslo"],
                "a:Take the boat.",
                "fork",
                'a',
                Some((0, &["Oslo"])),
            ),
            step(
                &[
                    "u:plan a trip",
                    "a:Where to?",
                    "u:Oslo",
                    "a:Take the boat.",
                    "u:good",
                ],
                "a:Bye.",
                "continue",
                'a',
                Some((2, &["good"])),
            ),
        ],
    ),
    (
        "an edited first message is another conversation",
        &[
            step(
                &["u:plan a trip to Rome"],
                "a:Take the train.",
                "new",
                'a',
                None,
            ),
            step(
                &["u:plan a trip to Oslo"],
                "a:Take the boat.",
                "new",
                'b',
                None,
            ),
        ],
    ),
    (
        "our reply dropped and more asked, at the beginning",
        &[
            step(&["u:plan a trip"], "a:Where to?", "new", 'a', None),
            step(
                &["u:plan a trip", "u:are you there?"],
                "a:Yes.",
                "continue",
                'a',
                None,
            ),
            step(
                &["u:plan a trip", "u:are you there?", "a:Yes.", "u:so?"],
                "a:Rome.",
                "continue",
                'a',
                Some((1, &["so?"])),
            ),
        ],
    ),
    (
        "our reply dropped and more asked, later",
        &[
            step(&["u:plan a trip"], "a:Where to?", "new", 'a', None),
            step(
                &["u:plan a trip", "a:Where to?", "u:Rome"],
                "a:Take the train.",
                "continue",
                'a',
                Some((0, &["Rome"])),
            ),
            step(
                &["u:plan a trip", "a:Where to?", "u:Rome", "u:by plane"],
                "a:Fly.",
                "fork",
                'a',
                None,
            ),
        ],
    ),
    (
        "trimmed history",
        &[
            step(&["s:x", "u:one apple"], "a:yes", "new", 'a', None),
            step(
                &["s:x", "u:one apple", "a:yes", "u:two pears"],
                "a:no",
                "continue",
                'a',
                Some((0, &["two pears"])),
            ),
            step(
                &[
                    "s:x",
                    "u:one apple",
                    "a:yes",
                    "u:two pears",
                    "a:no",
                    "u:three plums",
                ],
                "a:maybe",
                "continue",
                'a',
                Some((1, &["three plums"])),
            ),
            step(
                &["s:x", "u:three plums", "a:maybe", "u:four figs"],
                "a:sure",
                "continue",
                'a',
                Some((2, &["four figs"])),
            ),
        ],
    ),
    (
        "summarised history, long reply",
        &[
            step(
                &["s:x", "u:explain tides"],
                "a:The moon pulls the water on the near side more than the earth.",
                "new",
                'a',
                None,
            ),
            step(
                &[
                    "s:x",
                    "u:Summary so far: tides were asked for",
                    "a:The moon pulls the water on the near side more than the earth.",
                    "u:and on the far side?",
                ],
                "a:Less.",
                "continue",
                'a',
                Some((0, &["and on the far side?"])),
            ),
        ],
    ),
    (
        "summarised history, a reply that proves nothing",
        &[
            step(
                &["s:x", "u:is it true that tides come twice a day"],
                "a:Yes.",
                "new",
                'a',
                None,
            ),
            step(
                &[
                    "s:x",
                    "u:Notes: the sea was talked about",
                    "a:Yes.",
                    "u:why?",
                ],
                "a:The moon.",
                "new",
                'b',
                None,
            ),
        ],
    ),
    (
        "another conversation with the same short reply",
        &[
            step(&["u:may I go out and play"], "a:Yes.", "new", 'a', None),
            step(
                &["u:is the earth round at all", "a:Yes.", "u:why?"],
                "a:Gravity.",
                "new",
                'b',
                None,
            ),
        ],
    ),
    (
        "decorated user texts",
        &[
            step(
                &["u:[Fri 2026-11-20 10:32] water the plants\n\nRuntime: host a, channel web"],
                "a:Done.",
                "new",
                'a',
                None,
            ),
            step(
                &[
                    "u:water the plants",
                    "a:Done.",
                    "u:[Fri 2026-11-20 10:40] thanks\n\nRuntime: host a, channel web",
                ],
                "a:Any time.",
                "continue",
                'a',
                Some((
                    0,
                    &["[Fri 2026-11-20 10:40] thanks\n\nRuntime: host a, channel web"],
                )),
            ),
        ],
    ),
    (
        "a reply that the client edited is not ours any more",
        &[
            step(&["u:name a bird"], "a:A robin.", "new", 'a', None),
            step(
                &["u:name a bird", "a:A robin.", "u:and a fish"],
                "a:A trout.",
                "continue",
                'a',
                Some((0, &["and a fish"])),
            ),
            step(
                &[
                    "u:name a bird",
                    "a:A robin.",
                    "u:and a fish",
                    "a:A pike.",
                    "u:and a tree",
                ],
                "a:An oak.",
                "continue",
                'a',
                None,
            ),
        ],
    ),
    (
        "the first reply edited or shortened by the client",
        &[
            step(
                &["u:name a bird"],
                "a:A robin, of course.",
                "new",
                'a',
                None,
            ),
            step(
                &["u:name a bird", "a:A robin", "u:and a fish"],
                "a:A trout.",
                "continue",
                'a',
                None,
            ),
            step(
                &[
                    "u:name a bird",
                    "a:A robin",
                    "u:and a fish",
                    "a:A trout.",
                    "u:and a tree",
                ],
                "a:An oak.",
                "continue",
                'a',
                Some((1, &["and a tree"])),
            ),
        ],
    ),
    (
        "another model's conversation that begins the same",
        &[
            step(&["u:name a bird"], "a:A robin.", "new", 'a', None),
            step(
                &["u:name a bird", "a:The penguin is one", "u:and a fish"],
                "a:A trout.",
                "new",
                'b',
                None,
            ),
        ],
    ),
    (
        "nothing after our reply",
        &[
            step(&["u:write a poem"], "a:Roses", "new", 'a', None),
            step(
                &["u:write a poem", "a:Roses"],
                "a: are red",
                "continue",
                'a',
                None,
            ),
        ],
    ),
    (
        "instructions alone are no reaction",
        &[
            step(&["s:x", "u:write a poem"], "a:Roses", "new", 'a', None),
            step(
                &["s:x", "u:write a poem", "a:Roses", "s:be brief"],
                "a:Red.",
                "continue",
                'a',
                None,
            ),
        ],
    ),
    (
        "an empty reply anchors nothing",
        &[
            step(&["u:hm"], "a:", "new", 'a', None),
            step(&["u:hm", "a:", "u:what?"], "a:Sorry.", "new", 'b', None),
        ],
    ),
];

#[test]
fn scripted_conversations_match_as_expected() {
    for (name, steps) in SCRIPTS {
        let server = Server::new();
        let mut turns = Vec::new();
        let mut sessions = Vec::new();
        for (at, step) in steps.iter().enumerate() {
            let arrived = server.exchange(request(talk(step.ask)), step.reply);
            let place = format!("{name}, step {at}: {}", arrived.matched);
            assert_eq!(decision(&arrived), step.decision, "{place}");
            assert!(!arrived.matched.reason.is_empty(), "{place}");
            for (letter, session) in &sessions {
                assert_eq!(
                    *letter == step.session,
                    *session == arrived.session,
                    "{place}"
                );
            }
            sessions.push((step.session, arrived.session.clone()));
            turns.push(arrived.turns[0]);
            let expected: Vec<(usize, Option<Vec<String>>)> = expected_next(&steps[..=at]);
            for (turn, next) in expected {
                assert_eq!(
                    server.next(turns[turn]),
                    next,
                    "{place}: next state of step {turn}"
                );
            }
        }
    }
}

fn expected_next(steps: &[Step]) -> Vec<(usize, Option<Vec<String>>)> {
    (0..steps.len())
        .map(|turn| {
            let given = steps
                .iter()
                .filter_map(|step| step.next)
                .rfind(|(of, _)| *of == turn);
            (
                turn,
                given.map(|(_, texts)| texts.iter().map(|text| (*text).to_owned()).collect()),
            )
        })
        .collect()
}

#[test]
fn only_choices_and_retries_share_a_group() {
    let server = Server::new();
    let ask = || clawhost_sessions::IncomingRequest {
        request_id: Some("req-1".to_owned()),
        ..request(talk(&["u:tell me a joke about cats"]))
    };
    let first = server.exchange(ask(), "a:No.");
    let again = server.exchange(ask(), "a:Meow.");
    let on = server.exchange(
        request(talk(&["u:tell me a joke about cats", "a:Meow.", "u:ha"])),
        "a:More?",
    );
    assert_eq!(
        server.turn(first.turns[0]).group,
        server.turn(again.turns[0]).group
    );
    assert_ne!(
        server.turn(first.turns[0]).group,
        server.turn(on.turns[0]).group
    );
    assert_eq!(server.turn(on.turns[0]).parent, Some(again.turns[0]));
}

#[test]
fn the_continued_choice_gets_the_next_state() {
    let server = Server::new();
    let arrived = server.ask(clawhost_sessions::IncomingRequest {
        n: 3,
        ..request(talk(&["u:pick a number"]))
    });
    for (turn, text) in arrived.turns.iter().zip(["a:one", "a:two", "a:three"]) {
        server.answer(*turn, crate::builder::message(text));
    }
    server.exchange(
        request(talk(&["u:pick a number", "a:two", "u:why two?"])),
        "a:Because.",
    );
    let next: Vec<_> = arrived
        .turns
        .iter()
        .map(|turn| server.next(*turn))
        .collect();
    assert_eq!(next, [None, Some(vec!["why two?".to_owned()]), None]);
    let groups: std::collections::HashSet<_> = arrived
        .turns
        .iter()
        .map(|turn| server.turn(*turn).group)
        .collect();
    assert_eq!(groups.len(), 1);
}

#[test]
fn identical_choices_count_as_one_reply() {
    let server = Server::new();
    let arrived = server.exchange(
        clawhost_sessions::IncomingRequest {
            n: 2,
            ..request(talk(&["u:two plus two"]))
        },
        "a:4",
    );
    server.exchange(
        request(talk(&["u:two plus two", "a:4", "u:right"])),
        "a:Yes.",
    );
    let fork = server.exchange(
        request(talk(&["u:two plus two", "a:4", "u:wrong"])),
        "a:No.",
    );
    assert_eq!(decision(&fork), "fork");
    assert_eq!(
        server.next(arrived.turns[0]),
        Some(vec!["wrong".to_owned()]),
        "what was left out is no next state any more"
    );
    assert_eq!(server.next(arrived.turns[1]), None);
}

#[test]
fn concurrent_requests_of_one_session_are_held_back() {
    let server = Server::new();
    let first = server.exchange(request(talk(&["u:plan a trip"])), "a:Where to?");
    let rome = server.ask(request(talk(&["u:plan a trip", "a:Where to?", "u:Rome"])));
    let oslo = server.ask(request(talk(&["u:plan a trip", "a:Where to?", "u:Oslo"])));
    let rome_again = server.ask(request(talk(&["u:plan a trip", "a:Where to?", "u:Rome"])));
    assert_eq!(
        [decision(&rome), decision(&oslo), decision(&rome_again)],
        ["continue", "fork", "retry"]
    );
    assert!(
        oslo.matched.reason.contains("at the same time"),
        "{}",
        oslo.matched
    );
    assert!(
        [&rome, &oslo, &rome_again]
            .iter()
            .all(|arrived| arrived.session == first.session)
    );
    assert_eq!(
        server.next(first.turns[0]),
        None,
        "nothing tells yet which of them the conversation goes on from"
    );
    server.answer(oslo.turns[0], crate::builder::message("a:Take the boat."));
    server.answer(rome.turns[0], crate::builder::message("a:Take the train."));
    server.answer(rome_again.turns[0], crate::builder::message("a:Walk."));
    let on = server.exchange(
        request(talk(&[
            "u:plan a trip",
            "a:Where to?",
            "u:Oslo",
            "a:Take the boat.",
            "u:fine",
        ])),
        "a:Bye.",
    );
    assert_eq!(server.turn(on.turns[0]).parent, Some(oslo.turns[0]));
    assert_eq!(server.next(first.turns[0]), Some(vec!["Oslo".to_owned()]));
}

#[test]
fn concurrent_requests_assign_one_next_state() {
    let server = Server::new();
    let first = server.exchange(request(talk(&["u:plan a trip"])), "a:Where to?");
    let words = [
        "Rome", "Oslo", "Bern", "Wien", "Riga", "Kyiv", "Lima", "Cork",
    ];
    let decisions: Vec<String> = std::thread::scope(|scope| {
        let asked: Vec<_> = words
            .iter()
            .map(|word| {
                let sessions = server.sessions.clone();
                let mut ask = request(talk(&[
                    "u:plan a trip",
                    "a:Where to?",
                    &format!("u:{word}"),
                ]));
                ask.response_id = (*word).to_owned();
                scope.spawn(move || decision(&sessions.record_request(ask).unwrap()).to_owned())
            })
            .collect();
        asked
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(
        decisions.iter().filter(|word| *word == "continue").count(),
        1,
        "{decisions:?}"
    );
    assert_eq!(
        decisions.iter().filter(|word| *word == "fork").count(),
        words.len() - 1,
        "{decisions:?}"
    );
    assert_eq!(
        server.journal.session_turns(&first.session).unwrap().len(),
        1 + words.len()
    );
}

#[test]
fn a_partial_reply_matches_but_gets_no_next_state() {
    let server = Server::new();
    let arrived = server.ask(request(talk(&["u:tell a long story about a fox"])));
    server
        .sessions
        .abort(
            arrived.turns[0],
            "client left",
            Some(crate::builder::reply(crate::builder::message(
                "a:Once upon",
            ))),
        )
        .unwrap();
    let on = server.exchange(
        request(talk(&[
            "u:tell a long story about a fox",
            "a:Once upon",
            "u:go on",
        ])),
        "a:a time",
    );
    assert_eq!((decision(&on), &on.session), ("continue", &arrived.session));
    assert_eq!(server.next(arrived.turns[0]), None);
    // Repeated after a partial reply: a retry, however common the opening is.
    let again = server.ask(request(talk(&["u:another story"])));
    server
        .sessions
        .abort(again.turns[0], "client left", None)
        .unwrap();
    let retry = server.exchange(request(talk(&["u:another story"])), "a:No.");
    assert_eq!(
        (decision(&retry), &retry.session),
        ("retry", &again.session)
    );
}

#[test]
fn invalid_requests_are_rejected_without_a_record() {
    use clawhost_sessions::{IncomingRequest, SessionError};
    let server = Server::new();
    type Case = (IncomingRequest, fn(&SessionError) -> bool);
    let cases: [Case; 4] = [
        (request(vec![]), |error| {
            matches!(error, SessionError::NoMessages)
        }),
        (
            IncomingRequest {
                n: 0,
                ..request(talk(&["u:hi"]))
            },
            |error| matches!(error, SessionError::NoChoices),
        ),
        (
            IncomingRequest {
                session_header: Some("x".repeat(300)),
                ..request(talk(&["u:hi"]))
            },
            |error| matches!(error, SessionError::SessionId { .. }),
        ),
        (
            IncomingRequest {
                session_body: Some("a\nb".to_owned()),
                ..request(talk(&["u:hi"]))
            },
            |error| matches!(error, SessionError::SessionId { .. }),
        ),
    ];
    for (incoming, expected) in cases {
        let error = server.sessions.record_request(incoming).unwrap_err();
        assert!(expected(&error), "{error}");
    }
    assert_eq!(server.session_count(), 0);
}
