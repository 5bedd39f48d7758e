//! Cases 12 to 14: components that flood the log, standard output, or granted capabilities.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use clawhost_plugins::{
    Answer, FaultKind, HostOptions, Limits, Message, ModelClient, ModelError, ModelRequest,
    ModelResponse, Outcome, PluginErrorKind, PluginHost,
};

use super::guest::{Guest, store, verdict};
use super::hosting::{
    default_limits, fast, fault, granted, host, judge, options, steady, still_serves, ticks,
};
use super::identity::Keys;

/// The log of this process.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<Vec<u8>>>);

impl Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

static LOGGED: LazyLock<Logged> = LazyLock::new(|| {
    let logged = Logged::default();
    let writer = logged.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone());
    subscriber.init();
    logged
});

#[tokio::test]
async fn case_12_log_is_neither_flooded_nor_forged() {
    LazyLock::force(&LOGGED);
    let host = host();
    let line =
        "(call $log (i32.const 2) (i32.const 512) (i32.const 15) (i32.const 0) (i32.const 0))";
    let again = |body: &str, times: u32| {
        format!(
            "(loop $again {body} (local.set $n (i32.add (local.get $n) (i32.const 1)))
               (br_if $again (i32.lt_u (local.get $n) (i32.const {times}))))"
        )
    };
    let flood = Guest::judge(&verdict("0", &again(line, 1_000)))
        .with_log()
        .data("key\\1b[31m\\nforged");
    let limits = Limits {
        log_lines: 10,
        ..default_limits()
    };
    let judged = judge(&granted(&host, "forger", &flood, &[]), limits).await;
    assert!(judged.outcome.is_ok(), "{:?}", judged.outcome);
    assert_eq!(judged.receipt.log_lines_dropped, 990);
    assert_eq!(judged.receipt.host_calls, 1_000);
    let logged = String::from_utf8(LOGGED.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<_> = logged
        .lines()
        .filter(|line| line.contains("INFO") && line.contains("forged"))
        .collect();
    assert_eq!(lines.len(), 10, "{logged}");
    assert!(!logged.contains('\x1b'), "{logged}");
    assert!(
        !logged.lines().any(|line| line.starts_with("forged")),
        "{logged}"
    );

    // A line of 100 MB is never logged.
    let huge = "(call $log (i32.const 2) (i32.const 0) (i32.const 100000000) (i32.const 0) (i32.const 0)) (i32.const 0)";
    let huge = Guest::judge(huge)
        .with_log()
        .memory("(memory (export \"memory\") 2048)");
    let limits = Limits {
        memory: 256 << 20,
        ..default_limits()
    };
    let judged = judge(&steady(&host, &huge), limits).await;
    let spent = FaultKind::Budget {
        what: "host_call_size",
        used: 4 << 20,
        limit: 4 << 20,
    };
    assert_eq!(judged.outcome.unwrap_err().kind, spent);

    // A component's metadata is escaped as well.
    let own = format!(
        "(i32.store8 (i32.const 0) (i32.const 1)) {} {} (i32.const 0)",
        store(8, 512),
        store(12, 4)
    );
    let judged = judge(
        &steady(&host, &Guest::judge(&own).data("no\\1b\\n")),
        default_limits(),
    )
    .await;
    let refused = PluginErrorKind::Unsupported;
    assert_eq!(judged.receipt.outcome, Outcome::Refused(refused));
    let error = judged.outcome.unwrap_err();
    assert!(error.is_unsupported());
    assert_eq!(
        error.kind.to_string(),
        "the plugin returned unsupported: no\\u{1b}\\n"
    );
    still_serves(&host).await;
}

