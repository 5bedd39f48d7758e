//! Clients without special headers: their turns are grouped into sessions, matched with their next state, judged and
//! explained.

use clawhost_chat::Message;
use clawhost_journal::{JudgingState, TurnId, TurnKind, TurnRecord, VerdictOutcome};
use clawhost_tests::{Conversation, Script, StreamedReply, TestServer, system, user};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Texts of a turn's next state.
fn followed_by(turn: &TurnRecord) -> Vec<String> {
    turn.next_state
        .iter()
        .flatten()
        .map(Message::text)
        .collect()
}

/// Asserts the single verdict of a turn.
fn assert_reward(running: &TestServer, turn: TurnId, expected: f32) {
    let verdicts = running.journal().verdicts(turn).unwrap();
    assert_eq!(verdicts.len(), 1);
    let outcome = VerdictOutcome::Verdict {
        reward: expected,
        accept: true,
    };
    assert_eq!(verdicts[0].outcome, outcome, "{}", verdicts[0].rationale);
}

#[tokio::test]
async fn plain_conversation_is_one_session_and_replies_are_judged_by_their_next_state() {
    let running = TestServer::start().await;
    let mut conversation = running.conversation();
    let first = conversation
        .send_message("Mia has 14 shells and finds 5 more. How many does she have?")
        .await;
    let complaint = "That's wrong. Please write it again as one plain sentence.";
    let second = conversation.send_message(complaint).await;
    let third = conversation.send_message("Thanks, that's perfect!").await;
    let turns = [first.turn(), second.turn(), third.turn()];
    for answer in [&second, &third] {
        assert_eq!(answer.session(), first.session());
    }
    for (turn, expected) in [(turns[0], -1.0), (turns[1], 1.0)] {
        running.wait_until_judged(turn).await;
        assert_reward(&running, turn, expected);
        running.wait_until_trained(turn).await;
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
    let explanation = running.client.get(&path).await;
    let explanation = explanation.ok()["turns"].as_array().unwrap();
    assert_eq!(explanation.len(), 3);
    let decisions: Vec<&str> = explanation
        .iter()
        .map(|turn| turn["matched"]["decision"].as_str().unwrap())
        .collect();
    assert_eq!(decisions, ["new", "continue", "continue"]);
    for (turn, parent) in [(1, 0), (2, 1)] {
        assert_eq!(explanation[turn]["parent"], explanation[parent]["turn"]);
    }
    for turn in &explanation[..2] {
        assert_eq!(turn["trained"], true, "{turn}");
        assert_eq!(turn["kind"], json!(TurnKind::Main));
        assert_eq!(turn["verdicts"][0]["source"], "plugin:judge-next-state");
    }
    assert_eq!(explanation[2]["trained"], false);
    assert_eq!(explanation[2]["why"], "It has no next state yet.");
}

#[tokio::test]
async fn concurrent_conversations_are_separate_sessions() {
    let running = TestServer::start().await;
    let talk_about = |thing: &'static str, count: usize| {
        let mut conversation = running.conversation().with(json!({"seed": 7}));
        async move {
            let mut sessions = Vec::new();
            let opening = format!("Ann has {count} {thing} and loses 2. How many are left?");
            sessions.push(conversation.send_message(&opening).await.session());
            for text in ["Make it shorter.", "Thanks!", "Bye."] {
                sessions.push(conversation.send_message(text).await.session());
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
async fn identical_conversations_are_distinguished_by_their_system_prompt() {
    let model = TempDir::new().unwrap();
    Script::save(&[Script::reply('!', &["Hello to you."])], model.path());
    let running =
        TestServer::with(|config| config.model.path = Some(model.path().to_owned())).await;
    let mut talks = Vec::new();
    for name in ["Ben", "Eva"] {
        let mut conversation = running.conversation();
        conversation
            .messages
            .push(system(&format!("You help {name}.")));
        let session = conversation.send_message("Hello!").await.session();
        talks.push((conversation, session));
    }
    assert_ne!(talks[0].1, talks[1].1);
    for (conversation, session) in &mut talks {
        let thanks = conversation.send_message("Thanks, bye!").await;
        let matched = running.turn(thanks.turn()).matched;
        assert_eq!(thanks.session(), *session, "{matched}");
    }
}

/// A stock OpenClaw as captured: streaming, twelve tools, 51 KB of instructions per request, timestamps and parts in
/// user messages, an ephemeral last message, and its own tool-call ids.
struct Agent {
    conversation: Conversation,
    run: usize,
    calls: usize,
}

impl Agent {
    fn new(running: &TestServer) -> Self {
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
        let mut conversation = running.conversation().with(json!({
            "stream_options": {"include_usage": true}, "tools": tools, "tool_choice": "auto",
            "max_tokens": null, "max_completion_tokens": 64, "store": false,
        }));
        conversation.messages.push(system(&instructions));
        Self {
            conversation,
            run: 0,
            calls: 0,
        }
    }

    /// Adds a user message; a new agent run begins.
    fn user_message(&mut self, text: &str) {
        self.run += 1;
        let stamped = format!("[Fri 2026-11-20 10:{:02} UTC] {text}", 30 + self.run);
        self.conversation
            .messages
            .push(json!({"role": "user", "content": [{"type": "text", "text": stamped}]}));
    }

    /// Calls the model; `script` selects the scripted reply.
    async fn call(&mut self, script: char) -> (TurnId, String, StreamedReply) {
        self.calls += 1;
        let context = format!(
            "<internal-context>\ncall {} of run {}; nothing pending\n</internal-context> {script}",
            self.calls, self.run
        );
        let trace = format!("00-{:032x}-{:016x}-01", self.run, self.calls);
        let stream = self.conversation.request(&context);
        let stream = stream.header("traceparent", &trace).stream().await;
        assert_eq!(stream.status, 200);
        let (turn, session) = (stream.turn(), stream.session());
        let reply = stream.rest().await.unwrap();
        assert!(reply.done && reply.errors.is_empty(), "{reply:?}");
        (turn, session, reply)
    }

    /// Adds a tool call with another id and its result to the history.
    fn add_call(&mut self, reply: &StreamedReply, result: &str) {
        let (name, arguments) = &reply.calls[0];
        let id = format!("call{}", self.calls);
        self.conversation.messages.extend([
            json!({"role": "assistant", "content": "", "tool_calls": [
                {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}]}),
            json!({"role": "tool", "tool_call_id": id, "content": [{"type": "text", "text": result}]}),
        ]);
    }

    /// Adds a reply to the history as a list of parts.
    fn add_text(&mut self, reply: &StreamedReply) {
        self.conversation
            .messages
            .push(json!({"role": "assistant", "content": [{"type": "text", "text": reply.text}]}));
    }
}

#[tokio::test]
async fn openclaw_is_one_session_across_runs_and_tool_calls() {
    let model = TempDir::new().unwrap();
    let scripts = [
        Script::call('A', "tool_1", &json!({"path": "notes"})),
        Script::reply('B', &["You have one note: ", "buy milk."]),
        Script::call('C', "tool_2", &json!({"path": "notes/todo.md"})),
        Script::reply('D', &["It could not ", "be deleted."]),
    ];
    Script::save(&scripts, model.path());
    let running = TestServer::with(|config| {
        config.model.path = Some(model.path().to_owned());
        config.training.enabled = false;
    })
    .await;
    let mut agent = Agent::new(&running);

    agent.user_message("list my notes");
    let (looks, session, reply) = agent.call('A').await;
    assert_eq!(reply.calls.len(), 1, "{reply:?}");
    agent.add_call(&reply, "todo.md");
    let (tells, told_in, reply) = agent.call('B').await;
    assert_eq!(reply.text, "You have one note: buy milk.");
    agent.add_text(&reply);
    agent
        .user_message("thanks, that's what I needed! Next: how many cups of tea did I have today?");
    let (deletes, deleted_in, reply) = agent.call('C').await;
    agent.add_call(&reply, "error: permission denied, exit code 1");
    let (regrets, regretted_in, reply) = agent.call('D').await;
    agent.add_text(&reply);

    for other in [told_in, deleted_in, regretted_in] {
        assert_eq!(other, session);
    }
    for turn in [looks, tells, deletes] {
        running.wait_until_judged(turn).await;
    }
    let turn = |id| running.turn(id);
    assert_eq!(followed_by(&turn(looks)), ["todo.md"]);
    let after = followed_by(&turn(tells));
    assert!(
        after.len() == 1 && after[0].contains("that's what I needed"),
        "the block at the end is not feedback: {after:?}"
    );
    assert_eq!(
        followed_by(&turn(deletes)),
        ["error: permission denied, exit code 1"]
    );
    assert_eq!(turn(regrets).next_state, None);
    assert_reward(&running, tells, 1.0);
    assert_reward(&running, deletes, -1.0);
    for (id, parent) in [(tells, looks), (deletes, tells), (regrets, deletes)] {
        let explanation = running.explain(id).await;
        assert_eq!(explanation["parent"], json!(parent));
        assert_eq!(
            explanation["matched"]["decision"], "continue",
            "{explanation}"
        );
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
async fn embedded_policy_accepts_a_prompt_of_that_size() {
    let running = TestServer::start().await;
    let agent = Agent::new(&running);
    let mut messages = agent.conversation.messages;
    messages.push(user("Hello, who are you?"));
    let stream = running.client.chat(&messages);
    let stream = stream.with(json!({"max_tokens": 8})).stream().await;
    let turn = stream.turn();
    let reply = stream.rest().await.unwrap();
    assert!(reply.done && reply.finish.is_some(), "{reply:?}");
    let prompt = running.turn(turn).prompt_ids.len();
    assert!(prompt > 10_000, "{prompt}");
}
