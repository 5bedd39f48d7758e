//! `/v1/events`: what each key receives, when, and how the stream ends.

use std::time::{Duration, Instant};

use clawhost_config::AdapterScope;
use clawhost_gateway::{ApiKey, GatewayOptions, Scope};
use clawhost_journal::AdapterOwner;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::{Method, Response};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::server::{ApiResponse, Server, TIMEOUT, chat_body};

/// Streams of one key.
const LIMIT: usize = 8;

fn keyed(options: &mut GatewayOptions) {
    options.keys = vec![
        ApiKey::new("ann", "key-of-ann", [Scope::Chat]).unwrap(),
        ApiKey::new("bob", "key-of-bob", [Scope::Chat, Scope::Feedback]).unwrap(),
        ApiKey::new("fay", "key-of-fay", [Scope::Feedback]).unwrap(),
        ApiKey::new("ops", "key-of-ops", Scope::ALL).unwrap(),
    ];
}

/// An open event stream.
struct Events {
    body: BoxStream<'static, reqwest::Result<Vec<u8>>>,
    seen: String,
}

impl Events {
    /// The next event with its data; `None` at the end of the stream.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            while let Some(end) = self.seen.find("\n\n") {
                let event: String = self.seen.drain(..end + 2).collect();
                let line = |name: &str| {
                    let mut lines = event.lines();
                    lines.find_map(|line| line.strip_prefix(name).map(str::to_owned))
                };
                if let Some((name, data)) = line("event: ").zip(line("data: ")) {
                    return Some((name, serde_json::from_str(&data).unwrap()));
                }
            }
            let part = timeout(TIMEOUT, self.body.next())
                .await
                .expect("an event")?;
            self.seen
                .push_str(std::str::from_utf8(&part.unwrap()).unwrap());
        }
    }

    /// The next snapshot that `is` true for.
    async fn snapshot(&mut self, is: impl Fn(&Value) -> bool) -> Value {
        loop {
            let (name, data) = self.next().await.expect("a snapshot");
            if name == "snapshot" && is(&data) {
                return data;
            }
        }
    }
}

async fn get(server: &Server, key: Option<&str>) -> Response {
    get_path(server, key, "/v1/events").await
}

async fn get_path(server: &Server, key: Option<&str>, path: &str) -> Response {
    let mut request = server.request(Method::GET, path);
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    request.send().await.unwrap()
}

async fn open(server: &Server, key: Option<&str>) -> Events {
    read(get(server, key).await)
}

fn read(response: Response) -> Events {
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let body = response.bytes_stream();
    Events {
        body: body.map(|part| part.map(|part| part.to_vec())).boxed(),
        seen: String::new(),
    }
}

fn turns(snapshot: &Value) -> usize {
    snapshot["turns"].as_array().unwrap().len()
}

#[tokio::test]
async fn first_snapshot_has_the_whole_state() {
    let server = Server::start().await;
    server.chat("X").await.ok();
    let metrics = json!({"reward_mean": 0.5, "rewarded": 4, "kl_reference": 0.01, "loss_last": -0.2,
                         "gradient_norm": 0.7, "samples_moved": [{"sample": 1}]});
    let releases = server.loops.releases.get().unwrap();
    releases.publish_with(1, metrics);
    let costs = json!([{"name": "judge", "calls": 3, "cpu_us": 1200}]);
    let plugins = json!([{"name": "judge", "kind": "judge"}]);
    server.loops.plugins.set((plugins, costs)).unwrap();
    let mut events = open(&server, None).await;
    let (name, greeting) = events.next().await.unwrap();
    assert_eq!(name, "caller");
    assert_eq!(greeting["key"], Value::Null);
    assert_eq!(greeting["scopes"], json!(["chat", "feedback", "operator"]));
    let snapshot = events.snapshot(|_| true).await;
    assert_eq!(snapshot["model"], "tiny");
    assert_eq!(snapshot["adapter"]["version"], 1);
    assert_eq!(snapshot["errors"], json!([]));
    let turn = &snapshot["turns"][0];
    assert_eq!(turn["prompt"], "X");
    assert_eq!(turn["reply"], "<script>alert(1)</script>");
    assert_eq!(turn["state"], "complete");
    assert_eq!(turn["adapter_version"], 0);
    assert_eq!(turn["verdicts"], json!([]));
    let operator = &snapshot["operator"];
    assert_eq!(operator["counts"]["turns"]["complete"], 1);
    assert_eq!(operator["engine"]["running"], 0);
    assert_eq!(operator["judging"]["running"], 1);
    assert_eq!(operator["plugins"][0]["name"], "judge");
    assert_eq!(operator["plugin_costs"][0]["cpu_us"], 1200);
    assert_eq!(operator["release"]["version"], 1);
    assert_eq!(operator["adapters"][0]["state"], "active");
    assert_eq!(operator["releases"][0]["act"], "step");
    let step = &operator["steps"][0];
    assert_eq!(step["outcome"], "published");
    assert_eq!(
        json!([
            step["reward_mean"],
            step["kl_reference"],
            step["loss_last"],
            step["gradient_norm"]
        ]),
        json!([0.5, 0.01, -0.2, 0.7])
    );
    assert!(step.get("samples_moved").is_none());
}

