//! The choices of one request are judged as a group as soon as they are complete, each trains once with its own reward,
//! and the next state of one of them becomes a hint; a replay passes them to another group judge as a group.
//!
//! The model is scripted: users get the same reply every time, and a judge gets the same ranking for every order of the
//! replies.

use std::path::{Path, PathBuf};

use clawhost_journal::{HintOutcome, JudgingState, SampleState, TurnId};
use clawhost_tests::{Command, Script, TestServer};
use serde_json::{Value, json};
use tempfile::TempDir;

const RANK: &[u8] = include_bytes!("../plugins/artifacts/group-judge-rank.wasm");
const HINT: &[u8] = include_bytes!("../plugins/artifacts/hint-next-state.wasm");
const RLOO: &[u8] = include_bytes!("../plugins/artifacts/advantage-rloo.wasm");

/// A directory with plugins, a model and grants.
struct Fixture {
    dir: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let scripts = [
            Script::reply('?', &["It is ", "so"]),
            // The judge's prompt ends with a full stop.
            Script::reply('.', &["ranking: ", "A > B > C"]),
        ];
        let model = dir.path().join("model");
        std::fs::create_dir(&model).unwrap();
        Script::save(&scripts, &model);
        for (name, bytes) in [
            ("group-judge-rank", RANK),
            ("hint-next-state", HINT),
            ("advantage-rloo", RLOO),
        ] {
            std::fs::write(dir.path().join(format!("{name}.wasm")), bytes).unwrap();
        }
        let digest = clawhost_plugins::digest(RANK);
        let grants = format!(
            "[{digest}]\nplugin = \"group-judge-rank\"\nat_ms = 0\n[{digest}.grants]\nallow = [\"model\"]\nmodels = [\"judge\"]\n"
        );
        std::fs::write(dir.path().join("grants.toml"), grants).unwrap();
        let model = model.display().to_string();
        let grants = dir.path().join("grants.toml").display().to_string();
        let config = format!("[plugins]\ngrants_file = {grants:?}\n[model]\npath = {model:?}\n");
        std::fs::write(dir.path().join("clawhost.toml"), config).unwrap();
        Self { dir }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A server that judges choices as a group, without training.
    async fn serve(&self, plugins: &[&str]) -> TestServer {
        let load = plugins.iter().map(|name| self.file(name)).collect();
        let (model, grants) = (self.file("model"), self.file("grants.toml"));
        TestServer::with(|config| {
            config.plugins.files = load;
            config.model.path = Some(model);
            config.plugins.grants_file = Some(grants);
            config.training.enabled = false;
        })
        .await
    }

    fn replay(&self, data: &Path, plugins: &[&str]) -> Value {
        let data = data.display().to_string();
        let config = self.file("clawhost.toml").display().to_string();
        let mut words = vec!["replay", "--data", &data, "--config", &config, "--json"];
        let files: Vec<String> = plugins
            .iter()
            .map(|name| self.file(name).display().to_string())
            .collect();
        for file in &files {
            words.extend(["--plugin", file]);
        }
        let ended = Command::new(&words).run();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        serde_json::from_str(&ended.stdout).unwrap()
    }
}

/// Requests three choices.
async fn request_three_choices(running: &TestServer) -> Vec<TurnId> {
    let mut conversation = running.conversation().with(json!({"n": 3}));
    conversation.send_message("Is it so?").await.turns()
}

/// Waits until each turn is judged; returns the rewards.
async fn wait_rewards(running: &TestServer, turns: &[TurnId]) -> Vec<f32> {
    let mut rewards = Vec::new();
    for turn in turns {
        let record = running.wait_until_judged(*turn).await;
        assert_eq!(record.judging, JudgingState::Done, "{record:?}");
        let samples = running.journal().samples_of_turn(*turn).unwrap();
        assert_eq!(samples.len(), 1);
        assert_eq!(samples[0].state, SampleState::Queued);
        rewards.push(samples[0].reward.unwrap());
    }
    rewards
}

