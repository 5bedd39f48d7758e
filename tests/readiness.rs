//! A server is ready when chat works, whatever training can do.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may fail by panicking"
)]

use clawhost_tests::Running;

#[tokio::test(flavor = "multi_thread")]
async fn checkpoints_that_cannot_be_written_leave_the_server_ready() {
    let running = Running::start().await;
    // A file where the directory of adapters should be: no checkpoint can be written.
    let adapters = running.data.path().join("adapters");
    std::fs::remove_dir_all(&adapters).unwrap();
    std::fs::write(&adapters, b"in the way").unwrap();
    let mut talk = running.talk();
    talk.say("What is 2 + 3?").await;
    talk.say("That's wrong. Please do it again.").await;
    talk.say("Thanks, that is perfect!").await;
    let training = running.server.training().clone();
    let error = running
        .until("a step fails", || training.snapshot().last_error)
        .await;
    let path = running.data.path().to_str().unwrap().to_owned();
    assert!(error.contains(&path), "{error}");

    let health = running.client.get("/healthz").await;
    assert_eq!(health.status, 503);
    assert_eq!(health.body["reason"], "no training step can be recorded");
    assert!(!health.body.to_string().contains(&path), "{}", health.body);
    assert_eq!(running.client.get("/readyz").await.ok()["status"], "ready");
    talk.say("And 3 + 4?").await;
}
