//! Small judges written in WebAssembly text, and hosts to run them in.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test file uses another part of this module"
)]

use std::collections::BTreeMap;

use clawhost_plugins::{
    CallContext, Grants, HostOptions, Judged, Limits, Message, Plugin, PluginError, PluginHost,
    Profile, Role, Trajectory, Turn,
};

/// A judge component whose `score-turn` is `body`, core WebAssembly that leaves the address of the
/// result on the stack. `imports` go before it, `core` into its module.
pub struct Fixture {
    pub imports: String,
    pub instance: String,
    pub core: String,
    pub body: String,
    pub memory: &'static str,
    pub export: &'static str,
}

impl Fixture {
    pub fn body(body: &str) -> Fixture {
        Fixture {
            imports: String::new(),
            instance: "(core instance $i (instantiate $m))".into(),
            core: String::new(),
            body: body.into(),
            memory: "1",
            export: "clawhost:plugin/judge@0.1.0",
        }
    }

    /// Answers this reward (as WebAssembly text).
    pub fn reward(reward: &str) -> Fixture {
        Fixture::body(&verdict(reward, ""))
    }

    pub fn wasm(&self) -> Vec<u8> {
        wat::parse_str(self.text()).unwrap_or_else(|e| panic!("{e}"))
    }

    /// The component as text.
    pub fn text(&self) -> String {
        TEMPLATE
            .replace("%IMPORTS%", &self.imports)
            .replace("%INSTANCE%", &self.instance)
            .replace("%CORE%", &self.core)
            .replace("%BODY%", &self.body)
            .replace("%MEMORY%", self.memory)
            .replace("%EXPORT%", self.export)
    }
}

/// Writes an accepted verdict at address 0 and leaves it; `more` runs in between.
pub fn verdict(reward: &str, more: &str) -> String {
    format!(
        "(i32.store8 (i32.const 0) (i32.const 0))
         (f32.store (i32.const 4) (f32.const {reward}))
         (i32.store8 (i32.const 8) (i32.const 1))
         {more}
         (i32.const 0)"
    )
}

