//! The choices of one request are judged together as soon as they are there, each trains with its own reward and once,
//! and what follows one of them becomes a hint; a replay puts them before another group judge together.
//!
//! The model is scripted: people get the same reply every time, and a judge that asks it gets the same ranking for
//! every order in which the replies are shown.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail by panicking"
)]

use std::path::{Path, PathBuf};

use clawhost_journal::{HintOutcome, JudgingState, SampleState, TurnId};
use clawhost_tests::{Command, Running, Script};
use serde_json::{Value, json};
use tempfile::TempDir;

const RANK: &[u8] = include_bytes!("../plugins/artifacts/group-judge-rank.wasm");
const HINT: &[u8] = include_bytes!("../plugins/artifacts/hint-next-state.wasm");
const RLOO: &[u8] = include_bytes!("../plugins/artifacts/advantage-rloo.wasm");

/// Plugins, a model and what they may ask, in a folder of their own.
struct Bench {
    dir: TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let scripts = [
            Script::reply('?', &["It is ", "so"]),
            // What a judge asks ends with a full stop.
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
        let config = format!("grants = {grants:?}\n[model]\ndir = {model:?}\n");
        std::fs::write(dir.path().join("clawhost.toml"), config).unwrap();
        Self { dir }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A server that judges choices together and does not train.
    async fn serve(&self, plugins: &[&str]) -> Running {
        let load = plugins.iter().map(|name| self.file(name)).collect();
        let (model, grants) = (self.file("model"), self.file("grants.toml"));
        Running::with(|config| {
            config.load = load;
            config.model.dir = Some(model);
            config.grants = Some(grants);
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

/// Asks for three replies to one request.
async fn three(running: &Running) -> Vec<TurnId> {
    let mut talk = running.talk().with(json!({"n": 3}));
    talk.say("Is it so?").await.turns()
}

/// Waits until each of them has been judged.
async fn judged(running: &Running, turns: &[TurnId]) -> Vec<f32> {
    let mut rewards = Vec::new();
    for turn in turns {
        let record = running.judged(*turn).await;
        assert_eq!(record.judging, JudgingState::Done, "{record:?}");
        let samples = running.journal().samples_of(*turn).unwrap();
        assert_eq!(samples.len(), 1);
        assert_eq!(samples[0].state, SampleState::Queued);
        rewards.push(samples[0].reward.unwrap());
    }
    rewards
}

#[tokio::test(flavor = "multi_thread")]
async fn choices_are_ranked_at_once_and_what_follows_one_is_a_hint() {
    let bench = Bench::new();
    let running = bench
        .serve(&["group-judge-rank.wasm", "hint-next-state.wasm"])
        .await;
    let turns = three(&running).await;
    assert_eq!(turns.len(), 3);
    // Nothing followed any of them.
    let rewards = judged(&running, &turns).await;
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
        let told = running.explain(*turn).await;
        assert_eq!(told["verdicts"][0]["source"], "plugin:group-judge-rank");
    }
    let receipts = running.journal().receipts(turns[0]).unwrap();
    assert_eq!(receipts.len(), 1);
    assert_eq!(receipts[0]["world"], "group-judge-plugin");
    assert_eq!(receipts[0]["model_calls"], 3);

    // The conversation goes on from the first.
    let mut talk = running.talk();
    talk.note("Is it so?", "It is so");
    let wish = "No, that is wrong. Please answer in one short French sentence. Is it so?";
    let next = talk.say(wish).await.turn();
    assert!(!turns.contains(&next));
    let hints = running
        .until("the hint is there", || {
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
    running.judged(followed).await;
    let told = running.explain(followed).await;
    assert!(
        told["hints"][0]["hint"]
            .as_str()
            .unwrap()
            .contains("French"),
        "{told}"
    );
    // It was not judged by what followed, and trains no second time.
    assert_eq!(running.journal().verdicts(followed).unwrap().len(), 1);
    assert_eq!(judged(&running, &turns).await, rewards);
    let data = running.data.path().display().to_string();
    let exported = Command::new(&["export", "--what", "hints", "--data", &data]).run();
    assert!(exported.stdout.contains("French"), "{exported:?}");

    // A request of one choice goes to the judge of single turns.
    let mut alone = running.talk();
    let turn = alone.say("And this, is it so?").await.turn();
    alone.say("Thanks, that is perfect! And is it so?").await;
    running.judged(turn).await;
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
async fn a_replay_judges_choices_together_and_asks_the_advantage_component() {
    let bench = Bench::new();
    let running = bench.serve(&["group-judge-rank.wasm"]).await;
    let turns = three(&running).await;
    let rewards = judged(&running, &turns).await;
    let data = running.data.path();
    let before = running.journal().counts().unwrap();

    let same = bench.replay(data, &["group-judge-rank.wasm", "advantage-rloo.wasm"]);
    assert_eq!(same["turns"], 3, "{same}");
    assert_eq!(same["agreement"]["same"], 3, "{same}");
    assert_eq!(same["changed"], json!([]));
    assert_eq!(same["next"]["component"], "advantage-rloo");
    let samples = same["next"]["samples"].as_array().unwrap();
    for (change, reward) in samples.iter().zip(&rewards) {
        assert_eq!(change["old"], change["new"]);
        // Leave one out: of three that sum to nothing, one and a half times the reward.
        let expected = f64::from(*reward) * 1.5;
        match change["new"]["advantage"].as_f64() {
            Some(advantage) => assert!((advantage - expected).abs() < 1e-6, "{change}"),
            None => assert!(expected.abs() < 1e-6, "{change}"),
        }
    }
    assert_eq!(
        bench.replay(data, &["group-judge-rank.wasm", "advantage-rloo.wasm"]),
        same
    );

    // Without a group judge there is nobody to ask about them, and they keep what is recorded.
    let without = bench.replay(data, &["advantage-rloo.wasm"]);
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
async fn an_environment_is_refused_with_the_reason() {
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
    assert!(
        ended
            .stderr
            .contains("episodes are not run by this version"),
        "{ended:?}"
    );
}
