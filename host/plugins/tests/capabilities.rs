//! Promise: a granted capability works and is accounted for; WASI is there with nothing behind it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use clawhost_plugins::{
    Answer, Capability, FaultKind, Grants, HostOptions, Limits, Message, ModelChoice, ModelClient,
    ModelError, ModelFinish, ModelRequest, ModelResponse, Plugin, PluginErrorKind, PluginHost,
    Profile, Role, StateEntry, StateError, StatePage, StateScope, StateStore,
};
use common::{Fixture, call, host, judge, load, load_fast, options, trajectory, verdict};

const JUDGE_MODEL: &[u8] = include_bytes!("../../../plugins/artifacts/judge-model.wasm");

/// Answers each request with these texts, or fails in its own way.
enum Model {
    Says(Vec<&'static str>),
    Fails(ModelError),
    Panics,
    Hangs,
}

impl ModelClient for Model {
    fn complete(&self, request: ModelRequest) -> Answer<Result<ModelResponse, ModelError>> {
        assert_eq!((request.model.as_str(), request.n), ("judge", 3));
        assert!(request.messages[1].visible_text().contains("thanks"));
        let answer = match self {
            Model::Says(texts) => Ok(ModelResponse {
                choices: texts
                    .iter()
                    .map(|text| ModelChoice {
                        message: Message::text(Role::Assistant, *text),
                        finish: ModelFinish::Stop,
                        logprob: None,
                    })
                    .collect(),
                prompt_tokens: 100,
                completion_tokens: 9,
            }),
            Model::Fails(error) => Err(error.clone()),
            Model::Panics => return Box::pin(async { panic!("the client broke") }),
            Model::Hangs => return Box::pin(std::future::pending()),
        };
        Box::pin(async move { answer })
    }

    fn score(&self, _: String, _: Vec<Message>, _: String) -> Answer<Result<Vec<f32>, ModelError>> {
        Box::pin(async { Ok(vec![-0.5]) })
    }
}

fn with_model(model: Model, models: &[&str]) -> Plugin {
    let host = PluginHost::new(HostOptions {
        model: Some(Arc::new(model)),
        ..options()
    })
    .unwrap();
    let grants = Grants {
        allow: [Capability::Model].into(),
        models: models.iter().map(|model| (*model).to_owned()).collect(),
        ..Grants::default()
    };
    host.load("judge-model", JUDGE_MODEL, &grants, Profile::default())
        .unwrap()
}

#[tokio::test]
async fn a_judge_asks_the_model_it_was_granted() {
    let plugin = with_model(
        Model::Says(vec!["1", "I think -1", "Score: 1."]),
        &["judge"],
    );
    let judged = judge(&plugin, Limits::default()).await;
    let verdict = judged.outcome.unwrap();
    assert_eq!(verdict.reward, 1.0);
    let votes: Vec<f32> = verdict.votes.iter().map(|vote| vote.score).collect();
    assert_eq!(votes, [1.0, -1.0, 1.0]);
    assert_eq!(
        (judged.receipt.model_calls, judged.receipt.model_tokens),
        (1, 109)
    );

    let silent = judge(
        &with_model(Model::Says(vec!["hm"; 3]), &[]),
        Limits::default(),
    )
    .await;
    assert!(silent.outcome.unwrap_err().is_no_answer());
}

#[tokio::test]
async fn what_the_model_cannot_do_reaches_the_judge_as_an_error() {
    let limits = Limits::default;
    let cases = [
        (Model::Says(vec!["1"]), &["teacher"][..], limits(), "Denied"),
        (
            Model::Says(vec!["1"]),
            &[],
            Limits {
                model_calls: 0,
                ..limits()
            },
            "BudgetExhausted",
        ),
        (Model::Fails(ModelError::Timeout), &[], limits(), "Timeout"),
        (
            Model::Fails(ModelError::Rejected("long".into())),
            &[],
            limits(),
            "Rejected",
        ),
        (Model::Panics, &[], limits(), "Unavailable"),
    ];
    for (model, models, limits, said) in cases {
        let judged = judge(&with_model(model, models), limits).await;
        let fault = judged.outcome.unwrap_err();
        assert!(
            matches!(&fault.kind, FaultKind::PluginError { kind: PluginErrorKind::Transient, message } if message.contains(said)),
            "{said}: {fault}"
        );
    }
    let limits = Limits {
        model_tokens: 20,
        ..Limits::default()
    };
    let judged = judge(&with_model(Model::Says(vec!["1"]), &[]), limits).await;
    assert_eq!(judged.outcome.unwrap_err().kind.name(), "budget");
}

#[tokio::test]
async fn a_model_that_never_answers_ends_with_the_wall_time() {
    let limits = Limits {
        wall_ms: 30,
        ..Limits::default()
    };
    let judged = judge(&with_model(Model::Hangs, &[]), limits).await;
    let fault = judged.outcome.unwrap_err();
    assert!(fault.is_transient(), "{fault}");
}

/// Keys in memory.
#[derive(Default)]
struct Keys(Mutex<BTreeMap<(StateScope, String), StateEntry>>);

impl StateStore for Keys {
    fn get(
        &self,
        scope: StateScope,
        key: String,
    ) -> Answer<Result<Option<StateEntry>, StateError>> {
        let entry = self.0.lock().unwrap().get(&(scope, key)).cloned();
        Box::pin(async { Ok(entry) })
    }

