//! Release control while training: a promotion applies to the next request, a rollback reverts it, a pinned version
//! stays active during training and across restarts, and unpinning publishes what was trained meanwhile.

use clawhost::serve::{Server, Settings};
use clawhost_tests::{Client, TestServer, configuration, user};
use serde_json::{Value, json};

/// Maximum rounds of conversation until a new version is published.
const ROUNDS: usize = 60;

/// Holds conversations until training has created a version with at least this number.
async fn learn(running: &TestServer, version: u64) -> u64 {
    for round in 0..ROUNDS {
        let made = running.journal().adapters().unwrap();
        if let Some(newest) = made.last().map(|row| row.version).filter(|v| *v >= version) {
            running.wait_until_idle().await;
            return newest.max(
                running
                    .journal()
                    .adapters()
                    .unwrap()
                    .last()
                    .unwrap()
                    .version,
            );
        }
        let mut conversation = running.conversation();
        conversation.send_message(&format!(
            "A shop sells {version} kites and {round} other things. Tom buys 4 and then 3 more. How many does he have?"
        ))
        .await;
        conversation
            .send_message("That's wrong, please do it again as one plain sentence.")
            .await;
        conversation.send_message("Thanks, perfect!").await;
        running.wait_until_idle().await;
    }
    unreachable!("nothing was learned in {ROUNDS} rounds")
}

async fn served(running: &TestServer) -> u64 {
    let answer = running.client.chat(&[user("Hello.")]).send().await;
    answer.ok();
    let turn = running.turn(answer.turn());
    assert_eq!(turn.adapter_version, answer.version());
    answer.version()
}

async fn post(running: &TestServer, act: &str, body: Value) -> Value {
    let path = format!("/v1/adapters/{act}");
    running.client.post(&path, &body).await.ok().clone()
}

async fn list(running: &TestServer) -> Value {
    running.client.get("/v1/adapters").await.ok().clone()
}

fn state(list: &Value, version: u64) -> &str {
    let rows = list["data"].as_array().unwrap();
    let row = rows.iter().find(|row| row["version"] == version).unwrap();
    row["state"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_controls_the_active_version_during_training() {
    let mut running = TestServer::start().await;
    let newest = learn(&running, 2).await;
    assert_eq!(served(&running).await, newest);

    let promoted = post(&running, "promote", json!({"version": 1})).await;
    assert_eq!(promoted["rollback_to"], newest);
    assert_eq!(served(&running).await, 1);
    let back = post(&running, "rollback", json!({})).await;
    assert_eq!(back["active"]["version"], newest);
    assert_eq!(served(&running).await, newest);

    let pinned = post(&running, "pin", json!({"version": 1})).await;
    assert_eq!(
        (&pinned["pinned"], &pinned["active"]["version"]),
        (&json!(true), &json!(1))
    );
    let made = learn(&running, newest + 1).await;
    assert_eq!(served(&running).await, 1);
    let shown = list(&running).await;
    assert_eq!(
        (state(&shown, 1), state(&shown, made)),
        ("active", "candidate")
    );
    assert_eq!(shown["training_from"], made);
    let rows = running.journal().adapters().unwrap();
    let first = rows.iter().find(|row| row.version == newest + 1).unwrap();
    assert_eq!(
        first.parent, 1,
        "training continues from the active version"
    );
    let path = "/v1/adapters/promote";
    let refused = running.client.post(path, &json!({"version": made})).await;
    assert_eq!(refused.error(409).1, "version_pinned");
    let path = "/v1/adapters/pin";
    let unknown = running.client.post(path, &json!({"version": 99})).await;
    assert_eq!(unknown.error(404).1, "unknown_adapter");

    running = restarted(running).await;
    assert_eq!(served(&running).await, 1);
    assert_eq!(list(&running).await["pinned"], true);
    let url = format!("{}/v1/adapters/pin", running.server.url());
    let freed = clawhost_http::client()
        .build()
        .unwrap()
        .delete(url)
        .send()
        .await
        .unwrap();
    assert_eq!(freed.status(), 200);
    assert_eq!(served(&running).await, 1);
    let next = learn(&running, made + 1).await;
    assert_eq!(served(&running).await, next);
    let rows = running.journal().adapters().unwrap();
    let after = rows.iter().find(|row| row.version == made + 1).unwrap();
    assert_eq!(
        after.parent, made,
        "it includes the training done meanwhile"
    );
    let acts: Vec<Value> = list(&running).await["releases"]
        .as_array()
        .unwrap()
        .iter()
        .rev()
        .map(|row| row["act"].clone())
        .filter(|act| *act != "step")
        .collect();
    assert_eq!(acts, ["promote", "rollback", "pin", "unpin"]);
}

/// Restarts the server on the same data directory.
async fn restarted(running: TestServer) -> TestServer {
    let TestServer { server, data, .. } = running;
    server.stop().await;
    let mut config = configuration();
    config.server.data_dir = data.path().to_owned();
    let server = Server::start(Settings::from(config)).await.unwrap();
    TestServer {
        client: Client::new(server.url()),
        server,
        data,
    }
}
