//! The training queue: collected and judged once by a server, and copied for each run.

use std::path::Path;

use clawhost::config::Config;
use clawhost::serve::{Server, Settings};
use clawhost_journal::{JudgingState, SampleState};
use clawhost_tests::{Client, Conversation, until};
use serde_json::json;

/// Conversations.
const TALKS: u64 = 54;

/// Training configuration with all state that a checkpoint carries from step to step (optimizer moments, adapter EMA,
/// reward baselines, warmup), and with retention of old checkpoints.
pub(crate) const ADAPTERS: &str = r#"
[training]
method = "hybrid"
batch_size = 4
min_batch_size = 2
num_epochs = 2
num_minibatches = 2
max_staleness = 1000
keep_checkpoints = 3
[training.teacher]
source = "ema"
ema_rate = 0.2
[training.optimizer]
warmup_steps = 5
learning_rate = 1e-3
"#;

/// The same for full training, with fewer and larger steps.
pub(crate) const PARAMETERS: &str = r#"
[training]
method = "hybrid"
parameters = "full"
batch_size = 12
min_batch_size = 2
max_staleness = 1000
keep_checkpoints = 2
[training.teacher]
source = "ema"
ema_rate = 0.2
[training.optimizer]
warmup_steps = 3
"#;

/// Configuration for collecting: nothing trains, because a batch never fills.
const COLLECTING: &str = r#"
[server]
port = 0
[judging]
max_concurrent_turns = 1
train_truncated = true
[training]
method = "hybrid"
batch_size = 60000
min_batch_size = 60000
"#;

/// User messages after a reply.
const WORDS: [&str; 6] = [
    "Thanks, perfect!",
    "That's wrong, do it again please.",
    "That is too long. Please answer in one short sentence.",
    "No, that is wrong. Show the steps, please.",
    "Great, thank you!",
    "Please write plain text without any lists.",
];

/// Creates the queue in `data`.
pub(crate) async fn collect(data: &Path) {
    let mut config = Config::parse(COLLECTING).unwrap();
    config.server.data_dir = data.to_owned();
    let server = Server::start(Settings::from(config)).await.unwrap();
    let client = Client::new(server.url());
    for number in 0..TALKS {
        let mut conversation = Conversation::new(&client).with(json!({
            "temperature": 0.9, "max_tokens": 24, "seed": number, "user": format!("person {}", number % 3),
        }));
        let opening = format!(
            "Kim has {} cards and gets {} more. How many are there?",
            number + 3,
            number % 7 + 2
        );
        conversation.send_message(&opening).await;
        conversation
            .send_message(WORDS[(number % 6) as usize])
            .await;
    }
    until(server.journal(), "every conversation is judged", || {
        let counts = server.journal().counts().unwrap();
        let ready = counts.judging.get(&JudgingState::Ready).copied();
        (ready.unwrap_or(0) == 0).then_some(())
    })
    .await;
    let counts = server.journal().counts().unwrap();
    assert!(counts.samples[&SampleState::Queued] >= 48, "{counts:?}");
    assert_eq!(counts.steps.len(), 0);
    server.stop().await;
}

/// Copies a data directory that no process has open.
pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
