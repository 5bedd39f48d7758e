//! Promise: whatever a component does, its call ends with a typed fault within its limits, and the
//! host serves on.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

mod common;

use std::sync::Arc;

use clawhost_plugins::{FaultKind, Limits, Outcome, PluginErrorKind};
use common::{
    Fixture, call, fault, host, judge, load, load_fast, still_serves, trajectory, verdict,
};

const LOOP: &str = "(loop $for-ever (br $for-ever)) (i32.const 0)";

fn ticks(cpu_ticks: u64) -> Limits {
    Limits {
        cpu_ticks,
        ..Limits::default()
    }
}

#[tokio::test]
async fn an_endless_loop_ends_at_its_budget_of_ticks() {
    let host = host();
    let plugin = load_fast(&host, &Fixture::body(LOOP));
    let judged = judge(&plugin, ticks(5)).await;
    assert_eq!(fault(&judged), "cpu");
    assert!(
        (5..=7).contains(&judged.receipt.ticks),
        "{:?}",
        judged.receipt
    );
    assert_eq!(judged.receipt.outcome, Outcome::Fault("cpu"));
    still_serves(&host).await;
}

#[tokio::test]
async fn in_the_deterministic_profile_fuel_ends_it_at_the_same_place() {
    let host = host();
    let plugin = load(&host, &Fixture::body(LOOP));
    let limits = Limits {
        fuel: 1_000_000,
        cpu_ticks: 100_000,
        ..Limits::default()
    };
    let first = judge(&plugin, limits.clone()).await;
    let second = judge(&plugin, limits).await;
    for judged in [&first, &second] {
        assert!(matches!(
            &judged.outcome.as_ref().unwrap_err().kind,
            FaultKind::Cpu {
                limit: 1_000_000,
                setting: "fuel",
                ..
            }
        ));
        assert_eq!(judged.receipt.fuel, Some(1_000_000));
    }
    still_serves(&host).await;
}

