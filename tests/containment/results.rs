//! Cases 8 to 11: components that return invalid results.

use clawhost_plugins::{Advantages, Limits, LossBatch, Plugin, Requirements, RewardedSequence};

use super::guest::{Guest, store, verdict};
use super::hosting::{
    action, call, default_limits, episode, fault, host, judge, steady, still_serves, trajectory,
};

fn votes(pointer: u32, count: u32) -> String {
    verdict("0", &(store(12, pointer) + &store(16, count)))
}

fn rationale(pointer: u32, length: u32) -> String {
    verdict("0", &(store(20, pointer) + &store(24, length)))
}

#[tokio::test]
async fn case_08_lists_that_are_too_long_or_out_of_bounds_are_rejected() {
    let host = host();
    // A thousand votes that all point to the same 45,000 bytes: 45 MB from one page.
    let amplified = format!(
        "(loop $fill
           (i32.store offset=1028 (local.get $n) (i32.const 16384))
           (i32.store offset=1032 (local.get $n) (i32.const 45000))
           (local.set $n (i32.add (local.get $n) (i32.const 12)))
           (br_if $fill (i32.lt_u (local.get $n) (i32.const 12000))))
         {}",
        votes(1024, 1000)
    );
    let cases = [
        (
            "a list beyond the memory",
            votes(65_000, 100_000),
            "bad-output",
        ),
        ("a list of 2 GiB", votes(0, 178_956_970), "bad-output"),
        ("10^7 votes", votes(0, 10_000_000), "bad-output"),
        ("an address of all ones", votes(!3, 1), "bad-output"),
        ("more votes than allowed", votes(1024, 1001), "bad-output"),
        (
            "a string beyond the memory",
            rationale(65_530, 1_000),
            "bad-output",
        ),
        ("a string of 4 GiB", rationale(0, u32::MAX), "bad-output"),
        (
            "a rationale of 40 KB",
            rationale(1024, 40_000),
            "bad-output",
        ),
        (
            "a result beyond the memory",
            "(i32.const 65532)".into(),
            "bad-output",
        ),
        ("a result at -4", "(i32.const -4)".into(), "bad-output"),
        ("the same text a thousand times", amplified, "budget"),
    ];
    for (what, body, expected) in cases {
        let judged = judge(&steady(&host, &Guest::judge(&body)), default_limits()).await;
        assert_eq!(fault(&judged), expected, "{what}: {:?}", judged.outcome);
    }
    // 10^7 real votes in a memory that is large enough.
    let real = Guest::judge(&votes(0, 10_000_000)).memory("(memory (export \"memory\") 2048)");
    let limits = Limits {
        memory: 256 << 20,
        ..default_limits()
    };
    let judged = judge(&steady(&host, &real), limits).await;
    assert_eq!(fault(&judged), "budget", "{:?}", judged.outcome);
    still_serves(&host).await;
}

#[tokio::test]
async fn case_09_invalid_values_of_a_type_are_rejected() {
    let host = host();
    let cases = [
        ("not UTF-8", format!("(i32.store8 (i32.const 600) (i32.const 255)) {}", rationale(600, 1))),
        ("half a surrogate", format!("{} {}", store(600, 0x0080_a0ed), rationale(600, 3))),
        ("neither ok nor error", "(i32.store8 (i32.const 0) (i32.const 9)) (i32.const 0)".into()),
        ("no case of the error", "(i32.store8 (i32.const 0) (i32.const 1)) (i32.store8 (i32.const 4) (i32.const 9)) (i32.const 0)".into()),
        ("a misaligned list", votes(3, 2)),
        ("a misaligned result", "(i32.const 1)".into()),
    ];
    for (what, body) in cases {
        let judged = judge(&steady(&host, &Guest::judge(&body)), default_limits()).await;
        assert_eq!(fault(&judged), "bad-output", "{what}: {:?}", judged.outcome);
    }
    // The WIT has no `char`; in the canonical ABI any non-zero boolean is true.
    let seven = Guest::judge(&verdict("0", "(i32.store8 (i32.const 8) (i32.const 7))"));
    assert!(
        judge(&steady(&host, &seven), default_limits())
            .await
            .outcome
            .unwrap()
            .accept
    );

    let placement = hint(
        "(f32.const 0.5)",
        "(i32.store8 (i32.const 16) (i32.const 2))",
    );
    let hinted = steady(&host, &placement)
        .extract_hint(call(default_limits()), &trajectory("no"), 0)
        .await;
    assert_eq!(fault(&hinted), "bad-output");
    let status = Guest::environment(&[(
        "step",
        "(i32.store8 (i32.const 24) (i32.const 3)) (i32.const 0)",
    )]);
    let mut episode = episode(&steady(&host, &status), default_limits()).await;
    assert_eq!(fault(&episode.step(&action()).await), "bad-output");
    // As an argument to the host it traps in the guest.
    let level = "(call $log (i32.const 9) (i32.const 512) (i32.const 1) (i32.const 0) (i32.const 0)) (i32.const 0)";
    assert_eq!(
        fault(
            &judge(
                &steady(&host, &Guest::judge(level).with_log()),
                default_limits()
            )
            .await
        ),
        "trap"
    );
    still_serves(&host).await;
}

