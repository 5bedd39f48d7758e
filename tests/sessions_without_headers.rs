//! Clients that send no special header at all: their turns are told apart, matched with what followed,
//! judged, and explained.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may fail by panicking"
)]

use clawhost_journal::{JudgingState, TurnId, TurnKind, TurnRecord, VerdictOutcome};
use clawhost_tests::{Running, Script, Streamed, Talk, system, user};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The texts of what followed a turn.
fn followed_by(turn: &TurnRecord) -> Vec<String> {
    let next = turn.next_state.as_ref().and_then(Value::as_array);
    next.into_iter()
        .flatten()
        .map(|message| match &message["content"] {
            Value::String(text) => text.clone(),
            parts => parts[0]["text"].as_str().unwrap().to_owned(),
        })
        .collect()
}

/// Checks the only verdict on a turn.
fn assert_reward(running: &Running, turn: TurnId, expected: f32) {
    let verdicts = running.journal().verdicts(turn).unwrap();
    assert_eq!(verdicts.len(), 1);
    let outcome = VerdictOutcome::Verdict {
        reward: expected,
        accept: true,
    };
    assert_eq!(verdicts[0].outcome, outcome, "{}", verdicts[0].rationale);
}

#[tokio::test]
async fn a_plain_conversation_is_one_session_and_every_reply_is_judged_by_what_followed() {
    let running = Running::start().await;
    let mut talk = running.talk();
    let first = talk
        .say("Mia has 14 shells and finds 5 more. How many does she have?")
        .await;
    let complaint = "That's wrong. Please write it again as one plain sentence.";
    let second = talk.say(complaint).await;
    let third = talk.say("Thanks, that's perfect!").await;
    let turns = [first.turn(), second.turn(), third.turn()];
    for answer in [&second, &third] {
        assert_eq!(answer.session(), first.session());
    }
    for (turn, expected) in [(turns[0], -1.0), (turns[1], 1.0)] {
        running.judged(turn).await;
        assert_reward(&running, turn, expected);
        running.trained(turn).await;
    }
    assert_eq!(followed_by(&running.turn(turns[0])), [complaint]);
    assert_eq!(
        followed_by(&running.turn(turns[1])),
        ["Thanks, that's perfect!"]
    );
    let last = running.turn(turns[2]);
    assert_eq!(last.next_state, None);
    assert_eq!(last.judging, JudgingState::Waiting);

    let path = format!("/v1/sessions/{}/explain", first.session());
    let told = running.client.get(&path).await;
    let told = told.ok()["turns"].as_array().unwrap();
    assert_eq!(told.len(), 3);
    let decisions: Vec<&str> = told
        .iter()
        .map(|turn| turn["matched"]["decision"].as_str().unwrap())
        .collect();
    assert_eq!(decisions, ["new", "continue", "continue"]);
    for (turn, parent) in [(1, 0), (2, 1)] {
        assert_eq!(told[turn]["parent"], told[parent]["turn"]);
    }
    for turn in &told[..2] {
        assert_eq!(turn["trained"], true, "{turn}");
        assert_eq!(turn["kind"], json!(TurnKind::Main));
        assert_eq!(turn["verdicts"][0]["source"], "plugin:judge-next-state");
    }
    assert_eq!(told[2]["trained"], false);
    assert_eq!(told[2]["why"], "Nothing has followed it yet.");
}

#[tokio::test]
async fn conversations_at_the_same_time_stay_apart() {
    let running = Running::start().await;
    let talk_about = |thing: &'static str, count: usize| {
        let mut talk = running.talk().with(json!({"seed": 7}));
        async move {
            let mut sessions = Vec::new();
            let opening = format!("Ann has {count} {thing} and loses 2. How many are left?");
            sessions.push(talk.say(&opening).await.session());
            for text in ["Make it shorter.", "Thanks!", "Bye."] {
                sessions.push(talk.say(text).await.session());
            }
            sessions
        }
    };
    let (a, b, c) = tokio::join!(
        talk_about("pens", 9),
        talk_about("cups", 8),
        talk_about("hats", 7),
    );
    for sessions in [&a, &b, &c] {
        assert!(sessions.iter().all(|id| *id == sessions[0]), "{sessions:?}");
    }
    assert!(a[0] != b[0] && b[0] != c[0] && a[0] != c[0]);
    assert_eq!(running.journal().sessions(100).unwrap().len(), 3);
}

