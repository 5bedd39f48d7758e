//! A repeated request is a retry: its reply is a sibling of the first, and is not feedback on it.

use clawhost_journal::{JudgingState, MatchDecision, TurnState};
use clawhost_tests::{Script, TestServer};
use serde_json::json;
use tempfile::TempDir;

#[tokio::test]
async fn identical_requests_give_siblings() {
    let running = TestServer::start().await;
    let conversation = running.conversation();
    let question = "Sam has 12 apples and gives 5 away. How many are left?";
    let send = || {
        conversation
            .request(question)
            .header("x-request-id", "req-1")
            .send()
    };
    let first = send().await;
    let again = send().await;
    assert_eq!(first.session(), again.session());
    let (first, again) = (running.turn(first.turn()), running.turn(again.turn()));
    assert_ne!(first.id, again.id);
    assert_eq!(first.group, again.group);
    assert_eq!(first.request_digest, again.request_digest);
    assert_eq!(
        again.matched.decision,
        Some(MatchDecision::Retry),
        "{}",
        again.matched
    );
    assert_eq!(again.parent, first.parent);
    for turn in [&first, &again] {
        assert_eq!(turn.next_state, None, "a retry is not feedback");
        assert_eq!(turn.judging, JudgingState::Waiting);
    }
    let explanation = running.explain(again.id).await;
    assert_eq!(explanation["siblings"], json!([first.id]), "{explanation}");

    // Without evidence that it is the same request, it is a new conversation.
    let stranger = conversation.request(question).send().await;
    let stranger = running.turn(stranger.turn());
    assert_ne!(stranger.session, first.session);
    assert_eq!(
        stranger.matched.decision,
        Some(MatchDecision::New),
        "{}",
        stranger.matched
    );
}

#[tokio::test]
async fn retry_within_a_conversation_judges_the_previous_turn_once() {
    let running = TestServer::start().await;
    let mut conversation = running.conversation();
    let opening = conversation
        .send_message("A box holds 4 pens. How many pens do 3 boxes hold?")
        .await;
    let complaint = "That's wrong. Please do it again.";
    let answers = [
        conversation.request(complaint).send().await,
        conversation.request(complaint).send().await,
        conversation.request(complaint).send().await,
    ];
    let turns: Vec<_> = answers.iter().map(|a| running.turn(a.turn())).collect();
    for turn in &turns {
        assert_eq!(turn.session.to_string(), opening.session());
        assert_eq!(turn.parent, Some(opening.turn()));
        assert_eq!(turn.group, turns[0].group);
        assert_eq!(turn.next_state, None);
    }
    let judged = running.wait_until_judged(opening.turn()).await;
    assert_eq!(judged.judging, JudgingState::Done);
    running.wait_until_idle().await;
    assert_eq!(
        running.journal().verdicts(opening.turn()).unwrap().len(),
        1,
        "three identical complaints are one"
    );
    assert_eq!(
        running
            .journal()
            .samples_of_turn(opening.turn())
            .unwrap()
            .len(),
        1
    );

    // The conversation continues from the second of the three replies: that one is judged, its siblings are not.
    conversation.record(complaint, answers[1].text());
    let thanks = conversation.send_message("Thanks, perfect!").await;
    assert_eq!(thanks.session(), opening.session());
    let chosen = running.turn(thanks.turn()).parent.unwrap();
    let same_text = |turn: &&clawhost_journal::TurnRecord| {
        turn.completion.as_ref().unwrap().reply.text() == answers[1].text()
    };
    assert!(turns.iter().filter(same_text).any(|turn| turn.id == chosen));
    running.wait_until_judged(chosen).await;
    for turn in turns.iter().filter(|turn| turn.id != chosen) {
        let turn = running.turn(turn.id);
        assert_eq!(turn.judging, JudgingState::Waiting);
        assert!(
            running
                .journal()
                .samples_of_turn(turn.id)
                .unwrap()
                .is_empty()
        );
    }
}

#[tokio::test]
async fn retry_of_an_aborted_reply_replaces_it() {
    let model = TempDir::new().unwrap();
    let scripts = [
        Script::endless('L', "la "),
        Script::reply('!', &["Any time."]),
    ];
    Script::save(&scripts, model.path());
    let running =
        TestServer::with(|config| config.model.path = Some(model.path().to_owned())).await;
    let mut conversation = running.conversation().with(json!({"max_tokens": 20}));
    let question = "Sing me something L";
    // Long enough that a client that disconnects after the first word has an incomplete reply.
    let request = conversation.request(question);
    let request = request.with(json!({"max_tokens": 100_000}));
    let mut stream = request.stream().await;
    let cut = stream.turn();
    stream.next_text().await.unwrap().unwrap();
    drop(stream);
    assert_eq!(
        running.wait_until_ended(cut).await.state,
        TurnState::Aborted
    );

    let again = conversation.send_message(question).await;
    let thanks = conversation.send_message("Thanks!").await;
    let (cut, again) = (running.turn(cut), running.turn(again.turn()));
    assert_eq!(
        again.matched.decision,
        Some(MatchDecision::Retry),
        "{}",
        again.matched
    );
    assert_eq!((&cut.session, &cut.group), (&again.session, &again.group));
    assert_eq!(cut.next_state, None);
    assert_eq!(running.turn(thanks.turn()).parent, Some(again.id));
    running.wait_until_judged(again.id).await;
    assert!(running.journal().verdicts(cut.id).unwrap().is_empty());
    let explanation = running.explain(cut.id).await;
    assert_eq!(explanation["trained"], false);
    assert!(
        explanation["why"].as_str().unwrap().contains("cut"),
        "{explanation}"
    );
}
