//! `clawhost eval personalize` over real servers: its JSON output, and invalid arguments.

use std::collections::BTreeSet;
use std::path::Path;

use clawhost_journal::Journal;
use clawhost_model::{Model, ModelFiles};
use clawhost_tests::{Command, ProcessOutput, assert_matches_schema, schema};
use serde_json::{Value, json};
use tempfile::TempDir;

fn personalize(dir: &TempDir, flags: &[&str]) -> ProcessOutput {
    let out = dir.path().join("report.html");
    let given = ["eval", "personalize", "--out", out.to_str().unwrap()];
    Command::new(&[&given, flags].concat()).run()
}

fn line(ended: &ProcessOutput) -> Value {
    serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap()
}

#[test]
fn short_run_prints_the_documented_json_and_keeps_its_data() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let flags = [
        "--seeds",
        "1",
        "--arms",
        "binary,control,memory",
        "--conversations",
        "4",
        "--concurrency",
        "2",
        "--probes",
        "1",
        "--fresh",
        "2",
        "--json",
        "--data",
        data.to_str().unwrap(),
    ];
    let ended = personalize(&dir, &flags);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let result = line(&ended);
    assert_matches_schema(&schema("eval-personalize"), &result, "personalize");
    assert_eq!(result["seeds"], 1);
    assert_eq!(result["failed"], json!([]));
    assert_eq!(result["conversations"], json!({"student": 4, "teacher": 4}));
    for arm in ["control", "binary", "memory"] {
        for persona in ["student", "teacher"] {
            let figures = &result["arms"][arm][persona];
            assert_eq!(figures["failed_requests"], 0, "{arm} {persona}");
            assert!(figures["first12"].is_number() && figures["last12"].is_number());
            assert!(figures["fresh"].is_number() && figures["prompt_tokens"][0].is_number());
            assert_eq!(figures["align"].as_array().unwrap().len(), 1);
            assert!(
                data.join(format!("{persona}-{arm}-1/journal.sqlite"))
                    .exists()
            );
        }
    }
    // With four conversations there is no figure at 36.
    assert_eq!(result["arms"]["control"]["student"]["at36"], Value::Null);
    let page = std::fs::read_to_string(dir.path().join("report.html")).unwrap();
    assert!(page.contains("<h1>Personalisation") && page.contains("<svg"));

    let again = personalize(&dir, &flags);
    assert_eq!(again.code, Some(1));
    assert!(again.stderr.contains("--data"), "{}", again.stderr);
}

/// Writes the embedded model as a model directory, which people with wishes talk to.
fn model(dir: &Path) {
    std::fs::create_dir(dir).unwrap();
    let files = ModelFiles::embedded();
    Model::load(&files).unwrap().save(dir).unwrap();
    files.save_tokenizer_and_templates(dir).unwrap();
}

/// The owners of the adapters in a data directory.
fn owners(data: &Path) -> BTreeSet<Option<String>> {
    let adapters = Journal::open_read_only(data).unwrap().adapters().unwrap();
    let owners = adapters.into_iter().map(|row| row.owner.map(String::from));
    owners.collect()
}

