//! Pages on disk, as the thread writes them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use clawhost_plugins::{EpisodeOutcome, Message, Role};

use super::super::ArtifactsRoot;
use super::html::REFRESH;
use super::rest;

fn read(file: impl AsRef<Path>) -> String {
    fs::read_to_string(&file).unwrap_or_else(|error| panic!("{:?}: {error}", file.as_ref()))
}

fn outcome(reward: f32) -> EpisodeOutcome {
    EpisodeOutcome {
        reward,
        success: None,
        report: "@@ -1 +1 @@\n-a\n+b\n".to_owned(),
        metrics: Vec::new(),
    }
}

#[test]
fn two_writers_of_one_root_see_each_others_episodes() {
    let root = tempfile::tempdir().unwrap();
    let one = ArtifactsRoot::open(root.path()).unwrap();
    let mut running = one.create("eval/sum/0", "sum").unwrap();
    running.add(&[Message::text(Role::User, "2 + 3?")]).unwrap();
    let finished = one.create("eval/sum/1", "sum").unwrap();
    finished.finish(&outcome(1.0), 1.0, 1).unwrap();
    drop(finished);
    let other = ArtifactsRoot::open(root.path()).unwrap();
    let failed = other.create("eval/sum/0", "sum").unwrap();
    failed.finish_without_verdict("no machine").unwrap();
    assert!(failed.dir().ends_with("0-2"));
    drop((failed, other));
    // As the other one left it: an episode of the first is running.
    let index = read(root.path().join("index.html"));
    assert!(index.contains("1 running, 2 ended"), "{index}");
    assert!(index.contains("no verdict: no machine") && index.contains(REFRESH));
    assert!(index.contains("href=\"eval/sum/0-2/episode.html\""));
    running.finish(&outcome(-1.0), -1.0, 1).unwrap();
    drop((running, one));
    let index = read(root.path().join("index.html"));
    assert!(index.contains("0 running, 3 ended"), "{index}");
    assert!(!index.contains(REFRESH) && index.contains("not solved"));
    let page = read(root.path().join("eval/sum/0/episode.html"));
    assert!(page.contains("2 + 3?") && page.contains("<span class=\"add\">+b</span>"));
    assert!(page.contains("href=\"../../../index.html\"") && !page.contains(REFRESH));
}

#[test]
fn what_a_killed_process_left_is_completed() {
    let root = tempfile::tempdir().unwrap();
    let dir = |name: &str, files: &[(&str, &str)]| {
        let dir = root.path().join(name);
        fs::create_dir_all(&dir).unwrap();
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
    };
    let follows = format!("<meta {REFRESH} content=\"5\">");
    let message = "{\"role\": \"user\", \"content\": [{\"text\": \"hello\"}]}\n{\"role\": \"us";
    dir(
        "a/0",
        &[("transcript.jsonl", message), ("episode.html", &follows)],
    );
    dir(
        "a/1",
        &[("transcript.jsonl", ""), ("outcome.json", "{\"rew")],
    );
    let done = "{\"reward\": 1.0, \"steps\": 4}";
    dir(
        "a/2",
        &[
            ("transcript.jsonl", ""),
            ("outcome.json", done),
            ("episode.html", "kept"),
        ],
    );
    dir(
        "a/3",
        &[
            ("transcript.jsonl", ""),
            ("outcome.json", done),
            ("episode.html", &follows),
        ],
    );
    drop(ArtifactsRoot::open(root.path()).unwrap());
    let index = read(root.path().join("index.html"));
    assert!(index.contains("0 running, 4 ended") && !index.contains(REFRESH));
    assert!(index.contains("interrupted") && index.contains("outcome.json is damaged"));
    // Of the task: two verdicts, and two episodes without one.
    assert!(index.contains(">a</th><td class=\"number\">2</td><td class=\"number\">1.00</td><td class=\"number\">1.000</td><td class=\"number\">2</td>"));
    let page = |name: &str| read(root.path().join(name).join("episode.html"));
    assert!(page("a/0").contains("hello") && !page("a/0").contains(REFRESH));
    assert!(page("a/1").contains("outcome.json is damaged"));
    assert_eq!(page("a/2"), "kept");
    assert!(page("a/3").contains("solved") && !page("a/3").contains(REFRESH));
}

#[test]
fn an_episode_that_is_dropped_is_interrupted() {
    let root = tempfile::tempdir().unwrap();
    let artifacts = ArtifactsRoot::open(root.path()).unwrap();
    drop(artifacts.create("a", "a").unwrap());
    drop(artifacts);
    let page = read(root.path().join("a/episode.html"));
    assert!(page.contains("interrupted") && page.contains("href=\"../index.html\""));
}

#[test]
fn a_pass_is_at_most_a_tenth_of_the_time() {
    assert_eq!(rest(Duration::from_millis(20)), Duration::from_millis(980));
    assert_eq!(
        rest(Duration::from_millis(400)),
        Duration::from_millis(3600)
    );
    assert_eq!(rest(Duration::from_secs(2)), Duration::from_secs(18));
}