    fn put(
        &self,
        scope: StateScope,
        key: String,
        value: Vec<u8>,
        expected: Option<u64>,
    ) -> Answer<Result<u64, StateError>> {
        let mut keys = self.0.lock().unwrap();
        let place = (scope, key);
        let version = keys.get(&place).map(|entry| entry.version);
        if version != expected {
            return Box::pin(async { Err(StateError::Conflict) });
        }
        let version = version.unwrap_or(0) + 1;
        keys.insert(place, StateEntry { value, version });
        Box::pin(async move { Ok(version) })
    }

    fn delete(&self, scope: StateScope, key: String) -> Answer<Result<(), StateError>> {
        self.0.lock().unwrap().remove(&(scope, key));
        Box::pin(async { Ok(()) })
    }

    fn keys(
        &self,
        _: StateScope,
        _: String,
        _: Option<String>,
        _: usize,
    ) -> Answer<Result<StatePage, StateError>> {
        Box::pin(async { Ok(StatePage::default()) })
    }
}

/// A fixture whose core module imports `from.name` with this core signature.
fn lowered(imports: &str, wires: &[(&str, &str, &str)], body: &str) -> Fixture {
    let mut fixture = Fixture {
        imports: format!(
            "{imports}
             (core module $libc (memory (export \"memory\") 1)
               (data (i32.const 512) \"key\\1b[31m\\nforged\")
               (func (export \"realloc\") (param i32 i32 i32 i32) (result i32) (i32.const 1024)))
             (core instance $l (instantiate $libc))"
        ),
        ..Fixture::body(body)
    };
    let mut given = String::new();
    for (instance, function, signature) in wires {
        let id = function.replace(['[', ']', '.'], "_");
        fixture.imports.push_str(&format!(
            "(core func ${id} (canon lower (func ${instance} \"{function}\")
               (memory (core memory $l \"memory\")) (realloc (core func $l \"realloc\"))))"
        ));
        fixture.core.push_str(&format!(
            "(import \"host\" \"{function}\" (func ${id} {signature}))"
        ));
        given.push_str(&format!("(export \"{function}\" (func ${id}))"));
    }
    fixture
        .core
        .push_str("(import \"libc\" \"memory\" (memory $shared 1))");
    fixture.instance = format!(
        "(core instance $i (instantiate $m (with \"host\" (instance {given})) (with \"libc\" (instance $l))))"
    );
    fixture
}

const STATE: &str = r#"(import "clawhost:plugin/state@0.1.0" (instance $state
    (type $error' (variant (case "rejected" string) (case "quota-exceeded") (case "conflict") (case "unavailable" string)))
    (export "error" (type $error (eq $error')))
    (export "put" (func (param "key" string) (param "value" (list u8)) (param "expected" (option u64))
      (result (result u64 (error $error)))))))"#;

#[tokio::test]
async fn state_is_kept_by_the_store_that_was_handed_in() {
    // The first write succeeds; the second, of the same key as if new, conflicts. The reward is
    // a quarter for each write that failed.
    let put = |answer: &str| {
        format!(
            "(call $put (i32.const 512) (i32.const 3) (i32.const 512) (i32.const 3) (i32.const 0) (i64.const 0) (i32.const {answer}))"
        )
    };
    let body = format!(
        "{} {}
         (f32.store $memory (i32.const 4) (f32.mul (f32.const 0.25) (f32.convert_i32_u (i32.add
            (i32.load8_u $shared (i32.const 600)) (i32.load8_u $shared (i32.const 640))))))
         (i32.store8 $memory (i32.const 8) (i32.const 1))
         (i32.const 0)",
        put("600"),
        put("640")
    );
    let mut fixture = lowered(
        STATE,
        &[("state", "put", "(param i32 i32 i32 i32 i32 i64 i32)")],
        &body,
    );
    fixture.memory = "$unused";
    let store = Arc::new(Keys::default());
    let host = PluginHost::new(HostOptions {
        state: Some(Arc::clone(&store) as _),
        ..options()
    })
    .unwrap();
    let wasm = own_memory(&fixture);
    let grants = Grants {
        allow: BTreeSet::from([Capability::State]),
        ..Grants::default()
    };
    let plugin = host
        .load("keeper", &wasm, &grants, Profile::default())
        .unwrap();
    let judged = judge(&plugin, Limits::default()).await;
    assert_eq!(judged.outcome.unwrap().reward, 0.25);
    assert_eq!(judged.receipt.host_calls, 2);
    let keys = store.0.lock().unwrap();
    let (scope, key) = keys.keys().next().unwrap();
    assert_eq!(
        (scope.plugin.as_str(), scope.run_id.as_str(), key.as_str()),
        ("keeper", "run", "key")
    );
}

/// The fixture with its own memory named, beside the one that it shares with the lowered imports.
fn own_memory(fixture: &Fixture) -> Vec<u8> {
    fixture
        .text()
        .replace(
            "(memory (export \"memory\") $unused)",
            "(memory $memory (export \"memory\") 1)",
        )
        .replace("(memory.size)", "(memory.size $memory)")
        .replace("(memory.grow (", "(memory.grow $memory (")
        .parse_wat()
}

trait ParseWat {
    fn parse_wat(&self) -> Vec<u8>;
}

impl ParseWat for String {
    fn parse_wat(&self) -> Vec<u8> {
        wat::parse_str(self).unwrap_or_else(|e| panic!("{e}"))
    }
}

const LOG: &str = r#"(import "clawhost:plugin/log@0.1.0" (instance $log
    (type $level' (enum "trace" "debug" "info" "warn" "error"))
    (export "level" (type $level (eq $level')))
    (export "write" (func (param "level" $level) (param "message" string) (param "fields" (list (tuple string string)))))))"#;

#[tokio::test]
async fn a_log_flood_is_cut_and_counted() {
    let body = "(loop $again
          (call $write (i32.const 2) (i32.const 512) (i32.const 15) (i32.const 0) (i32.const 0))
          (local.set $n (i32.add (local.get $n) (i32.const 1)))
          (br_if $again (i32.lt_u (local.get $n) (i32.const 1000))))
        (i32.store8 $memory (i32.const 8) (i32.const 1))
        (i32.const 0)";
    let mut fixture = lowered(
        LOG,
        &[("log", "write", "(param i32 i32 i32 i32 i32)")],
        body,
    );
    fixture.memory = "$unused";
    let host = host();
    let plugin = host
        .load(
            "chatty",
            &own_memory(&fixture),
            &Grants::default(),
            Profile::default(),
        )
        .unwrap();
    let judged = judge(
        &plugin,
        Limits {
            log_lines: 10,
            ..Limits::default()
        },
    )
    .await;
    assert!(judged.outcome.is_ok(), "{:?}", judged.outcome);
    assert_eq!(judged.receipt.log_lines_dropped, 990);
    assert_eq!(judged.receipt.host_calls, 1_000);
}

const CLOCK_AND_DICE: &str = r#"
  (import "wasi:clocks/monotonic-clock@0.2.0" (instance $clock (export "now" (func (result u64)))))
  (import "wasi:random/random@0.2.0" (instance $dice (export "get-random-u64" (func (result u64)))))
  (core func $now (canon lower (func $clock "now")))
  (core func $roll (canon lower (func $dice "get-random-u64")))"#;

fn clock_and_dice(body: &str) -> Fixture {
    Fixture {
        imports: CLOCK_AND_DICE.into(),
        core: "(import \"h\" \"now\" (func $now (result i64))) (import \"h\" \"roll\" (func $roll (result i64)))".into(),
        instance: "(core instance $i (instantiate $m (with \"h\" (instance
            (export \"now\" (func $now)) (export \"roll\" (func $roll))))))"
            .into(),
        ..Fixture::body(body)
    }
}

#[tokio::test]
async fn clocks_stand_still_and_dice_follow_the_seed() {
    let host = host();
    let roll = verdict(
        "0",
        "(f32.store (i32.const 4) (f32.div (f32.convert_i64_u (i64.and (call $roll) (i64.const 0xffff))) (f32.const 65536)))",
    );
    let dice = load(&host, &clock_and_dice(&roll));
    let mut seen = BTreeSet::new();
    for attempt in [0, 0, 1, 2] {
        let context = clawhost_plugins::CallContext {
            attempt,
            ..call(Limits::default())
        };
        let judged = dice.score_turn(context, &trajectory("x"), 0).await;
        seen.insert(judged.outcome.unwrap().reward.to_bits());
    }
    assert_eq!(seen.len(), 3, "two calls are the same, the others differ");

    let now = verdict(
        "0",
        "(f32.store (i32.const 4) (f32.convert_i32_u (i64.ne (call $now) (i64.const 0))))",
    );
    let clock = clock_and_dice(&now);
    assert_eq!(
        judge(&load(&host, &clock), Limits::default())
            .await
            .outcome
            .unwrap()
            .reward,
        0.0
    );
    assert_eq!(
        judge(&load_fast(&host, &clock), Limits::default())
            .await
            .outcome
            .unwrap()
            .reward,
        1.0
    );
}

const STDERR: &str = r#"
  (import "wasi:io/error@0.2.0" (instance $io-error (export "error" (type (sub resource)))))
  (alias export $io-error "error" (type $error))
  (import "wasi:io/streams@0.2.0" (instance $streams
    (export "output-stream" (type $output (sub resource)))
    (alias outer 1 $error (type $e0))
    (export "error" (type $e (eq $e0)))
    (type $failure' (variant (case "last-operation-failed" (own $e)) (case "closed")))
    (export "stream-error" (type $failure (eq $failure')))
    (export "[method]output-stream.blocking-write-and-flush"
      (func (param "self" (borrow $output)) (param "contents" (list u8)) (result (result (error $failure)))))))
  (alias export $streams "output-stream" (type $output))
  (import "wasi:cli/stderr@0.2.0" (instance $stderr
    (alias outer 1 $output (type $o0))
    (export "output-stream" (type $o (eq $o0)))
    (export "get-stderr" (func (result (own $o))))))"#;

#[tokio::test]
async fn a_fault_carries_the_end_of_standard_error() {
    let write = "[method]output-stream.blocking-write-and-flush";
    let body = "(local.set $n (call $get-stderr))
        (call $_method_output-stream_blocking-write-and-flush (local.get $n) (i32.const 512) (i32.const 15) (i32.const 700))
        (unreachable)";
    let mut fixture = lowered(
        STDERR,
        &[
            ("stderr", "get-stderr", "(result i32)"),
            ("streams", write, "(param i32 i32 i32 i32)"),
        ],
        body,
    );
    fixture.memory = "$unused";
    let host = host();
    let plugin = host
        .load(
            "loud",
            &own_memory(&fixture),
            &Grants::default(),
            Profile::default(),
        )
        .unwrap();
    let fault = judge(&plugin, Limits::default()).await.outcome.unwrap_err();
    assert_eq!(fault.kind.name(), "trap");
    assert_eq!(fault.stderr, "key\\u{1b}[31m\\nforged");
}
