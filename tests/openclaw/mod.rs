//! OpenClaw as it comes from the package registry, with nothing but a provider entry: a conversation with tool calls
//! that really happen is one session, each turn is followed by what came next, judged and trained, without any header.
//!
//! Needs an installation that `CLAWHOST_OPENCLAW` names; `.ci/openclaw` makes one. The model is the small checkpoint in
//! `fixtures/openclaw`, which was taught to use two of OpenClaw's tools; its card says how.
//!
//! | file | idea |
//! |---|---|
//! | `home` | OpenClaw, in a home directory of its own |
//! | `recording` | what it sends, before there is a model that could answer |
//! | `checkpoint` | the model, made whole with the lines that it sends every time |
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may fail by panicking, and this one says when it cannot run and what it measured"
)]

mod checkpoint;
mod home;
mod recording;

use std::path::PathBuf;

use clawhost::config::Config;
use clawhost_journal::{JudgingState, StepOutcome, TurnKind, TurnRecord, TurnState};
use clawhost_tests::Running;
use serde_json::{Value, json};

use self::checkpoint::completed;
use self::home::Home;
use self::recording::first_request;

/// What is said, one agent run each, and what the user reads in the end. The last is said when the others have trained,
/// and asks for what was liked: training goes away from how the complaint's turn began, as it should.
const SAID: [(&str, &str); 5] = [
    (
        "Please write the word lantern into note.txt.",
        "Done. note.txt says lantern.",
    ),
    ("Thank you. Now read note.txt to me.", "It says lantern."),
    (
        "That is wrong. Write the word harbor into list.txt.",
        "Done. list.txt says harbor.",
    ),
    ("Thanks, that is right.", "You are welcome."),
    (
        "Now write pepper into plan.txt, please.",
        "Done. plan.txt says pepper.",
    ),
];

/// One turn: what the model draws, token by token; who answers it, ending with what; the reward for that.
type Drawn = (
    &'static str,
    Option<(&'static str, &'static str)>,
    Option<f32>,
);

const TURNS: [Drawn; 9] = [
    (
        "<tool_call>\n{\"name\": \"write\", \"arguments\": {\"path\":\"note.txt\",\"content\":\"lantern\"}}\n</tool_call><|im_end|>",
        Some(("tool", "note.txt")),
        Some(1.0),
    ),
    (
        "Done. note.txt says lantern.<|im_end|>",
        Some(("user", SAID[1].0)),
        Some(1.0),
    ),
    (
        "<tool_call>\n{\"name\": \"read\", \"arguments\": {\"path\":\"note.txt\"}}\n</tool_call><|im_end|>",
        Some(("tool", "lantern")),
        Some(1.0),
    ),
    (
        "It says lantern.<|im_end|>",
        Some(("user", SAID[2].0)),
        Some(-1.0),
    ),
    (
        "<tool_call>\n{\"name\": \"write\", \"arguments\": {\"path\":\"list.txt\",\"content\":\"harbor\"}}\n</tool_call><|im_end|>",
        Some(("tool", "list.txt")),
        Some(1.0),
    ),
    (
        "Done. list.txt says harbor.<|im_end|>",
        Some(("user", SAID[3].0)),
        Some(1.0),
    ),
    (
        "You are welcome.<|im_end|>",
        Some(("user", SAID[4].0)),
        Some(1.0),
    ),
    (
        "<tool_call>\n{\"name\": \"write\", \"arguments\": {\"path\":\"plan.txt\",\"content\":\"pepper\"}}\n</tool_call><|im_end|>",
        Some(("tool", "plan.txt")),
        Some(1.0),
    ),
    ("Done. plan.txt says pepper.<|im_end|>", None, None),
];

/// Which message each turn belongs to.
const ASKED: [usize; 9] = [0, 0, 1, 1, 2, 2, 3, 4, 4];

/// Turns of the first four messages.
const EARLIER: usize = 7;
/// The turn that the user complains about.
const BLAMED: usize = 3;

/// Begins the block that OpenClaw puts behind each request and leaves out of the next.
const BLOCK: &str = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>";

