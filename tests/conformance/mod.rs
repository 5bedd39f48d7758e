//! API conformance with real, unmodified clients and without special headers: replies, streams, tool-call rounds,
//! reasoning, and errors of the clients' own classes. A fuzzer checks the server against the OpenAPI document.
//!
//! `.ci/clients` installs the clients from the package registries. Without them a test prints which are missing, and
//! fails if `CI` is `true`.

mod clients;
mod model;

use std::process::Command;

use clawhost_tests::TestServer;
use clients::{NODE, PYTHON, installed, node, run, script};

/// Runs a client script against a server and checks that all cases passed.
async fn assert_conforms(mut command: Command, running: &TestServer, cases: usize) {
    command.arg(running.server.url());
    let output = run(command).await;
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaints}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let last = stdout.lines().last().unwrap_or_default();
    let done: Vec<String> = serde_json::from_str(last).unwrap_or_else(|_| panic!("{stdout}"));
    println!("{} cases: {}", done.len(), done.join(", "));
    assert_eq!(done.len(), cases);
    assert_recorded(running).await;
}

/// Checks that the replies are recorded and that second turns are matched to their conversations without a header.
async fn assert_recorded(running: &TestServer) {
    let sessions = running.journal().sessions(1000).unwrap();
    assert!(!sessions.is_empty());
    assert!(sessions.iter().any(|session| session.turns > 1));
    for session in sessions {
        for turn in running.journal().session_turns(&session.id).unwrap() {
            running.wait_until_ended(turn.id).await;
        }
    }
}

async fn python(name: &str, cases: usize) {
    if let Some(python) = installed(PYTHON) {
        let (running, _model) = model::start().await;
        let mut command = Command::new(python);
        command.arg(script(name));
        assert_conforms(command, &running, cases).await;
    }
}

async fn javascript(name: &str, cases: usize) {
    if let Some(folder) = installed(NODE) {
        let (running, _model) = model::start().await;
        let (command, _scripts) = node(&folder, name);
        assert_conforms(command, &running, cases).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openai_python_client() {
    python("openai_python.py", 17).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anthropic_python_client() {
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
async fn openai_node_client() {
    javascript("openai_node.mjs", 6).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vercel_ai_sdk() {
    javascript("vercel_ai.mjs", 6).await;
}

/// Status codes, content types and schemas match the document, and there is no server error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fuzzed_requests_match_the_openapi_document() {
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
    let stdout = String::from_utf8_lossy(&output.stdout);
    println!("{stdout}");
    assert!(
        output.status.success(),
        "{stdout}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
