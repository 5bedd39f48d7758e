//! Requests that cannot be recorded are not served, and a prompt can be rendered again from its record.

use clawhost_chat::ChatInput;
use clawhost_engine::EngineOptions;
use clawhost_journal::{Journal, TurnId};
use serde_json::json;

use crate::server::{Server, until};

#[tokio::test]
async fn requests_are_rejected_while_the_journal_is_unwritable() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let server = Server::on(journal, EngineOptions::default(), |_| {}).await;
    server.chat("A").await.ok();
    // Another connection holds the write lock of the database, which fails writes like a full disk.
    let intruder = rusqlite::Connection::open(folder.path().join("journal.sqlite")).unwrap();
    intruder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let answer = server.chat("A").await;
    assert_eq!(answer.error(503), "journal_unavailable");
    assert_eq!(answer.header("retry-after"), "1");
    until("the engine gave it up", || {
        (server.engine.stats().running == 0).then_some(())
    })
    .await;
    intruder.execute_batch("ROLLBACK").unwrap();
    server.chat("A").await.ok();
}

#[tokio::test]
async fn prompt_with_the_time_is_reproducible_from_the_record() {
    let server = Server::start().await;
    let extra = json!({"chat_template_kwargs": {"clock": true, "ending": "B"}, "n": 2});
    let answer = server.chat_with("x", extra).await;
    answer.ok();
    let first = answer.header("x-clawhost-turn").split(',').next().unwrap();
    let turn = TurnId(first.parse().unwrap());
    let inputs = server.journal.prompt_inputs(turn).unwrap().unwrap();
    assert_eq!(
        json!(inputs.template),
        json!({"clock": true, "ending": "B"})
    );
    let record = server.turn(turn.0);
    assert_eq!(inputs.received_ms, record.received_ms);
    let input = ChatInput {
        messages: &inputs.messages,
        tools: &inputs.tools,
        add_generation_prompt: true,
        extra: Some(&inputs.template),
    };
    let template = server.engine.template();
    let text = template
        .render_at(&input, inputs.received_ms.div_euclid(1000))
        .unwrap();
    assert!(
        text.starts_with("20") && text.ends_with("user: xB"),
        "{text}"
    );
    let ids = server.engine.tokenizer().encode(&text).unwrap();
    assert_eq!(ids, record.prompt_ids);
    let later = template
        .render_at(&input, inputs.received_ms.div_euclid(1000) + 1)
        .unwrap();
    assert_ne!(later, text, "the prompt contains the seconds");
}
