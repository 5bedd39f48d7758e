//! Plugin authoring commands: their JSON output matches the schemas, and missing grants are rejected with the grant
//! command.

use std::path::{Path, PathBuf};

use clawhost_plugins::embedded_component;
use clawhost_tests::{Command, ProcessOutput, TestServer, assert_matches_schema, train_on_rewards};
use serde_json::{Value, json};
use tempfile::TempDir;

fn clawhost(arguments: &[&str]) -> ProcessOutput {
    Command::new(arguments).run()
}

fn path(file: &Path) -> &str {
    file.to_str().unwrap()
}

/// The last line of a command's output, parsed as JSON.
fn printed(arguments: &[&str]) -> Value {
    let ended = clawhost(arguments);
    assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
    serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap()
}

fn judge(dir: &TempDir) -> PathBuf {
    let file = dir.path().join("judge.wasm");
    std::fs::write(&file, embedded_component("judge-minimal").unwrap()).unwrap();
    file
}

fn schema(name: &str) -> Value {
    clawhost_tests::schema(&format!("plugin-{name}"))
}

#[test]
fn tool_output_matches_the_schemas() {
    let dir = TempDir::new().unwrap();
    let file = judge(&dir);
    let inspected = printed(&["plugin", "inspect", path(&file), "--json"]);
    assert_matches_schema(&schema("inspect"), &inspected, "inspect");
    assert_eq!(inspected["kind"], "judge");

    let turn = dir.path().join("turn.json");
    let text = json!({
        "prompt": [{"role": "user", "content": "hi"}],
        "reply": {"role": "assistant", "content": "one two three"},
        "next_state": [{"role": "user", "content": "thanks"}],
    });
    std::fs::write(&turn, text.to_string()).unwrap();
    let run = printed(&[
        "plugin",
        "run",
        path(&file),
        "--turn",
        path(&turn),
        "--json",
    ]);
    assert_matches_schema(&schema("run"), &run, "run");
    assert_eq!(run["verdict"]["rationale"], "3 words");

    let ended = clawhost(&[
        "plugin",
        "bench",
        path(&file),
        "--calls",
        "20",
        "--concurrency",
        "1",
        "--concurrency",
        "4",
        "--json",
    ]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let lines: Vec<Value> = ended
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2);
    for line in &lines {
        assert_matches_schema(&schema("bench"), line, "bench");
        assert_eq!((&line["calls"], &line["failed"]), (&json!(20), &json!(0)));
    }
}

#[test]
fn grants_are_bound_to_one_build_and_errors_print_the_grant_command() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("asks.wasm");
    let artefacts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins/artifacts");
    std::fs::copy(artefacts.join("judge-model.wasm"), &file).unwrap();
    let turn = dir.path().join("turn.json");
    let text = json!({"reply": {"role": "assistant", "content": "7"},
        "next_state": [{"role": "user", "content": "thanks"}]});
    std::fs::write(&turn, text.to_string()).unwrap();
    let data = dir.path().join("data");
    let run = [
        "plugin",
        "run",
        path(&file),
        "--turn",
        path(&turn),
        "--data",
        path(&data),
        "--json",
    ];

    let refused = clawhost(&run);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused.stderr.contains(&format!(
            ": clawhost plugin grant {} model --data {}",
            path(&file),
            path(&data)
        )),
        "{}",
        refused.stderr
    );

    let grant = [
        "plugin",
        "grant",
        path(&file),
        "model=judge",
        "--data",
        path(&data),
        "--json",
    ];
    let granted = printed(&grant);
    assert_eq!(granted["lacks"], json!([]));
    let answered = printed(&run);
    assert_matches_schema(&schema("run"), &answered, "run");
    assert_eq!(answered["receipt"]["model_calls"], 1);

    // Another build with the same name has no grants; the output lists what the first one had.
    std::fs::copy(artefacts.join("judge-llm.wasm"), &file).unwrap();
    assert_eq!(clawhost(&run).code, Some(1));
    let seen = printed(&[
        "plugin",
        "grant",
        path(&file),
        "--data",
        path(&data),
        "--json",
    ]);
    assert_eq!(seen["grants"], json!([]));
    assert_eq!(seen["less_than_before"], json!(["model", "model=judge"]));
    let listed = printed(&["plugin", "list", "--data", path(&data), "--json"]);
    assert_eq!(listed["grants"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn call_costs_are_reported_from_the_journal_and_in_metrics() {
    let dir = TempDir::new().unwrap();
    let file = judge(&dir);
    let running = TestServer::with(|config| {
        config.plugins.files = vec![file];
        // Without hints only the judge is called.
        train_on_rewards(config);
    })
    .await;
    let mut conversation = running.conversation();
    let turns = [
        conversation.send_message("Hello!").await,
        conversation.send_message("And then?").await,
    ];
    conversation.send_message("Thanks!").await;
    for turn in &turns {
        running.wait_until_judged(turn.turn()).await;
    }

    let data = path(running.data.path());
    let top = printed(&["plugin", "top", "--data", data, "--json"]);
    let schema = schema("top");
    assert_matches_schema(&schema, &top, "top");
    let [only] = top["plugins"].as_array().unwrap().as_slice() else {
        panic!("{top}");
    };
    assert_matches_schema(
        &schema["properties"]["plugins"]["items"],
        only,
        "top.plugins",
    );
    assert_eq!(only["plugin"], "judge");
    let receipts: Vec<Value> = turns
        .iter()
        .flat_map(|turn| running.journal().receipts(turn.turn()).unwrap())
        .collect();
    assert_eq!((&only["calls"], &only["ok"]), (&json!(2), &json!(2)));
    let sum: u64 = receipts
        .iter()
        .map(|one| one["fuel"].as_u64().unwrap())
        .sum();
    assert_eq!(
        (only["digest"].clone(), only["fuel"].clone()),
        (receipts[0]["digest"].clone(), json!(sum))
    );
    let output = clawhost(&["plugin", "top", "--data", data]);
    assert!(output.stdout.contains("2 ok"), "{output:?}");

    let metrics = clawhost_http::client()
        .build()
        .unwrap()
        .get(format!("{}/metrics", running.server.url()))
        .send();
    let metrics = metrics.await.unwrap().text().await.unwrap();
    for line in [
        "clawhost_plugin_calls_total{plugin=\"judge\",outcome=\"ok\",error=\"\"} 2".to_owned(),
        "clawhost_plugin_call_duration_seconds_count{plugin=\"judge\"} 2".to_owned(),
        format!("clawhost_plugin_fuel_total{{plugin=\"judge\"}} {sum}"),
    ] {
        assert!(
            metrics.lines().any(|have| have == line),
            "{line}\n{metrics}"
        );
    }

    let none = clawhost(&["plugin", "top", "--data", path(&dir.path().join("none"))]);
    assert_eq!(none.code, Some(1), "{none:?}");
}