/// Text of a message, which OpenClaw sends whole or in parts.
fn text(message: &Value) -> &str {
    let content = &message["content"];
    content
        .as_str()
        .or_else(|| content[0]["text"].as_str())
        .unwrap()
}

fn turns(running: &Running) -> Vec<TurnRecord> {
    let sessions = running.journal().sessions(10).unwrap();
    assert_eq!(sessions.len(), 1, "{sessions:?}");
    running.journal().session_turns(&sessions[0].id).unwrap()
}

/// Says this and wants to read that; else tells what the model drew, which the answer alone does not.
async fn assert_answered(running: &Running, home: &Home, said: &str, read: &str) {
    let answer = home.say(said).await;
    if answer != read {
        let tokenizer = running.engine().tokenizer();
        for turn in turns(running) {
            let drawn = turn.completion.map(|done| done.token_ids);
            let drawn = tokenizer.decode_with_special(&drawn.unwrap_or_default());
            println!(
                "version {}, {} tokens: {drawn}",
                turn.adapter_version,
                turn.prompt_ids.len()
            );
        }
    }
    assert_eq!(answer, read, "to {said:?}");
}

/// The request was OpenClaw's long one, and the reply is what the engine drew, not what OpenClaw made of it.
fn assert_drawn(running: &Running, turn: &TurnRecord, drawn: &str) {
    let bytes = turn.messages.to_string().len() + turn.tools.to_string().len();
    let completion = turn.completion.as_ref().unwrap();
    println!(
        "{bytes} bytes, {} tokens, answered after {} ms with a log-probability of {:.5}: {drawn}",
        turn.prompt_ids.len(),
        completion.ms - turn.received_ms,
        completion.full_logprobs.iter().sum::<f32>()
    );
    assert!(bytes > 50_000);
    assert!(text(turn.messages.as_array().unwrap().last().unwrap()).starts_with(BLOCK));
    assert_eq!(turn.state, TurnState::Complete);
    let tokenizer = running.engine().tokenizer();
    assert_eq!(tokenizer.decode_with_special(&completion.token_ids), drawn);
    assert_eq!(completion.logprobs.len(), completion.token_ids.len());
}

/// Only our own reply in the request tells which session it goes on with.
fn assert_matched(turn: &TurnRecord, before: Option<&TurnRecord>) {
    let by = if before.is_some() { "content" } else { "new" };
    assert_eq!(turn.matched["by"], by, "{}", turn.matched);
    assert_eq!(turn.matched["mark"]["user"], Value::Null);
    assert_eq!(turn.parent, before.map(|turn| turn.id));
}

