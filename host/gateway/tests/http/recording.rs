//! What cannot be recorded is not served.

use clawhost_journal::Journal;
use clawhost_policy::EngineOptions;

use crate::server::{Server, until};

#[tokio::test]
async fn a_journal_that_cannot_be_written_refuses_requests_until_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let server = Server::on(journal, EngineOptions::default(), |_| {}).await;
    server.chat("A").await.ok();
    // Somebody else holds the write lock of the database, as a full disk would do without a trick.
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
