//! The demonstration against scripted endpoints: what it sends, what it makes of the answers.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::conversation::Ending;
use crate::persona::Student;
use crate::scripted::{Answer, Log, Scripted, keys, message, messages, serve};
use crate::{
    ArmEvent, ChatClient, DemoEndpoints, DemoError, DemoOptions, DemoOutcome, Endpoint, Patience,
    Progress, RequestError, SettleError, run_demo, settle,
};

fn options() -> DemoOptions {
    DemoOptions {
        seed: 11,
        control_draws: 3,
        request_limit: Duration::from_secs(20),
        patience: Patience {
            limit: Duration::from_secs(20),
            every: Duration::from_millis(1),
            batch: 16,
        },
        ..DemoOptions::default()
    }
}

fn idle(_: &Log) -> Value {
    json!({"status": "ok", "judging": {"ready": 0, "running": 0}, "training": {"queued": 0, "running": false, "steps": 0}})
}

fn plain(answer: i64) -> Answer {
    Answer::Say(format!(
        "I worked it out in my head and the result must be {answer}."
    ))
}

fn formatted(answer: i64) -> Answer {
    Answer::Say(format!(
        "**Solution**\n1. Calculate\n2. **Final answer: {answer}**"
    ))
}

/// A policy that always formats its first reply, and obeys when it is asked to rewrite.
async fn stubborn(keys: HashMap<String, i64>) -> Scripted {
    let answers = move |body: &Value, _: &Log| {
        let answer = keys[message(body, 0)];
        if messages(body) == 1 {
            formatted(answer)
        } else {
            plain(answer)
        }
    };
    serve(answers, idle).await
}

/// A policy whose first replies turn plain once it has been told forty times to rewrite.
async fn learner(keys: HashMap<String, i64>) -> Scripted {
    let complaints = |log: &Log| log.bodies.iter().filter(|b| messages(b) == 3).count();
    let answers = move |body: &Value, log: &Log| {
        let answer = keys[message(body, 0)];
        if messages(body) == 1 && complaints(log) < 40 {
            formatted(answer)
        } else {
            plain(answer)
        }
    };
    // A step for every eight complaints, seen as running on every other question.
    let healths = move |log: &Log| {
        let running = log.health_asked % 2 == 1;
        json!({"judging": {"ready": 0, "running": 0},
               "training": {"queued": 0, "running": running, "steps": complaints(log) / 8}})
    };
    serve(answers, healths).await
}

async fn run(trained: &Scripted, control: &Scripted) -> Result<DemoOutcome, DemoError> {
    let endpoints = DemoEndpoints {
        trained: trained.url.clone(),
        control: format!("{}/", control.url),
        model: "tiny".into(),
        api_key: Some("secret".into()),
    };
    run_demo(&endpoints, &Student, options(), &mut ()).await
}

#[tokio::test]
async fn a_policy_that_learns_is_told_from_one_that_does_not() {
    let keys = keys(&Student, 11, 60);
    let (trained, control) = (learner(keys.clone()).await, stubborn(keys).await);
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
    assert!(page.contains("It learned while it served"));
    assert!(page.contains("<svg") && !page.contains("<script") && !page.contains("http://127"));
    let table = crate::table(&outcome);
    assert!(
        table.contains("It learned.") && table.contains("0.00 (0.00 … 0.00)"),
        "{table}"
    );

    let twice = run(&control, &control).await.unwrap();
    let failed = twice.verdict().failed;
    assert!(
        failed[0].contains("the trained arm score +0.00"),
        "{failed:?}"
    );
}

