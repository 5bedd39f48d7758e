//! Real clients, unmodified and without any special header, get from this server what they expect of the ones they were
//! made for: replies, streams, tool calls in a round, thoughts, and errors of their own classes. And what the OpenAPI
//! document says holds for whatever a fuzzer makes of it.
//!
//! The clients come from the package registries: `.ci/clients` installs them. Without them a test says which are missing,
//! and fails where `CI` is `true`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test may fail by panicking, and this one says what it cannot run"
)]

mod clients;
mod model;

use std::process::Command;

use clawhost_tests::Running;
use clients::{NODE, PYTHON, installed, node, run, script};

/// Runs a script against a server of its own and checks that it did these cases.
async fn conforms(mut command: Command, running: &Running, cases: usize) {
    command.arg(running.server.url());
    let output = run(command).await;
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaints}");
    let told = String::from_utf8_lossy(&output.stdout);
    let last = told.lines().last().unwrap_or_default();
    let done: Vec<String> = serde_json::from_str(last).unwrap_or_else(|_| panic!("{told}"));
    println!("{} cases: {}", done.len(), done.join(", "));
    assert_eq!(done.len(), cases);
    recorded(running).await;
}

/// What the clients were told is recorded, and conversations with a second turn were recognised without any header.
async fn recorded(running: &Running) {
    let sessions = running.journal().sessions(1000).unwrap();
    assert!(!sessions.is_empty());
    assert!(sessions.iter().any(|session| session.turns > 1));
    for session in sessions {
        for turn in running.journal().session_turns(&session.id).unwrap() {
            running.ended(turn.id).await;
        }
    }
}

async fn python(name: &str, cases: usize) {
    if let Some(python) = installed(PYTHON) {
        let (running, _model) = model::start().await;
        let mut command = Command::new(python);
        command.arg(script(name));
        conforms(command, &running, cases).await;
    }
}

async fn javascript(name: &str, cases: usize) {
    if let Some(folder) = installed(NODE) {
        let (running, _model) = model::start().await;
        let (command, _scripts) = node(&folder, name);
        conforms(command, &running, cases).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_openai_client_of_python() {
    python("openai_python.py", 17).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_anthropic_client_of_python() {
    python("anthropic_python.py", 9).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn langchain() {
    python("langchain_openai_chat.py", 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn litellm() {
    python("litellm_python.py", 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_openai_client_of_node() {
    javascript("openai_node.mjs", 6).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_vercel_ai_sdk() {
    javascript("vercel_ai.mjs", 6).await;
}

/// Status codes, content types and shapes are those of the document, and nothing is a fault of the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fuzzer_finds_the_document_to_be_true() {
    let Some(python) = installed(PYTHON) else {
        return;
    };
    let (running, _model) = model::start().await;
    let mut command = Command::new(python.with_file_name("schemathesis"));
    command.args([
        "run",
        &format!("{}/openapi.json", running.server.url()),
        "--checks",
        "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
         response_schema_conformance,allow_header_conformance",
        "--phases",
        "examples,coverage,fuzzing",
        "--max-examples",
        "15",
        "--seed",
        "7",
        "--generation-database",
        "none",
        "--suppress-health-check",
        "all",
        "--warnings",
        "off",
        "--request-timeout",
        "60",
        "--no-color",
    ]);
    let folder = tempfile::tempdir().unwrap();
    command.current_dir(folder.path());
    let output = run(command).await;
    let told = String::from_utf8_lossy(&output.stdout);
    println!("{told}");
    assert!(
        output.status.success(),
        "{told}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
