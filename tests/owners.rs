//! One adapter for each user: two users with opposite wishes at once each get theirs, also after a restart, where one adapter
//! for both cannot.

use std::collections::BTreeMap;

use clawhost::config::{AdapterScope, Config, ExperienceMode, KeyConfig};
use clawhost::serve::{Server, Settings};
use clawhost_engine::{Candidates, Sequence};
use clawhost_journal::{AdapterOwner, Journal, TurnId, TurnRecord};
use clawhost_model::TrainedWeights;
use clawhost_tests::{Client, Command, TestServer, configuration, user};
use serde_json::json;

const QUESTIONS: [&str; 4] = [
    "Tom has 3 apples and gets 4 more. How many now?",
    "A shop sells 9 kites and 2 balls. How many things?",
    "Ann has 8 cups and loses 5. How many cups are left?",
    "Ben reads 6 pages and then 7 pages. How many pages?",
];

fn change(config: &mut Config, adapters: AdapterScope) {
    config.training.adapters = adapters;
    // Experience belongs to API keys, not to users.
    config.experience.mode = ExperienceMode::Off;
    config.training.batch_size = 4;
    config.training.min_batch_size = 4;
}

/// A reply to a user, which does not depend on earlier conversations.
async fn ask(running: &TestServer, name: &str, question: &str) -> (TurnRecord, u64) {
    let chat = running.client.chat(&[user(question)]);
    let fields = json!({"user": name, "seed": 7, "max_tokens": 24, "temperature": 0.8});
    let answer = chat.with(fields).send().await;
    answer.ok();
    let turn = running.wait_until_ended(answer.turn()).await;
    assert_eq!(turn.adapter_version, answer.version());
    (turn, answer.version())
}

async fn rate(running: &TestServer, turn: TurnId, score: f64) {
    let feedback = json!({"turn_id": turn, "score": score});
    running.client.post("/v1/feedback", &feedback).await.ok();
}

/// Mean logprob of a reply under a version.
fn score(running: &TestServer, version: u64, turn: &TurnRecord) -> f32 {
    let rows = running.journal().adapters().unwrap();
    let row = rows.iter().find(|row| row.version == version);
    let model = running.engine().model();
    let weights = row.map(|row| TrainedWeights::load(&running.data.path().join(&row.path), model));
    let weights = weights.transpose().unwrap();
    let completion = turn.completion.as_ref().unwrap();
    let tokens = [&turn.prompt_ids[..], &completion.token_ids].concat();
    let sequence = Sequence {
        tokens: &tokens,
        start: turn.prompt_ids.len(),
        temperature: turn.temperature,
        candidates: Candidates::None,
    };
    let scored = running
        .engine()
        .backend()
        .score_weights(weights.as_ref(), &[sequence]);
    let logprobs = scored.unwrap().remove(0).logprobs;
    logprobs.iter().sum::<f32>() / logprobs.len() as f32
}

/// Ann likes the replies, and Bob dislikes the same replies. Returns them and the versions that both are served afterwards.
async fn opposite_wishes(running: &TestServer) -> (Vec<TurnRecord>, BTreeMap<&'static str, u64>) {
    let mut replies = Vec::new();
    for question in QUESTIONS {
        let (ann, _) = ask(running, "ann", question).await;
        let (bob, _) = ask(running, "bob", question).await;
        let reply = |turn: &TurnRecord| turn.completion.as_ref().unwrap().token_ids.clone();
        assert_eq!(reply(&ann), reply(&bob), "nobody has an adapter yet");
        replies.push((ann, bob));
    }
    for (ann, bob) in &replies {
        rate(running, ann.id, 1.0).await;
        rate(running, bob.id, -1.0).await;
    }
    running.wait_until_idle().await;
    let mut served = BTreeMap::new();
    for name in ["ann", "bob"] {
        served.insert(name, ask(running, name, QUESTIONS[0]).await.1);
    }
    (replies.into_iter().map(|(ann, _)| ann).collect(), served)
}