#[tokio::test]
async fn an_operator_receives_what_belongs_to_one_owner() {
    let server = Server::with(|options| {
        keyed(options);
        options.adapters = AdapterScope::Key;
    })
    .await;
    let (ann, bob) = (AdapterOwner::of_key("ann"), AdapterOwner::of_key("bob"));
    let releases = server.loops.releases.get().unwrap();
    releases.publish_of(Some(&ann), 1, json!({"gradient_norm": 0.5}));
    releases.publish_of(Some(&bob), 2, json!({}));
    releases.publish_of(Some(&ann), 3, json!({}));
    for (key, text) in [("key-of-ann", "of ann A"), ("key-of-bob", "of bob B")] {
        let request = server.request(Method::POST, "/v1/chat/completions");
        let request = request.bearer_auth(key).json(&chat_body(text, json!({})));
        ApiResponse::read(request.send().await.unwrap()).await.ok();
    }
    let path = "/v1/events?owner=key:ann";
    let mut events = read(get_path(&server, Some("key-of-ops"), path).await);
    let snapshot = events.snapshot(|_| true).await;
    assert_eq!(turns(&snapshot), 1);
    assert_eq!(snapshot["turns"][0]["prompt"], "of ann A");
    let operator = &snapshot["operator"];
    assert_eq!(operator["owners"], json!(["key:ann", "key:bob"]));
    let owner = json!({"name": "key:ann", "queued": 0, "steps": {"published": 2}, "adapters": 2});
    assert_eq!(operator["owner"], owner);
    let versions = |list: &Value, field: &str| -> Vec<Value> {
        let rows = list.as_array().unwrap().iter();
        rows.map(|row| row[field].clone()).collect()
    };
    assert_eq!(versions(&operator["steps"], "adapter"), [1, 3]);
    assert_eq!(versions(&operator["adapters"], "version"), [1, 3]);
    assert_eq!(versions(&operator["releases"], "version"), [1, 3]);
    assert_eq!(operator["release"]["version"], 3);
    // A later step of the owner is added, one of another is not.
    releases.publish_of(Some(&bob), 4, json!({}));
    releases.publish_of(Some(&ann), 5, json!({}));
    let has_step = |snapshot: &Value| snapshot["operator"]["release"]["version"] == 5;
    let snapshot = events.snapshot(has_step).await;
    assert_eq!(
        versions(&snapshot["operator"]["steps"], "adapter"),
        [1, 3, 5]
    );

    let shared = "/v1/events?owner=shared";
    let mut events = read(get_path(&server, Some("key-of-ops"), shared).await);
    let snapshot = events.snapshot(|_| true).await;
    assert_eq!(
        (turns(&snapshot), &snapshot["operator"]["owner"]["adapters"]),
        (0, &json!(0))
    );
    let mut events = open(&server, Some("key-of-ops")).await;
    let snapshot = events.snapshot(|_| true).await;
    assert_eq!(
        (turns(&snapshot), &snapshot["operator"]["owner"]),
        (2, &Value::Null)
    );
    assert_eq!(snapshot["operator"]["adapters"][1]["owner"], "key:bob");
    let refused = ApiResponse::read(get_path(&server, Some("key-of-ann"), path).await).await;
    assert_eq!(refused.status, 403);
    let unclear = get_path(&server, Some("key-of-ops"), "/v1/events?owner=ann").await;
    assert_eq!(ApiResponse::read(unclear).await.error(400), "invalid_value");
}

#[tokio::test]
async fn changes_are_pushed_at_most_once_per_second() {
    let server = Server::with(|options| options.keep_alive = Duration::from_millis(20)).await;
    // Before the first snapshot is taken, so that its tick is not counted, however late it is received.
    let began = Instant::now();
    let mut events = open(&server, None).await;
    let empty = events.snapshot(|_| true).await;
    assert_eq!(turns(&empty), 0);
    let mut pushed = 0;
    for round in 1..=2 {
        for _ in 0..3 {
            server.chat("A").await.ok();
        }
        loop {
            let snapshot = events.snapshot(|_| true).await;
            pushed += 1;
            if turns(&snapshot) == 3 * round {
                break;
            }
        }
    }
    let most = began.elapsed().as_secs() + 2;
    assert!(
        pushed <= most,
        "{pushed} snapshots in {:?}",
        began.elapsed()
    );
    // Without a change there are only comments: no snapshot in more than two periods. The engine may still count a
    // last step, which is a change.
    while let Ok(event) = timeout(Duration::from_millis(2500), events.next()).await {
        assert!(event.is_some(), "the stream ended");
        assert!(
            began.elapsed() < TIMEOUT,
            "snapshots are pushed without a change"
        );
    }
}

