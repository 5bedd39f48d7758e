//! `clawhost run --env`: people are served while episodes of an environment run, one model is trained on both, and a killed
//! server continues its round.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may fail by panicking"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clawhost::config::EnvironmentConfig;
use clawhost_journal::{EnvironmentStats, Journal, SampleState, SessionId, StepOutcome};
use clawhost_tests::{
    Command, Conversation, TestServer, WAIT_TIMEOUT, assert_matches_schema, schema,
};
use serde_json::{Value, json};
use tempfile::TempDir;

const NAME: &str = "environment-toolcall";

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn environment(weight: f64) -> EnvironmentConfig {
    EnvironmentConfig {
        weight,
        parallel: 8,
        group: 4,
        max_tokens: 60,
        ..EnvironmentConfig::new(
            repository(&format!("plugins/artifacts/{NAME}.wasm")),
            repository("environments/toolcall/tasks.jsonl"),
        )
    }
}

fn stats(journal: &Journal) -> EnvironmentStats {
    let stats = journal.environment_stats().unwrap();
    stats.into_iter().next().unwrap_or_default()
}

fn trained(stats: &EnvironmentStats) -> u64 {
    let trained = stats.samples.get(&SampleState::Trained);
    trained.copied().unwrap_or(0)
}

fn first_episode(journal: &Journal) -> SessionId {
    let ended = journal.ended_episodes(NAME, 1).unwrap();
    ended.into_iter().next().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn people_are_served_while_one_model_learns_from_them_and_from_episodes() {
    let artifacts = TempDir::new().unwrap();
    let server = TestServer::with(|config| {
        config.environments = vec![EnvironmentConfig {
            artifacts: Some(artifacts.path().to_owned()),
            ..environment(0.5)
        }];
        config.training.batch_size = 8;
    })
    .await;
    let mut conversation = server.conversation().with(json!({"max_tokens": 20}));
    let answer = conversation.send_message("What is 3 plus 4?").await;
    let turn = answer.turn();
    // The next message is the verdict.
    conversation.send_message("No, that is wrong.").await.ok();
    let own = server.wait_until_trained(turn).await;
    assert!(own.provenance.episode.is_none());
    let journal = server.journal();
    server
        .until("episodes have trained", || {
            (trained(&stats(journal)) > 0).then_some(())
        })
        .await;

    let steps = journal.steps(100).unwrap();
    assert!(
        steps
            .iter()
            .any(|step| step.outcome == StepOutcome::Published)
    );
    // An advantage within a group of four is at most 1.5 without the weight.
    let episode = journal.session_turns(&first_episode(journal)).unwrap();
    let sample = journal.samples_of_turn(episode[0].id).unwrap().remove(0);
    assert_eq!(sample.provenance.episode.unwrap().weight, 0.5);
    assert!(
        sample
            .advantage
            .is_none_or(|advantage| advantage.abs() <= 0.75)
    );
    let metrics = clawhost_http::client()
        .build()
        .unwrap()
        .get(format!("{}/metrics", server.server.url()))
        .send()
        .await
        .unwrap();
    let metrics = metrics.text().await.unwrap();
    for part in [
        "clawhost_environment_episodes_total",
        "clawhost_environment_samples",
        NAME,
    ] {
        assert!(metrics.contains(part), "{part} is not in {metrics}");
    }
    let data = server.data.path().to_str().unwrap().to_owned();
    let top = Command::new(&["env", "top", "--json", "--data", &data]).run();
    assert_eq!(top.code, Some(0), "{}", top.stderr);
    let top: Value = serde_json::from_str(&top.stdout).unwrap();
    assert_matches_schema(&schema("env-top"), &top, "env top");
    assert_eq!(top["environments"][0]["name"], NAME);
    server.server.stop().await;
    let page = std::fs::read_to_string(artifacts.path().join("index.html")).unwrap();
    assert!(page.contains(&format!("href=\"{NAME}/round-1/")), "{page}");
    assert!(page.contains("solved</span>"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_continues_its_round() {
    const PER_ROUND: usize = 8;
    let dir = TempDir::new().unwrap();
    let configuration = format!(
        "[server]\nport = 0\n[training]\nbatch_size = 8\nmin_batch_size = 1\nmax_wait = \"200ms\"\nnice = 0\n\
         [[environments]]\nfile = {:?}\ntasks = {:?}\nparallel = {PER_ROUND}\ngroup = 4\nmax_tokens = 60\n",
        environment(1.0).file,
        environment(1.0).tasks,
    );
    std::fs::write(dir.path().join("clawhost.toml"), configuration).unwrap();
    let data = dir.path().join("data");
    let mut resumed = 0;
    let mut errors = String::new();
    for kill in 1..=4u64 {
        let arguments = ["run", "--config", "clawhost.toml", "--data", "data"];
        let process = Command::new(&arguments).in_directory(dir.path()).serve();
        let process = process.unwrap();
        let journal = Journal::open_read_only(&data).unwrap();
        let before = stats(&journal).done;
        // In the middle of a round, of which some episodes have ended.
        let reached = async {
            loop {
                let now = stats(&journal);
                if now.done >= before + 3 && now.running > 0 {
                    return;
                }
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(WAIT_TIMEOUT, reached).await.unwrap();
        if kill % 2 == 0 {
            // A person is served meanwhile.
            let client = clawhost_tests::Client::new(&process.url);
            let mut conversation = Conversation::new(&client).with(json!({"max_tokens": 8}));
            conversation.send_message("Hello.").await.ok();
        }
        errors += &process.kill();
        let left = stats(&journal);
        let ended = journal.ended_episodes(NAME, left.round).unwrap();
        resumed += usize::from(left.open && !ended.is_empty());
    }
    assert!(resumed > 0, "no kill was in the middle of a round");
    assert!(!errors.contains("recorded already"), "{errors}");
    let journal = Journal::open_read_only(&data).unwrap();
    let last = stats(&journal);
    let mut all = BTreeSet::new();
    for round in 1..last.round {
        let ended = journal.ended_episodes(NAME, round).unwrap();
        assert_eq!(ended.len(), PER_ROUND, "round {round}");
        for session in &ended {
            assert_eq!(journal.session_turns(session).unwrap().len(), 1);
        }
        all.extend(ended);
    }
    assert!(last.round > 1 && all.len() == (last.round as usize - 1) * PER_ROUND);
    assert!(last.failed.is_empty(), "{:?}", last.failed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_component_is_used_while_the_server_serves() {
    let dir = TempDir::new().unwrap();
    let (file, tasks) = (dir.path().join("guess.wasm"), dir.path().join("tasks"));
    let task = r#"{"id":"g","instruction":"Play with me.","tries":2}"#;
    std::fs::write(&tasks, task).unwrap();
    let mut component = std::fs::read(repository("plugins/artifacts/environment-guess.wasm"));
    let component = component.as_mut().unwrap();
    std::fs::write(&file, &component).unwrap();
    let server = TestServer::with(|config| {
        config.environments = vec![EnvironmentConfig {
            parallel: 2,
            group: 2,
            max_tokens: 8,
            ..EnvironmentConfig::new(file.clone(), tasks)
        }];
    })
    .await;
    let journal = server.journal();
    let lost = server
        .until("episodes have ended", || stats(journal).recent_reward_mean)
        .await;
    assert_eq!(lost, -1.0);
    // A copy that does not load is rejected.
    let replace = |bytes: &[u8]| {
        let new = dir.path().join("new");
        std::fs::write(&new, bytes).unwrap();
        std::fs::rename(&new, &file).unwrap();
    };
    replace(b"no component");
    let round = stats(journal).round;
    server
        .until("the last build runs on", || {
            (stats(journal).round > round + 2).then_some(())
        })
        .await;
    // The grade of a lost game is half as bad.
    let grade = [0x43, 0, 0, 0x80, 0xbf];
    let at = component.windows(grade.len()).position(|one| one == grade);
    component[at.unwrap() + 3] = 0;
    replace(component);
    server
        .until("the changed build runs", || {
            stats(journal)
                .recent_reward_mean
                .filter(|mean| *mean > lost)
        })
        .await;
    server.server.stop().await;
}
