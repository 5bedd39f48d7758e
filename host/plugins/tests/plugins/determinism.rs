//! In the deterministic profile the same input gives the same verdict and uses the same fuel. Components that try to
//! distinguish two calls are cases 24 and 25 of `tests/containment`.

use std::time::Duration;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clawhost_plugins::{
    FaultKind, Grants, Limits, Outcome, Plugin, PluginHost, Profile, TICK, embedded_component,
};
use tokio::task::JoinSet;

use super::common::{call, default_limits, host, judge, trajectory};

#[tokio::test]
async fn same_input_gives_same_verdict_and_fuel() {
    let host = host();
    let bytes = embedded_component("judge-next-state").unwrap();
    let plugin = host
        .load(
            "judge-next-state",
            bytes,
            &Grants::default(),
            Profile::default(),
        )
        .unwrap();
    assert_eq!(plugin.profile(), Profile::Deterministic);
    for (text, reward) in [
        ("Thanks, that's perfect.", 1.0),
        ("Thanks, but please rewrite it without bold.", -1.0),
        ("why?", 0.0),
    ] {
        let seen = trajectory(text);
        let first = plugin.score_turn(call(default_limits()), &seen, 0).await;
        let second = plugin.score_turn(call(default_limits()), &seen, 0).await;
        let one = first.outcome.unwrap();
        assert_eq!(one.reward, reward, "{text}: {one:?}");
        assert_eq!(Ok(one), second.outcome, "{text}");
        assert!(first.receipt.fuel.is_some_and(|fuel| fuel > 0));
        assert_eq!(first.receipt.fuel, second.receipt.fuel, "{text}");
        assert_eq!(first.receipt.outcome, Outcome::Ok);
        assert!(first.receipt.peak_memory_bytes > 0);
    }
}

#[tokio::test]
async fn both_profiles_give_the_same_verdict() {
    let host = host();
    let bytes = embedded_component("judge-next-state").unwrap();
    let fast = host
        .load("judge", bytes, &Grants::default(), Profile::Fast)
        .unwrap();
    let slow = host
        .load("judge", bytes, &Grants::default(), Profile::default())
        .unwrap();
    let seen = trajectory("too much bold, redo it please");
    let a = fast.score_turn(call(default_limits()), &seen, 0).await;
    let b = slow.score_turn(call(default_limits()), &seen, 0).await;
    assert_eq!(a.outcome, b.outcome);
    assert_eq!(a.receipt.fuel, None);
}

#[tokio::test]
async fn missing_turn_is_invalid_input_and_missing_reply_is_unsupported() {
    let host = host();
    let bytes = embedded_component("judge-next-state").unwrap();
    let plugin = host
        .load("judge", bytes, &Grants::default(), Profile::default())
        .unwrap();
    let missing = plugin
        .score_turn(call(default_limits()), &trajectory("thanks"), 5)
        .await;
    let fault = missing.outcome.unwrap_err();
    assert!(fault.to_string().contains("invalid-input"), "{fault}");
    let mut silent = trajectory("");
    silent.turns[0].next_state.clear();
    let silent = plugin.score_turn(call(default_limits()), &silent, 0).await;
    assert!(silent.outcome.unwrap_err().is_unsupported());
}

fn load(host: &PluginHost, name: &str, profile: Profile) -> Plugin {
    let bytes = embedded_component(name).unwrap();
    host.load(name, bytes, &Grants::default(), profile).unwrap()
}

/// Threads that keep every core busy until this is dropped.
struct CpuLoad {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl CpuLoad {
    fn on_all_cores() -> CpuLoad {
        let stop = Arc::new(AtomicBool::new(false));
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let threads = (0..cores)
            .map(|_| {
                let stop = Arc::clone(&stop);
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                })
            })
            .collect();
        CpuLoad { stop, threads }
    }
}

impl Drop for CpuLoad {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn verdicts_and_faults_do_not_depend_on_cpu_load() {
    let host = host();
    let plugin = load(&host, "judge-next-state", Profile::Deterministic);
    // Several ticks of work, of which the fast profile would give it one.
    let seen = trajectory(&"Thanks, but could you write that again without bold? ".repeat(64_000));
    let idle = plugin.score_turn(call(default_limits()), &seen, 0).await;
    assert!(idle.outcome.is_ok(), "{idle:?}");
    assert!(
        idle.receipt.fuel > Some(40_000_000),
        "{:?}",
        idle.receipt.fuel
    );