#[tokio::test]
async fn errors_of_the_loops_are_pushed() {
    let server = Server::with(keyed).await;
    let mut operator = open(&server, Some("key-of-ops")).await;
    let mut user = open(&server, Some("key-of-ann")).await;
    operator.snapshot(|_| true).await;
    *server.loops.training_error.lock().unwrap() = Some("/srv/data is full".to_owned());
    let has_error = |snapshot: &Value| snapshot["errors"][0].is_string();
    let snapshot = operator.snapshot(has_error).await;
    assert_eq!(
        snapshot["errors"],
        json!(["training steps cannot be recorded: /srv/data is full"])
    );
    let snapshot = user.snapshot(has_error).await;
    assert_eq!(
        snapshot["errors"],
        json!(["training steps cannot be recorded"])
    );
}

#[tokio::test]
async fn each_key_receives_what_it_may_see() {
    let server = Server::with(keyed).await;
    for (key, text) in [("key-of-ann", "of ann A"), ("key-of-bob", "of bob B")] {
        let request = server.request(Method::POST, "/v1/chat/completions");
        let request = request.bearer_auth(key).json(&chat_body(text, json!({})));
        ApiResponse::read(request.send().await.unwrap()).await.ok();
    }
    for (key, status) in [
        (None, 401),
        (Some("key-of-nobody"), 401),
        (Some("key-of-fay"), 403),
    ] {
        let answer = ApiResponse::read(get(&server, key).await).await;
        answer.error(status);
    }
    for (key, scopes, prompts) in [
        ("key-of-ann", json!(["chat"]), json!(["of ann A"])),
        (
            "key-of-bob",
            json!(["chat", "feedback"]),
            json!(["of bob B"]),
        ),
        (
            "key-of-ops",
            json!(["chat", "feedback", "operator"]),
            json!(["of bob B", "of ann A"]),
        ),
    ] {
        let mut events = open(&server, Some(key)).await;
        let (_, greeting) = events.next().await.unwrap();
        assert_eq!(greeting["scopes"], scopes);
        assert_eq!(greeting["key"], key.strip_prefix("key-of-").unwrap());
        let snapshot = events.snapshot(|_| true).await;
        let turns = snapshot["turns"].as_array().unwrap().iter();
        let seen: Vec<&Value> = turns.map(|turn| &turn["prompt"]).collect();
        assert_eq!(json!(seen), prompts, "{key}");
        assert_eq!(snapshot.get("operator").is_some(), key == "key-of-ops");
    }
}

#[tokio::test]
async fn streams_of_a_key_are_limited_and_occupy_no_slot() {
    let server = Server::with(|options| {
        keyed(options);
        options.server.max_concurrent_requests = 1;
    })
    .await;
    let mut streams = Vec::new();
    for _ in 0..LIMIT {
        let mut events = open(&server, Some("key-of-ann")).await;
        events.snapshot(|_| true).await;
        streams.push(events);
    }
    let refused = ApiResponse::read(get(&server, Some("key-of-ann")).await).await;
    assert_eq!(refused.error(429), "too_many_streams");
    assert_eq!(refused.header("retry-after"), "1");
    open(&server, Some("key-of-bob"))
        .await
        .snapshot(|_| true)
        .await;
    let request = server.request(Method::POST, "/v1/chat/completions");
    let request = request.bearer_auth("key-of-ann");
    let request = request.json(&chat_body("A", json!({})));
    ApiResponse::read(request.send().await.unwrap()).await.ok();
    // A client that goes away makes room for another.
    streams.pop();
    until_accepted(&server, "key-of-ann").await;
}

#[tokio::test]
async fn client_that_does_not_read_is_disconnected() {
    let server = Server::with(|options| {
        keyed(options);
        // A snapshot that exceeds the buffers of a connection.
        options.model_name = "m".repeat(8 << 20);
        options.server.write_timeout = Duration::from_millis(50);
    })
    .await;
    let mut stalled = Vec::new();
    for _ in 0..LIMIT {
        stalled.push(open_unread(&server, "key-of-ann").await);
    }
    until_accepted(&server, "key-of-ann").await;
}

/// A connection with a small receive buffer that has asked for the stream and reads nothing.
async fn open_unread(server: &Server, key: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(2048).unwrap();
    let mut stream = socket.connect(server.address).await.unwrap();
    let head = format!(
        "GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// Waits until a stream of this key is accepted.
async fn until_accepted(server: &Server, key: &str) {
    let accepted = async {
        while get(server, Some(key)).await.status() != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(TIMEOUT, accepted).await.expect("a free stream");
}

#[tokio::test]
async fn streams_end_when_shutdown_begins() {
    let server = Server::with(|options| options.server.shutdown_timeout = 2 * TIMEOUT).await;
    let mut events = open(&server, None).await;
    events.snapshot(|_| true).await;
    server.stop.send(true).unwrap();
    while events.next().await.is_some() {}
    timeout(TIMEOUT, server.running)
        .await
        .expect("the streams do not use the grace period")
        .unwrap()
        .unwrap();
}