/// A hint `x`, with this confidence.
fn hint(confidence: &str, more: &str) -> Guest {
    Guest::hint(&format!(
        "(i32.store8 (i32.const 4) (i32.const 1)) {} {} (f32.store (i32.const 20) {confidence}) {more} (i32.const 0)",
        store(8, 512),
        store(12, 1)
    ))
    .data("x")
}

#[tokio::test]
async fn case_10_nan_and_wrong_counts_are_rejected() {
    let host = host();
    let none = ["nan", "-nan", "inf", "-inf", "1e38", "1.5", "-1.0001"];
    for reward in none {
        let judged = judge(&steady(&host, &Guest::reward(reward)), default_limits()).await;
        assert_eq!(fault(&judged), "bad-output", "{reward}");
        let vote = format!(
            "(f32.store (i32.const 1024) (f32.const {reward})) {}",
            votes(1024, 1)
        );
        let judged = judge(&steady(&host, &Guest::judge(&vote)), default_limits()).await;
        assert_eq!(fault(&judged), "bad-output", "a vote of {reward}");
        let confidence = hint(&format!("(f32.const {reward})"), "");
        let hinted = steady(&host, &confidence)
            .extract_hint(call(default_limits()), &trajectory("no"), 0)
            .await;
        assert_eq!(fault(&hinted), "bad-output", "a confidence of {reward}");
    }
    let mut wide = default_limits();
    (wide.verdict.min, wide.verdict.max) = (-2.0, 2.0);
    let judged = judge(&steady(&host, &Guest::reward("1.5")), wide).await;
    assert_eq!(
        judged.outcome.unwrap().reward,
        1.5,
        "limits that the operator raised"
    );

    // Verdicts of a group of two: zeros from 1024 on are neutral verdicts.
    for (count, expected) in [(0, false), (1, false), (2, true), (3, false)] {
        let ranking = format!("{} {} (i32.const 0)", store(4, 1024), store(8, count));
        let group = [trajectory("a"), trajectory("b")];
        let ranked = steady(&host, &Guest::group_judge(&ranking))
            .score_group(call(default_limits()), &group)
            .await;
        assert_eq!(ranked.outcome.is_ok(), expected, "{count} verdicts for two");
    }

    let sequences = vec![
        RewardedSequence {
            group: 0,
            length: 3,
            reward: 1.0,
            token_rewards: Vec::new(),
        };
        2
    ];
    let advantages = async |count: u32, per_token: u32, value: &str| {
        let body = format!(
            "(f32.store (i32.const 1024) (f32.const {value})) {} {} {} (i32.const 0)",
            store(4, 1024),
            store(8, count),
            store(12, per_token)
        );
        steady(&host, &Guest::advantage(&body))
            .compute_advantages(call(default_limits()), &sequences)
            .await
    };
    for (count, per_token, value) in [
        (1, 0, "0"),
        (3, 0, "0"),
        (2, 1, "0"),
        (2, 0, "nan"),
        (6, 1, "inf"),
        (2, 0, "1e38"),
    ] {
        assert_eq!(
            fault(&advantages(count, per_token, value).await),
            "bad-output",
            "{count} {value}"
        );
    }
    let taken = advantages(2, 0, "0.5").await.outcome.unwrap().advantages;
    assert_eq!(taken, Advantages::PerSequence(vec![0.5, 0.0]));
    still_serves(&host).await;
}