#[tokio::test]
async fn conversations_with_the_same_words_and_the_same_replies_are_told_apart_by_their_instructions()
 {
    let model = TempDir::new().unwrap();
    Script::save(&[Script::reply('!', &["Hello to you."])], model.path());
    let running = Running::with(|config| config.model.dir = Some(model.path().to_owned())).await;
    let mut talks = Vec::new();
    for name in ["Ben", "Eva"] {
        let mut talk = running.talk();
        talk.messages.push(system(&format!("You help {name}.")));
        let session = talk.say("Hello!").await.session();
        talks.push((talk, session));
    }
    assert_ne!(talks[0].1, talks[1].1);
    for (talk, session) in &mut talks {
        let thanks = talk.say("Thanks, bye!").await;
        let matched = running.turn(thanks.turn()).matched;
        assert_eq!(thanks.session(), *session, "{matched}");
    }
}

/// A stock OpenClaw, as captured: streams, twelve tools, 51 KB of instructions each time, a time stamp
/// and parts in user messages, an ephemeral last message, tool-call ids of its own.
struct Agent {
    talk: Talk,
    run: usize,
    calls: usize,
}

impl Agent {
    fn new(running: &Running) -> Self {
        let mut instructions = String::from("You are a personal assistant inside a workspace.\n");
        for rule in 1.. {
            if instructions.len() > 50_000 {
                break;
            }
            let length = rule % 9 + 3;
            instructions.push_str(&format!(
                "## Rule {rule}\nAsked for item {rule}, look at note {} and answer in {length} words.\n",
                rule * 7 % 101
            ));
        }
        let tools: Vec<Value> = (0..12)
            .map(|n| {
                json!({"type": "function", "function": {"name": format!("tool_{n}"), "description": "",
                       "parameters": {"type": "object", "properties": {}}}})
            })
            .collect();
        let mut talk = running.talk().with(json!({
            "stream_options": {"include_usage": true}, "tools": tools, "tool_choice": "auto",
            "max_tokens": null, "max_completion_tokens": 64, "store": false,
        }));
        talk.messages.push(system(&instructions));
        Self {
            talk,
            run: 0,
            calls: 0,
        }
    }

    /// A person writes; a new run begins.
    fn person(&mut self, text: &str) {
        self.run += 1;
        let stamped = format!("[Fri 2026-11-20 10:{:02} UTC] {text}", 30 + self.run);
        self.talk
            .messages
            .push(json!({"role": "user", "content": [{"type": "text", "text": stamped}]}));
    }

    /// One model call; `script` is what the scripted model answers by.
    async fn call(&mut self, script: char) -> (TurnId, String, Streamed) {
        self.calls += 1;
        let context = format!(
            "<internal-context>\ncall {} of run {}; nothing pending\n</internal-context> {script}",
            self.calls, self.run
        );
        let trace = format!("00-{:032x}-{:016x}-01", self.run, self.calls);
        let stream = self.talk.request(&context);
        let stream = stream.header("traceparent", &trace).stream().await;
        assert_eq!(stream.status, 200);
        let (turn, session) = (stream.turn(), stream.session());
        let reply = stream.rest().await.unwrap();
        assert!(reply.done && reply.errors.is_empty(), "{reply:?}");
        (turn, session, reply)
    }

