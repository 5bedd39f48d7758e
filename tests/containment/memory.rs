//! Cases 4 to 7: components that use too much memory, table or stack.

use clawhost_plugins::{FaultKind, Limits, PluginError};

use tokio::task::JoinSet;

use super::guest::{Guest, verdict};
use super::hosting::{default_limits, fast, fault, host, judge, refusal, steady, still_serves};

fn mebibytes(count: usize) -> Limits {
    Limits {
        memory: count << 20,
        ..default_limits()
    }
}

#[tokio::test]
async fn case_04_memory_is_capped_as_a_sum_over_all_memories() {
    let host = host();
    for step in ["16", "65535"] {
        let bomb = format!(
            "(loop $grow (drop (memory.grow (i32.const {step}))) (br $grow)) (i32.const 0)"
        );
        let judged = judge(&steady(&host, &Guest::judge(&bomb)), mebibytes(8)).await;
        let kind = judged.outcome.unwrap_err().kind;
        assert!(
            matches!(kind, FaultKind::Memory { wanted, limit } if limit == 8 << 20 && wanted > limit),
            "{kind}"
        );
        assert!(judged.receipt.peak_memory_bytes <= 8 << 20);
    }
    // Two memories of 5 MiB are each within the limit, but not together.
    let two = Guest::reward("0").memory("(memory (export \"memory\") 80) (memory 80)");
    assert_eq!(
        fault(&judge(&steady(&host, &two), mebibytes(8)).await),
        "memory"
    );
    let many = Guest::reward("0").memory(&format!(
        "(memory (export \"memory\") 1) {}",
        "(memory 1)".repeat(40)
    ));
    assert!(matches!(
        refusal(&host, &many.wasm(), &[]),
        PluginError::Invalid(_)
    ));
    // More memories than one slot reserves: it uses several slots, and its calls wait for each other instead of
    // failing. The loop lasts several ticks, so that calls yield to each other.
    let wide = Guest::judge(&format!(
        "(local $i i32) {}",
        verdict(
            "0.5",
            "(loop $work
           (local.set $i (i32.add (local.get $i) (i32.const 1)))
           (br_if $work (i32.lt_u (local.get $i) (i32.const 30000000))))",
        )
    ))
    .memory(&format!(
        "(memory (export \"memory\") 1) {}",
        "(memory 1)".repeat(3)
    ));
    let wide = fast(&host, &wide);
    let mut calls = JoinSet::new();
    for _ in 0..16 {
        let wide = wide.clone();
        calls.spawn(async move { judge(&wide, default_limits()).await.outcome });
    }
    for outcome in calls.join_all().await {
        assert_eq!(outcome.map(|verdict| verdict.reward), Ok(0.5));
    }
    still_serves(&host).await;
}

#[tokio::test]
async fn case_05_components_that_can_never_start_are_rejected_at_load() {
    let host = host();
    let hungry = [
        Guest::reward("0").memory("(memory (export \"memory\") 8192)"),
        Guest::reward("0").memory("(memory (export \"memory\") 65536)"),
        Guest::reward("0").with("(table 100000000 funcref)"),
    ];
    for guest in hungry {
        let error = refusal(&host, &guest.wasm(), &[]);
        assert!(
            matches!(
                error,
                PluginError::InitialSizeTooLarge { .. } | PluginError::Invalid(_)
            ),
            "{error}"
        );
    }
    let modest = Guest::reward("0").memory("(memory (export \"memory\") 17)");
    assert_eq!(
        host.inspect(&modest.wasm()).unwrap().initial_memory_bytes,
        Some(17 * 65_536)
    );
    // More than the call's limit, less than the engine's.
    let large = Guest::reward("0").memory("(memory (export \"memory\") 2048)");
    assert_eq!(
        fault(&judge(&steady(&host, &large), default_limits()).await),
        "memory"
    );
    let beyond = Guest::reward("0").with("(data (i32.const 65530) \"far beyond the only page\")");
    assert_eq!(
        fault(&judge(&steady(&host, &beyond), default_limits()).await),
        "trap"
    );
    still_serves(&host).await;
}

#[tokio::test]
async fn case_06_tables_are_capped() {
    let host = host();
    let bomb = Guest::judge(
        "(loop $grow (drop (table.grow $t (ref.null func) (i32.const 512))) (br $grow)) (i32.const 0)",
    )
    .with("(table $t 1 funcref)");
    let limits = Limits {
        table_elements: 2_000,
        ..default_limits()
    };
    assert_eq!(
        fault(&judge(&steady(&host, &bomb), limits.clone()).await),
        "table"
    );
    let two = Guest::reward("0").with("(table 1500 funcref) (table 1500 funcref)");
    assert_eq!(fault(&judge(&steady(&host, &two), limits).await), "table");
    still_serves(&host).await;
}

#[tokio::test]
async fn case_07_deep_recursion_is_a_stack_fault_even_through_the_host() {
    let host = host();
    let ask = "(call $setting (i32.const 512) (i32.const 1) (i32.const 1024))";
    let deep = |before: &str| {
        format!(
            "(func $deep (param i64) (result i64) {before}
               (i64.add (i64.const 1) (call $deep (i64.add (local.get 0) (i64.const 1)))))"
        )
    };
    let dive = "(drop (call $deep (i64.const 0))) (i32.const 0)";
    let recursions = [
        Guest::judge(dive).with(&deep("")),
        // Every level has called the host, and the last one calls it with the stack nearly full.
        Guest::judge(dive).with_settings().with(&deep(ask)),
        // The host is on the stack: it requests memory from the guest.
        Guest::reward("0").with(&deep("")).realloc(dive),
    ];
    let limits = Limits {
        host_calls: 1_000_000,
        ..default_limits()
    };
    for guest in &recursions {
        let judged = judge(&steady(&host, guest), limits.clone()).await;
        assert_eq!(fault(&judged), "stack", "{:?}", judged.outcome);
    }
    still_serves(&host).await;
}
