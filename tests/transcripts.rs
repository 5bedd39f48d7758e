//! Golden transcripts of plugins that use the capabilities `model`, `http` and `state`: models and HTTP return the answers
//! of the transcript, state is in memory, nothing real is accessed and no grants are needed.

use std::path::{Path, PathBuf};

use clawhost_tests::guest::{Guest, verdict};
use clawhost_tests::{Command, ProcessOutput, assert_matches_schema, schema};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http_grants::request_judge::HttpRequestJudge;

/// A plugin directory with one component and its transcripts.
struct PluginDir(TempDir);

impl PluginDir {
    fn new(component: &[u8], transcripts: &Value) -> PluginDir {
        let dir = PluginDir(TempDir::new().unwrap());
        std::fs::write(dir.component(), component).unwrap();
        std::fs::create_dir(dir.0.path().join("tests")).unwrap();
        dir.write_transcripts(transcripts);
        dir
    }

    fn write_transcripts(&self, transcripts: &Value) {
        let file = self.0.path().join("tests/goldens.json");
        std::fs::write(file, transcripts.to_string()).unwrap();
    }

    fn component(&self) -> PathBuf {
        self.0.path().join("plugin.wasm")
    }

    /// `clawhost plugin COMMAND`, with its JSON.
    fn plugin(&self, arguments: &[&str]) -> (ProcessOutput, Value) {
        let data = self.0.path().join("data");
        let more = ["--data", text(&data), "--json"];
        let output = Command::new(&[&["plugin"], arguments, &more].concat()).run();
        let printed = serde_json::from_str(&output.stdout).unwrap_or_default();
        (output, printed)
    }

    /// The errors that `clawhost plugin test` reports, one for each transcript; none for one that passes.
    fn run_tests(&self, more: &[&str]) -> Vec<Option<String>> {
        let component = self.component();
        let arguments = ["test", text(self.0.path()), "--component", text(&component)];
        let (output, report) = self.plugin(&[&arguments, more].concat());
        let results = report["transcripts"].as_array();
        let results = results.unwrap_or_else(|| panic!("{output:?}"));
        let failed = results.iter().filter(|one| one["ok"] == false).count();
        assert_eq!(output.code, Some(i32::from(failed > 0)), "{output:?}");
        let errors = results.iter().map(|one| one["error"].as_str());
        errors.map(|error| error.map(str::to_owned)).collect()
    }

    /// The only error.
    fn error(&self) -> String {
        let [error] = self.run_tests(&[]).try_into().unwrap();
        error.unwrap()
    }

    /// A file with this JSON.
    fn file(&self, name: &str, value: &Value) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, value.to_string()).unwrap();
        path
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn artifact(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins/artifacts");
    std::fs::read(folder.join(format!("{name}.wasm"))).unwrap()
}

fn turn() -> Value {
    json!({"reply": {"role": "assistant", "content": "7"}, "next_state": [{"role": "user", "content": "thanks"}]})
}

/// A request that the first-party judge with a model makes, and its answer.
fn vote(choices: &Value) -> Value {
    json!({"call": "model.complete", "answer": {"choices": choices},
        "request": {"model": "judge", "n": 3, "temperature": 0.7, "messages": [{"role": "system"}, {"role": "user"}]}})
}

#[test]
fn models_answer_what_the_transcript_says() {
    let dir = PluginDir::new(
        &artifact("judge-model"),
        &json!([
            {"turn": turn(), "exchanges": [vote(&json!(["1", "-1", "Score: 1."]))],
                "expect": {"reward": 1.0, "votes": [{"score": 1.0}, {"score": -1.0}, {"score": 1.0}]}},
            {"turn": turn(), "exchanges": [vote(&json!([{"message": {"role": "assistant", "content": "-1"}, "finish": "length"}]))],
                "expect": {"reward": -1.0}},
            {"turn": turn(), "exchanges": [{"call": "model.complete", "error": {"rejected": "too long"}}],
                "expect": {"error": "transient"}},
        ]),
    );
    assert_eq!(dir.run_tests(&[]), [None, None, None]);
}