fn mean(running: &TestServer, version: u64, turns: &[TurnRecord]) -> f32 {
    let scores = turns.iter().map(|turn| score(running, version, turn));
    scores.sum::<f32>() / turns.len() as f32
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_users_with_opposite_wishes_each_get_theirs() {
    let mut running = TestServer::with(|config| change(config, AdapterScope::User)).await;
    let (replies, served) = opposite_wishes(&running).await;
    let owners: BTreeMap<u64, String> = running
        .journal()
        .adapters()
        .unwrap()
        .into_iter()
        .map(|row| (row.version, row.owner.unwrap().to_string()))
        .collect();
    for (name, version) in &served {
        assert_eq!(owners[version], AdapterOwner::of_user(None, name).as_str());
    }
    let base = mean(&running, 0, &replies);
    let [ann, bob] = ["ann", "bob"].map(|name| mean(&running, served[name], &replies));
    assert!(
        bob < base && base < ann,
        "bob {bob}, base {base}, ann {ann}"
    );
    assert_eq!(running.engine().active().version, 0);
    assert_eq!(running.server.training().snapshot().owners, 2);
    let explained = running.explain(replies[0].id).await;
    assert_eq!(explained["owner"], "user:/ann");
    assert_eq!(ask(&running, "carol", QUESTIONS[0]).await.1, 0);

    // A restart restores both.
    running.server.stop().await;
    let mut config = configuration();
    config.server.data_dir = running.data.path().to_owned();
    change(&mut config, AdapterScope::User);
    running.server = Server::start(Settings::from(config)).await.unwrap();
    running.client = Client::new(running.server.url());
    for (name, version) in &served {
        assert_eq!(ask(&running, name, QUESTIONS[0]).await.1, *version);
    }
    moves_to_another_server(&running, served["ann"]).await;
}

/// Runs `clawhost adapter` with these arguments.
async fn adapter(arguments: &[&str]) {
    let arguments: Vec<String> = ["adapter"]
        .iter()
        .chain(arguments)
        .map(|one| (*one).to_owned())
        .collect();
    let ended = tokio::task::spawn_blocking(move || Command::new(&arguments).run());
    let ended = ended.await.unwrap();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

/// Exports Ann's adapter while the server runs, and imports it for her API key on a server with a key for each of two people.
async fn moves_to_another_server(running: &TestServer, version: u64) {
    let dir = tempfile::TempDir::new().unwrap();
    let (files, data) = (dir.path().join("files"), dir.path().join("data"));
    let [files, data] = [&files, &data].map(|path| path.to_str().unwrap());
    let from = running.data.path().to_str().unwrap();
    adapter(&["export", files, "--owner", "user:/ann", "--data", from]).await;
    adapter(&["import", files, "--owner", "key:ann", "--data", data]).await;
    let mut config = configuration();
    config.server.data_dir = data.into();
    change(&mut config, AdapterScope::Key);
    let key = |name: &str| KeyConfig::with_all_scopes(name, &format!("secret-key-of-{name}"));
    config.api_keys = vec![key("ann"), key("bob")];
    let server = Server::start(Settings::from(config)).await.unwrap();
    let digest = |journal: &Journal, version: u64| {
        let rows = journal.adapters().unwrap();
        let row = rows.into_iter().find(|row| row.version == version);
        row.unwrap().digest
    };
    assert_eq!(
        digest(server.journal(), 1),
        digest(running.journal(), version)
    );
    let client = Client::new(server.url());
    for (name, expected) in [("ann", 1), ("bob", 0)] {
        let chat = client.chat(&[user(QUESTIONS[0])]);
        let secret = format!("Bearer secret-key-of-{name}");
        let answer = chat.header("authorization", &secret).send().await;
        answer.ok();
        assert_eq!(answer.version(), expected, "{name}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_adapter_for_both_follows_neither() {
    let running = TestServer::with(|config| change(config, AdapterScope::Shared)).await;
    let (_, served) = opposite_wishes(&running).await;
    assert_eq!(served["ann"], served["bob"]);
    let rows = running.journal().adapters().unwrap();
    assert!(rows.iter().all(|row| row.owner.is_none()));
}