/// One message followed: the tool's result or the user's words, without the block.
fn assert_followed(turn: &TurnRecord, expected: Option<(&str, &str)>) {
    let next = turn.next_state.as_ref().and_then(Value::as_array);
    let Some((role, said)) = expected else {
        assert_eq!(next, None);
        assert_eq!(turn.judging, JudgingState::Waiting);
        return;
    };
    let next = next.unwrap();
    assert_eq!(next.len(), 1, "{next:?}");
    assert_eq!(next[0]["role"], role);
    // OpenClaw puts the time before what the user says.
    assert!(text(&next[0]).ends_with(said), "{next:?}");
    assert_eq!(turn.kind, TurnKind::Main);
    assert_eq!(turn.judging, JudgingState::Done);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_of_stock_openclaw_is_collected_judged_and_trained_without_any_header() {
    let Some(openclaw) = std::env::var_os("CLAWHOST_OPENCLAW").map(PathBuf::from) else {
        let missing = "OpenClaw is missing: set CLAWHOST_OPENCLAW to the folder that .ci/openclaw installed it in";
        assert!(
            std::env::var_os("CI").is_none_or(|ci| ci != "true"),
            "{missing}"
        );
        println!("not run: {missing}");
        return;
    };
    let model = completed(&first_request(&openclaw, SAID[0].0).await)
        .unwrap_or_else(|error| panic!("{error}"));
    let running = Running::with(|config| {
        // Parsed with the model in it, so that what is not set here is what suits any model but the embedded one.
        let parsed = Config::parse(&format!(
            "[server]\nport = 0\n[model]\nname = \"notekeeper\"\ndir = {:?}\n\
             [training]\nbatch = 2\nmin_batch = 1\nmax_wait_seconds = 0.2\n",
            model.path()
        ));
        let data = std::mem::take(&mut config.server.data);
        *config = parsed.unwrap();
        config.server.data = data;
    })
    .await;
    let home = Home::new(&openclaw, running.server.url());

    // Three messages whose answers take a tool each, and one that takes none.
    for (said, read) in &SAID[..4] {
        assert_answered(&running, &home, said, read).await;
    }
    assert_eq!(home.file("note.txt"), "lantern");
    assert_eq!(home.file("list.txt"), "harbor");

    // What was liked and what was not trains while nobody talks; later the conversation goes on with what came of it.
    let ids: Vec<_> = turns(&running).iter().map(|turn| turn.id).collect();
    assert_eq!(ids.len(), EARLIER);
    let liked = running.trained(ids[0]).await;
    let blamed = running.trained(ids[BLAMED]).await;
    assert!(liked.advantage.unwrap() > 0.0, "{liked:?}");
    assert!(blamed.advantage.unwrap() < 0.0, "{blamed:?}");
    running.settled().await;
    let version = running.engine().active().version;
    assert!(version > 0);
    assert_answered(&running, &home, SAID[4].0, SAID[4].1).await;
    assert_eq!(home.file("plan.txt"), "pepper");

    let turns = turns(&running);
    assert_eq!(turns.len(), TURNS.len());
    for turn in &turns[..TURNS.len() - 1] {
        running.judged(turn.id).await;
    }
    running.settled().await;
    let turns = running.journal().session_turns(&turns[0].session).unwrap();
    for (index, (turn, (drawn, next, reward))) in turns.iter().zip(TURNS).enumerate() {
        assert_drawn(&running, turn, drawn);
        assert_matched(turn, index.checked_sub(1).map(|before| &turns[before]));
        assert_followed(turn, next);
        let samples = running.journal().samples_of(turn.id).unwrap();
        let rewards: Vec<_> = samples.iter().filter_map(|sample| sample.reward).collect();
        println!("turn {}: rewards {rewards:?}", index + 1);
        assert_eq!(rewards, reward.into_iter().collect::<Vec<_>>(), "{drawn}");
    }
    assert_eq!(turns[0].adapter_version, 0);
    assert!(turns[EARLIER].adapter_version >= version);

    // A person is shown what was asked in each turn, not the block behind it.
    for (turn, said) in turns.iter().zip(ASKED) {
        let asked = running.explain(turn.id).await["asked"].clone();
        assert!(asked.as_str().unwrap().contains(SAID[said].0), "{asked}");
    }

    // The same tokens trained that were drawn.
    for (sample, turn) in [(liked, &turns[0]), (blamed, &turns[BLAMED])] {
        let completion = turn.completion.as_ref().unwrap();
        assert_eq!(sample.prompt_ids, turn.prompt_ids);
        assert_eq!(sample.token_ids, completion.token_ids);
        assert_eq!(sample.logprobs, completion.logprobs);
    }
    let steps = running.journal().steps(20).unwrap();
    let came_to = |outcome| steps.iter().filter(|step| step.outcome == outcome).count();
    println!(
        "{} steps, {} of them published",
        steps.len(),
        came_to(StepOutcome::Published)
    );
    assert!(came_to(StepOutcome::Published) >= 2, "{steps:?}");
    assert_eq!(came_to(StepOutcome::Failed), 0, "{steps:?}");
}

#[test]
fn another_version_is_refused_with_the_number_of_lines_that_it_words_differently() {
    let request = json!({
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello."}],
        "tools": [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}],
    });
    let error = completed(&request).unwrap_err();
    assert!(error.starts_with("543 of the 543 lines"), "{error}");
    assert!(error.contains("make the fixture anew"), "{error}");
}
