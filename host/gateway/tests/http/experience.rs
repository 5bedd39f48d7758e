//! Experience: in the system prompt of its key's requests, recorded with them, and shown, edited and deleted over HTTP.

use clawhost_config::{ExperienceMode, ExperienceOptions};
use clawhost_gateway::{ApiKey, Scope};
use clawhost_journal::{
    Feedback, HintOutcome, HintPlacement, Journal, JudgementOutcome, NewExperience, NewHint,
    NewJudgement, PluginMetrics, TurnId,
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{ApiResponse, Server, chat_body};

const WISH: &str = "Please answer in one short sentence.";

fn options(mode: ExperienceMode, holdout_share: f64) -> ExperienceOptions {
    ExperienceOptions {
        mode,
        holdout_share,
        ..ExperienceOptions::default()
    }
}

async fn start(mode: ExperienceMode, holdout_share: f64) -> Server {
    Server::with(|o| o.experience = options(mode, holdout_share)).await
}

/// Lets a hint extractor say this about a turn with a next state.
pub(crate) fn say(journal: &Journal, turn: i64, text: &str) {
    let hint = NewHint {
        source: "plugin:hint-next-state".to_owned(),
        digest: "ff".to_owned(),
        outcome: HintOutcome::Hint {
            text: text.to_owned(),
            placement: HintPlacement::LastUser,
            confidence: 0.9,
        },
        said: String::new(),
        metrics: PluginMetrics::new(),
        ms: 1,
    };
    let judgement = NewJudgement {
        turn: TurnId(turn).into(),
        verdicts: &[],
        hints: &[hint],
        experience: Some(NewExperience {
            hint: 0,
            max_entries: 8,
        }),
        receipts: &[],
        outcome: JudgementOutcome::Skipped("neutral verdict"),
    };
    journal.commit(&judgement).unwrap();
}

/// The conversation `A`, "yes", and a further message.
fn follow_up(text: &str) -> Value {
    json!([
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": text},
    ])
}

/// A conversation in which the user asks for something.
async fn ask_for(server: &Server, text: &str) -> i64 {
    let first = server.chat("A").await.turn();
    let messages = follow_up("too long A");
    server
        .chat_with("A", json!({"messages": messages}))
        .await
        .ok();
    say(&server.journal, first, text);
    first
}

/// Makes an entry of experience of this key, from a session of its own.
pub(crate) async fn entry_of(server: &Server, key: &str, text: &str) -> i64 {
    let request = server.request(Method::POST, "/v1/chat/completions");
    let request = request.bearer_auth(key).json(&chat_body("B", json!({})));
    let turn = ApiResponse::read(request.send().await.unwrap())
        .await
        .turn();
    let feedback = Feedback {
        turn: TurnId(turn),
        score: Some(-1.0),
        text: None,
        ms: 1,
    };
    server.journal.add_feedback(&feedback).unwrap();
    say(&server.journal, turn, text);
    server.journal.all_experience().unwrap()[0].id
}

#[tokio::test]
async fn experience_is_injected_recorded_and_takes_no_part_in_matching() {
    let server = start(ExperienceMode::Inject, 1.0).await;
    let before = server.chat("A").await;
    assert_eq!(server.turn(before.turn()).experience, None);
    ask_for(&server, WISH).await;
    let system = json!([{"role": "system", "content": "S"}, {"role": "user", "content": "A"}]);
    for (messages, expected) in [
        (
            json!([{"role": "user", "content": "A"}]),
            "system: What this person said",
        ),
        (system, "system: S\n\nWhat this person said"),
    ] {
        let reply = server.chat_with("A", json!({"messages": messages})).await;
        assert_eq!(reply.json()["choices"][0]["message"]["content"], "yes");
        let turn = server.turn(reply.turn());
        let prompt = server
            .engine
            .tokenizer()
            .decode_with_special(&turn.prompt_ids);
        assert!(prompt.starts_with(expected), "{prompt}");
        assert!(prompt.contains(&format!("\n- {WISH}")), "{prompt}");
        let used = turn.experience.unwrap();
        assert!(used.text.ends_with(WISH));
        assert_eq!(used.entries, [1]);
        assert_eq!(
            json!(turn.messages),
            messages,
            "the record has what the client sent"
        );
        assert_eq!(
            reply.json()["usage"]["prompt_tokens"],
            turn.prompt_ids.len()
        );
        let explained = server
            .get(&format!("/v1/turns/{}/explain", turn.id))
            .await
            .ok();
        assert_eq!(explained["experience"]["entries"], json!([1]));
        // The client continues without the text that it never saw.
        let mut later = messages.as_array().unwrap().clone();
        later.push(json!({"role": "assistant", "content": "yes"}));
        later.push(json!({"role": "user", "content": "thanks A"}));
        let next = server.chat_with("A", json!({"messages": later})).await;
        let next = server.turn(next.turn());
        assert_eq!((next.parent, &next.session), (Some(turn.id), &turn.session));
    }
    let side = json!({"turn_type": "side"});
    let side = server.chat_with("A", side).await.turn();
    assert_eq!(server.turn(side).experience, None);
}

#[tokio::test]
async fn held_out_and_too_long_requests_have_no_experience() {
    for (mode, share, expected) in [
        (ExperienceMode::Both, 1.0, false),
        (ExperienceMode::Both, 0.0, true),
        (ExperienceMode::Distill, 0.0, false),
        (ExperienceMode::Off, 0.0, false),
    ] {
        let server = start(mode, share).await;
        ask_for(&server, WISH).await;
        let turn = server.turn(server.chat("A").await.turn());
        assert_eq!(turn.experience.is_some(), expected, "{mode:?} {share}");
    }
    let server = start(ExperienceMode::Inject, 0.0).await;
    ask_for(&server, WISH).await;
    // One token fewer than the prompt needs with the experience.
    let long = server.turn(server.chat("A").await.turn()).prompt_ids.len();
    let body = json!({"truncate_prompt_tokens": long - 1});
    let turn = server.turn(server.chat_with("A", body).await.turn());
    assert_eq!(turn.experience, None);
    assert!(
        turn.prompt_ids.len() < long - 1,
        "nothing of the conversation is cut"
    );
}

#[tokio::test]
async fn a_key_sees_and_changes_its_own_entries_and_an_operator_all() {
    let server = Server::with(|o| {
        o.experience = options(ExperienceMode::Inject, 0.0);
        o.keys = vec![
            ApiKey::new("ann", "ann-secret", [Scope::Chat]).unwrap(),
            ApiKey::new("bob", "bob-secret", [Scope::Chat]).unwrap(),
            ApiKey::new("ops", "ops-secret", [Scope::Operator]).unwrap(),
        ];
    })
    .await;
    let call = async |key: &str, method: Method, path: &str, body: Value| {
        let request = server
            .request(method, path)
            .bearer_auth(format!("{key}-secret"));
        let request = match body {
            Value::Null => request,
            body => request.json(&body),
        };
        ApiResponse::read(request.send().await.unwrap()).await
    };
    let chat =
        async |key: &str, body: Value| call(key, Method::POST, "/v1/chat/completions", body).await;
    for (key, wish) in [("ann", WISH), ("bob", "Use metric units.")] {
        let first = chat(key, chat_body("A", json!({}))).await.turn();
        let more = json!({"messages": follow_up("no A")});
        chat(key, chat_body("A", more)).await.ok();
        say(&server.journal, first, wish);
    }
    let list = async |key: &str, query: &str| {
        let path = format!("/v1/experience{query}");
        let body = call(key, Method::GET, &path, Value::Null).await.ok();
        let entries = body["data"].as_array().unwrap().iter();
        let texts: Vec<String> = entries
            .map(|entry| entry["text"].as_str().unwrap().to_owned())
            .collect();
        texts.join("|")
    };
    assert_eq!(list("ann", "").await, WISH);
    assert_eq!(list("ann", "?key=bob").await, "");
    assert_eq!(list("ops", "").await, format!("Use metric units.|{WISH}"));
    assert_eq!(list("ops", "?key=bob").await, "Use metric units.");
    let put = async |key: &str, path: &str, body: Value| call(key, Method::PUT, path, body).await;
    let edit = json!({"text": "Be brief."});
    put("bob", "/v1/experience/1", edit.clone())
        .await
        .error(404);
    let edited = put("ann", "/v1/experience/1", edit).await.ok();
    assert_eq!(
        (&edited["text"], &edited["edited"]),
        (&json!("Be brief."), &json!(true))
    );
    for bad in [json!({}), json!({"text": " "}), json!({"state": "gone"})] {
        put("ann", "/v1/experience/1", bad).await.error(400);
    }
    put("ann", "/v1/experience/one", json!({"text": "x"}))
        .await
        .error(400);
    let turn = chat("ann", chat_body("A", json!({}))).await.turn();
    assert!(
        server
            .turn(turn)
            .experience
            .unwrap()
            .text
            .ends_with("- Be brief.")
    );
    let retired = put("ops", "/v1/experience/1", json!({"state": "retired"}))
        .await
        .ok();
    assert_eq!(retired["state"], "retired");
    let turn = chat("ann", chat_body("A", json!({}))).await.turn();
    assert_eq!(server.turn(turn).experience, None);
    let delete = async |key: &str| call(key, Method::DELETE, "/v1/experience/1", Value::Null).await;
    delete("bob").await.error(404);
    assert_eq!(delete("ann").await.ok()["deleted"], true);
    delete("ann").await.error(404);
    assert_eq!(list("ops", "").await, "Use metric units.");
}