#[test]
fn two_people_on_one_server_train_an_adapter_each() {
    let dir = TempDir::new().unwrap();
    let (data, path) = (dir.path().join("data"), dir.path().join("model"));
    model(&path);
    let flags = [
        "--model",
        path.to_str().unwrap(),
        "--two-people",
        "--arms",
        "control,binary,one-adapter",
        "--seeds",
        "1",
        "--conversations",
        "6",
        "--probes",
        "1",
        "--fresh",
        "2",
        "--max-tokens",
        "24",
        "--set",
        "training.batch_size=2",
        "--set",
        "training.min_batch_size=2",
        "--json",
        "--data",
        data.to_str().unwrap(),
    ];
    let ended = personalize(&dir, &flags);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let result = line(&ended);
    assert_matches_schema(&schema("eval-personalize"), &result, "personalize");
    assert_eq!(result["failed"], json!([]));
    let people = ["short-of-two", "opposite-of-short"];
    for person in people {
        let of = |arm: &str, field: &str| result["arms"][arm][person][field].clone();
        for field in ["fresh", "fresh_base"] {
            assert!(of("binary", field).is_number(), "{person} {field}");
            assert!(of("one-adapter", field).is_number(), "{person} {field}");
        }
        assert!(of("binary", "fresh_other").is_number(), "{person}");
        assert_eq!(of("one-adapter", "fresh_other"), Value::Null);
        assert_eq!(of("control", "fresh_base"), Value::Null);
        for arm in ["control", "binary", "one-adapter"] {
            assert_eq!(of(arm, "failed_requests"), 0, "{arm} {person}");
        }
        assert!(of("binary", "steps")[0].as_u64().unwrap() > 0, "{person}");
    }
    let keys = people.map(|person| Some(format!("key:{person}")));
    let of_arm = |arm: &str| owners(&data.join(format!("short-of-two-{arm}-1")));
    assert_eq!(of_arm("binary"), BTreeSet::from(keys));
    assert_eq!(of_arm("one-adapter"), BTreeSet::from([None]));
}

#[test]
fn a_wish_that_is_taken_back_has_its_own_figures() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("model");
    model(&path);
    let flags = [
        "--model",
        path.to_str().unwrap(),
        "--take-back",
        "--arms",
        "control,configured",
        "--seeds",
        "1",
        "--probes",
        "0",
        "--fresh",
        "2",
        "--max-tokens",
        "16",
        "--json",
    ];
    let ended = personalize(&dir, &flags);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let result = line(&ended);
    assert_matches_schema(&schema("eval-personalize"), &result, "personalize");
    let person = &result["arms"]["configured"]["short-taken-back"];
    assert!(person["at24"].is_number() && person["last12"].is_number());
    assert_eq!(person["realign"].as_array().unwrap().len(), 1);
    let aims = result["aims"].as_array().unwrap();
    let latest = "configured follows the latest wish";
    let about_latest = |aim: &&Value| aim["aim"].as_str().unwrap().contains(latest);
    assert_eq!(aims.iter().filter(about_latest).count(), 1, "{aims:?}");
}

#[test]
fn missed_target_is_reported_and_fails_with_check() {
    let dir = TempDir::new().unwrap();
    let flags = [
        "--seeds",
        "1",
        "--arms",
        "hybrid",
        "--personas",
        "student",
        "--conversations",
        "2",
        "--probes",
        "0",
        "--fresh",
        "2",
    ];
    let output = personalize(&dir, &flags);
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.stdout.contains("MISSED"), "{}", output.stdout);
    let checked = personalize(&dir, &[&flags[..], &["--check"]].concat());
    assert_eq!(checked.code, Some(1), "{checked:?}");
}

#[test]
fn unknown_arguments_are_rejected_before_anything_starts() {
    let dir = TempDir::new().unwrap();
    let rows: [(&[&str], &[&str]); 5] = [
        (&["--arms", "grpo"], &["grpo", "hybrid-topk"]),
        (&["--personas", "pupil"], &["pupil", "teacher"]),
        (&["--seeds", "0"], &["1..=1000"]),
        (&["--arm", "opd"], &["'--arms"]),
        (&["--wish", "fame"], &["fame", "bullets"]),
    ];
    for (flags, named) in rows {
        let ended = personalize(&dir, flags);
        assert_eq!(ended.code, Some(2), "{flags:?}: {ended:?}");
        for word in named {
            assert!(ended.stderr.contains(word), "{flags:?}: {}", ended.stderr);
        }
    }
    let output = personalize(&dir, &["--wish", "short"]);
    assert_eq!(output.code, Some(1));
    assert!(output.stderr.contains("--model"), "{}", output.stderr);
    let output = personalize(&dir, &["--two-people"]);
    assert_eq!(output.code, Some(1));
    assert!(output.stderr.contains("--model"), "{}", output.stderr);
    let nowhere = [
        "eval",
        "personalize",
        "--out",
        "/nowhere-at-all/report.html",
    ];
    let ended = Command::new(&nowhere).run();
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("--out"), "{}", ended.stderr);
}
