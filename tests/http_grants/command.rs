//! The error prints a command; run verbatim in a shell, it grants what is missing.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clawhost_tests::{Command, ProcessOutput};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::request_judge::HttpRequestJudge;
use super::site::{Site, WELCOME};

/// A directory whose name needs shell quoting, with a component and a turn to judge.
struct Fixture {
    dir: TempDir,
}

impl Fixture {
    fn new(judge: &HttpRequestJudge) -> Fixture {
        let fixture = Fixture {
            dir: TempDir::new().unwrap(),
        };
        std::fs::create_dir(fixture.folder()).unwrap();
        std::fs::write(fixture.file(), judge.wasm()).unwrap();
        let turn = json!({"reply": {"role": "assistant", "content": "7"},
            "next_state": [{"role": "user", "content": "thanks"}]});
        std::fs::write(fixture.turn(), turn.to_string()).unwrap();
        fixture
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join("it's $HOME")
    }

    fn file(&self) -> PathBuf {
        self.folder().join("fetches.wasm")
    }

    fn turn(&self) -> PathBuf {
        self.dir.path().join("turn.json")
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("the data")
    }

    fn manifest(&self, text: &str) {
        std::fs::write(self.folder().join("plugin.toml"), text).unwrap();
    }

    /// Runs `clawhost plugin run` and parses its output.
    fn run(&self) -> (ProcessOutput, Value) {
        let ended = Command::new(&[
            "plugin",
            "run",
            text(&self.file()),
            "--turn",
            text(&self.turn()),
            "--data",
            text(&self.data()),
            "--json",
        ])
        .run();
        let printed = serde_json::from_str(&ended.stdout).unwrap_or_default();
        (ended, printed)
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The command at the end of the error message.
fn printed(refused: &ProcessOutput) -> &str {
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let at = refused.stderr.find("clawhost plugin grant ");
    let at = at.unwrap_or_else(|| panic!("no command: {refused:?}"));
    refused.stderr[at..].trim_end()
}

/// Runs a command line in a shell, with `clawhost` replaced by the test executable.
fn run_in_shell(line: &str) -> ProcessOutput {
    let dir = TempDir::new().unwrap();
    // The shell splits the line; the test executable gets the arguments as JSON.
    let (shim, words) = (dir.path().join("clawhost"), dir.path().join("words"));
    std::fs::write(&shim, "#!/bin/sh\nprintf '%s\\0' \"$@\" > \"$WORDS\"\n").unwrap();
    std::fs::set_permissions(&shim, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!(
        "{}:{}",
        dir.path().display(),
        std::env::var("PATH").unwrap()
    );
    let shell = std::process::Command::new("sh")
        .args(["-c", line])
        .env("PATH", path)
        .env("WORDS", &words)
        .status();
    assert!(shell.unwrap().success(), "{line}");
    let words = std::fs::read_to_string(words).unwrap();
    let words: Vec<&str> = words.split_terminator('\0').collect();
    Command::new(&words).run()
}

#[test]
fn printed_command_grants_exactly_what_the_manifest_declares() {
    let site = Site::on("127.0.0.1", "");
    let fixture = Fixture::new(&HttpRequestJudge::to(format!("{}/v1", site.origin())));
    fixture.manifest(&format!("[wants]\nhttp = [\"{}\"]\n", site.origin()));
    let (refused, _) = fixture.run();
    let command = printed(&refused);
    assert!(
        command.ends_with(&format!(
            " http={} --data '{}'",
            site.origin(),
            fixture.data().display()
        )),
        "{command}"
    );
    assert!(site.seen().is_empty());

    let granted = run_in_shell(command);
    assert_eq!(granted.code, Some(0), "{granted:?}");
    let (accepted, report) = fixture.run();
    assert_eq!(accepted.code, Some(0), "{accepted:?}");
    assert_eq!(report["verdict"]["rationale"], WELCOME);
    assert_eq!(report["receipt"]["http_calls"], 1);
    assert_eq!(site.seen().len(), 1);
}

#[test]
fn without_a_manifest_the_command_has_a_placeholder() {
    let site = Site::on("127.0.0.1", "");
    let fixture = Fixture::new(&HttpRequestJudge::to(site.origin()));
    let (refused, _) = fixture.run();
    let command = printed(&refused);
    assert!(refused.stderr.contains("replace HOST with"), "{refused:?}");
    assert!(command.contains(" http=https://HOST "), "{command}");
    // Unedited, it grants nothing.
    let unfilled = run_in_shell(command);
    assert_eq!(unfilled.code, Some(1), "{unfilled:?}");
    assert!(unfilled.stderr.contains("placeholder"), "{unfilled:?}");
    let (refused, _) = fixture.run();
    let filled = printed(&refused).replace("https://HOST", &site.origin());
    assert_eq!(run_in_shell(&filled).code, Some(0));
    assert_eq!(fixture.run().1["verdict"]["rationale"], WELCOME);
}

#[test]
fn manifest_narrows_grants_and_unused_grants_are_reported() {
    let (site, other) = (Site::on("127.0.0.1", ""), Site::on("127.0.0.1", ""));
    // It declares one origin and requests another.
    let fixture = Fixture::new(&HttpRequestJudge::to(other.origin()));
    fixture.manifest(&format!("[wants]\nhttp = [\"{}\"]\n", site.origin()));
    let surplus = format!("http={}", other.origin());
    let granted = Command::new(&[
        "plugin",
        "grant",
        text(&fixture.file()),
        &format!("http={}", site.origin()),
        &surplus,
        "--data",
        text(&fixture.data()),
        "--json",
    ])
    .run();
    let grants: Value = serde_json::from_str(&granted.stdout).unwrap();
    assert_eq!(grants["unwanted"], json!([surplus]));
    assert_eq!(grants["lacks"], json!([]));
    let (_, report) = fixture.run();
    let fault = report["fault"]["kind"].to_string();
    assert!(
        fault.contains("denied") && fault.contains(&format!("{} is not granted", other.origin())),
        "{report}"
    );
    // Its limits apply as well.
    fixture.manifest("[limits]\nhttp_calls = 0\n");
    let (_, report) = fixture.run();
    assert_eq!(report["fault"]["kind"]["fault"], "budget", "{report}");
    assert_eq!(report["fault"]["kind"]["what"], "http_calls");
    // No request was sent; without a manifest the grants alone apply.
    assert!(site.seen().is_empty() && other.seen().is_empty());
    std::fs::remove_file(fixture.folder().join("plugin.toml")).unwrap();
    assert_eq!(fixture.run().1["verdict"]["rationale"], WELCOME);

    let listed = Command::new(&["plugin", "list", "--data", text(&fixture.data()), "--json"]).run();
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(
        listed["grants"][0]["wants"],
        json!([format!("http={}", site.origin())])
    );
}

#[test]
fn invalid_manifest_is_rejected_with_file_line_and_fix() {
    let fixture = Fixture::new(&HttpRequestJudge::to("https://api.example"));
    fixture.manifest("[wants]\nhttp = [\"api.example\"]\n");
    let (refused, _) = fixture.run();
    assert_eq!(refused.code, Some(1));
    for part in ["plugin.toml: line 2: ", "https://api.example"] {
        assert!(refused.stderr.contains(part), "{refused:?}");
    }
}

#[test]
fn every_loading_command_prints_the_grant_command_with_its_grants_file() {
    let fixture = Fixture::new(&HttpRequestJudge::to("https://api.example"));
    fixture.manifest("[wants]\nhttp = [\"https://api.example\"]\n");
    let folder = fixture.folder();
    let (config, tests) = (folder.join("claw.toml"), folder.join("tests"));
    let apart = fixture.dir.path().join("apart.toml");
    std::fs::write(
        &config,
        format!("[plugins]\ngrants_file = {:?}\n", text(&apart)),
    )
    .unwrap();
    std::fs::create_dir(&tests).unwrap();
    // A name that starts with a hyphen is not parsed as a flag.
    std::fs::copy(fixture.file(), folder.join("-j.wasm")).unwrap();

    let refused = Command::new(&[
        "run",
        "--port",
        "0",
        "--data",
        "d",
        "--plugin",
        "fetches.wasm",
    ])
    .in_directory(&folder)
    .run();
    assert_eq!(
        printed(&refused),
        "clawhost plugin grant fetches.wasm http=https://api.example --data d"
    );
    let refused = Command::new(&["replay", "--data", "d", "--plugin", "./fetches.wasm"])
        .in_directory(&folder)
        .run();
    assert_eq!(
        printed(&refused),
        "clawhost plugin grant ./fetches.wasm http=https://api.example --data d"
    );
    let refused = Command::new(&[
        "run",
        "--config",
        "claw.toml",
        "--port",
        "0",
        "--plugin=-j.wasm",
    ])
    .in_directory(&folder)
    .run();
    assert_eq!(
        printed(&refused),
        format!(
            "clawhost plugin grant ./-j.wasm http=https://api.example --grants {}",
            apart.display()
        )
    );
    let output = Command::new(&["plugin", "bench", text(&fixture.file())]).run();
    assert!(
        output.stderr.contains("which a benchmark does not grant"),
        "{output:?}"
    );
}
