//! Episodes of the terminal environment in real machines, with scripted replies. The program supervises them.
//!
//! Needs bubblewrap: `CLAWHOST_BWRAP`, or `bwrap` on `PATH`. Without it, or where it may not create namespaces, every test
//! returns at once and says so.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clawhost::config::Config;
use clawhost_plugins::{
    CallContext, Capability, Episode, EpisodeOutcome, EpisodeTask, FaultKind, Grants, HostOptions,
    Kind, Message, Observation, Plugin, PluginHost, PluginHostConfig, Profile, Progress, Role,
    Sandboxes,
};
use clawhost_sandbox::SupervisorCommand;
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_clawhost");
const TERMINAL: &[u8] = include_bytes!("../../../../plugins/artifacts/environment-terminal.wasm");

/// The bubblewrap program; none, with a message, if machines cannot be tested here.
fn bwrap() -> Option<PathBuf> {
    if let Some(program) = std::env::var_os("CLAWHOST_BWRAP") {
        return Some(program.into());
    }
    let probe = Command::new("bwrap")
        .args(["--unshare-all", "--disable-userns", "--unshare-user"])
        .args(["--ro-bind", "/", "/", "true"])
        .output();
    if probe.is_ok_and(|probe| probe.status.success()) {
        return Some(PathBuf::from("bwrap"));
    }
    println!("not tested: bubblewrap is not installed, or may not create namespaces here");
    None
}

pub(crate) struct Fixture {
    pub(crate) plugin: Plugin,
    pub(crate) sandboxes: Sandboxes,
    dir: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Option<Self> {
        Self::with(TERMINAL, "", PROGRAM)
    }

    /// `profile`: lines of the profile `default`.
    pub(crate) fn with(component: &[u8], profile: &str, supervisor: &str) -> Option<Self> {
        Some(Self::with_bwrap(component, profile, supervisor, &bwrap()?))
    }

    /// As [`Fixture::with`], with any program as bubblewrap.
    pub(crate) fn with_bwrap(
        component: &[u8],
        profile: &str,
        supervisor: &str,
        bwrap: &Path,
    ) -> Self {
        let chromium =
            std::env::var("CLAWHOST_CHROMIUM").map(|file| format!("chromium = {file:?}\n"));
        let toml = format!(
            "[sandbox]\nbwrap = {bwrap:?}\n{}[sandbox.profiles.default]\n{profile}",
            chromium.unwrap_or_default()
        );
        let config = Config::parse(&toml).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let supervisor = SupervisorCommand::new(supervisor, ["supervise-machines"]);
        let sandboxes = Sandboxes::new(config.sandbox, supervisor, dir.path()).unwrap();
        let host = PluginHost::new(HostOptions {
            config: PluginHostConfig {
                num_threads: 2,
                max_instances: 8,
                ..PluginHostConfig::default()
            },
            sandbox: Some(sandboxes.clone()),
            ..HostOptions::default()
        });
        let mut grants = Grants::default();
        grants
            .allow
            .extend([Capability::Sandbox, Capability::Display]);
        let plugin = host
            .unwrap()
            .load("terminal", component, &grants, Profile::default())
            .unwrap();
        Self {
            plugin,
            sandboxes,
            dir,
        }
    }

    pub(crate) async fn start(&self, payload: &Value) -> (Episode, Observation) {
        self.try_start(payload).await.unwrap()
    }

    pub(crate) async fn try_start(
        &self,
        payload: &Value,
    ) -> Result<(Episode, Observation), FaultKind> {
        let task = EpisodeTask {
            id: "t".to_owned(),
            instruction: "Do it.".to_owned(),
            payload: payload.to_string(),
        };
        let call = CallContext {
            limits: Kind::Environment.default_limits(),
            ..CallContext::default()
        };
        let started = self.plugin.start_episode(call, task, 1).await;
        started.outcome.map_err(|fault| fault.kind)
    }

    /// An episode of command lines, and its outcome.
    async fn play(&self, payload: &Value, lines: &[&str]) -> EpisodeOutcome {
        let (mut episode, _) = self.start(payload).await;
        for line in lines {
            exec(&mut episode, line).await;
        }
        let outcome = episode.grade().await.outcome.unwrap();
        episode.close().await.outcome.unwrap();
        outcome
    }

    /// Waits until no machine is left, and returns the files of leases and snapshots.
    pub(crate) async fn left(&self) -> Vec<PathBuf> {
        while !self.sandboxes.leases().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.files()
    }

