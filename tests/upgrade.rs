//! A data directory of an earlier version opens, migrates, serves the same adapter and goes on learning; the
//! configuration of that time gives errors that name the new keys. See `fixtures/old_data_directory/README.md`.

use clawhost::config::Config;
use clawhost::serve::{Server, Settings};
use clawhost_journal::{Journal, JournalError, SampleState};
use clawhost_tests::{ApiResponse, Client, TestServer, user};
use serde_json::{Value, json};
use tempfile::TempDir;

const ARCHIVE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/fixtures/old_data_directory/data.tar.gz"
);
/// Version of the schema that the journal in the archive has.
const OLD_SCHEMA: u32 = 8;

/// The old configuration as an operator of today writes it.
const CONFIGURATION: &str = r#"
[server]
port = 0
[training]
batch_size = 4
min_batch_size = 1
max_wait = "200ms"
nice = 0
num_epochs = 1
[training.lora]
rank = 2
alpha = 4.0
targets = ["q_proj", "v_proj"]
[[api_keys]]
name = "kim"
secret = "0123456789abcdef-kim"
[[api_keys]]
name = "sam"
secret = "0123456789abcdef-sam"
scopes = ["chat", "feedback"]
"#;

/// The unpacked archive, and what the clients of the old server saw.
fn unpack() -> (TempDir, Value) {
    let directory = TempDir::new().unwrap();
    let status = std::process::Command::new("tar")
        .args(["--extract", "--gzip", "--file", ARCHIVE, "--directory"])
        .arg(directory.path())
        .status();
    assert!(status.unwrap().success());
    let seen = std::fs::read(directory.path().join("seen.json")).unwrap();
    (directory, serde_json::from_slice(&seen).unwrap())
}

/// Checks that a migrated journal has the counts that the old program reported, and every reply that it sent.
fn check_record(journal: &Journal, seen: &Value) {
    let counts = serde_json::to_value(journal.counts().unwrap()).unwrap();
    for (name, count) in seen["journal"].as_object().unwrap() {
        assert_eq!(counts[name], *count, "{name}");
    }
    for conversation in seen["conversations"].as_array().unwrap() {
        let response = conversation["last"].as_str().unwrap();
        let turns = journal.turns_of_response(response).unwrap();
        let replies = conversation["replies"].as_array().unwrap();
        assert_eq!(turns.len(), replies.len());
        for (turn, reply) in turns.iter().zip(replies) {
            assert_eq!(turn.key.as_deref(), conversation["key"].as_str());
            let completion = turn.completion.as_ref().unwrap();
            let stored = serde_json::to_string(&completion.reply).unwrap();
            assert!(stored.contains(&reply.to_string()), "{stored}: {reply}");
            let tokens = completion.token_ids.len();
            assert!(tokens > 0 && completion.logprobs.len() == tokens);
            let turns = journal.session_turns(&turn.session).unwrap();
            for turn in turns.iter().filter(|one| one.next_judged) {
                assert!(!journal.verdicts(turn.id).unwrap().is_empty());
            }
        }
    }
    let named = journal.find_session(Some("sam"), "named").unwrap().unwrap();
    assert!(
        journal
            .session_turns(&named.id)
            .unwrap()
            .iter()
            .any(|turn| !turn.feedback.is_empty())
    );
    assert!(journal.find_session(Some("kim"), "gone").unwrap().is_none());
}

async fn start(directory: TempDir, train: bool) -> TestServer {
    let mut config = Config::parse(CONFIGURATION).unwrap();
    config.server.data_dir = directory.path().join("data");
    config.training.enabled = train;
    let server = Server::start(Settings::from(config)).await.unwrap();
    TestServer {
        client: Client::new(server.url()),
        server,
        data: directory,
    }
}

/// Sends a request with an API key.
async fn send(running: &TestServer, key: &str, messages: &[Value], tools: &Value) -> ApiResponse {
    let secret = format!("Bearer 0123456789abcdef-{key}");
    let request = running
        .client
        .chat(messages)
        .header("authorization", &secret);
    let answer = request
        .with(json!({"tools": tools, "max_tokens": 80}))
        .send()
        .await;
    answer.ok();
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_data_directory_migrates_and_goes_on_learning() {
    let (directory, seen) = unpack();
    let data = directory.path().join("data");
    match Journal::open_read_only(&data) {
        Err(JournalError::TooOld { found, .. }) => assert_eq!(found, OLD_SCHEMA),
        other => panic!("the journal is already migrated: {:?}", other.err()),
    }
    let journal = Journal::open(&data).unwrap();
    check_record(&journal, &seen);
    let queued = journal.queued_samples(16).unwrap();
    journal.wait_closed().await;

    // Clients go on with conversations that they began with the old server, and are recognised by its replies.
    let running = start(directory, false).await;
    let health = running.client.get("/healthz").await;
    assert_eq!(health.ok()["adapter"], seen["adapter"]);
    for conversation in seen["conversations"].as_array().unwrap() {
        let last = conversation["last"].as_str().unwrap();
        let last = running.journal().turns_of_response(last).unwrap().remove(0);
        let mut messages = conversation["messages"].as_array().unwrap().clone();
        messages.push(user("No, that's wrong. Please do it again as plain text."));
        let key = conversation["key"].as_str().unwrap();
        let answer = send(&running, key, &messages, &conversation["tools"]).await;
        assert_eq!(answer.version(), seen["adapter"]["version"]);
        let turn = running.turn(answer.turn());
        assert_eq!((turn.session, turn.parent), (last.session, Some(last.id)));
        running.wait_until_judged(last.id).await;
    }
    let TestServer { server, data, .. } = running;
    server.stop().await;

    // The adapter that the old program trained is trained further, with samples of both programs.
    let running = start(data, true).await;
    running.wait_until_idle().await;
    let trained = |id| {
        let sample = running.journal().sample(id).unwrap().unwrap();
        sample.state == SampleState::Trained
    };
    assert!(queued.iter().any(|sample| trained(sample.id)));
    let newest = queued.iter().map(|sample| sample.id.0).max().unwrap();
    let steps = running.journal().steps(16).unwrap();
    let mut samples = steps.iter().flat_map(|step| &step.trained);
    assert!(samples.any(|(sample, _)| sample.0 > newest));
    let version = seen["adapter"]["version"].as_u64().unwrap();
    let adapters = running.journal().adapters().unwrap();
    let next = adapters
        .iter()
        .find(|adapter| adapter.version == version + 1);
    assert_eq!(next.unwrap().parent, version);
    let answer = send(&running, "kim", &[user("What is 2 + 3?")], &json!([])).await;
    assert!(answer.version() > version);
    running.server.stop().await;
}

#[test]
fn old_configuration_names_the_new_keys() {
    let (directory, _) = unpack();
    let text = std::fs::read_to_string(directory.path().join("clawhost.toml")).unwrap();
    let error = format!("{:#}", Config::parse(&text).unwrap_err());
    let explained = |error: &str| error.contains(" is now `") || error.contains("` was removed: ");
    assert!(explained(&error), "{error}");
    // Each section alone, because an error names one key.
    let mut renamed = 0;
    for section in text
        .split("\n[")
        .map(|section| section.trim_start_matches('['))
    {
        let header = if section.starts_with("keys") {
            "[["
        } else {
            "["
        };
        if let Err(error) = Config::parse(&format!("{header}{section}")) {
            let error = format!("{error:#}");
            assert!(explained(&error), "{section}: {error}");
            renamed += 1;
        }
    }
    assert!(renamed >= 5, "{renamed} sections have old keys");
}
