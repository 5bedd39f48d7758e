//! Cases 15 to 17: components that misuse handles, destructors and reentrancy.

use clawhost_plugins::{Episode, PluginHost};

use super::guest::{Guest, verdict};
use super::hosting::{
    action, call, default_limits, episode, fault, host, judge, steady, still_serves, task,
    trajectory,
};

async fn start(host: &PluginHost, tricks: &[(&str, &str)]) -> Episode {
    episode(&steady(host, &Guest::environment(tricks)), default_limits()).await
}

#[tokio::test]
async fn case_15_handles_cannot_be_hoarded_forged_or_used_after_drop() {
    let host = host();
    let hoard = "(loop $again (drop (call $new (i32.const 1))) (br $again)) (i32.const 0)";
    let mut hoarding = start(&host, &[("step", hoard)]).await;
    assert_eq!(fault(&hoarding.step(&action()).await), "trap");

    let write =
        "(call $write (local.get $n) (i32.const 512) (i32.const 1) (i32.const 64)) (i32.const 0)";
    let misuses = [
        ("hoards the host's", "(loop $again (drop (call $stderr)) (br $again)) (i32.const 0)".into()),
        ("forges", format!("(local.set $n (i32.const 4711)) {write}")),
        // A number that is a handle in another store is not one in this store.
        ("guesses", format!("(local.set $n (i32.const 1)) {write}")),
        ("drops a handle that does not exist", "(call $drop-stream (i32.const 3)) (i32.const 0)".into()),
        ("uses after drop", format!("(local.set $n (call $stderr)) (call $drop-stream (local.get $n)) {write}")),
        ("drops twice", "(local.set $n (call $stderr)) (call $drop-stream (local.get $n)) (call $drop-stream (local.get $n)) (i32.const 0)".into()),
    ];
    for (what, body) in misuses {
        let judged = judge(
            &steady(&host, &Guest::judge(&body).with_stderr()),
            default_limits(),
        )
        .await;
        assert_eq!(fault(&judged), "trap", "{what}: {:?}", judged.outcome);
    }
    // A session that was never created.
    let forged = Guest::environment(&[(
        "reset",
        "(i32.store (i32.const 4) (i32.const 99)) (i32.const 0)",
    )]);
    let started = steady(&host, &forged)
        .start_episode(call(default_limits()), task(), 1)
        .await;
    assert_eq!(fault(&started), "bad-output");
    still_serves(&host).await;
}

#[tokio::test]
async fn case_16_traps_in_close_or_destructor_end_only_the_episode() {
    let host = host();
    let judged = judge(
        &steady(&host, &Guest::judge("(unreachable)")),
        default_limits(),
    )
    .await;
    let error = judged.outcome.unwrap_err();
    assert!(error.to_string().contains("unreachable"), "{error}");
    assert_eq!(error.frames.len(), 1, "{:?}", error.frames);

    for trapping in ["[dtor]", "close"] {
        let world = steady(&host, &Guest::environment(&[(trapping, "(unreachable)")]));
        let closed = episode(&world, default_limits()).await.close().await;
        assert_eq!(fault(&closed), "trap", "in {trapping}");
        let mut other = episode(&world, default_limits()).await;
        assert!(
            other.step(&action()).await.outcome.is_ok(),
            "another episode of it"
        );
        // Dropped without `close`: its destructor is not called.
    }

    let mut graded = start(&host, &[("close", "(unreachable)")]).await;
    assert!(graded.grade().await.outcome.is_ok());
    assert_eq!(fault(&graded.step(&action()).await), "episode-over");
    assert_eq!(fault(&graded.grade().await), "episode-over");
    assert_eq!(
        fault(&graded.close().await),
        "trap",
        "close is still called"
    );

    let mut broken = start(&host, &[("step", "(unreachable)")]).await;
    assert_eq!(fault(&broken.step(&action()).await), "trap");
    assert_eq!(fault(&broken.step(&action()).await), "episode-over");
    assert_eq!(fault(&broken.grade().await), "episode-over");
    assert_eq!(fault(&broken.close().await), "episode-over");
    still_serves(&host).await;
}

#[tokio::test]
async fn case_17_reentrant_calls_trap() {
    let host = host();
    let ask = "(call $setting (i32.const 512) (i32.const 1) (i32.const 1024))";
    let again = [
        ("while it takes the question", Guest::reward("0").realloc(&format!("{ask} (i32.const 8192)"))),
        ("after its answer", Guest::reward("0").afterwards(ask)),
        // The host allocates guest memory for an answer (`cabi_realloc`).
        (
            "while it takes an answer",
            Guest::judge(&verdict("0", &format!("(global.set $answering (i32.const 1)) {ask}")))
                .with("(global $answering (mut i32) (i32.const 0))")
                .data("k")
                .realloc(&format!(
                    "(if (global.get $answering) (then {ask}))
                     (global.set $top (i32.add (global.get $top) (i32.and (i32.add (local.get 3) (i32.const 15)) (i32.const -16))))
                     (i32.sub (global.get $top) (i32.and (i32.add (local.get 3) (i32.const 15)) (i32.const -16)))"
                )),
        ),
    ];
    for (when, guest) in again {
        let mut context = call(default_limits());
        context.settings.insert("k".into(), "1".into());
        let judged = steady(&host, &guest.with_settings())
            .score_turn(context, &trajectory("thanks"), 0)
            .await;
        assert_eq!(fault(&judged), "trap", "{when}: {:?}", judged.outcome);
        let error = judged.outcome.unwrap_err().to_string();
        assert!(
            error.contains("cannot leave component instance"),
            "{when}: {error}"
        );
    }
    still_serves(&host).await;
}