#[tokio::test]
async fn case_13_output_is_a_small_ring_buffer_and_writes_cost_cpu() {
    let host = host();
    let write = |length: u32| {
        format!("(call $write (local.get $n) (i32.const 512) (i32.const {length}) (i32.const 64))")
    };
    for length in [4096, 0] {
        let flood = format!(
            "(local.set $n (call $stdout)) (loop $again {} (br $again)) (i32.const 0)",
            write(length)
        );
        let judged = judge(&fast(&host, &Guest::judge(&flood).with_stdout()), ticks(5)).await;
        assert_eq!(fault(&judged), "cpu", "writes of {length}");
    }

    // A fault shows the end of it, on one line.
    let last_words = format!("(local.set $n (call $stderr)) {} (unreachable)", write(15));
    let last_words = Guest::judge(&last_words)
        .with_stderr()
        .data("key\\1b[31m\\nforged");
    let error = judge(&steady(&host, &last_words), default_limits())
        .await
        .outcome
        .unwrap_err();
    assert_eq!(error.kind.name(), "trap");
    assert_eq!(error.stderr, "key\\u{1b}[31m\\nforged");
    let much = format!(
        "(local $i i32) (local.set $n (call $stderr))
         (memory.fill (i32.const 512) (i32.const 120) (i32.const 3000))
         (loop $again {} (local.set $i (i32.add (local.get $i) (i32.const 1)))
           (br_if $again (i32.lt_u (local.get $i) (i32.const 1000))))
         (unreachable)",
        write(3000)
    );
    let error = judge(
        &steady(&host, &Guest::judge(&much).with_stderr()),
        default_limits(),
    )
    .await
    .outcome
    .unwrap_err();
    assert_eq!(error.stderr, "x".repeat(4096));
    still_serves(&host).await;
}

/// A model that counts its requests.
#[derive(Default)]
struct Counting(AtomicUsize);

impl ModelClient for Counting {
    fn complete(&self, _: ModelRequest) -> Answer<Result<ModelResponse, ModelError>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Box::pin(async {
            Ok(ModelResponse {
                choices: Vec::new(),
                prompt_tokens: 1,
                completion_tokens: 1,
            })
        })
    }

    fn score(&self, _: String, _: Vec<Message>, _: String) -> Answer<Result<Vec<f32>, ModelError>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { Ok(Vec::new()) })
    }
}

#[tokio::test]
async fn case_14_model_requests_end_at_their_budget() {
    let (model, keys) = (Arc::new(Counting::default()), Arc::new(Keys::default()));
    let host = PluginHost::new(HostOptions {
        model: Some(Arc::clone(&model) as _),
        state: Some(Arc::clone(&keys) as _),
        ..options()
    })
    .unwrap();
    let storm = |ask: &str, times: u32| {
        Guest::judge(&format!(
            "(loop $again {ask} (local.set $n (i32.add (local.get $n) (i32.const 1)))
               (br_if $again (i32.lt_u (local.get $n) (i32.const {times}))))
             (i32.const 0)"
        ))
    };
    let read = "(call $get (i32.const 512) (i32.const 3) (i32.const 1024))";
    let reading = granted(
        &host,
        "reader",
        &storm(read, 1_000_000).with_state().data("key"),
        &["state"],
    );
    let judged = judge(&reading, default_limits()).await;
    assert_eq!(
        (fault(&judged), judged.receipt.host_calls),
        ("budget", 10_001)
    );
    assert_eq!(keys.reads(), 10_000);

    // One greedy choice; all other fields are empty.
    let ask = format!(
        "{} (call $complete (i32.const 1024) (i32.const 1536))",
        store(1024 + 24, 1)
    );
    let asking = granted(
        &host,
        "asker",
        &storm(&ask, 100_000).with_model(),
        &["model"],
    );
    let judged = judge(&asking, default_limits()).await;
    assert_eq!((fault(&judged), judged.receipt.model_calls), ("budget", 8));
    assert_eq!(model.0.load(Ordering::SeqCst), 8);

    // Scoring requests of 400 bytes without a token count: charged as 100 tokens each before the model is called.
    let score = "(call $score (i32.const 512) (i32.const 0) (i32.const 512) (i32.const 0)
                   (i32.const 1024) (i32.const 400) (i32.const 2048))";
    let scoring = granted(&host, "scorer", &storm(score, 5).with_scores(), &["model"]);
    let limits = Limits {
        model_tokens: 250,
        ..default_limits()
    };
    let judged = judge(&scoring, limits).await;
    assert_eq!(judged.receipt.model_tokens, 200, "{judged:?}");
    assert_eq!(model.0.load(Ordering::SeqCst), 8 + 2);
    still_serves(&host).await;
}