#[test]
fn a_call_that_is_not_the_next_of_the_transcript_fails_it() {
    let with = |exchanges: Value| json!({"turn": turn(), "exchanges": exchanges, "expect": {}});
    let dir = PluginDir::new(&artifact("judge-model"), &with(json!([])));
    let cases = [
        // None is left for the call.
        (
            json!([]),
            ["the plugin calls model.complete", "0 exchanges"],
        ),
        // Another function is due.
        (
            json!([{"call": "http.send", "answer": {"status": 200}}, vote(&json!(["1"]))]),
            ["exchange 1", "is http.send"],
        ),
        // Another request is due.
        (
            json!([{"call": "model.complete", "request": {"n": 5}, "answer": {"choices": ["1"]}}]),
            ["request of exchange 1", "n is 3, expected is 5"],
        ),
        // One is left over.
        (
            json!([vote(&json!(["1"])), vote(&json!(["-1"]))]),
            ["1 of 2 exchanges", "did not take place"],
        ),
    ];
    for (exchanges, parts) in cases {
        dir.write_transcripts(&with(exchanges));
        let error = dir.error();
        for part in parts {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
    // A transcript that cannot be played is refused with its place.
    for (exchange, part) in [
        (
            json!({"call": "model.complete"}),
            "no \"answer\" and no \"error\"",
        ),
        (
            json!({"call": "model.ask", "error": "timeout"}),
            "model.ask",
        ),
        (
            json!({"call": "http.send", "error": "timeout", "reply": 1}),
            "reply",
        ),
    ] {
        dir.write_transcripts(&with(json!([exchange])));
        let component = dir.component();
        let (output, _) =
            dir.plugin(&["test", text(dir.0.path()), "--component", text(&component)]);
        assert_eq!(output.code, Some(1), "{output:?}");
        assert!(output.stderr.contains(part), "{part}: {output:?}");
    }
}

#[test]
fn http_answers_what_the_transcript_says_and_reaches_nothing() {
    // Nobody answers there, and no secret of this name is granted.
    let judge = HttpRequestJudge::to("https://api.example/v1")
        .method("POST")
        .with("Authorization", "Bearer {{secret:KEY}}")
        .body("{\"q\": [1, 2]}");
    let request = json!({"method": "POST", "url": "https://api.example/v1", "body": {"q": [1, 2]},
        "headers": {"authorization": "Bearer {{secret:KEY}}"}});
    let send = |answer: Value| {
        let mut exchange = json!({"call": "http.send", "request": request});
        exchange
            .as_object_mut()
            .unwrap()
            .extend(answer.as_object().unwrap().clone());
        exchange
    };
    let dir = PluginDir::new(
        &judge.wasm(),
        &json!([
            {"turn": turn(), "exchanges": [send(json!({"answer": {"status": 200, "body": "hello"}}))],
                "expect": {"reward": 1.0, "rationale": "hello"}},
            {"turn": turn(), "exchanges": [send(json!({"answer": {"status": 200, "body": {"a": 1}}}))],
                "expect": {"rationale": "{\"a\":1}"}},
            {"turn": turn(), "exchanges": [send(json!({"error": {"transport": "refused"}}))],
                "expect": {"error": "internal", "message": "refused"}},
            {"turn": turn(), "exchanges": [{"call": "http.send", "request": {"body": {"q": [2]}}, "error": "timeout"}],
                "expect": {}},
        ]),
    );
    let [hello, json, refused, other] = dir.run_tests(&[]).try_into().unwrap();
    assert_eq!([hello, json, refused], [None, None, None]);
    let other = other.unwrap();
    assert!(
        other.contains("body.q is [1,2], expected is [2]"),
        "{other}"
    );

    // What the host itself refuses is refused here too.
    let bad = HttpRequestJudge::to("https://api.example/").method("TRACE");
    let transcript = json!({"turn": turn(), "expect": {"error": "denied"},
        "exchanges": [{"call": "http.send", "answer": {"status": 200}}]});
    assert_eq!(
        PluginDir::new(&bad.wasm(), &transcript).run_tests(&[]),
        [None]
    );
}

/// Judges with 1 when its state has something under `key`, and then writes there.
fn remembers() -> Vec<u8> {
    const RESULT: u32 = 1024;
    let found = format!(
        "(call $get (i32.const 512) (i32.const 3) (i32.const {RESULT}))
         (if (i32.load8_u (i32.const {})) (then (f32.store (i32.const 4) (f32.const 1))))
         (call $put (i32.const 512) (i32.const 3) (i32.const 512) (i32.const 3) (i32.const 0) (i64.const 0) (i32.const 2048))",
        RESULT + 8
    );
    Guest::judge(&verdict("0.5", &found))
        .with_state()
        .data("key")
        .wasm()
}

#[test]
fn each_transcript_begins_with_the_state_that_it_says() {
    let empty = json!({"turn": turn(), "expect": {"reward": 0.5}});
    let filled = json!({"turn": turn(), "state": {"key": "seen"}, "expect": {"reward": 1.0}});
    let dir = PluginDir::new(&remembers(), &json!([empty, filled, empty]));
    assert_eq!(dir.run_tests(&[]), [None, None, None]);
}

#[test]
fn one_call_takes_its_answers_from_a_file_and_writes_those_of_real_models() {
    let dir = PluginDir::new(&artifact("judge-model"), &json!([]));
    let component = dir.component();
    let shown = dir.file("turn.json", &turn());
    let run = ["run", text(&component), "--turn", text(&shown)];

    let answers = dir.file("answers.json", &json!([vote(&json!(["1", "1", "-1"]))]));
    let (output, report) = dir.plugin(&[&run[..], &["--exchanges", text(&answers)]].concat());
    assert_eq!(output.code, Some(0), "{output:?}");
    assert_matches_schema(&schema("plugin-run"), &report, "run");
    assert_eq!(
        (&report["verdict"]["reward"], &report["mismatch"]),
        (&json!(1.0), &Value::Null)
    );
    assert_eq!(report["receipt"]["model_calls"], 1);

    let too_many = json!([vote(&json!(["1"])), vote(&json!(["1"]))]);
    let answers = dir.file("too-many.json", &too_many);
    let (output, report) = dir.plugin(&[&run[..], &["--exchanges", text(&answers)]].concat());
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(
        report["mismatch"]
            .as_str()
            .unwrap()
            .contains("did not take place"),
        "{report}"
    );

    // Without a script models are real, and have to be granted.
    assert_eq!(dir.plugin(&run).0.code, Some(1));
    let (granted, _) = dir.plugin(&["grant", text(&component), "model=judge"]);
    assert_eq!(granted.code, Some(0), "{granted:?}");
    let record = dir.0.path().join("record.json");
    let (output, real) = dir.plugin(&[&run[..], &["--record", text(&record)]].concat());
    assert!(
        output.code.is_some() && real["receipt"]["model_calls"] == 1,
        "{output:?}"
    );
    let written: Value = serde_json::from_str(&std::fs::read_to_string(&record).unwrap()).unwrap();
    assert_eq!(written.as_array().unwrap().len(), 1);
    assert_eq!(written[0]["request"]["model"], "judge");
    let (_, again) = dir.plugin(&[&run[..], &["--exchanges", text(&record)]].concat());
    for what in ["verdict", "fault", "mismatch"] {
        assert_eq!(again[what], real[what], "{again}");
    }
}

#[test]
fn a_plugin_folder_runs_on_its_first_transcript_with_what_that_says() {
    let transcript = json!({"turn": turn(), "state": {"key": "seen"}, "expect": {}});
    let dir = PluginDir::new(&remembers(), &transcript);
    let manifest = "[plugin]\nname = \"remembers\"\nkind = \"judge\"\nlanguage = \"c\"\ncomponent = \"plugin.wasm\"\n";
    std::fs::write(dir.0.path().join("plugin.toml"), manifest).unwrap();
    let output = Command::new(&["plugin", "run", "--json"])
        .in_directory(dir.0.path())
        .run();
    let report: Value =
        serde_json::from_str(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert_eq!(report["verdict"]["reward"], 1.0, "{report}");
}

#[test]
fn a_plugin_is_tested_with_its_configured_limits() {
    let judge = PluginDir::new(
        &artifact("judge-minimal"),
        &json!({"turn": turn(), "expect": {}}),
    );
    for (name, ends) in [("plugin", true), ("other", false)] {
        let config = judge.0.path().join("clawhost.toml");
        let limits = format!("[plugins.config.{name}.limits]\nfuel = 100\n");
        std::fs::write(&config, limits).unwrap();
        let set = format!("plugins.config.{name}.limits.fuel=100");
        for arguments in [["--config", text(&config)], ["--set", &set]] {
            let [error] = judge.run_tests(&arguments).try_into().unwrap();
            let spent = error
                .as_ref()
                .is_some_and(|error| error.contains("CPU limit exceeded"));
            assert_eq!(spent, ends, "{name}: {error:?}");
        }
    }
}
