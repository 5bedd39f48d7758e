//! How sessions end, and how they go on all the same.

use std::time::Duration;

use clawhost_journal::measure::refuse_writes;
use clawhost_journal::{JudgingState, TurnState};
use clawhost_sessions::{Incoming, SessionError, SessionOptions};

use crate::builder::{Server, decision, message, reply, request, talk};

#[test]
fn a_restart_in_the_middle_changes_nothing() {
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
fn done_closes_the_last_turn_and_coming_back_opens_it() {
    let server = Server::new();
    let one = server.exchange(request(talk(&["u:name a bird"])), "a:A robin.");
    server.sessions.done(&one.session).unwrap();
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
        server.sessions.done(&"nobody".into()),
        Err(SessionError::UnknownSession(_))
    ));
}

#[test]
fn a_request_can_say_that_it_is_the_last() {
    let server = Server::new();
    let one = server.exchange(request(talk(&["u:name a bird"])), "a:A robin.");
    let last = Incoming {
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
async fn turns_that_a_full_disk_refused_are_closed_when_there_is_room() {
    let server = Server::new();
    let [written, given_up, broken] = ["a bird", "a fish", "a tree"].map(|what| {
        let asked = server.ask(request(talk(&[&format!("u:name {what}")])));
        asked.turns[0]
    });
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let sweep = tokio::spawn(server.sessions.clone().sweep_idle(stopped));
    refuse_writes(&server.journal, true).unwrap();
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

    // Nobody asks for anything: the ends are recorded all the same.
    let mut changes = server.journal.watch();
    refuse_writes(&server.journal, false).unwrap();
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
    assert_eq!(first.completion.unwrap().reply["content"], "A robin.");
    assert_eq!(
        server.turn(given_up).reason.as_deref(),
        Some("client disconnected")
    );
    stop.send(true).unwrap();
    sweep.await.unwrap();
}

#[test]
fn a_silent_session_ends_and_a_talking_one_does_not() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let server = Server::with(SessionOptions {
            idle: Duration::from_millis(1),
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
            "its reply is still being made"
        );
        // Nothing is open that could be idle; the end of the reply wakes the sweep.
        server.answer(talking.turns[0], message("a:An ostrich."));
        while server.ended(&talking.session).is_none() {
            changes.changed().await.unwrap();
        }
        stop.send(true).unwrap();
        sweep.await.unwrap();
    });
}

#[test]
fn the_sweep_stops_with_its_owner() {
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
