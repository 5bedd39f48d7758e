//! Durability: a clean stop leaves one complete file, a backup taken while serving is consistent, a damaged journal is
//! rejected with instructions, adapters unknown to the journal are kept, and a full disk leaves no turn open.

use std::path::{Path, PathBuf};

use clawhost_journal::bench::append_turns;
use clawhost_journal::{Journal, TurnId, TurnState};
use clawhost_tests::{
    Client, Command, Conversation, ProcessOutput, ServerProcess, TestServer, until,
};
use serde_json::json;
use tempfile::TempDir;

const JOURNAL: &str = "journal.sqlite";

fn clawhost(arguments: &[&str]) -> ProcessOutput {
    Command::new(arguments).run()
}

/// A path as text.
fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A server in a child process, without training.
async fn serve(data: &Path) -> ServerProcess {
    let data = data.display().to_string();
    let started = tokio::task::spawn_blocking(move || {
        let arguments = ["run", "--port", "0", "--no-train", "--data", &data];
        Command::new(&arguments).ignoring_file_size_signal().serve()
    });
    started.await.unwrap().expect("it starts")
}

async fn run(arguments: &[&str]) -> ProcessOutput {
    let arguments: Vec<String> = arguments.iter().map(|one| (*one).to_owned()).collect();
    let ended = tokio::task::spawn_blocking(move || Command::new(&arguments).run());
    ended.await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clean_stop_leaves_one_complete_file() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let mut process = serve(&data).await;
    let client = Client::new(&process.url);
    let mut conversation = Conversation::new(&client).with(json!({"max_tokens": 8}));
    let mut turns = Vec::new();
    for _ in 0..3 {
        turns.push(conversation.send_message("What is 2 + 3?").await.turn());
    }
    assert_eq!(process.stop().await, Some(0));
    let alone = dir.path().join("alone");
    std::fs::create_dir(&alone).unwrap();
    std::fs::copy(data.join(JOURNAL), alone.join(JOURNAL)).unwrap();
    let journal = Journal::open_read_only(&alone).unwrap();
    for turn in turns {
        let record = journal.turn(turn).unwrap();
        let record = record.unwrap_or_else(|| panic!("turn {turn} is not in the file"));
        assert_eq!(record.state, TurnState::Complete);
    }
}

/// Holds conversations until a training step is done.
async fn train_one_step(running: &TestServer) {
    running
        .until("an adapter is published", || {
            running.journal().active_adapter().unwrap()
        })
        .await;
}

async fn send_complaint(running: &TestServer) {
    let mut conversation = running
        .conversation()
        .with(json!({"max_tokens": 12, "temperature": 1.0}));
    for (number, text) in [
        "Kim has 3 cards and gets 4 more. How many are there?",
        "That's wrong.",
    ]
    .iter()
    .cycle()
    .take(6)
    .enumerate()
    {
        conversation
            .send_message(&format!("{text} ({number})"))
            .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backup_taken_while_serving_can_be_restored_and_served() {
    let running = TestServer::start().await;
    send_complaint(&running).await;
    train_one_step(&running).await;
    let copies = TempDir::new().unwrap();
    let (dest, back) = (copies.path().join("monday"), copies.path().join("back"));
    // Conversations continue meanwhile.
    let talking = send_complaint(&running);
    let data = name(running.data.path()).to_owned();
    let backup = ["backup", name(&dest), "--data", &data];
    let (ended, ()) = tokio::join!(run(&backup), talking);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let again = run(&backup).await;
    assert_eq!(again.code, Some(1), "{}", again.stdout);
    assert!(again.stderr.contains("already exists"), "{}", again.stderr);

    let restore = ["restore", name(&dest), "--data", name(&back)];
    let ended = run(&restore).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let refused = run(&restore).await;
    assert!(
        refused.stderr.contains("cannot restore over existing data"),
        "{}",
        refused.stderr
    );
    let checked = run(&["journal", "check", "--data", name(&back)]).await;
    assert_eq!(checked.code, Some(0), "{}", checked.stdout);

    let saved = Journal::open_read_only(&back).unwrap();
    let row = saved.active_adapter().unwrap().unwrap();
    let turns: u64 = saved.counts().unwrap().turns.values().sum();
    assert!(turns >= 6, "{turns} turns");
    for turn in 1..=6 {
        let theirs = running.turn(TurnId(turn));
        let ours = saved.turn(TurnId(turn)).unwrap().unwrap();
        assert_eq!(ours.completion, theirs.completion);
    }
    drop(saved);
    let process = serve(&back).await;
    let health = Client::new(&process.url).get("/healthz").await;
    assert_eq!(health.ok()["adapter"]["digest"], row.digest.as_str());
    drop(process);

    // A modified backup is rejected.
    let adapter = dest.join(&row.path).join("adapter_model.safetensors");
    let mut bytes = std::fs::read(&adapter).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&adapter, bytes).unwrap();
    let other = copies.path().join("other");
    let refused = run(&["restore", name(&dest), "--data", name(&other)]).await;
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("is damaged"), "{}", refused.stderr);
    assert!(!other.exists());
}