/// Half the sum of squared logprobs; its partials are the logprobs times `slope`.
fn squares(slope: &str) -> Guest {
    Guest::loss(&format!(
        "(local $i i32) (local $count i32) (local $p f32) (local $sum f32)
         (local.set $count (i32.load offset=52 (local.get $batch)))
         (block $end (loop $next
           (br_if $end (i32.ge_u (local.get $i) (local.get $count)))
           (if (i32.load8_u (i32.add (i32.load offset=32 (local.get $batch)) (local.get $i))) (then
             (local.set $p (f32.load (i32.add
               (i32.load offset=48 (local.get $batch)) (i32.mul (local.get $i) (i32.const 4)))))
             (local.set $sum (f32.add (local.get $sum) (f32.mul (f32.const 0.5) (f32.mul (local.get $p) (local.get $p)))))
             (f32.store offset=1024 (i32.mul (local.get $i) (i32.const 4)) (f32.mul (local.get $p) (f32.const {slope})))))
           (local.set $i (i32.add (local.get $i) (i32.const 1)))
           (br $next)))
         (f64.store (i32.const 8) (f64.promote_f32 (local.get $sum)))
         {} (i32.store (i32.const 20) (local.get $count)) (i32.const 0)",
        store(16, 1024)
    ))
}

const NEEDS: Requirements = Requirements {
    logprob: true,
    topk: false,
    entropy: false,
    old: false,
    reference: false,
    teacher: false,
    teacher_topk: false,
    k: 0,
};

fn batch(logprob: Vec<f32>) -> LossBatch {
    LossBatch {
        offsets: vec![0, 3],
        groups: vec![0],
        rewards: vec![1.0],
        tokens: vec![1, 2, 3],
        mask: vec![1, 0, 1],
        advantages: vec![1.0; 3],
        logprob,
        step_tokens: 2,
        step_sequences: 1,
        ..LossBatch::default()
    }
}

/// Difference between the partials and finite differences of the loss.
async fn disagreement(loss: &Plugin) -> f64 {
    let at = [-0.5_f32, -1.0, -2.0];
    let evaluate = async |logprob: [f32; 3]| {
        let called = loss
            .evaluate_loss(call(default_limits()), NEEDS, batch(logprob.to_vec()))
            .await;
        called.outcome.unwrap()
    };
    let partials = evaluate(at).await.d_logprob;
    let mut worst: f64 = 0.0;
    for i in 0..at.len() {
        let moved = async |by: f32| {
            let mut there = at;
            there[i] += by;
            evaluate(there).await.loss
        };
        let slope = (moved(0.01).await - moved(-0.01).await) / 0.02;
        worst = worst.max((slope - f64::from(partials[i])).abs());
    }
    worst
}

#[tokio::test]
async fn case_11_partials_of_wrong_length_position_or_slope_are_detected() {
    let host = host();
    let honest = steady(&host, &squares("1"));
    let asked = honest.describe_loss(call(default_limits())).await;
    assert_eq!(asked.outcome.unwrap(), NEEDS);

    let answer = |loss: &str, count: u32, more: &str| {
        Guest::loss(&format!(
            "(f64.store (i32.const 8) (f64.const {loss})) {} {} {more} (i32.const 0)",
            store(16, 1024),
            store(20, count)
        ))
    };
    let at = |position: u32, value: &str| {
        format!(
            "(f32.store (i32.const {}) (f32.const {value}))",
            1024 + 4 * position
        )
    };
    let lies = [
        ("none", answer("0", 0, "")),
        ("too few", answer("0", 2, "")),
        ("too many", answer("0", 4, "")),
        ("under the mask", answer("0", 3, &at(1, "1e-9"))),
        ("nan under the mask", answer("0", 3, &at(1, "nan"))),
        ("nan", answer("0", 3, &at(0, "nan"))),
        ("infinite", answer("0", 3, &at(2, "-inf"))),
        ("huge", answer("0", 3, &at(2, "1e38"))),
        ("no number for a loss", answer("nan", 3, "")),
        (
            "partials that were not requested",
            answer("0", 3, &(store(24, 1024) + &store(28, 3))),
        ),
    ];
    for (what, guest) in lies {
        let called = steady(&host, &guest)
            .evaluate_loss(call(default_limits()), NEEDS, batch(vec![-1.0; 3]))
            .await;
        assert_eq!(fault(&called), "bad-output", "{what}");
    }

    // A wrong gradient is a valid number. Each call is a new instance, so the loss cannot detect finite differencing,
    // which exposes it.
    assert!(disagreement(&honest).await < 1e-2);
    assert!(disagreement(&steady(&host, &squares("-1"))).await > 1.0);
    still_serves(&host).await;
}
