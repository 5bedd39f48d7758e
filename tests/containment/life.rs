//! Cases 27 and 28: reloading during calls, very many failures, and shutdown.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clawhost_plugins::{
    Answer, Grants, HostOptions, Limits, Message, ModelClient, ModelError, ModelRequest,
    ModelResponse, Plugin, PluginError, PluginHost, PluginHostConfig, Profile,
};
use clawhost_tests::{Client, Command, Conversation, WAIT_TIMEOUT};
use tempfile::TempDir;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

use super::guest::{Guest, store, verdict};
use super::hosting::{
    call, default_limits, fast, fault, granted, grants, host, judge, options, steady, still_serves,
    ticks, trajectory,
};
use super::time::LOOP;

/// A gate that blocks model responses.
struct Gate {
    asked: Notify,
    open: Semaphore,
}

/// A model that responds once the gate opens.
struct Gated(Arc<Gate>);

impl ModelClient for Gated {
    fn complete(&self, _: ModelRequest) -> Answer<Result<ModelResponse, ModelError>> {
        let gate = Arc::clone(&self.0);
        Box::pin(async move {
            gate.asked.notify_one();
            let _passed = gate.open.acquire().await;
            Ok(ModelResponse {
                choices: Vec::new(),
                prompt_tokens: 1,
                completion_tokens: 1,
            })
        })
    }

