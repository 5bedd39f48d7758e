//! Hosts to run fixtures in, and the final check of every case: the host still serves.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use clawhost_plugins::{
    CallContext, CallResult, Episode, EpisodeTask, Grants, HostOptions, JudgeResult, Limits,
    Message, Plugin, PluginError, PluginHost, PluginHostConfig, Profile, Role, TICK, Trajectory,
    Turn,
};

use super::guest::Guest;

/// A host with few instance slots, so that many hosts fit into one test process.
pub(crate) fn host() -> PluginHost {
    PluginHost::new(options()).unwrap()
}

pub(crate) fn options() -> HostOptions {
    HostOptions {
        config: PluginHostConfig {
            num_threads: 2,
            max_instances: 8,
            ..PluginHostConfig::default()
        },
        ..HostOptions::default()
    }
}

/// Loads a guest on the fast engine, which limits CPU by epoch ticks.
pub(crate) fn fast(host: &PluginHost, guest: &Guest) -> Plugin {
    let none = Grants::default();
    host.load("fixture", &guest.wasm(), &none, Profile::Fast)
        .unwrap()
}

/// Loads a guest on the deterministic engine, which limits CPU by fuel.
pub(crate) fn steady(host: &PluginHost, guest: &Guest) -> Plugin {
    granted(host, "fixture", guest, &[])
}

/// Loads a guest with these grants, in the syntax of `clawhost plugin grant`.
pub(crate) fn granted(host: &PluginHost, name: &str, guest: &Guest, arguments: &[&str]) -> Plugin {
    let grants = grants(arguments);
    host.load(name, &guest.wasm(), &grants, Profile::Deterministic)
        .unwrap()
}

pub(crate) fn grants(arguments: &[&str]) -> Grants {
    let mut grants = Grants::default();
    for argument in arguments {
        grants.add(argument).unwrap();
    }
    grants
}

/// The error of loading these bytes.
pub(crate) fn refusal(host: &PluginHost, bytes: &[u8], arguments: &[&str]) -> PluginError {
    host.load("fixture", bytes, &grants(arguments), Profile::default())
        .unwrap_err()
}

pub(crate) fn call(limits: Limits) -> CallContext {
    CallContext {
        run_id: "run".into(),
        sample_id: "sample".into(),
        attempt: 0,
        seed: 7,
        settings: BTreeMap::new(),
        limits,
        artifacts: None,
    }
}

/// The default limits without the wall limit, which only a fault reaches: plugin threads have a low priority, so what
/// a busy machine leaves them is not known.
pub(crate) fn default_limits() -> Limits {
    Limits {
        wall_time: Duration::from_secs(3600),
        ..Limits::default()
    }
}

/// Limits that end a loop quickly.
pub(crate) fn ticks(cpu_ticks: u32) -> Limits {
    Limits {
        cpu_time: TICK.saturating_mul(cpu_ticks),
        ..default_limits()
    }
}

pub(crate) fn trajectory(next: &str) -> Trajectory {
    let mut trajectory = Trajectory::new("session", "group");
    trajectory.turns.push(Turn {
        index: 0,
        prompt: vec![Message::text(Role::User, "What is 12 - 5?")],
        response: Message::text(Role::Assistant, "**7**"),
        next_state: vec![Message::text(Role::User, next)],
        truncated: false,
    });
    trajectory
}

pub(crate) async fn judge(plugin: &Plugin, limits: Limits) -> JudgeResult {
    plugin
        .score_turn(call(limits), &trajectory("thanks"), 0)
        .await
}

pub(crate) fn task() -> EpisodeTask {
    EpisodeTask {
        id: "t".into(),
        instruction: "Guess.".into(),
        payload: "{}".into(),
    }
}

/// Starts an episode.
pub(crate) async fn episode(world: &Plugin, limits: Limits) -> Episode {
    let started = world.start_episode(call(limits), task(), 1).await;
    started.outcome.unwrap().0
}

/// The policy's message in an episode.
pub(crate) fn action() -> Message {
    Message::text(Role::Assistant, "go")
}

/// The name of the fault.
pub(crate) fn fault<T: std::fmt::Debug>(called: &CallResult<T>) -> &'static str {
    match &called.outcome {
        Ok(result) => panic!("no fault but {result:?}"),
        Err(fault) => fault.kind.name(),
    }
}

/// Asserts that a well-behaved judge still works.
pub(crate) async fn still_serves(host: &PluginHost) {
    static GOOD: LazyLock<Vec<u8>> = LazyLock::new(|| Guest::reward("0.25").wasm());
    let good = host
        .load("good", &GOOD, &Grants::default(), Profile::default())
        .unwrap();
    let judged = judge(&good, default_limits()).await;
    assert_eq!(judged.outcome.map(|verdict| verdict.reward), Ok(0.25));
}