    let limits = Limits {
        cpu_time: TICK,
        ..default_limits()
    };

    // Endless guests on the same threads, and higher-priority threads on every core.
    let endless = load(&host, "judge-endless", Profile::Fast);
    let mut loops = JoinSet::new();
    for _ in 0..4 {
        let endless = endless.clone();
        let unlimited = Limits {
            cpu_time: Duration::MAX,
            wall_time: Duration::from_millis(3_600_000),
            ..default_limits()
        };
        loops.spawn(async move { judge(&endless, unlimited).await });
    }
    let load = CpuLoad::on_all_cores();
    for _ in 0..3 {
        let judged = plugin.score_turn(call(limits.clone()), &seen, 0).await;
        assert_eq!(judged.outcome, idle.outcome);
        assert_eq!(judged.receipt.fuel, idle.receipt.fuel);
        assert!(judged.receipt.ticks > 1, "{:?}", judged.receipt);
    }
    // Running out of fuel happens at the same instruction.
    let fuel = Limits {
        fuel: 1_000_000,
        ..limits
    };
    let spent = plugin.score_turn(call(fuel), &seen, 0).await;
    let fault = spent.outcome.unwrap_err();
    assert!(
        matches!(
            fault.kind,
            FaultKind::Cpu {
                setting: "fuel",
                ..
            }
        ),
        "{fault}"
    );
    drop(load);
    assert!(
        loops.try_join_next().is_none(),
        "the endless guests must run during the whole test"
    );
}

#[tokio::test]
async fn wall_timeout_of_a_deterministic_call_is_not_a_plugin_fault() {
    let host = host();
    let limits = Limits {
        fuel: u64::MAX >> 1,
        wall_time: Duration::from_millis(30),
        cpu_time: TICK,
        ..default_limits()
    };
    let endless = load(&host, "judge-endless", Profile::Deterministic);
    let judged = judge(&endless, limits.clone()).await;
    let fault = judged.outcome.unwrap_err();
    assert_eq!(fault.kind, FaultKind::DeadlineExceeded { limit_ms: 30 });
    assert!(fault.is_host_condition() && fault.is_transient());
    assert_eq!(judged.receipt.outcome, Outcome::DeadlineExceeded);
    let (_, _, stats) = host.call_stats().pop().unwrap();
    assert_eq!((stats.deadline_exceeded, stats.faults.len()), (1, 0));

    // In the fast profile the wall timeout is a fault.
    let roomy = Limits {
        cpu_time: Duration::MAX,
        ..limits
    };
    let judged = judge(&load(&host, "judge-endless", Profile::Fast), roomy).await;
    let fault = judged.outcome.unwrap_err();
    assert_eq!(fault.kind, FaultKind::Wall { limit_ms: 30 });
    assert!(!fault.is_host_condition());
}

#[tokio::test]
async fn the_receipt_of_a_call_ended_at_its_wall_limit_has_the_fuel_of_that_call() {
    let host = host();
    let endless = load(&host, "judge-endless", Profile::Deterministic);
    // How much of its wall time a guest gets depends on what else the machine does.
    for wall_ms in [100, 1_000, 10_000, 60_000] {
        let limits = Limits {
            fuel: u64::MAX >> 1,
            wall_time: Duration::from_millis(wall_ms),
            ..default_limits()
        };
        let judged = judge(&endless, limits).await;
        let receipt = judged.receipt;
        assert_eq!(receipt.outcome, Outcome::DeadlineExceeded);
        assert!(receipt.wall_us >= wall_ms * 1_000, "{receipt:?}");
        assert!(receipt.peak_memory_bytes > 0, "{receipt:?}");
        let (_, _, stats) = host.call_stats().pop().unwrap();
        assert!(stats.fuel >= receipt.fuel.unwrap(), "{stats:?}");
        // Far more than entering the endless function takes.
        if receipt.fuel.unwrap() >= 20_000_000 {
            return;
        }
    }
    panic!("an endless loop of a minute used almost no fuel");
}
