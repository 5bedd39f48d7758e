//! Clients that change our replies: left out, without markdown, in lower case, or replaced by a summary. And
//! conversations that only look similar, which stay separate.

use std::time::Duration;

use clawhost_sessions::{IncomingRequest, SessionAssignment, SessionOptions};

use crate::builder::{Server, decision, message, request, talk};

const QUESTIONS: [&str; 8] = [
    "Where shall we go in spring?",
    "How long is the train to Rome?",
    "What is there to see in two days?",
    "Where do we eat near the Pantheon?",
    "Is the Forum open on Mondays?",
    "What does all of that cost?",
    "Which hotel is quiet at night?",
    "Please write it down as a plan.",
];

fn reply(step: usize) -> String {
    format!(
        "## Answer {step}\n\n1. **First** look at the [map](https://example.org/{step}) of day {step}.\n2. Then take line `{step}` \
         to the *old town*, and walk from there.\n"
    )
}

/// Our reply as plain text without markdown.
fn without_markdown(step: usize) -> String {
    format!(
        "Answer {step}\n\n1. First look at the map of day {step}.\n2. Then take line {step} to the old town, and walk from there."
    )
}

/// Runs eight exchanges. `shown` is our reply as the client sends it, if at all; `asked` how it sends earlier questions.
fn run_conversation(
    server: &Server,
    shown: impl Fn(usize) -> Option<String>,
    asked: impl Fn(&str) -> String,
) -> Vec<SessionAssignment> {
    let mut history = Vec::new();
    let mut all: Vec<SessionAssignment> = Vec::new();
    for (step, question) in QUESTIONS.iter().enumerate() {
        let mut sent = history.clone();
        sent.push(message(&format!("u:{question}")));
        let arrived = server.exchange(request(sent), &format!("a:{}", reply(step)));
        if let Some(first) = all.first() {
            assert_eq!(
                arrived.session, first.session,
                "step {step}: {}",
                arrived.matched
            );
            assert_eq!(
                decision(&arrived),
                "continue",
                "step {step}: {}",
                arrived.matched
            );
        }
        all.push(arrived);
        history.push(message(&format!("u:{}", asked(question))));
        history.extend(shown(step).map(|text| message(&format!("a:{text}"))));
    }
    all
}

fn assert_all_next_states(server: &Server, all: &[SessionAssignment]) {
    assert_eq!(server.session_count(), 1);
    for (arrived, next) in all.iter().zip(&QUESTIONS[1..]) {
        assert_eq!(
            server.next(arrived.turns[0]),
            Some(vec![(*next).to_owned()]),
            "{}",
            arrived.matched
        );
    }
}

#[test]
fn replies_without_markdown_match() {
    let server = Server::new();
    let all = run_conversation(&server, |step| Some(without_markdown(step)), str::to_owned);
    assert_all_next_states(&server, &all);
    let reason = &all[1].matched.reason;
    assert!(reason.contains("another rendering"), "{reason}");
}

#[test]
fn lowercased_histories_match() {
    let server = Server::new();
    let all = run_conversation(
        &server,
        |step| Some(reply(step).to_lowercase()),
        str::to_lowercase,
    );
    assert_all_next_states(&server, &all);
}

#[test]
fn histories_with_only_user_messages_match() {
    let server = Server::new();
    let all = run_conversation(&server, |_| None, str::to_owned);
    assert_all_next_states(&server, &all);
    assert_eq!(all[1].matched.ambiguity(), Some("reply"));
    assert!(
        all[2].matched.next_state.as_ref().unwrap().handed,
        "this client never sends our replies: {}",
        all[2].matched
    );
}

#[test]
fn a_short_user_history_counts_when_the_session_ends() {
    let server = Server::new();
    let first = server.exchange(request(talk(&["u:Where shall we go?"])), "a:To Rome.");
    let second = server.exchange(
        request(talk(&["u:Where shall we go?", "u:Not there again"])),
        "a:To Oslo.",
    );
    assert_eq!(second.session, first.session, "{}", second.matched);
    assert_eq!(server.next(first.turns[0]), None);
    let matched = server.turn(second.turns[0]).matched;
    let why = matched.next_state.unwrap().why.unwrap();
    assert!(
        why.contains("our reply to it is not in the request"),
        "{why}"
    );
    server.sessions.end_session(&first.session).unwrap();
    assert_eq!(
        server.next(first.turns[0]),
        Some(vec!["Not there again".to_owned()])
    );
}

