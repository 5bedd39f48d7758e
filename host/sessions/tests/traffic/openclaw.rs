//! A stock OpenClaw: no header, no user, an ephemeral last message in every request, tool-call ids rewritten, content as
//! parts, time stamps and runtime blocks around user texts, 51 KB of instructions each time.

use clawhost_chat::{Message, Tool};
use clawhost_sessions::{IncomingRequest, SessionAssignment};
use serde_json::{Value, json};

use crate::builder::{Server, decision, message, request, tool};

/// The client, with the history as it will send it.
struct Agent {
    system: String,
    tools: Vec<Tool>,
    history: Vec<Value>,
    run: u32,
    calls: u32,
}

impl Agent {
    fn new() -> Self {
        let mut system =
            String::from("You are a personal assistant that runs inside a workspace.\n");
        for rule in 0.. {
            if system.len() > 51_000 {
                break;
            }
            system.push_str(&format!("## Rule {rule}\nWhen asked for item {rule}, look at note {} and answer in {} words.\n", rule * 7 % 101, rule % 9 + 3));
        }
        let tools = (0..12).map(|n| tool(&format!("tool_{n}"))).collect();
        Self {
            system,
            tools,
            history: Vec::new(),
            run: 0,
            calls: 0,
        }
    }

    /// The user writes: a new agent run starts.
    fn append_user_message(&mut self, text: &str) {
        self.run += 1;
        let stamped = format!(
            "[Fri 2026-11-20 10:{:02} UTC] {text}\n\n## Runtime\nhost=box channel=cli run={}",
            30 + self.run,
            self.run
        );
        self.history
            .push(json!({"role": "user", "content": [{"type": "text", "text": stamped}]}));
    }

    /// The next request.
    fn request(&mut self) -> IncomingRequest {
        self.calls += 1;
        let mut messages = vec![json!({"role": "system", "content": self.system})];
        messages.extend(self.history.iter().cloned());
        let context = format!(
            "<internal-context>\nmodel call {} of run {}; nothing pending\n</internal-context>",
            self.calls, self.run
        );
        messages.push(json!({"role": "user", "content": context}));
        IncomingRequest {
            tools: self.tools.clone(),
            trace: Some(format!("trace-{}", self.run)),
            ..request(messages)
        }
    }

    /// Appends our reply as the client stores it: other ids, other argument text, content parts.
    fn append_call(&mut self, name: &str, arguments: &str, results: &[&str]) {
        let id = format!("call{}", self.calls);
        self.history.push(json!({"role": "assistant", "content": "", "tool_calls": [{"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}]}));
        for result in results {
            self.history.push(json!({"role": "tool", "tool_call_id": id, "content": [{"type": "text", "text": result}]}));
        }
    }

    fn append_reply(&mut self, text: &str) {
        self.history
            .push(json!({"role": "assistant", "content": [{"type": "text", "text": text}]}));
    }
}

fn next_text(server: &Server, arrived: &SessionAssignment) -> Vec<String> {
    let record = server.turn(arrived.turns[0]);
    let next = record.next_state.unwrap_or_default();
    next.iter().map(Message::text).collect()
}

fn call(name: &str, arguments: &str) -> Value {
    json!({"role": "assistant", "content": null, "reasoning_content": "let me look", "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}]})
}

#[test]
fn several_agent_runs_with_tools_are_one_session() {
    let mut server = Server::new();
    let mut agent = Agent::new();

    agent.append_user_message("list my notes");
    let looks = server.ask(agent.request());
    server.answer(
        looks.turns[0],
        call("tool_1", "{\"path\": \"notes\", \"depth\": 1}"),
    );
    agent.append_call("tool_1", "{\"depth\":1,\"path\":\"notes\"}", &["todo.md"]);
    let reads = server.ask(agent.request());
    server.answer(reads.turns[0], call("tool_2", "{\"path\": \"todo.md\"}"));
    agent.append_call(
        "tool_2",
        "{\"path\":\"todo.md\"}",
        &["buy milk", "exit code 0"],
    );
    let tells = server.ask(agent.request());
    server.answer(
        tells.turns[0],
        json!({"role": "assistant", "content": "You have one note:\n\n- buy milk"}),
    );
    agent.append_reply("You have one note: - buy milk");

    // Hours later, after a restart, with another trace.
    server.restart();
    agent.append_user_message("thanks, now delete it");
    let deletes = server.ask(agent.request());
    server.answer(deletes.turns[0], call("tool_3", "{\"path\": \"todo.md\"}"));
    agent.append_call("tool_3", "{\"path\":\"todo.md\"}", &["no such file"]);
    let regrets = server.ask(agent.request());
    server.answer(regrets.turns[0], message("a:It was gone already."));

    let all = [&looks, &reads, &tells, &deletes, &regrets];
    let decisions: Vec<&str> = all.iter().map(|arrived| decision(arrived)).collect();
    assert_eq!(
        decisions,
        ["new", "continue", "continue", "continue", "continue"]
    );
    assert!(all.iter().all(|arrived| arrived.session == looks.session));
    assert_eq!(next_text(&server, &looks), ["todo.md"]);
    assert_eq!(next_text(&server, &reads), ["buy milk", "exit code 0"]);
    assert_eq!(
        next_text(&server, &tells).len(),
        1,
        "the block at the end is nobody's reaction"
    );
    assert!(next_text(&server, &tells)[0].contains("thanks, now delete it"));
    assert_eq!(next_text(&server, &deletes), ["no such file"]);
    assert_eq!(server.turn(regrets.turns[0]).next_state, None);
    for arrived in &all[1..] {
        assert!(
            arrived
                .matched
                .ephemeral
                .as_ref()
                .is_some_and(|note| note.begins.contains("internal-context")),
            "{}",
            arrived.matched
        );
        assert_eq!(arrived.matched.agreed, Some(1.0), "{}", arrived.matched);
        assert!(arrived.matched.next_state.as_ref().unwrap().handed);
    }
}

#[test]
fn a_repeated_call_with_a_new_ephemeral_message_is_a_retry() {
    let server = Server::new();
    let mut agent = Agent::new();
    agent.append_user_message("list my notes");
    let looks = server.ask(agent.request());
    server.answer(looks.turns[0], call("tool_1", "{\"path\": \"notes\"}"));
    agent.append_call("tool_1", "{\"path\":\"notes\"}", &["todo.md"]);
    let reads = server.ask(agent.request());
    server
        .sessions
        .abort(reads.turns[0], "client left", None)
        .unwrap();
    let again = server.ask(agent.request());
    assert_eq!(decision(&again), "retry", "{}", again.matched);
    assert_eq!(
        server.turn(again.turns[0]).group,
        server.turn(reads.turns[0]).group
    );
    assert_eq!(next_text(&server, &looks), ["todo.md"]);
}

#[test]
fn two_agents_with_the_same_instructions_are_separate_sessions() {
    let server = Server::new();
    let mut agents = [Agent::new(), Agent::new()];
    let mut sessions = Vec::new();
    for (agent, question) in agents
        .iter_mut()
        .zip(["what is on today", "anything new in the mail"])
    {
        agent.append_user_message(question);
        let arrived = server.exchange(agent.request(), "a:Nothing.");
        agent.append_reply("Nothing.");
        sessions.push(arrived.session);
    }
    assert_ne!(sessions[0], sessions[1]);
    for (agent, session) in agents.iter_mut().zip(&sessions) {
        agent.append_user_message("fine");
        let arrived = server.exchange(agent.request(), "a:Good.");
        assert_eq!(
            (decision(&arrived), &arrived.session),
            ("continue", session),
            "{}",
            arrived.matched
        );
    }
}
