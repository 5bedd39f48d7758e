//! Cases 1 to 3: components that never return.

use std::time::Duration;

use clawhost_plugins::{FaultKind, Limits, Outcome, TICK};

use super::guest::{Guest, verdict};
use super::hosting::{
    default_limits, episode, fast, fault, host, judge, steady, still_serves, ticks,
};

pub(crate) const LOOP: &str = "(loop $for-ever (br $for-ever))";

#[tokio::test]
async fn case_01_endless_loops_end_at_their_cpu_budget() {
    let host = host();
    let answer = "(i32.const 0)";
    let judged = judge(
        &fast(&host, &Guest::judge(&format!("{LOOP} {answer}"))),
        ticks(5),
    )
    .await;
    assert_eq!(fault(&judged), "cpu");
    assert_eq!(judged.receipt.ticks, 5);
    assert_eq!(judged.receipt.outcome, Outcome::Fault("cpu"));

    let elsewhere = [
        Guest::reward("0").with(&format!("(func $spin {LOOP}) (start $spin)")),
        Guest::reward("0").realloc(&format!("{LOOP} {answer}")),
        Guest::reward("0").afterwards(LOOP),
    ];
    for guest in &elsewhere {
        assert_eq!(fault(&judge(&fast(&host, guest), ticks(3)).await), "cpu");
        // Fuel ends it at the same instruction every time, in any number of ticks.
        let limits = Limits {
            fuel: 1_000_000,
            cpu_time: TICK,
            ..default_limits()
        };
        for _ in 0..2 {
            let judged = judge(&steady(&host, guest), limits.clone()).await;
            let kind = &judged.outcome.as_ref().unwrap_err().kind;
            assert!(
                matches!(
                    kind,
                    FaultKind::Cpu {
                        limit: 1_000_000,
                        setting: "fuel",
                        ..
                    }
                ),
                "{kind}"
            );
            assert_eq!(judged.receipt.fuel, Some(1_000_000));
        }
    }

    let world = fast(&host, &Guest::environment(&[("[dtor]", LOOP)]));
    let episode = episode(&world, ticks(3)).await;
    assert_eq!(fault(&episode.close().await), "cpu");
    still_serves(&host).await;
}

#[tokio::test]
async fn case_02_host_calls_in_a_loop_end_at_their_limit() {
    let host = host();
    let ask = "(call $setting (i32.const 512) (i32.const 1) (i32.const 1024))";
    let storm =
        Guest::judge(&format!("(loop $again {ask} (br $again)) (i32.const 0)")).with_settings();
    let limits = Limits {
        host_calls: 50,
        ..default_limits()
    };
    let judged = judge(&steady(&host, &storm), limits).await;
    let spent = FaultKind::Budget {
        what: "host_calls",
        used: 51,
        limit: 50,
    };
    assert_eq!(judged.outcome.unwrap_err().kind, spent);
    assert_eq!(judged.receipt.host_calls, 51);

    // WASI calls are not counted; their time counts as the guest's CPU time.
    let clock =
        Guest::judge("(loop $again (drop (call $now)) (br $again)) (i32.const 0)").with_clock();
    assert_eq!(fault(&judge(&fast(&host, &clock), ticks(3)).await), "cpu");
    still_serves(&host).await;
}

#[tokio::test]
async fn case_03_endless_sleep_ends_at_the_wall_time_limit() {
    let host = host();
    let limits = Limits {
        wall_time: Duration::from_millis(30),
        cpu_time: 1_000_000 * TICK,
        ..default_limits()
    };
    // On a deterministic call it is a host timeout and not a fault of the component.
    let (over, unfinished) = (
        FaultKind::Wall { limit_ms: 30 },
        FaultKind::DeadlineExceeded { limit_ms: 30 },
    );
    let asleep =
        Guest::judge("(call $block (call $sleep (i64.const -1))) (i32.const 0)").with_clock();
    let awake = Guest::judge(&format!("{LOOP} (i32.const 0)"));
    for (plugin, expected) in [
        (fast(&host, &asleep), &over),
        (steady(&host, &asleep), &unfinished),
        (fast(&host, &awake), &over),
    ] {
        let judged = judge(&plugin, limits.clone()).await;
        assert_eq!(&judged.outcome.unwrap_err().kind, expected);
    }
    // A short sleep is allowed.
    let nap = verdict("1", "(call $block (call $sleep (i64.const 1000)))");
    let roomy = Limits {
        wall_time: Duration::from_secs(60),
        ..limits
    };
    let judged = judge(&fast(&host, &Guest::judge(&nap).with_clock()), roomy).await;
    assert_eq!(judged.outcome.unwrap().reward, 1.0);
    still_serves(&host).await;
}