    fn files(&self) -> Vec<PathBuf> {
        let dirs = std::fs::read_dir(self.dir.path()).unwrap();
        let dirs = dirs.map(|entry| entry.unwrap().path());
        dirs.filter(|dir| dir.is_dir())
            .flat_map(|dir| std::fs::read_dir(dir).unwrap())
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.file_name().unwrap() != "lock")
            .collect()
    }
}

pub(crate) fn call(name: &str, arguments: &Value) -> Message {
    let mut action = Message {
        content: Vec::new(),
        ..Message::text(Role::Assistant, "")
    };
    action.push_call("call-1", name, arguments.to_string());
    action
}

pub(crate) async fn act(episode: &mut Episode, name: &str, arguments: Value) -> (String, Progress) {
    let transition = episode.step(&call(name, &arguments)).await.outcome.unwrap();
    let seen = transition.observation.messages[0].visible_text();
    (seen, transition.progress)
}

async fn exec(episode: &mut Episode, line: &str) -> String {
    act(episode, "shell_exec", json!({"command": line})).await.0
}

fn two_tests() -> Value {
    json!({
        "files": {"in/numbers.txt": "3\n4\n"},
        "setup": ["wc -l < in/numbers.txt > lines.txt"],
        "tests": [
            {"command": "cat sum.txt", "stdout": "7"},
            {"command": "sh double.sh 4", "stdout": "8"},
        ],
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reward_is_the_share_of_tests_that_pass() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let sum = "echo $((3 + 4)) > sum.txt";
    let double = "echo 'echo $(($1 * 2))' > double.sh";
    for (lines, reward) in [
        (&[sum, double][..], 1.0),
        (&[sum][..], 0.0),
        (&["echo 8 > sum.txt"][..], -1.0),
    ] {
        let outcome = fixture.play(&two_tests(), lines).await;
        assert_eq!(outcome.reward, reward, "{}", outcome.report);
        assert_eq!(outcome.success, Some(reward == 1.0));
    }
    assert_eq!(fixture.left().await, Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_run_commands_and_show_a_terminal() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let mut payload = two_tests();
    payload["max_turns"] = 11.into();
    let (mut episode, seen) = fixture.start(&payload).await;
    let names: Vec<&str> = seen.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["shell_exec", "shell_view", "shell_write", "submit"]);
    let shown = exec(&mut episode, "cat lines.txt; echo no >&2; exit 3").await;
    assert_eq!(shown, "exit code: 3\nstdout:\n2\nstderr:\nno");
    let long = exec(&mut episode, "seq 100000").await;
    assert!(long.len() < 10_000 && long.contains("\n100000\n(output was dropped"));
    let late = json!({"command": "sleep 60", "timeout": 0.2});
    let (shown, _) = act(&mut episode, "shell_exec", late).await;
    assert_eq!(shown, "killed at its time limit");
    // A terminal keeps its shell between calls.
    act(&mut episode, "shell_write", json!({"input": "A=4\n"})).await;
    act(
        &mut episode,
        "shell_write",
        json!({"input": "echo got $((A+1))\n"}),
    )
    .await;
    let (screen, _) = act(&mut episode, "shell_view", json!({})).await;
    assert!(screen.contains("got 5"), "{screen}");
    let (screen, _) = act(&mut episode, "shell_write", json!({"input": "exit\n"})).await;
    assert!(
        screen.contains("the shell has ended: exit code: 0"),
        "{screen}"
    );
    for (name, arguments, error) in [
        ("browse", json!({}), "error: there is no tool `browse`"),
        (
            "shell_exec",
            json!({"line": "ls"}),
            "error: `shell_exec` takes",
        ),
        ("shell_exec", json!({"command": "a\0b"}), "error: "),
    ] {
        let (shown, _) = act(&mut episode, name, arguments).await;
        assert!(shown.starts_with(error), "{shown}");
    }
    let (_, progress) = act(&mut episode, "submit", json!({})).await;
    assert_eq!(progress, Progress::Terminated);
}

#[tokio::test(flavor = "multi_thread")]
async fn changing_what_tests_use_gains_nothing() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let payload = json!({
        "files": {"check.sh": "grep -qx 42 answer.txt\n"},
        "test_files": {"check.sh": "grep -qx 42 answer.txt\n", "expected/a.txt": "42\n"},
        "tests": ["sh check.sh", "cmp answer.txt expected/a.txt"],
    });
    let forged = [
        "echo 'exit 0' > check.sh; chmod 444 check.sh",
        "mkdir expected; echo 41 > answer.txt; cp answer.txt expected/a.txt",
        "mkdir -p ~/bin; for c in grep cmp sh; do printf '#!/bin/sh\\nexit 0\\n' > ~/bin/$c; done; cp -r ~/bin /tmp; cp ~/bin/* .",
        "chmod +x grep cmp sh; echo 'PATH=/work:$PATH' > ~/.profile; echo 'exit 0' > .bashrc",
        "(while true; do echo 42 > answer.txt; echo 'exit 0' > check.sh; sleep 0.01; echo 41 > answer.txt; done) > /dev/null 2>&1 &",
        "sleep 0.1; kill %1 2> /dev/null; kill -9 -1; true",
        "rm -rf check.sh expected; ln -s /dev/null check.sh; echo 41 > answer.txt; ln -s /work expected",
    ];
    let outcome = fixture.play(&payload, &forged).await;
    assert_eq!(outcome.reward, -1.0, "{}", outcome.report);
    let outcome = fixture.play(&payload, &["chmod 000 /work"]).await;
    assert_eq!(outcome.reward, -1.0, "{}", outcome.report);
    let honest = fixture.play(&payload, &["echo 42 > answer.txt"]).await;
    assert_eq!(honest.reward, 1.0, "{}", honest.report);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_without_a_call_is_the_answer() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let payload = json!({
        "tools": [],
        "answer_file": "answer.txt",
        "tests": [{"command": "grep -Eo '[0-9]+' answer.txt", "stdout": "19"}, "! grep -q '*' answer.txt"],
    });
    for (reply, reward) in [("It is 19.", 1.0), ("It is **19**.", 0.0), ("**18**", -1.0)] {
        let (mut episode, seen) = fixture.start(&payload).await;
        assert!(seen.tools.is_empty() && seen.messages.len() == 1);
        let reply = Message::text(Role::Assistant, reply);
        let transition = episode.step(&reply).await.outcome.unwrap();
        assert_eq!(transition.progress, Progress::Terminated);
        assert_eq!(episode.grade().await.outcome.unwrap().reward, reward);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_episode_leaves_nothing() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let (mut episode, _) = fixture.start(&two_tests()).await;
    exec(&mut episode, "sleep 1000 &").await;
    act(
        &mut episode,
        "shell_write",
        json!({"input": "sleep 1000\n"}),
    )
    .await;
    let [lease] = &fixture.sandboxes.leases()[..] else {
        unreachable!("one machine");
    };
    let supervisor = PathBuf::from(format!("/proc/{}", lease.supervisor));
    assert!(supervisor.exists());
    drop(episode);
    assert_eq!(fixture.left().await, Vec::<PathBuf>::new());
    assert!(!supervisor.exists());
    // The snapshot of the submitted files is kept until the episode ends.
    let (mut episode, _) = fixture.start(&two_tests()).await;
    episode.grade().await.outcome.unwrap();
    let is_snapshot = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "tar");
    assert_eq!(
        fixture
            .files()
            .iter()
            .filter(|path| is_snapshot(path))
            .count(),
        1
    );
    drop(episode);
    assert_eq!(fixture.left().await, Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_machine_fails_the_tests_and_a_missing_one_is_no_verdict() {
    let Some(fixture) = Fixture::with(TERMINAL, "ttl = \"3s\"", PROGRAM) else {
        return;
    };
    let (mut episode, _) = fixture.start(&two_tests()).await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    let (shown, progress) = act(&mut episode, "shell_exec", json!({"command": "ls"})).await;
    assert_eq!(shown, "error: the machine has ended");
    assert_eq!(progress, Progress::Terminated);
    let outcome = episode.grade().await.outcome.unwrap();
    assert_eq!((outcome.reward, outcome.success), (-1.0, Some(false)));
    let broken = Fixture::with(TERMINAL, "", "/nowhere/clawhost").unwrap();
    let fault = broken
        .try_start(&two_tests())
        .await
        .map(|_| ())
        .unwrap_err();
    assert!(
        fault.to_string().contains("cannot start a supervisor"),
        "{fault}"
    );
    let setup = json!({"setup": ["exit 4"], "tests": ["true"]});
    let fixture = Fixture::new().unwrap();
    let fault = fixture.try_start(&setup).await.map(|_| ()).unwrap_err();
    assert!(fault.to_string().contains("exit code: 4"), "{fault}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_component_gives_other_observations() {
    let (from, to) = (b"You work in a Linux", b"You play in a Linux");
    let mut copy = TERMINAL.to_vec();
    let at = copy.windows(from.len()).position(|bytes| bytes == from);
    let at = at.unwrap();
    copy[at..at + to.len()].copy_from_slice(to);
    for (component, first) in [(TERMINAL, "You work"), (&copy[..], "You play")] {
        let Some(fixture) = Fixture::with(component, "", PROGRAM) else {
            return;
        };
        let (_, seen) = fixture.start(&two_tests()).await;
        assert!(seen.messages[0].visible_text().starts_with(first));
    }
}