#[test]
fn a_summarized_history_stays_in_its_session() {
    for summary in [
        "u:Summary: they plan a journey to Rome, and the train takes nine hours.",
        "s:Bisher: Reise nach Rom, die Fahrt dauert neun Stunden.",
        "a:So far a journey to Rome was planned; the train takes nine hours.",
    ] {
        let server = Server::new();
        let mut lines = vec!["s:be kind".to_owned()];
        let mut last = None;
        for (step, question) in QUESTIONS.iter().take(3).enumerate() {
            lines.push(format!("u:{question}"));
            let sent: Vec<&str> = lines.iter().map(String::as_str).collect();
            last = Some(server.exchange(request(talk(&sent)), &format!("a:{}", reply(step))));
            lines.push(format!("a:{}", reply(step)));
        }
        let last = last.unwrap();
        let asked = format!("u:{}", QUESTIONS[2]);
        let sent = ["s:be kind", summary, asked.as_str(), "u:no, three days"];
        let compacted = server.exchange(request(talk(&sent)), "a:Then see the Forum as well.");
        assert_eq!(
            compacted.session, last.session,
            "{summary}: {}",
            compacted.matched
        );
        assert_eq!(
            server.turn(compacted.turns[0]).parent,
            Some(last.turns[0]),
            "{summary}"
        );
        assert_eq!(
            server.next(last.turns[0]),
            None,
            "{summary}: {}",
            compacted.matched
        );
        let mut sent = sent.to_vec();
        sent.extend(["a:Then see the Forum as well.", "u:good"]);
        server.exchange(request(talk(&sent)), "a:Bye.");
        let next_state = |arrived: &SessionAssignment| server.next(arrived.turns[0]).unwrap();
        assert_eq!(next_state(&last), ["no, three days"], "{summary}");
        assert_eq!(next_state(&compacted), ["good"], "{summary}");
    }
}

#[test]
fn a_dropped_reply_gets_no_next_state() {
    let server = Server::new();
    let first = server.exchange(request(talk(&["u:Where shall we go?"])), "a:To Rome.");
    let again = ["u:Where shall we go?", "u:Are you there?"];
    server.exchange(request(talk(&again)), "a:Yes, to Oslo.");
    let mut lines = again.to_vec();
    lines.extend(["a:Yes, to Oslo.", "u:why?"]);
    let on = server.exchange(request(talk(&lines)), "a:It is quiet.");
    assert_eq!(on.session, first.session);
    server.sessions.end_session(&first.session).unwrap();
    assert_eq!(
        server.next(first.turns[0]),
        None,
        "our replies are shown, and this one is not among them"
    );
}

#[test]
fn rendered_replies_match_in_named_sessions() {
    let server = Server::new();
    let named = |lines: &[&str]| IncomingRequest {
        session_header: Some("mine".to_owned()),
        ..request(talk(lines))
    };
    let question = format!("u:{}", QUESTIONS[0]);
    let first = server.exchange(named(&[&question]), &format!("a:{}", reply(0)));
    let shown = format!("a:{}", without_markdown(0));
    let title = server.exchange(
        named(&[&question, &shown, "u:Gib dem Chat einen Namen."]),
        "a:Rom",
    );
    let real = server.exchange(
        named(&[&question, &shown, "u:no, to Oslo"]),
        "a:Take the boat.",
    );
    assert_eq!(
        server.turn(real.turns[0]).parent,
        Some(first.turns[0]),
        "{}",
        real.matched
    );
    assert_eq!(
        server.next(first.turns[0]),
        Some(vec!["no, to Oslo".to_owned()])
    );
    assert_eq!(server.next(title.turns[0]), None);
}

