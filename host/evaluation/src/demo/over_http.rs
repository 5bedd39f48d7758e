//! The demo against scripted endpoints.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::conversation::Ending;
use crate::persona::Student;
use crate::scripted::{RequestLog, ScriptedReply, ScriptedServer, keys, message, messages, serve};
use crate::{
    ArmEvent, ChatClient, DemoEndpoints, DemoError, DemoOptions, DemoOutcome, Endpoint, Progress,
    RequestError, WaitError, WaitOptions, run_demo, wait_until_idle,
};

fn options() -> DemoOptions {
    DemoOptions {
        seed: 11,
        control_draws: 3,
        request_timeout: Duration::from_secs(180),
        wait: WaitOptions {
            timeout: Duration::from_secs(180),
            poll_interval: Duration::from_millis(1),
            batch: 16,
        },
        ..DemoOptions::default()
    }
}

fn idle(_: &RequestLog) -> Value {
    json!({"status": "ok", "judging": {"ready": 0, "running": 0}, "training": {"queued": 0, "running": false, "steps": 0}})
}

fn plain(answer: i64) -> ScriptedReply {
    ScriptedReply::Text(format!(
        "I worked it out in my head and the result must be {answer}."
    ))
}

fn formatted(answer: i64) -> ScriptedReply {
    ScriptedReply::Text(format!(
        "**Solution**\n1. Calculate\n2. **Final answer: {answer}**"
    ))
}

/// A frozen model: formats every first reply, and obeys when asked to rewrite.
async fn frozen_server(keys: HashMap<String, i64>) -> ScriptedServer {
    let reply_fn = move |body: &Value, _: &RequestLog| {
        let answer = keys[message(body, 0)];
        if messages(body) == 1 {
            formatted(answer)
        } else {
            plain(answer)
        }
    };
    serve(reply_fn, idle).await
}

/// A learning model: its first replies become plain after forty requests to rewrite.
async fn learning_server(keys: HashMap<String, i64>) -> ScriptedServer {
    let corrections = |log: &RequestLog| log.bodies.iter().filter(|b| messages(b) == 3).count();
    let reply_fn = move |body: &Value, log: &RequestLog| {
        let answer = keys[message(body, 0)];
        if messages(body) == 1 && corrections(log) < 40 {
            formatted(answer)
        } else {
            plain(answer)
        }
    };
    // One step per eight rewrite requests, reported as running on every other health check.
    let health_fn = move |log: &RequestLog| {
        let running = log.health_requests % 2 == 1;
        json!({"judging": {"ready": 0, "running": 0},
               "training": {"queued": 0, "running": running, "steps": corrections(log) / 8}})
    };
    serve(reply_fn, health_fn).await
}

async fn run(trained: &ScriptedServer, control: &ScriptedServer) -> Result<DemoOutcome, DemoError> {
    let endpoints = DemoEndpoints {
        trained: trained.url.clone(),
        control: format!("{}/", control.url),
        model: "tiny".into(),
        api_key: Some("secret".into()),
    };
    run_demo(&endpoints, &Student, options(), &mut ()).await
}

#[tokio::test]
async fn a_learning_server_passes_and_a_frozen_one_does_not() {
    let keys = keys(&Student, 11, 60);
    let (trained, control) = (
        learning_server(keys.clone()).await,
        frozen_server(keys).await,
    );
    let outcome = run(&trained, &control).await.unwrap();
    assert_eq!(outcome.verdict().failed, Vec::<String>::new());
    assert_eq!(outcome.trained_summary.first12, 0.0);
    assert_eq!(outcome.trained_summary.last12, 1.0);
    assert_eq!(outcome.control_summary.last12, 0.0);
    assert!(outcome.trained.steps >= 5);
    assert_eq!(outcome.trained.adapters(), vec!["3-abcdef"]);
    assert!(
        outcome
            .trained
            .conversations
            .iter()
            .all(|c| c.ending == Ending::Content)
    );
    assert!(
        outcome
            .control
            .conversations
            .iter()
            .all(|c| c.draws.len() == 2)
    );

    let page = crate::page(&outcome, &crate::About::default());
    assert!(page.contains("The model learned from its conversations"));
    assert!(page.contains("<svg") && !page.contains("<script") && !page.contains("http://127"));
    let table = crate::table(&outcome);
    assert!(
        table.contains("The model learned.") && table.contains("0.00 (0.00 … 0.00)"),
        "{table}"
    );

    let twice = run(&control, &control).await.unwrap();
    let failed = twice.verdict().failed;
    assert!(
        failed[0].contains("last conversations is +0.00"),
        "{failed:?}"
    );
}

