//! Small plugin hosts and a call of a judge.

use std::collections::BTreeMap;
use std::time::Duration;

use clawhost_plugins::{
    CallContext, HostOptions, JudgeResult, Limits, Message, Plugin, PluginHost, PluginHostConfig,
    Role, Trajectory, Turn,
};

/// A host with few instance slots, so that many hosts fit into one test process.
pub(super) fn host() -> PluginHost {
    PluginHost::new(options()).unwrap()
}

pub(super) fn options() -> HostOptions {
    HostOptions {
        config: PluginHostConfig {
            num_threads: 2,
            max_instances: 8,
            ..PluginHostConfig::default()
        },
        ..HostOptions::default()
    }
}

/// The default limits without the wall limit, which only a fault reaches: plugin threads have a low priority, so what
/// a busy machine leaves them is not known.
pub(super) fn default_limits() -> Limits {
    Limits {
        wall_time: Duration::from_secs(3600),
        ..Limits::default()
    }
}

pub(super) fn call(limits: Limits) -> CallContext {
    CallContext {
        run_id: "run".into(),
        sample_id: "sample".into(),
        attempt: 0,
        seed: 7,
        settings: BTreeMap::from([("threshold".to_owned(), "0.5".to_owned())]),
        limits,
        artifacts: None,
    }
}

pub(super) fn trajectory(next: &str) -> Trajectory {
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

pub(super) async fn judge(plugin: &Plugin, limits: Limits) -> JudgeResult {
    plugin
        .score_turn(call(limits), &trajectory("thanks"), 0)
        .await
}
