//! Judges as WebAssembly text.

use std::path::{Path, PathBuf};

/// Body of a judge for the turn at index `$turn`, in core WebAssembly. `$verdict` writes a verdict with a given reward
/// and returns its address.
pub(crate) struct Judge<'a> {
    pub(crate) imports: &'a str,
    pub(crate) body: &'a str,
}

impl Judge<'_> {
    /// Writes the component to `dir` and returns its path.
    pub(crate) fn save(&self, dir: &Path, name: &str) -> PathBuf {
        let text = COMPONENT
            .replace("(;imports;)", self.imports)
            .replace("(;body;)", self.body);
        let path = dir.join(format!("{name}.wasm"));
        std::fs::write(&path, wat::parse_str(text).unwrap()).unwrap();
        path
    }
}

/// A judge component: imports the types, exports `score-turn`.
const COMPONENT: &str = r#"
(component
  (type $types-of (instance
    (type $role-of (enum "system" "user" "assistant" "tool"))
    (export "role" (type $role (eq $role-of)))
    (type $blob-of (record (field "media-type" string) (field "data" (list u8))))
    (export "blob" (type $blob (eq $blob-of)))
    (type $part-of (variant
      (case "text" string) (case "reasoning" string) (case "image" $blob) (case "other" (tuple string string))))
    (export "part" (type $part (eq $part-of)))
    (type $call-of (record (field "id" string) (field "name" string) (field "arguments" string)))
    (export "tool-call" (type $call (eq $call-of)))
    (type $message-of (record
      (field "role" $role) (field "content" (list $part)) (field "tool-calls" (list $call))
      (field "tool-call-id" (option string)) (field "name" (option string))))
    (export "message" (type $message (eq $message-of)))
    (type $turn-of (record
      (field "index" u32) (field "prompt" (list $message)) (field "response" $message)
      (field "next-state" (list $message)) (field "truncated" bool)))
    (export "turn" (type $turn (eq $turn-of)))
    (type $trajectory-of (record
      (field "session-id" string) (field "task-id" (option string)) (field "group-id" string)
      (field "turns" (list $turn)) (field "env-reward" (option f32))
      (field "metadata" (list (tuple string string)))))
    (export "trajectory" (type $trajectory (eq $trajectory-of)))
    (type $metric-of (record (field "name" string) (field "value" f64)))
    (export "metric" (type $metric (eq $metric-of)))
    (type $vote-of (record (field "score" f32) (field "rationale" string)))
    (export "vote" (type $vote (eq $vote-of)))
    (type $verdict-of (record
      (field "reward" f32) (field "accept" bool) (field "votes" (list $vote))
      (field "rationale" string) (field "metrics" (list $metric))))
    (export "verdict" (type $verdict (eq $verdict-of)))
    (type $error-of (variant
      (case "unsupported" string) (case "invalid-input" string) (case "denied" string)
      (case "transient" string) (case "internal" string)))
    (export "plugin-error" (type $error (eq $error-of)))
  ))
  (import "clawhost:plugin/types@0.1.0" (instance $types (type $types-of)))
  (;imports;)
  (alias export $types "trajectory" (type $trajectory))
  (alias export $types "verdict" (type $verdict))
  (alias export $types "plugin-error" (type $error))
  (core module $code
    (memory (export "memory") 64)
    (global $free (mut i32) (i32.const 1024))
    (func (export "realloc") (param i32 i32) (param $align i32) (param $size i32) (result i32)
      (local $at i32)
      (local.set $at (i32.and
        (i32.add (global.get $free) (i32.sub (local.get $align) (i32.const 1)))
        (i32.sub (i32.const 0) (local.get $align))))
      (global.set $free (i32.add (local.get $at) (local.get $size)))
      (local.get $at))
    (func $verdict (param $reward f32) (result i32)
      (f32.store (i32.const 20) (local.get $reward))
      (i32.store8 (i32.const 24) (i32.const 1))
      (i32.const 16))
    (func (export "score-turn")
      (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 f32 i32 i32) (param $turn i32) (result i32)
      (;body;)))
  (core instance $run (instantiate $code))
  (func $score-turn
    (param "trajectory" $trajectory) (param "turn-index" u32) (result (result $verdict (error $error)))
    (canon lift (core func $run "score-turn") (memory (core memory $run "memory")) (realloc (core func $run "realloc"))))
  (instance $judge (export "score-turn" (func $score-turn)))
  (export "clawhost:plugin/judge@0.1.0" (instance $judge))
)
"#;
