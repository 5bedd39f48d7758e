//! Ends of sessions, and their continuation.

use std::time::Duration;

use clawhost_journal::bench::fail_writes;
use clawhost_journal::{JudgingState, TurnState};
use clawhost_sessions::{IncomingRequest, SessionError, SessionOptions};

use crate::builder::{Server, decision, message, reply, request, talk};

#[test]
fn a_restart_does_not_change_matching() {
    let mut server = Server::new();
    let one = server.exchange(request(talk(&["u:name a bird"])), "a:A robin.");
    let cut = server.ask(request(talk(&["u:name a bird", "a:A robin.", "u:a fish"])));
    server.restart();
    let again = server.exchange(
        request(talk(&["u:name a bird", "a:A robin.", "u:a fish"])),
        "a:A trout.",
    );
    assert_eq!((decision(&again), &again.session), ("retry", &one.session));
    assert_eq!(
        server.turn(again.turns[0]).group,
        server.turn(cut.turns[0]).group
    );
    server.restart();
    let on = server.exchange(
        request(talk(&[
            "u:name a bird",
            "a:A robin.",
            "u:a fish",
            "a:A trout.",
            "u:thanks",
        ])),
        "a:Sure.",
    );
    assert_eq!((decision(&on), &on.session), ("continue", &one.session));
    assert_eq!(server.next(one.turns[0]), Some(vec!["a fish".to_owned()]));
    assert_eq!(server.next(again.turns[0]), Some(vec!["thanks".to_owned()]));
}

#[test]
fn ending_a_session_closes_its_last_turn_until_the_client_returns() {
    let server = Server::new();
    let one = server.exchange(request(talk(&["u:name a bird"])), "a:A robin.");
    server.sessions.end_session(&one.session).unwrap();
    let record = server.turn(one.turns[0]);
    assert_eq!(
        (record.judging, record.reason.as_deref()),
        (JudgingState::Skipped, Some("no-next-state"))
    );
    let two = server.exchange(
        request(talk(&["u:name a bird", "a:A robin.", "u:thanks"])),
        "a:Sure.",
    );
    assert_eq!(two.session, one.session);
    assert_eq!(server.turn(one.turns[0]).judging, JudgingState::Ready);
    assert_eq!(server.ended(&one.session), None);
    assert!(matches!(
        server.sessions.end_session(&"nobody".into()),
        Err(SessionError::UnknownSession(_))
    ));
}

#[test]
fn a_request_can_end_its_session() {
    let server = Server::new();
    let one = server.exchange(request(talk(&["u:name a bird"])), "a:A robin.");
    let last = IncomingRequest {
        session_done: true,
        n: 2,
        ..request(talk(&["u:name a bird", "a:A robin.", "u:thanks"]))
    };
    let arrived = server.ask(last);
    for turn in &arrived.turns {
        server.answer(*turn, message("a:Bye."));
    }
    assert_eq!(server.ended(&one.session).as_deref(), Some("done"));
    assert_eq!(server.turn(one.turns[0]).judging, JudgingState::Ready);
    for turn in &arrived.turns {
        assert_eq!(server.turn(*turn).reason.as_deref(), Some("no-next-state"));
    }
}

#[tokio::test]
async fn ends_of_turns_are_retried_after_a_full_disk() {
    let server = Server::new();
    let [written, given_up, broken] = ["a bird", "a fish", "a tree"].map(|what| {
        let asked = server.ask(request(talk(&[&format!("u:name {what}")])));
        asked.turns[0]
    });
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let sweep = tokio::spawn(server.sessions.clone().sweep_idle(stopped));
    fail_writes(&server.journal, true).unwrap();
    let reply = |text| Some(reply(message(text)));
    let sessions = &server.sessions;
    let whole = reply("a:A robin.").unwrap();
    sessions.complete(written, whole).unwrap_err();
    sessions
        .abort(given_up, "client disconnected", reply("a:A tr"))
        .unwrap_err();
    sessions.fail(broken, "no engine", None).unwrap_err();
    tokio::task::yield_now().await;
    let states = || [written, given_up, broken].map(|turn| server.turn(turn).state);
    assert_eq!(states(), [TurnState::Generating; 3]);

    // Without further requests, the ends are still recorded.
    let mut changes = server.journal.watch();
    fail_writes(&server.journal, false).unwrap();
    let closed = async {
        while states().contains(&TurnState::Generating) {
            changes.changed().await.unwrap();
        }
    };
    let longest = Duration::from_secs(60);
    tokio::time::timeout(longest, closed).await.unwrap();
    assert_eq!(
        states(),
        [TurnState::Aborted, TurnState::Aborted, TurnState::Failed]
    );
    let first = server.turn(written);
    assert_eq!(
        first.reason.as_deref(),
        Some("the reply could not be recorded")
    );
    assert_eq!(
        first.completion.unwrap().reply,
        reply("a:A robin.").unwrap().message
    );
    assert_eq!(
        server.turn(given_up).reason.as_deref(),
        Some("client disconnected")
    );
    stop.send(true).unwrap();
    sweep.await.unwrap();
}

#[test]
fn only_idle_sessions_end() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let server = Server::with(SessionOptions {
            idle_timeout: Duration::from_millis(1),
            ..SessionOptions::default()
        });
        let silent = server.exchange(request(talk(&["u:name a bird"])), "a:A robin.");
        let talking = server.ask(request(talk(&["u:name a very large bird"])));
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let sweep = tokio::spawn(server.sessions.clone().sweep_idle(stopped));
        let mut changes = server.journal.watch();
        while server.ended(&silent.session).is_none() {
            changes.changed().await.unwrap();
        }
        assert_eq!(server.ended(&silent.session).as_deref(), Some("idle"));
        assert_eq!(server.turn(silent.turns[0]).judging, JudgingState::Skipped);
        assert_eq!(
            server.ended(&talking.session),
            None,
            "its reply is still being generated"
        );
        // No session is idle while its turn runs; the end of the reply wakes the sweep.
        server.answer(talking.turns[0], message("a:An ostrich."));
        while server.ended(&talking.session).is_none() {
            changes.changed().await.unwrap();
        }
        stop.send(true).unwrap();
        sweep.await.unwrap();
    });
}

#[test]
fn the_idle_sweep_stops_on_request() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let server = Server::new();
        server.exchange(request(talk(&["u:hi"])), "a:Hello!");
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let sweep = tokio::spawn(server.sessions.clone().sweep_idle(stopped));
        drop(stop);
        sweep.await.unwrap();
    });
}