#[tokio::test(flavor = "multi_thread")]
async fn choices_are_ranked_at_once_and_a_next_state_becomes_a_hint() {
    let fixture = Fixture::new();
    let running = fixture
        .serve(&["group-judge-rank.wasm", "hint-next-state.wasm"])
        .await;
    let turns = request_three_choices(&running).await;
    assert_eq!(turns.len(), 3);
    // None has a next state.
    let rewards = wait_rewards(&running, &turns).await;
    let sum: f32 = rewards.iter().sum();
    assert!(
        sum.abs() < 1e-6,
        "a ranking is level as a whole: {rewards:?}"
    );
    let digest = clawhost_plugins::digest(RANK);
    for turn in &turns {
        let verdicts = running.journal().verdicts(*turn).unwrap();
        assert_eq!(verdicts.len(), 1);
        assert_eq!(verdicts[0].source, "plugin:group-judge-rank");
        assert_eq!(verdicts[0].digest.as_deref(), Some(digest.as_str()));
        let explanation = running.explain(*turn).await;
        assert_eq!(
            explanation["verdicts"][0]["source"],
            "plugin:group-judge-rank"
        );
    }
    let receipts = running.journal().receipts(turns[0]).unwrap();
    assert_eq!(receipts.len(), 1);
    assert_eq!(receipts[0]["world"], "group-judge-plugin");
    assert_eq!(receipts[0]["model_calls"], 3);

    // The conversation continues from the first.
    let mut conversation = running.conversation();
    conversation.record("Is it so?", "It is so");
    let wish = "No, that is wrong. Please answer in one short French sentence. Is it so?";
    let next = conversation.send_message(wish).await.turn();
    assert!(!turns.contains(&next));
    let hints = running
        .until("the hint is recorded", || {
            let of = |turn: &TurnId| running.journal().hints(*turn).unwrap();
            turns.iter().map(of).find(|hints| !hints.is_empty())
        })
        .await;
    let followed = hints[0].turn;
    let HintOutcome::Hint { text, .. } = &hints[0].outcome else {
        panic!("no hint: {hints:?}")
    };
    assert!(text.contains("French"), "{text}");
    assert_eq!(hints[0].digest, clawhost_plugins::digest(HINT));
    running.wait_until_judged(followed).await;
    let explanation = running.explain(followed).await;
    assert!(
        explanation["hints"][0]["hint"]
            .as_str()
            .unwrap()
            .contains("French"),
        "{explanation}"
    );
    // It is not judged by its next state, and does not train a second time.
    assert_eq!(running.journal().verdicts(followed).unwrap().len(), 1);
    assert_eq!(wait_rewards(&running, &turns).await, rewards);
    let data = running.data.path().display().to_string();
    let exported = Command::new(&["export", "--what", "hints", "--data", &data]).run();
    assert!(exported.stdout.contains("French"), "{exported:?}");

    // A request with one choice goes to the single-turn judge.
    let mut alone = running.conversation();
    let turn = alone.send_message("And this, is it so?").await.turn();
    alone
        .send_message("Thanks, that is perfect! And is it so?")
        .await;
    running.wait_until_judged(turn).await;
    let verdicts = running.journal().verdicts(turn).unwrap();
    assert_eq!(verdicts[0].source, "plugin:judge-next-state");
    let health = running.client.get("/healthz").await;
    assert_eq!(health.ok()["judging"]["together"], 1);
    let plugins = running.client.get("/v1/plugins").await;
    let kinds: Vec<&Value> = plugins.ok()["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|plugin| &plugin["kind"])
        .collect();
    assert_eq!(kinds, ["group-judge", "hint-extractor", "judge"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_judges_choices_as_a_group_and_calls_the_advantage_component() {
    let fixture = Fixture::new();
    let running = fixture.serve(&["group-judge-rank.wasm"]).await;
    let turns = request_three_choices(&running).await;
    let rewards = wait_rewards(&running, &turns).await;
    let data = running.data.path();
    let before = running.journal().counts().unwrap();

    let same = fixture.replay(data, &["group-judge-rank.wasm", "advantage-rloo.wasm"]);
    assert_eq!(same["turns"], 3, "{same}");
    assert_eq!(same["agreement"]["same"], 3, "{same}");
    assert_eq!(same["changed"], json!([]));
    assert_eq!(same["next"]["component"], "advantage-rloo");
    let samples = same["next"]["samples"].as_array().unwrap();
    for (change, reward) in samples.iter().zip(&rewards) {
        assert_eq!(change["old"], change["new"]);
        // Leave-one-out: for three rewards that sum to zero, 1.5 times the reward.
        let expected = f64::from(*reward) * 1.5;
        match change["new"]["advantage"].as_f64() {
            Some(advantage) => assert!((advantage - expected).abs() < 1e-6, "{change}"),
            None => assert!(expected.abs() < 1e-6, "{change}"),
        }
    }
    assert_eq!(
        fixture.replay(data, &["group-judge-rank.wasm", "advantage-rloo.wasm"]),
        same
    );

    // Without a group judge they are not judged again and keep their recorded verdicts.
    let without = fixture.replay(data, &["advantage-rloo.wasm"]);
    assert_eq!(
        (&without["turns"], &without["left_together"]),
        (&json!(0), &json!(3))
    );
    for change in without["next"]["samples"].as_array().unwrap() {
        assert_eq!(change["old"], change["new"], "{without}");
    }
    assert_eq!(running.journal().counts().unwrap(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn environments_are_rejected_with_the_reason() {
    let files = TempDir::new().unwrap();
    let path = files.path().join("world.wasm");
    let bytes = include_bytes!("../plugins/artifacts/environment-guess.wasm");
    std::fs::write(&path, bytes).unwrap();
    let (data, path) = (
        files.path().join("data").display().to_string(),
        path.display().to_string(),
    );
    let ended = Command::new(&["run", "--port", "0", "--data", &data, "--plugin", &path]).run();
    assert_ne!(ended.code, Some(0));
    assert!(ended.stderr.contains("pass it with --env"), "{ended:?}");
}