#[tokio::test]
async fn loops_in_start_and_in_realloc_end_too() {
    let host = host();
    let start = Fixture {
        core: "(func $spin (loop $for-ever (br $for-ever))) (start $spin)".into(),
        ..Fixture::reward("0")
    };
    let judged = judge(&load_fast(&host, &start), ticks(3)).await;
    assert_eq!(fault(&judged), "cpu");
    let realloc = Fixture {
        core: "(func (export \"spin\") (param i32 i32 i32 i32) (result i32) (loop $for-ever (br $for-ever)) (i32.const 0))"
            .into(),
        instance: "(core instance $inner (instantiate $m))
                   (core instance $i
                     (export \"memory\" (memory $inner \"memory\"))
                     (export \"realloc\" (func $inner \"spin\"))
                     (export \"score\" (func $inner \"score\")))"
            .into(),
        ..Fixture::reward("0")
    };
    let judged = judge(&load_fast(&host, &realloc), ticks(3)).await;
    assert_eq!(fault(&judged), "cpu");
    still_serves(&host).await;
}

#[tokio::test]
async fn many_loops_at_once_do_not_starve_a_good_judge() {
    let host = host();
    let bad = Arc::new(load_fast(&host, &Fixture::body(LOOP)));
    let good = load_fast(&host, &Fixture::reward("1"));
    let loops: Vec<_> = (0..20)
        .map(|_| {
            let bad = Arc::clone(&bad);
            tokio::spawn(async move { judge(&bad, ticks(3)).await })
        })
        .collect();
    assert_eq!(
        judge(&good, Limits::default())
            .await
            .outcome
            .unwrap()
            .reward,
        1.0
    );
    for looping in loops {
        assert_eq!(fault(&looping.await.unwrap()), "cpu");
    }
}

#[tokio::test]
async fn a_trap_is_told_with_its_frame() {
    let host = host();
    let plugin = load(&host, &Fixture::body("(unreachable)"));
    let judged = judge(&plugin, Limits::default()).await;
    assert_eq!(fault(&judged), "trap");
    let error = judged.outcome.unwrap_err();
    assert!(error.to_string().contains("unreachable"), "{error}");
    assert_eq!(error.frames.len(), 1, "{:?}", error.frames);
    still_serves(&host).await;
}

#[tokio::test]
async fn deep_recursion_is_a_stack_fault() {
    let host = host();
    let fixture = Fixture {
        core: "(func $deep (param i64) (result i64) (i64.add (i64.const 1) (call $deep (i64.add (local.get 0) (i64.const 1)))))"
            .into(),
        ..Fixture::body("(drop (call $deep (i64.const 0))) (i32.const 0)")
    };
    assert_eq!(
        fault(&judge(&load(&host, &fixture), Limits::default()).await),
        "stack"
    );
    still_serves(&host).await;
}

#[tokio::test]
async fn memory_is_capped_as_a_sum() {
    let host = host();
    let bomb = "(loop $grow (drop (memory.grow (i32.const 16))) (br $grow)) (i32.const 0)";
    let limits = Limits {
        memory_bytes: 8 << 20,
        ..Limits::default()
    };
    let judged = judge(&load(&host, &Fixture::body(bomb)), limits).await;
    assert!(matches!(
        &judged.outcome.as_ref().unwrap_err().kind,
        FaultKind::Memory { wanted, limit } if *limit == 8 << 20 && *wanted > *limit
    ));
    assert!(judged.receipt.peak_memory_bytes <= 8 << 20);

    // Two memories of 5 MiB each are within the limit one by one, not together.
    let two = Fixture {
        instance: "(core module $other (memory (export \"memory\") 80))
                   (core instance $o (instantiate $other))
                   (core instance $i (instantiate $m))"
            .into(),
        memory: "80",
        ..Fixture::reward("0")
    };
    let limits = Limits {
        memory_bytes: 8 << 20,
        ..Limits::default()
    };
    assert_eq!(fault(&judge(&load(&host, &two), limits).await), "memory");
    still_serves(&host).await;
}

#[tokio::test]
async fn tables_are_capped() {
    let host = host();
    let fixture = Fixture {
        core: "(table $t 1 funcref)".into(),
        ..Fixture::body(
            "(loop $grow (drop (table.grow $t (ref.null func) (i32.const 512))) (br $grow)) (i32.const 0)",
        )
    };
    let limits = Limits {
        table_elements: 2_000,
        ..Limits::default()
    };
    assert_eq!(fault(&judge(&load(&host, &fixture), limits).await), "table");
    still_serves(&host).await;
}

#[tokio::test]
async fn numbers_that_are_none_never_leave() {
    let host = host();
    for reward in ["nan", "-nan", "inf", "-inf", "1e38", "1.5", "-1.0001"] {
        let judged = judge(&load(&host, &Fixture::reward(reward)), Limits::default()).await;
        assert_eq!(fault(&judged), "bad-output", "{reward}");
    }
    let mut wide = Limits::default();
    (wide.verdict.min, wide.verdict.max) = (-2.0, 2.0);
    let judged = judge(&load(&host, &Fixture::reward("1.5")), wide).await;
    assert_eq!(judged.outcome.unwrap().reward, 1.5);
    still_serves(&host).await;
}

#[tokio::test]
async fn results_that_cannot_be_read_are_bad_output() {
    let host = host();
    let votes = |pointer: &str, count: &str| {
        verdict(
            "0",
            &format!(
                "(i32.store (i32.const 12) (i32.const {pointer})) (i32.store (i32.const 16) (i32.const {count}))"
            ),
        )
    };
    let text = |pointer: &str, length: &str| {
        verdict(
            "0",
            &format!(
                "(i32.store (i32.const 20) (i32.const {pointer})) (i32.store (i32.const 24) (i32.const {length}))"
            ),
        )
    };
    let broken_text = format!(
        "(i32.store8 (i32.const 100) (i32.const 255)) {}",
        text("100", "1")
    );
    let cases = [
        ("a list beyond the memory", votes("65000", "100000")),
        ("a list of 2 GiB", votes("0", "178956970")),
        ("a misaligned list", votes("3", "2")),
        ("more votes than allowed", votes("1024", "1001")),
        ("a string beyond the memory", text("65530", "1000")),
        ("a rationale of 40 KB", text("1024", "40000")),
        ("text that is not UTF-8", broken_text),
        (
            "an unknown outcome",
            "(i32.store8 (i32.const 0) (i32.const 9)) (i32.const 0)".to_owned(),
        ),
        (
            "a boolean of 7 is true, a result beyond memory is not",
            "(i32.const 65535)".to_owned(),
        ),
    ];
    for (what, body) in cases {
        let judged = judge(&load(&host, &Fixture::body(&body)), Limits::default()).await;
        assert_eq!(fault(&judged), "bad-output", "{what}: {:?}", judged.outcome);
    }
    still_serves(&host).await;
}

#[tokio::test]
async fn a_plugins_own_error_is_told_as_such() {
    let host = host();
    let body = "(i32.store8 (i32.const 0) (i32.const 1))
                (i32.store8 (i32.const 4) (i32.const 0))
                (i32.store (i32.const 100) (i32.const 0x0a1b6f6e))
                (i32.store (i32.const 8) (i32.const 100))
                (i32.store (i32.const 12) (i32.const 4))
                (i32.const 0)";
    let judged = judge(&load(&host, &Fixture::body(body)), Limits::default()).await;
    let fault = judged.outcome.unwrap_err();
    assert!(fault.is_no_answer());
    assert_eq!(
        fault.kind,
        FaultKind::PluginError {
            kind: PluginErrorKind::Unsupported,
            message: "no\\u{1b}\\n".into()
        }
    );
    assert_eq!(
        judged.receipt.outcome,
        Outcome::Refused(PluginErrorKind::Unsupported)
    );
}

/// Calls `context.setting` in a loop.
fn asking(body: &str) -> Fixture {
    Fixture {
        imports: r#"(import "clawhost:plugin/context@0.1.0" (instance $context
              (export "setting" (func (param "key" string) (result (option string))))))
            (core module $libc
              (memory (export "memory") 1)
              (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 1024)))
            (core instance $l (instantiate $libc))
            (core func $setting (canon lower (func $context "setting")
              (memory (core memory $l "memory")) (realloc (core func $l "realloc"))))"#
            .into(),
        core: r#"(import "context" "setting" (func $setting (param i32 i32 i32)))"#.into(),
        instance: r#"(core instance $i (instantiate $m
              (with "context" (instance (export "setting" (func $setting))))))"#
            .into(),
        ..Fixture::body(body)
    }
}