    fn score(&self, _: String, _: Vec<Message>, _: String) -> Answer<Result<Vec<f32>, ModelError>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

#[tokio::test]
async fn case_27_calls_finish_on_the_build_they_started_with() {
    let gate = Arc::new(Gate {
        asked: Notify::new(),
        open: Semaphore::new(0),
    });
    let host = PluginHost::new(HostOptions {
        model: Some(Arc::new(Gated(Arc::clone(&gate)))),
        ..options()
    })
    .unwrap();
    let ask = format!(
        "{} (call $complete (i32.const 1024) (i32.const 1536))",
        store(1024 + 24, 1)
    );
    let slow = Guest::judge(&verdict("0.5", &ask)).with_model();
    let old = granted(&host, "mine", &slow, &["model"]);
    let in_flight = tokio::spawn({
        let old = old.clone();
        async move { judge(&old, default_limits()).await }
    });
    gate.asked.notified().await;

    // A build that is not a component, and one that needs more grants, are rejected without side effects.
    let broken = &slow.wasm()[..100];
    let load = |bytes: &[u8], grants: &Grants| host.load("mine", bytes, grants, Profile::default());
    assert!(load(broken, &grants(&["model"])).is_err());
    let greedy = Guest::reward("1").with_state().wasm();
    assert!(matches!(
        load(&greedy, &Grants::default()),
        Err(PluginError::NotGranted { .. })
    ));
    let new = load(&Guest::reward("-0.5").wasm(), &Grants::default()).unwrap();
    drop(old);
    assert_eq!(
        judge(&new, default_limits()).await.outcome.unwrap().reward,
        -0.5
    );

    gate.open.add_permits(1);
    let judged = in_flight.await.unwrap();
    assert_eq!(judged.outcome.unwrap().reward, 0.5);
    assert_ne!(judged.receipt.digest, new.digest());
    still_serves(&host).await;
}

/// One test for the whole case: first in a child process, because memory is measured per process.
#[tokio::test]
async fn case_28_thousands_of_failures_leak_nothing() {
    if std::env::var_os(ALONE).is_some() {
        return resident_memory_stays().await;
    }
    let test = "containment::life::case_28_thousands_of_failures_leak_nothing";
    let alone = std::process::Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    assert!(
        alone.status.success(),
        "{}",
        String::from_utf8_lossy(&alone.stderr)
    );

    looping_judges_do_not_starve_a_good_judge().await;
    dropped_call_frees_its_slot().await;
    sigterm_stops_a_server_with_a_looping_judge().await;
}

/// Environment variable that marks the child process.
const ALONE: &str = "CLAWHOST_CONTAINMENT_ALONE";
const WARM_UP: usize = 4_000;
/// The full million is `clawhost_plugins::measure::failing_calls`.
const FAILING_CALLS: usize = 20_000;

async fn resident_memory_stays() {
    let host = host();
    let bodies = [
        "(unreachable)".to_owned(),
        verdict("nan", ""),
        format!("{LOOP} (i32.const 0)"),
        "(drop (memory.grow (i32.const 60000))) (i32.const 0)".to_owned(),
        "(i32.const -4)".to_owned(),
    ];
    let failing: Vec<Plugin> = bodies
        .iter()
        .map(|body| steady(&host, &Guest::judge(body)))
        .collect();
    let failing = Arc::new(failing);
    let fail = async |calls: usize| {
        let left = Arc::new(AtomicUsize::new(calls));
        let mut drivers = JoinSet::new();
        for _ in 0..8 {
            let (failing, left) = (Arc::clone(&failing), Arc::clone(&left));
            drivers.spawn(async move {
                let next =
                    || left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
                while let Ok(number) = next() {
                    let limits = Limits {
                        fuel: 10_000,
                        ..default_limits()
                    };
                    let judged = judge(&failing[number % failing.len()], limits).await;
                    assert!(judged.outcome.is_err());
                }
            });
        }
        while let Some(driver) = drivers.join_next().await {
            driver.unwrap();
        }
    };
    fail(WARM_UP).await;
    let before = clawhost_plugins::measure::resident_bytes();
    fail(FAILING_CALLS).await;
    let after = clawhost_plugins::measure::resident_bytes();
    // Systems without this figure are skipped.
    if let (Some(before), Some(after)) = (before, after) {
        let change = after as f64 / before as f64;
        assert!(
            (0.95..=1.05).contains(&change),
            "{before} bytes before, {after} after"
        );
    }
    still_serves(&host).await;
}

async fn looping_judges_do_not_starve_a_good_judge() {
    const LOOPS: usize = 1_000;
    let host = host();
    let endless = steady(&host, &Guest::judge(&format!("{LOOP} (i32.const 0)")));
    let good = steady(&host, &Guest::reward("1"));
    let (begun, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut loops = JoinSet::new();
    for _ in 0..LOOPS {
        let (endless, begun, ended) = (endless.clone(), Arc::clone(&begun), Arc::clone(&ended));
        loops.spawn(async move {
            begun.fetch_add(1, Ordering::SeqCst);
            let limits = Limits {
                fuel: 1_000_000,
                ..default_limits()
            };
            let judged = judge(&endless, limits).await;
            ended.fetch_add(1, Ordering::SeqCst);
            fault(&judged)
        });
    }
    while begun.load(Ordering::SeqCst) < LOOPS {
        tokio::task::yield_now().await;
    }
    // It is queued after a thousand others, and does not wait for them.
    let judged = judge(&good, default_limits()).await;
    let ended = ended.load(Ordering::SeqCst);
    assert_eq!(judged.outcome.unwrap().reward, 1.0);
    assert!(
        ended < LOOPS / 2,
        "{ended} loops ended before the good judge was heard"
    );
    while let Some(name) = loops.join_next().await {
        assert_eq!(name.unwrap(), "cpu");
    }
    still_serves(&host).await;
}

async fn dropped_call_frees_its_slot() {
    let host = PluginHost::new(HostOptions {
        config: PluginHostConfig {
            max_instances: 1,
            ..PluginHostConfig::default()
        },
        ..options()
    })
    .unwrap();
    let endless = fast(&host, &Guest::judge(&format!("{LOOP} (i32.const 0)")));
    let seen = trajectory("thanks");
    let mut waiting = Box::pin(endless.score_turn(call(ticks(1_000_000)), &seen, 0));
    // Polled once so that it starts, then dropped.
    let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(waiting.as_mut().poll(cx))).await;
    assert!(polled.is_pending());
    drop(waiting);
    let good = fast(&host, &Guest::reward("1"));
    assert_eq!(
        judge(&good, default_limits()).await.outcome.unwrap().reward,
        1.0
    );
}

async fn sigterm_stops_a_server_with_a_looping_judge() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let endless = Guest::judge(&format!("{LOOP} (i32.const 0)")).wasm();
    std::fs::write(path("endless.wasm"), endless).unwrap();
    // Every limit is an hour or more.
    let limits = "[plugins.config.endless.limits]\ncpu_time = \"2h\"\nwall_time = \"2h\"\nfuel = 9000000000000000\n";
    std::fs::write(path("clawhost.toml"), limits).unwrap();
    let (config, plugin, data) = (path("clawhost.toml"), path("endless.wasm"), path("data"));
    let serving = Command::new(&[
        "run",
        "--port",
        "0",
        "--no-train",
        "--config",
        &config,
        "--plugin",
        &plugin,
        "--data",
        &data,
    ])
    .serve();
    let mut server = serving.unwrap_or_else(|| panic!("the server does not come up"));

    let client = Client::new(&server.url);
    let mut conversation = Conversation::new(&client);
    conversation.send_message("Hello!").await;
    conversation.send_message("And?").await;
    let judging = async {
        while client.get("/healthz").await.ok()["judging"]["running"] != 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(WAIT_TIMEOUT, judging)
        .await
        .unwrap_or_else(|_| panic!("the turn is not being judged"));
    assert_eq!(server.stop().await, Some(0));
}