#[tokio::test]
async fn both_arms_send_the_same_openings_and_seeds_and_nothing_of_our_own() {
    let keys = keys(&Student, 11, 60);
    let (one, two) = (stubborn(keys.clone()).await, stubborn(keys).await);
    run(&one, &two).await.unwrap();
    let (one, two) = (one.log.lock().unwrap(), two.log.lock().unwrap());
    let asked = |log: &Log| {
        let mut seen: Vec<String> = log.bodies.iter().map(Value::to_string).collect();
        seen.sort();
        seen.dedup();
        seen
    };
    let (trained, control) = (asked(&one), asked(&two));
    assert_eq!(
        trained.len(),
        60 * 3,
        "an opening, a complaint and thanks each"
    );
    assert_eq!(
        control.len(),
        trained.len() + 60 * 2,
        "two further draws each"
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
    let fields = ["model", "messages", "stream", "seed", "max_tokens"];
    for body in &one.bodies {
        let object = body.as_object().unwrap();
        assert!(
            object.keys().all(|name| fields.contains(&name.as_str())),
            "{body}"
        );
    }
}

#[tokio::test]
async fn failed_requests_are_counted_and_end_only_their_conversation() {
    let keys = keys(&Student, 11, 60);
    let broken = keys.clone();
    let answers = move |body: &Value, log: &Log| match log.bodies.len() {
        5 => Answer::Refuse(429, "too many".into()),
        9 => Answer::Cut("I think that".into()),
        _ => plain(broken[message(body, 0)]),
    };
    let (trained, control) = (serve(answers, idle).await, stubborn(keys).await);
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
            .any(|f| f.contains("answered 429: too many")),
        "{failures:?}"
    );
    assert!(
        failures
            .iter()
            .any(|f| f.contains("broke off after 12 bytes")),
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
async fn a_student_who_is_never_content_gives_up_after_three_replies() {
    let keys = keys(&Student, 11, 60);
    let always = keys.clone();
    let answers = move |body: &Value, _: &Log| formatted(always[message(body, 0)]);
    let (trained, control) = (serve(answers, idle).await, stubborn(keys).await);
    let outcome = run(&trained, &control).await.unwrap();
    for talk in &outcome.trained.conversations {
        assert_eq!((talk.ending, talk.replies.len()), (Ending::GaveUp, 3));
        assert_eq!(talk.reactions.len(), 3);
    }
    // Two requests to rewrite and the closing words of each conversation were sent.
    assert_eq!(trained.log.lock().unwrap().bodies.len(), 60 * 4);
}

#[tokio::test]
async fn an_endpoint_that_never_settles_is_an_error_and_not_a_hang() {
    let healths = |_: &Log| json!({"judging": {"ready": 2, "running": 1}});
    let busy = serve(|_: &Value, _: &Log| Answer::Say("12".into()), healths).await;
    let client = client(&busy.url);
    let patience = Patience {
        limit: Duration::from_millis(20),
        every: Duration::from_millis(1),
        batch: 16,
    };
    let error = settle(&client, patience).await.unwrap_err();
    assert!(
        matches!(
            error,
            SettleError::StillAtWork {
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
async fn an_address_that_nobody_answers_is_named() {
    let gone = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let error = client(&gone).health().await.unwrap_err();
    assert!(matches!(error, RequestError::Unreachable { .. }));
    assert!(error.to_string().contains(&gone), "{error}");
}

#[tokio::test]
async fn progress_hears_of_every_conversation_and_round() {
    #[derive(Default)]
    struct Count {
        ended: usize,
        settled: usize,
    }
    impl Progress for Count {
        fn event(&mut self, event: &ArmEvent) {
            match event {
                ArmEvent::Ended { .. } => self.ended += 1,
                ArmEvent::Settled { .. } => self.settled += 1,
            }
        }
    }
    let server = stubborn(keys(&Student, 11, 60)).await;
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
    assert_eq!((count.ended, count.settled), (120, 30));
}

fn client(url: &str) -> ChatClient {
    let endpoint = Endpoint {
        url: url.to_owned(),
        model: "tiny".into(),
        api_key: None,
    };
    ChatClient::new(endpoint, Duration::from_secs(10)).unwrap()
}