/// A data directory as left by a kill, with turns that are only in the WAL.
fn killed_data_dir(dir: &Path) -> PathBuf {
    let (live, image) = (dir.join("live"), dir.join("image"));
    let journal = Journal::open(&live).unwrap();
    append_turns(&journal, 60).unwrap();
    std::fs::create_dir(&image).unwrap();
    for file in [JOURNAL, "journal.sqlite-wal", "journal.mark"] {
        std::fs::copy(live.join(file), image.join(file)).unwrap();
    }
    image
}

#[test]
fn damaged_journal_is_rejected_checked_and_recovered() {
    let dir = TempDir::new().unwrap();
    let data = killed_data_dir(dir.path());
    let place = name(&data);
    let log = data.join("journal.sqlite-wal");
    let mut bytes = std::fs::read(&log).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&log, bytes).unwrap();
    let refused = clawhost(&["run", "--port", "0", "--data", place]);
    assert_eq!(refused.code, Some(1), "{}", refused.stdout);
    assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
    for part in ["60 turns", "clawhost journal recover"] {
        assert!(
            refused.stderr.contains(part),
            "no {part}: {}",
            refused.stderr
        );
    }
    let checked = clawhost(&["journal", "check", "--data", place]);
    assert_eq!(checked.code, Some(1));
    assert!(
        checked.stdout.contains("does not verify"),
        "{}",
        checked.stdout
    );
    let recovered = clawhost(&["journal", "recover", "--data", place]);
    assert_eq!(recovered.code, Some(0), "{}", recovered.stderr);
    assert!(recovered.stdout.contains("of 60"), "{}", recovered.stdout);
    let checked = clawhost(&["journal", "check", "--data", place]);
    assert_eq!(checked.code, Some(0), "{}", checked.stdout);
    let journal = Journal::open(&data).unwrap();
    let turns: u64 = journal.counts().unwrap().turns.values().sum();
    assert!(turns >= 55, "{turns} turns");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adapters_outlive_the_journal_and_can_be_imported() {
    let running = TestServer::start().await;
    send_complaint(&running).await;
    train_one_step(&running).await;
    running.wait_until_idle().await;
    let row = running.journal().active_adapter().unwrap().unwrap();
    let TestServer { server, data, .. } = running;
    server.stop().await;
    std::fs::rename(data.path().join(JOURNAL), data.path().join("gone")).unwrap();
    drop(serve(data.path()).await);
    let aside = data
        .path()
        .join("adapters/unknown")
        .join(format!("v{:06}", row.version));
    assert!(aside.join("adapter_model.safetensors").is_file());
    let ended = run(&[
        "adapter",
        "import",
        name(&aside),
        "--data",
        name(data.path()),
        "--promote",
    ])
    .await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let process = serve(data.path()).await;
    let health = Client::new(&process.url).get("/healthz").await;
    assert_eq!(health.ok()["adapter"]["digest"], row.digest.as_str());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_leaves_no_turn_open() {
    let dir = TempDir::new().unwrap();
    let process = serve(dir.path()).await;
    let client = Client::new(&process.url);
    // Long enough that the disk is full before the reply ends.
    let conversation =
        Conversation::new(&client).with(json!({"max_tokens": 1500, "ignore_eos": true}));
    let question = "Kim has 3 cards and gets 4 more. How many cards are there?";
    let mut stream = conversation.request(question).try_stream().await.unwrap();
    let turn = stream.turn();
    stream.next().await.unwrap();
    // Less than one frame of the journal's WAL.
    process.limit_files(Some(4096));
    let reply = stream.rest().await;
    assert!(reply.is_err() || reply.unwrap().finish.is_none());
    let refused = conversation.request("and now?").try_send().await.unwrap();
    assert_ne!(refused.status, 200, "{}", refused.body);
    let journal = Journal::open_read_only(dir.path()).unwrap();
    let record = || journal.turn(turn).unwrap().unwrap();
    assert_eq!(record().state, TurnState::Generating);

    // There is space again, and no request arrives.
    process.limit_files(None);
    let closed = until(&journal, "the turn is closed", || {
        Some(record()).filter(|record| record.state != TurnState::Generating)
    })
    .await;
    assert_eq!(closed.state, TurnState::Aborted, "{:?}", closed.reason);
    assert_eq!(
        closed.reason.as_deref(),
        Some("the reply could not be recorded")
    );
    assert!(closed.completion.is_some(), "the partial reply is kept");
    let short = json!({"max_tokens": 5, "ignore_eos": false});
    assert_eq!(
        conversation
            .request("and now?")
            .with(short)
            .send()
            .await
            .status,
        200
    );
}