#[tokio::test]
async fn host_calls_are_counted_and_capped() {
    let host = host();
    let storm = asking(
        "(loop $ask (call $setting (i32.const 0) (i32.const 1) (i32.const 16)) (br $ask)) (i32.const 0)",
    );
    let limits = Limits {
        host_calls: 50,
        ..Limits::default()
    };
    let judged = judge(&load(&host, &storm), limits).await;
    assert!(matches!(
        judged.outcome.as_ref().unwrap_err().kind,
        FaultKind::Budget {
            what: "host_calls",
            limit: 50,
            ..
        }
    ));
    assert_eq!(judged.receipt.host_calls, 51);

    let huge = asking(&format!(
        "(call $setting (i32.const 0) (i32.const 60000) (i32.const 16)) {}",
        verdict("0", "")
    ));
    let limits = Limits {
        host_call_bytes: 1_000,
        ..Limits::default()
    };
    let judged = judge(&load(&host, &huge), limits).await;
    assert!(judged.outcome.is_err(), "{:?}", judged.outcome);
    still_serves(&host).await;
}

#[tokio::test]
async fn a_call_that_nobody_waits_for_ends_and_frees_its_place() {
    let host = clawhost_plugins::PluginHost::new(clawhost_plugins::HostOptions {
        instances: 1,
        ..common::options()
    })
    .unwrap();
    let endless = load_fast(&host, &Fixture::body(LOOP));
    let good = load_fast(&host, &Fixture::reward("1"));
    let seen = trajectory("thanks");
    let mut waiting = Box::pin(endless.score_turn(call(ticks(1_000_000)), &seen, 0));
    // Poll it once, so that it runs, and forget it.
    let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(waiting.as_mut().poll(cx))).await;
    assert!(polled.is_pending());
    drop(waiting);
    assert_eq!(
        judge(&good, Limits::default())
            .await
            .outcome
            .unwrap()
            .reward,
        1.0
    );
}

#[tokio::test]
async fn the_wall_limit_ends_a_call_that_has_cpu_left() {
    let host = host();
    let plugin = load_fast(&host, &Fixture::body(LOOP));
    let limits = Limits {
        wall_ms: 30,
        cpu_ticks: 1_000_000,
        ..Limits::default()
    };
    let judged = judge(&plugin, limits).await;
    assert_eq!(
        judged.outcome.unwrap_err().kind,
        FaultKind::Wall { limit_ms: 30 }
    );
    still_serves(&host).await;
}