const TEMPLATE: &str = r#"
(component
  (import "clawhost:plugin/types@0.1.0" (instance $types
    (type $role' (enum "system" "user" "assistant" "tool"))
    (export "role" (type $role (eq $role')))
    (type $blob' (record (field "media-type" string) (field "data" (list u8))))
    (export "blob" (type $blob (eq $blob')))
    (type $part' (variant (case "text" string) (case "reasoning" string) (case "image" $blob)
      (case "other" (tuple string string))))
    (export "part" (type $part (eq $part')))
    (type $tool-call' (record (field "id" string) (field "name" string) (field "arguments" string)))
    (export "tool-call" (type $tool-call (eq $tool-call')))
    (type $message' (record (field "role" $role) (field "content" (list $part))
      (field "tool-calls" (list $tool-call)) (field "tool-call-id" (option string)) (field "name" (option string))))
    (export "message" (type $message (eq $message')))
    (type $turn' (record (field "index" u32) (field "prompt" (list $message)) (field "response" $message)
      (field "next-state" (list $message)) (field "truncated" bool)))
    (export "turn" (type $turn (eq $turn')))
    (type $trajectory' (record (field "session-id" string) (field "task-id" (option string))
      (field "group-id" string) (field "turns" (list $turn)) (field "env-reward" (option f32))
      (field "metadata" (list (tuple string string)))))
    (export "trajectory" (type $trajectory (eq $trajectory')))
    (type $metric' (record (field "name" string) (field "value" f64)))
    (export "metric" (type $metric (eq $metric')))
    (type $vote' (record (field "score" f32) (field "rationale" string)))
    (export "vote" (type $vote (eq $vote')))
    (type $verdict' (record (field "reward" f32) (field "accept" bool) (field "votes" (list $vote))
      (field "rationale" string) (field "metrics" (list $metric))))
    (export "verdict" (type $verdict (eq $verdict')))
    (type $plugin-error' (variant (case "unsupported" string) (case "invalid-input" string)
      (case "denied" string) (case "transient" string) (case "internal" string)))
    (export "plugin-error" (type $plugin-error (eq $plugin-error')))
  ))
  (alias export $types "trajectory" (type $trajectory))
  (alias export $types "verdict" (type $verdict))
  (alias export $types "plugin-error" (type $plugin-error))
  %IMPORTS%
  (core module $m
    %CORE%
    (memory (export "memory") %MEMORY%)
    (global $top (mut i32) (i32.const 4096))
    (func (export "realloc") (param i32 i32 i32 i32) (result i32)
      (local $at i32)
      (local.set $at (i32.and (i32.add (global.get $top) (i32.const 15)) (i32.const -16)))
      (global.set $top (i32.add (local.get $at) (local.get 3)))
      (block $fits
        (br_if $fits (i32.le_u (global.get $top) (i32.mul (memory.size) (i32.const 65536))))
        (drop (memory.grow (i32.const 16))))
      (local.get $at))
    (func (export "score")
      (param $session i32) (param $session-len i32)
      (param $has-task i32) (param $task i32) (param $task-len i32)
      (param $group i32) (param $group-len i32)
      (param $turns i32) (param $turns-len i32)
      (param $has-reward i32) (param $env-reward f32)
      (param $metadata i32) (param $metadata-len i32)
      (param $turn-index i32)
      (result i32)
      (local $n i32)
      %BODY%)
  )
  %INSTANCE%
  (func $score (param "trajectory" $trajectory) (param "turn-index" u32)
    (result (result $verdict (error $plugin-error)))
    (canon lift (core func $i "score") (memory (core memory $i "memory")) (realloc (core func $i "realloc"))))
  (instance $judge (export "score-turn" (func $score)))
  (export "%EXPORT%" (instance $judge))
)
"#;

/// A host with few places, so that many hosts fit into one test process.
pub fn host() -> PluginHost {
    PluginHost::new(options()).unwrap()
}

pub fn options() -> HostOptions {
    HostOptions {
        threads: 2,
        instances: 8,
        ..HostOptions::default()
    }
}

pub fn load(host: &PluginHost, fixture: &Fixture) -> Plugin {
    host.load(
        "fixture",
        &fixture.wasm(),
        &Grants::default(),
        Profile::default(),
    )
    .unwrap()
}

pub fn load_fast(host: &PluginHost, fixture: &Fixture) -> Plugin {
    host.load(
        "fixture",
        &fixture.wasm(),
        &Grants::default(),
        Profile::Fast,
    )
    .unwrap()
}

pub fn refusal(fixture: &Fixture) -> PluginError {
    host()
        .load(
            "fixture",
            &fixture.wasm(),
            &Grants::default(),
            Profile::default(),
        )
        .unwrap_err()
}

pub fn call(limits: Limits) -> CallContext {
    CallContext {
        run_id: "run".into(),
        sample_id: "sample".into(),
        attempt: 0,
        seed: 7,
        settings: BTreeMap::from([("threshold".to_owned(), "0.5".to_owned())]),
        limits,
    }
}

pub fn trajectory(next: &str) -> Trajectory {
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

pub async fn judge(plugin: &Plugin, limits: Limits) -> Judged {
    plugin
        .score_turn(call(limits), &trajectory("thanks"), 0)
        .await
}

/// The short name of the fault.
pub fn fault(judged: &Judged) -> &'static str {
    match &judged.outcome {
        Ok(verdict) => panic!("no fault but {verdict:?}"),
        Err(fault) => fault.kind.name(),
    }
}

/// The host still serves: a good judge answers.
pub async fn still_serves(host: &PluginHost) {
    let plugin = load(host, &Fixture::reward("0.25"));
    let judged = judge(&plugin, Limits::default()).await;
    assert_eq!(judged.outcome.map(|verdict| verdict.reward), Ok(0.25));
}