#[tokio::test]
async fn both_arms_send_the_same_openings_and_seeds_without_custom_headers() {
    let keys = keys(&Student, 11, 60);
    let (one, two) = (frozen_server(keys.clone()).await, frozen_server(keys).await);
    run(&one, &two).await.unwrap();
    let (one, two) = (one.log.lock().unwrap(), two.log.lock().unwrap());
    let sent_bodies = |log: &RequestLog| {
        let mut seen: Vec<String> = log.bodies.iter().map(Value::to_string).collect();
        seen.sort();
        seen.dedup();
        seen
    };
    let (trained, control) = (sent_bodies(&one), sent_bodies(&two));
    assert_eq!(
        trained.len(),
        60 * 3,
        "an opening, a correction and thanks each"
    );
    assert_eq!(
        control.len(),
        trained.len() + 60 * 2,
        "two more samples each"
    );
    assert!(
        trained
            .iter()
            .all(|body| control.binary_search(body).is_ok())
    );
    let allowed = [
        "accept",
        "accept-encoding",
        "authorization",
        "content-length",
        "content-type",
        "host",
        "user-agent",
    ];
    for headers in &one.headers {
        assert!(
            headers.keys().all(|name| allowed.contains(&name.as_str())),
            "{headers:?}"
        );
    }
    let fields = [
        "model",
        "messages",
        "stream",
        "stream_options",
        "seed",
        "max_tokens",
    ];
    for body in &one.bodies {
        let object = body.as_object().unwrap();
        assert!(
            object.keys().all(|name| fields.contains(&name.as_str())),
            "{body}"
        );
    }
}

#[tokio::test]
async fn a_failed_request_is_counted_and_ends_only_its_conversation() {
    let keys = keys(&Student, 11, 60);
    let broken = keys.clone();
    let reply_fn = move |body: &Value, log: &RequestLog| match log.bodies.len() {
        5 => ScriptedReply::Error(429, "too many".into()),
        9 => ScriptedReply::Truncated("I think that".into()),
        _ => plain(broken[message(body, 0)]),
    };
    let (trained, control) = (serve(reply_fn, idle).await, frozen_server(keys).await);
    let outcome = run(&trained, &control).await.unwrap();
    assert_eq!(outcome.failed_requests(), 2);
    assert_eq!(outcome.trained.conversations.len(), 60);
    let failures: Vec<&String> = outcome
        .trained
        .conversations
        .iter()
        .flat_map(|c| &c.failures)
        .collect();
    assert!(
        failures
            .iter()
            .any(|f| f.contains("returned status 429: too many")),
        "{failures:?}"
    );
    assert!(
        failures
            .iter()
            .any(|f| f.contains("truncated after 12 bytes")),
        "{failures:?}"
    );
    assert!(
        outcome
            .verdict()
            .failed
            .contains(&"2 requests failed".to_owned())
    );
}

#[tokio::test]
async fn an_unsatisfied_student_gives_up_after_three_replies() {
    let keys = keys(&Student, 11, 60);
    let always = keys.clone();
    let reply_fn = move |body: &Value, _: &RequestLog| formatted(always[message(body, 0)]);
    let (trained, control) = (serve(reply_fn, idle).await, frozen_server(keys).await);
    let outcome = run(&trained, &control).await.unwrap();
    for talk in &outcome.trained.conversations {
        assert_eq!((talk.ending, talk.replies.len()), (Ending::GaveUp, 3));
        assert_eq!(talk.reactions.len(), 3);
    }
    // Two rewrite requests and the closing message of each conversation were sent.
    assert_eq!(trained.log.lock().unwrap().bodies.len(), 60 * 4);
}

#[tokio::test]
async fn an_endpoint_that_stays_busy_is_an_error() {
    let health_fn = |_: &RequestLog| json!({"judging": {"ready": 2, "running": 1}});
    let busy = serve(
        |_: &Value, _: &RequestLog| ScriptedReply::Text("12".into()),
        health_fn,
    )
    .await;
    let client = client(&busy.url);
    let wait = WaitOptions {
        timeout: Duration::from_millis(20),
        poll_interval: Duration::from_millis(1),
        batch: 16,
    };
    let error = wait_until_idle(&client, wait).await.unwrap_err();
    assert!(
        matches!(
            error,
            WaitError::Timeout {
                ready: 2,
                judging: 1,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("2 turns to judge"));
}

#[tokio::test]
async fn an_unreachable_endpoint_is_named_in_the_error() {
    // Bound but not listening, so that nothing else can listen there.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    let error = client(&url).health().await.unwrap_err();
    assert!(matches!(error, RequestError::Unreachable { .. }));
    assert!(error.to_string().contains(&url), "{error}");
}

#[tokio::test]
async fn progress_gets_an_event_per_conversation_and_round() {
    #[derive(Default)]
    struct Count {
        conversations: usize,
        rounds: usize,
    }
    impl Progress for Count {
        fn event(&mut self, event: &ArmEvent) {
            match event {
                ArmEvent::ConversationFinished { .. } => self.conversations += 1,
                ArmEvent::RoundFinished { .. } => self.rounds += 1,
            }
        }
    }
    let server = frozen_server(keys(&Student, 11, 60)).await;
    let endpoints = DemoEndpoints {
        trained: server.url.clone(),
        control: server.url.clone(),
        model: "tiny".into(),
        api_key: None,
    };
    let mut count = Count::default();
    run_demo(&endpoints, &Student, options(), &mut count)
        .await
        .unwrap();
    assert_eq!((count.conversations, count.rounds), (120, 30));
}

fn client(url: &str) -> ChatClient {
    let endpoint = Endpoint {
        url: url.to_owned(),
        model: "tiny".into(),
        api_key: None,
    };
    ChatClient::new(endpoint, Duration::from_secs(10)).unwrap()
}
