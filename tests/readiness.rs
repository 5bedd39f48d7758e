//! Readiness depends on chat, not on training.

use clawhost_tests::TestServer;

#[tokio::test(flavor = "multi_thread")]
async fn unwritable_checkpoints_leave_the_server_ready() {
    let running = TestServer::start().await;
    // A file in place of the adapters directory: no checkpoint can be written.
    let adapters = running.data.path().join("adapters");
    std::fs::remove_dir_all(&adapters).unwrap();
    std::fs::write(&adapters, b"in the way").unwrap();
    let mut conversation = running.conversation();
    conversation.send_message("What is 2 + 3?").await;
    conversation
        .send_message("That's wrong. Please do it again.")
        .await;
    conversation.send_message("Thanks, that is perfect!").await;
    let training = running.server.training().clone();
    let error = running
        .until("a step fails", || training.snapshot().last_error)
        .await;
    let path = running.data.path().to_str().unwrap().to_owned();
    assert!(error.contains(&path), "{error}");

    let health = running.client.get("/healthz").await;
    assert_eq!(health.status, 503);
    assert_eq!(health.body["reason"], "training steps cannot be recorded");
    assert!(!health.body.to_string().contains(&path), "{}", health.body);
    assert_eq!(running.client.get("/readyz").await.ok()["status"], "ready");
    conversation.send_message("And 3 + 4?").await;
}