#[test]
fn conversations_with_the_same_user_messages_are_not_merged() {
    let server = Server::new();
    let question = format!("u:{}", QUESTIONS[0]);
    let as_user = |user: &str, lines: &[&str]| IncomingRequest {
        user: Some(user.to_owned()),
        ..request(talk(lines))
    };
    let ann = server.exchange(as_user("ann", &[&question]), "a:To Rome!");
    let bob = server.exchange(as_user("bob", &[&question]), "a:To Rome!");
    assert_ne!(ann.session, bob.session);
    // Another model's reply.
    let elsewhere = server.exchange(
        request(talk(&[
            &question,
            "a:The mountains are lovely then.",
            "u:which ones?",
        ])),
        "a:The Alps.",
    );
    assert_ne!(elsewhere.session, ann.session, "{}", elsewhere.matched);
    assert_ne!(elsewhere.session, bob.session, "{}", elsewhere.matched);
    // Two users with a `user` field, and a third without one.
    let again = server.exchange(
        as_user("bob", &[&question, "u:Not there again"]),
        "a:To Oslo.",
    );
    assert_eq!(again.session, bob.session, "{}", again.matched);
    let nobody = server.exchange(
        request(talk(&[&question, "u:Not there again"])),
        "a:To Oslo.",
    );
    assert!(
        ![&ann, &bob]
            .map(|known| &known.session)
            .contains(&&nobody.session),
        "{}",
        nobody.matched
    );
    let doubt = nobody.matched.doubt.as_deref().unwrap();
    assert!(
        doubt.contains("several sessions were asked the same"),
        "{doubt}"
    );
}

#[test]
fn user_messages_of_another_key_do_not_match() {
    let server = Server::new();
    let keyed = |key: &str, lines: &[&str]| IncomingRequest {
        key: Some(key.to_owned()),
        ..request(talk(lines))
    };
    let question = format!("u:{}", QUESTIONS[0]);
    let first = server.exchange(keyed("home", &[&question]), &format!("a:{}", reply(0)));
    let shown = format!("a:{}", without_markdown(0));
    for lines in [
        vec![question.as_str(), "u:Not there again"],
        vec![question.as_str(), shown.as_str(), "u:Not there again"],
    ] {
        let other = server.exchange(keyed("work", &lines), "a:To Oslo.");
        assert_ne!(other.session, first.session, "{}", other.matched);
    }
}

#[test]
fn similar_plain_text_conversations_stay_separate() {
    let server = Server::new();
    let people: Vec<String> = (0..12)
        .map(|person| format!("u:I am person {person} and I would like to travel"))
        .collect();
    let replies: Vec<String> = (0..12)
        .map(|person| format!("a:**Person {person}**, where to?"))
        .collect();
    let sessions: Vec<_> = people
        .iter()
        .zip(&replies)
        .map(|(person, reply)| server.exchange(request(talk(&[person])), reply).session)
        .collect();
    for (person, reply) in people.iter().zip(&replies) {
        let shown = reply.replace("**", "").to_lowercase();
        let arrived = server.exchange(request(talk(&[person, &shown, "u:to Rome"])), "a:By train.");
        let at = people.iter().position(|known| known == person).unwrap();
        assert_eq!(arrived.session, sessions[at], "{}", arrived.matched);
    }
    assert_eq!(server.session_count(), people.len());
}

#[test]
fn old_user_messages_do_not_match_without_a_reply() {
    let server = Server::with(SessionOptions {
        idle_timeout: Duration::from_millis(5),
        ..SessionOptions::default()
    });
    let question = format!("u:{}", QUESTIONS[0]);
    let first = server.exchange(
        IncomingRequest {
            received_ms: Some(1),
            ..request(talk(&[&question]))
        },
        "a:To Rome.",
    );
    let hour = i64::try_from(Duration::from_secs(3_600).as_millis()).unwrap();
    let later = server.exchange(
        IncomingRequest {
            received_ms: Some(clawhost_journal::now_ms() + hour),
            ..request(talk(&[&question, "u:Not there again"]))
        },
        "a:To Oslo.",
    );
    assert_ne!(later.session, first.session, "{}", later.matched);
}
