//! The unmodified OpenClaw with only a provider entry: a conversation with real tool calls is one session, and each
//! turn is matched with its next state, judged and trained on, without headers.
//!
//! Needs an installation, set in `CLAWHOST_OPENCLAW`; `.ci/openclaw` creates one. The model is the small checkpoint in
//! `fixtures/openclaw`, trained to use two of OpenClaw's tools; see its model card.
//!
//! | file | content |
//! |---|---|
//! | `home` | OpenClaw in a temporary home directory |
//! | `recording` | OpenClaw's first request, before there is a model |
//! | `checkpoint` | the model, completed with the lines that OpenClaw always sends |

mod checkpoint;
mod home;
mod recording;

use std::path::PathBuf;

use clawhost::config::Config;
use clawhost_journal::{JudgingState, StepOutcome, TurnKind, TurnRecord, TurnState};
use clawhost_tests::TestServer;
use serde_json::json;

use self::checkpoint::completed;
use self::home::Home;
use self::recording::first_request;

/// User messages, one agent run each, and the final text for the user. The last one is sent after training on the
/// others and asks for what was praised: training lowers the probability of the turn that got the complaint.
const MESSAGES: [(&str, &str); 5] = [
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

/// One turn: the sampled tokens; the role and ending of the next state; the reward, none where what followed tells nothing
/// of the turn (the content of a file).
type ExpectedTurn = (
    &'static str,
    Option<(&'static str, &'static str)>,
    Option<f32>,
);

const TURNS: [ExpectedTurn; 9] = [
    (
        "<tool_call>\n{\"name\": \"write\", \"arguments\": {\"path\":\"note.txt\",\"content\":\"lantern\"}}\n</tool_call><|im_end|>",
        Some(("tool", "note.txt")),
        Some(1.0),
    ),
    (
        "Done. note.txt says lantern.<|im_end|>",
        Some(("user", MESSAGES[1].0)),
        Some(1.0),
    ),
    (
        "<tool_call>\n{\"name\": \"read\", \"arguments\": {\"path\":\"note.txt\"}}\n</tool_call><|im_end|>",
        Some(("tool", "lantern")),
        None,
    ),
    (
        "It says lantern.<|im_end|>",
        Some(("user", MESSAGES[2].0)),
        Some(-1.0),
    ),
    (
        "<tool_call>\n{\"name\": \"write\", \"arguments\": {\"path\":\"list.txt\",\"content\":\"harbor\"}}\n</tool_call><|im_end|>",
        Some(("tool", "list.txt")),
        Some(1.0),
    ),
    (
        "Done. list.txt says harbor.<|im_end|>",
        Some(("user", MESSAGES[3].0)),
        Some(1.0),
    ),
    (
        "You are welcome.<|im_end|>",
        Some(("user", MESSAGES[4].0)),
        Some(1.0),
    ),
    (
        "<tool_call>\n{\"name\": \"write\", \"arguments\": {\"path\":\"plan.txt\",\"content\":\"pepper\"}}\n</tool_call><|im_end|>",
        Some(("tool", "plan.txt")),
        Some(1.0),
    ),
    ("Done. plan.txt says pepper.<|im_end|>", None, None),
];

/// The user message of each turn.
const MESSAGE_OF_TURN: [usize; 9] = [0, 0, 1, 1, 2, 2, 3, 4, 4];

/// Number of turns of the first four messages.
const EARLIER_TURNS: usize = 7;
/// The turn that gets the complaint.
const COMPLAINT_TURN: usize = 3;

/// Start of the block that OpenClaw appends to each request and omits from the next.
const BLOCK: &str = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>";

fn turns(running: &TestServer) -> Vec<TurnRecord> {
    let sessions = running.journal().sessions(10).unwrap();
    assert_eq!(sessions.len(), 1, "{sessions:?}");
    running.journal().session_turns(&sessions[0].id).unwrap()
}

/// Sends a message and asserts the final text; on failure reports the sampled text, which the final text does not show.
async fn assert_answered(running: &TestServer, home: &Home, message: &str, read: &str) {
    let answer = home.send_message(message).await;
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
    assert_eq!(answer, read, "to {message:?}");
}

/// Asserts that the request is OpenClaw's long prompt, and that the recorded reply is the sampled one, not OpenClaw's
/// version.
fn assert_sampled(running: &TestServer, turn: &TurnRecord, drawn: &str) {
    let bytes = json!(turn.messages).to_string().len() + json!(turn.tools).to_string().len();
    let completion = turn.completion.as_ref().unwrap();
    println!(
        "{bytes} bytes, {} tokens, answered after {} ms with a log-probability of {:.5}: {drawn}",
        turn.prompt_ids.len(),
        completion.ms - turn.received_ms,
        completion.full_logprobs.iter().sum::<f32>()
    );
    assert!(bytes > 50_000);
    assert!(turn.messages.last().unwrap().text().starts_with(BLOCK));
    assert_eq!(turn.state, TurnState::Complete);
    let tokenizer = running.engine().tokenizer();
    assert_eq!(tokenizer.decode_with_special(&completion.token_ids), drawn);
    assert_eq!(completion.logprobs.len(), completion.token_ids.len());
}

/// Asserts that the session was matched by the server's own reply in the request.
fn assert_matched(turn: &TurnRecord, before: Option<&TurnRecord>) {
    let by = if before.is_some() { "content" } else { "new" };
    assert_eq!(turn.matched.by, by, "{}", turn.matched);
    assert_eq!(turn.matched.mark.user, None);
    assert_eq!(turn.parent, before.map(|turn| turn.id));
}

/// Asserts the next state, one message, the tool result or the user message without the block, and what judging made of it.
fn assert_next_state(turn: &TurnRecord, expected: Option<(&str, &str)>, reward: Option<f32>) {
    let next = turn.next_state.as_deref();
    let Some((role, message)) = expected else {
        assert_eq!(next, None);
        assert_eq!(turn.judging, JudgingState::Waiting);
        return;
    };
    let next = next.unwrap();
    assert_eq!(next.len(), 1, "{next:?}");
    assert_eq!(json!(next[0].role()), role);
    // OpenClaw prepends the time to user messages.
    assert!(next[0].text().ends_with(message), "{next:?}");
    assert_eq!(turn.kind, TurnKind::Main);
    let judging = if reward.is_some() {
        JudgingState::Done
    } else {
        JudgingState::Skipped
    };
    assert_eq!(turn.judging, judging, "{next:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stock_openclaw_conversation_is_collected_judged_and_trained_without_headers() {
    let Some(openclaw) = std::env::var_os("CLAWHOST_OPENCLAW").map(PathBuf::from) else {
        let missing = "OpenClaw is missing: set CLAWHOST_OPENCLAW to the folder that .ci/openclaw installed it in";
        assert!(
            std::env::var_os("CI").is_none_or(|ci| ci != "true"),
            "{missing}"
        );
        println!("not run: {missing}");
        return;
    };
    let model = completed(&first_request(&openclaw, MESSAGES[0].0).await)
        .unwrap_or_else(|error| panic!("{error}"));
    let running = TestServer::with(|config| {
        // Parsed with the model in it, so that the defaults are those of models other than the embedded one.
        let parsed = Config::parse(&format!(
            "[server]\nport = 0\n[model]\nserved_model_name = \"notekeeper\"\npath = {:?}\n\
             [training]\nbatch_size = 2\nmin_batch_size = 1\nmax_wait = \"200ms\"\nnice = 0\n",
            model.path()
        ));
        let data = std::mem::take(&mut config.server.data_dir);
        *config = parsed.unwrap();
        config.server.data_dir = data;
    })
    .await;
    let home = Home::new(&openclaw, running.server.url());

    // Three messages that need one tool call each, and one that needs none.
    for (message, read) in &MESSAGES[..4] {
        assert_answered(&running, &home, message, read).await;
    }
    assert_eq!(home.file("note.txt"), "lantern");
    assert_eq!(home.file("list.txt"), "harbor");

    // Praise and complaint train while the conversation pauses; then it continues with the new version.
    let ids: Vec<_> = turns(&running).iter().map(|turn| turn.id).collect();
    assert_eq!(ids.len(), EARLIER_TURNS);
    let liked = running.wait_until_trained(ids[0]).await;
    let blamed = running.wait_until_trained(ids[COMPLAINT_TURN]).await;
    assert!(liked.advantage.unwrap() > 0.0, "{liked:?}");
    assert!(blamed.advantage.unwrap() < 0.0, "{blamed:?}");
    running.wait_until_idle().await;
    let version = running.engine().active().version;
    assert!(version > 0);
    assert_answered(&running, &home, MESSAGES[4].0, MESSAGES[4].1).await;
    assert_eq!(home.file("plan.txt"), "pepper");

    let turns = turns(&running);
    assert_eq!(turns.len(), TURNS.len());
    for turn in &turns[..TURNS.len() - 1] {
        running.wait_until_judged(turn.id).await;
    }
    running.wait_until_idle().await;
    let turns = running.journal().session_turns(&turns[0].session).unwrap();
    for (index, (turn, (drawn, next, reward))) in turns.iter().zip(TURNS).enumerate() {
        assert_sampled(&running, turn, drawn);
        assert_matched(turn, index.checked_sub(1).map(|before| &turns[before]));
        assert_next_state(turn, next, reward);
        let samples = running.journal().samples_of_turn(turn.id).unwrap();
        let rewards: Vec<_> = samples.iter().filter_map(|sample| sample.reward).collect();
        println!("turn {}: rewards {rewards:?}", index + 1);
        assert_eq!(rewards, reward.into_iter().collect::<Vec<_>>(), "{drawn}");
    }
    assert_eq!(turns[0].adapter_version, 0);
    assert!(turns[EARLIER_TURNS].adapter_version >= version);

    // Explanations show the user message of each turn, without the block.
    for (turn, message) in turns.iter().zip(MESSAGE_OF_TURN) {
        let asked = running.explain(turn.id).await["asked"].clone();
        assert!(
            asked.as_str().unwrap().contains(MESSAGES[message].0),
            "{asked}"
        );
    }

    // Training used the sampled tokens.
    for (sample, turn) in [(liked, &turns[0]), (blamed, &turns[COMPLAINT_TURN])] {
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
fn unknown_openclaw_version_is_rejected_with_the_number_of_changed_lines() {
    let request = json!({
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello."}],
        "tools": [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}],
    });
    let error = completed(&request).unwrap_err();
    assert!(error.starts_with("543 of the 543 lines"), "{error}");
    assert!(error.contains("regenerate the fixture"), "{error}");
}