    /// Keeps a tool call under another id and adds the tool's result.
    fn keeps_call(&mut self, reply: &Streamed, result: &str) {
        let (name, arguments) = &reply.calls[0];
        let id = format!("call{}", self.calls);
        self.talk.messages.extend([
            json!({"role": "assistant", "content": "", "tool_calls": [
                {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}]}),
            json!({"role": "tool", "tool_call_id": id, "content": [{"type": "text", "text": result}]}),
        ]);
    }

    /// Keeps a reply as a list of parts.
    fn keeps_text(&mut self, reply: &Streamed) {
        self.talk
            .messages
            .push(json!({"role": "assistant", "content": [{"type": "text", "text": reply.text}]}));
    }
}

#[tokio::test]
async fn a_stock_openclaw_is_one_session_over_runs_and_tool_calls() {
    let model = TempDir::new().unwrap();
    let scripts = [
        Script::call('A', "tool_1", &json!({"path": "notes"})),
        Script::reply('B', &["You have one note: ", "buy milk."]),
        Script::call('C', "tool_2", &json!({"path": "notes/todo.md"})),
        Script::reply('D', &["It could not ", "be deleted."]),
    ];
    Script::save(&scripts, model.path());
    let running = Running::with(|config| {
        config.model.dir = Some(model.path().to_owned());
        config.training.enabled = false;
    })
    .await;
    let mut agent = Agent::new(&running);

    agent.person("list my notes");
    let (looks, session, reply) = agent.call('A').await;
    assert_eq!(reply.calls.len(), 1, "{reply:?}");
    agent.keeps_call(&reply, "todo.md");
    let (tells, told_in, reply) = agent.call('B').await;
    assert_eq!(reply.text, "You have one note: buy milk.");
    agent.keeps_text(&reply);
    agent.person("thanks, that's what I needed! Next: how many cups of tea did I have today?");
    let (deletes, deleted_in, reply) = agent.call('C').await;
    agent.keeps_call(&reply, "error: permission denied, exit code 1");
    let (regrets, regretted_in, reply) = agent.call('D').await;
    agent.keeps_text(&reply);

    for other in [told_in, deleted_in, regretted_in] {
        assert_eq!(other, session);
    }
    for turn in [looks, tells, deletes] {
        running.judged(turn).await;
    }
    let turn = |id| running.turn(id);
    assert_eq!(followed_by(&turn(looks)), ["todo.md"]);
    let after = followed_by(&turn(tells));
    assert!(
        after.len() == 1 && after[0].contains("that's what I needed"),
        "the block at the end is nobody's reaction: {after:?}"
    );
    assert_eq!(
        followed_by(&turn(deletes)),
        ["error: permission denied, exit code 1"]
    );
    assert_eq!(turn(regrets).next_state, None);
    assert_reward(&running, tells, 1.0);
    assert_reward(&running, deletes, -1.0);
    for (id, parent) in [(tells, looks), (deletes, tells), (regrets, deletes)] {
        let told = running.explain(id).await;
        assert_eq!(told["parent"], json!(parent));
        assert_eq!(told["matched"]["decision"], "continue", "{told}");
    }
    assert!(
        turn(looks).prompt_ids.len() > 50_000,
        "the model saw it all"
    );
    let stats = running.engine().stats();
    assert!(
        stats.cached_tokens > 100_000,
        "three of four prompts are mostly known: {stats:?}"
    );
}

#[tokio::test]
async fn the_embedded_policy_takes_a_prompt_of_that_size() {
    let running = Running::start().await;
    let agent = Agent::new(&running);
    let mut messages = agent.talk.messages;
    messages.push(user("Hello, who are you?"));
    let stream = running.client.chat(&messages);
    let stream = stream.with(json!({"max_tokens": 8})).stream().await;
    let turn = stream.turn();
    let reply = stream.rest().await.unwrap();
    assert!(reply.done && reply.finish.is_some(), "{reply:?}");
    let prompt = running.turn(turn).prompt_ids.len();
    assert!(prompt > 10_000, "{prompt}");
}
