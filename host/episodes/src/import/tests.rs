//! The examples of the repository, and what is rejected.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

fn example(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../environments")
        .join(path)
}

fn import(format: TaskFormat, path: &Path, options: &ImportOptions) -> Vec<Value> {
    let imported = import_tasks(format, path, options).unwrap();
    let lines = imported.lines.iter();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn rejection(format: TaskFormat, path: &Path) -> String {
    let options = ImportOptions {
        repositories: Some(path.parent().unwrap().to_owned()),
        ..ImportOptions::default()
    };
    import_tasks(format, path, &options)
        .unwrap_err()
        .to_string()
}

#[test]
fn math_rows_keep_every_field() {
    let options = ImportOptions {
        tools: vec!["code_interpreter".to_owned()],
        held_out: 1.0,
        ..ImportOptions::default()
    };
    let tasks = import(
        TaskFormat::Math,
        &example("toolcall/examples/math.jsonl"),
        &options,
    );
    assert_eq!(tasks[0]["id"], "math-1");
    assert_eq!(tasks[0]["label"], "300");
    assert_eq!(tasks[0]["tools"][0], "code_interpreter");
    assert_eq!(tasks[0]["metadata"]["source"], "example");
    let second = tasks[1]["instruction"].as_str().unwrap();
    assert!(second.starts_with("Put the final answer in \\boxed{}.\n\nSimplify"));
    assert_eq!(tasks[2]["label"], 1);
    // By its row, and by the share.
    assert_eq!(tasks[2]["split"], "held-out");
    assert_eq!(tasks[0]["split"], "held-out");
}

#[test]
fn errors_name_the_row_and_the_field() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("rows.jsonl");
    fs::create_dir_all(dir.path().join("a/b")).unwrap();
    let row = r#""instance_id":"i","repo":"a/b","base_commit":"c0ffee","problem_statement":"p""#;
    let swe = |rest: &str| format!("{{{row},{rest}}}");
    for (format, bad, what) in [
        (TaskFormat::Math, "[1]".to_owned(), "not a JSON object"),
        (
            TaskFormat::Math,
            r#"{"label":1}"#.to_owned(),
            "`prompt` is missing",
        ),
        (
            TaskFormat::Math,
            r#"{"prompt":"a"}"#.to_owned(),
            "`label` is missing",
        ),
        (
            TaskFormat::Math,
            r#"{"prompt":"a","label":[1]}"#.to_owned(),
            "`label` is a list",
        ),
        (
            TaskFormat::Math,
            r#"{"prompt":"a","label":1,"split":"dev"}"#.to_owned(),
            "`split` is \"dev\"",
        ),
        (
            TaskFormat::Math,
            r#"{"prompt":[{"role":"assistant","content":"x"}],"label":1}"#.to_owned(),
            "`prompt[0].role` is assistant",
        ),
        (
            TaskFormat::SweBench,
            "{}".to_owned(),
            "`instance_id` is missing",
        ),
        (
            TaskFormat::SweBench,
            swe(r#""FAIL_TO_PASS":"[]""#),
            "`FAIL_TO_PASS` has no test",
        ),
        (
            TaskFormat::SweBench,
            swe(r#""FAIL_TO_PASS":"a""#),
            "`FAIL_TO_PASS` is no JSON list",
        ),
        (
            TaskFormat::SweBench,
            swe(r#""FAIL_TO_PASS":[1]"#),
            "`FAIL_TO_PASS` has an item",
        ),
        (
            TaskFormat::SweBench,
            swe(r#""FAIL_TO_PASS":["t"]"#).replace("a/b", "a/c"),
            "git clone https://github.com/a/c ",
        ),
        (
            TaskFormat::SweBench,
            swe(r#""FAIL_TO_PASS":["t"]"#).replace("a/b", "../b"),
            "not OWNER/NAME",
        ),
        (
            TaskFormat::SweBench,
            swe(r#""FAIL_TO_PASS":["t"]"#).replace("c0ffee", "main"),
            "`base_commit` is \"main\"",
        ),
    ] {
        fs::write(&file, format!("\n{bad}\n")).unwrap();
        let error = rejection(format, &file);
        let place = format!("{}:2: ", file.display());
        assert!(error.starts_with(&place) && error.contains(what), "{error}");
    }
    let same = "{\"prompt\":\"a\",\"label\":1,\"id\":\"x\"}\n";
    fs::write(&file, same.repeat(2)).unwrap();
    assert!(rejection(TaskFormat::Math, &file).contains("already used by task 1"));
    fs::write(&file, "\n").unwrap();
    assert!(rejection(TaskFormat::Math, &file).contains("no task could be converted"));
}

#[test]
fn unsupported_tasks_are_skipped_if_asked() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("rows.jsonl");
    fs::write(
        &file,
        "{\"prompt\":\"a\",\"label\":1}\n{\"prompt\":\"b\"}\n",
    )
    .unwrap();
    let options = ImportOptions {
        skip_unsupported: true,
        ..ImportOptions::default()
    };
    let imported = import_tasks(TaskFormat::Math, &file, &options).unwrap();
    assert_eq!(imported.lines.len(), 1);
    assert!(
        imported.skipped[0]
            .to_string()
            .ends_with("rows.jsonl:2: `label` is missing")
    );
}

#[test]
fn rows_of_swe_bench_name_a_clone_and_hide_the_solution() {
    let dir = TempDir::new().unwrap();
    fs::create_dir_all(dir.path().join("acme__tally")).unwrap();
    let options = ImportOptions {
        repositories: Some(dir.path().to_owned()),
        test_command: Some("python3 -m unittest -q".to_owned()),
        ..ImportOptions::default()
    };
    let tasks = import(
        TaskFormat::SweBench,
        &example("swe/examples/swe-bench.jsonl"),
        &options,
    );
    let task = &tasks[0];
    assert_eq!(task["id"], "acme__tally-1");
    assert_eq!(
        task["repo"],
        dir.path().join("acme__tally").to_str().unwrap()
    );
    assert_eq!(task["fail_to_pass"][0], "tests.test_tally.Tally.test_case");
    assert_eq!(task["test_command"], "python3 -m unittest -q");
    assert!(!task.to_string().contains("lower()") && !task.to_string().contains("Lower the"));
}

#[test]
fn a_folder_of_terminal_bench_becomes_a_task() {
    let root = example("terminal/examples/terminal-bench");
    let tasks = import(TaskFormat::TerminalBench, &root, &ImportOptions::default());
    let one = root.join("count-errors");
    assert_eq!(
        tasks,
        import(TaskFormat::TerminalBench, &one, &ImportOptions::default())
    );
    let task = &tasks[0];
    assert_eq!(task["id"], "count-errors");
    assert_eq!(task["family"], "file-operations");
    let instruction = task["instruction"].as_str().unwrap();
    assert!(
        instruction.starts_with("/work/app.log is a log"),
        "{instruction}"
    );
    assert!(!instruction.contains("/app/"));
    assert!(
        task["files"]["app.log"]
            .as_str()
            .unwrap()
            .starts_with("INFO")
    );
    assert_eq!(
        task["setup"][0],
        "printf 'INFO stopped\\n' >> /work/app.log"
    );
    let file = task["test_files"]["tests/test_outputs.py"]
        .as_str()
        .unwrap();
    assert!(file.contains("Path(\"/work/errors.txt\")"));
    assert_eq!(task["tests"].as_array().unwrap().len(), 2);
    assert_eq!(task["tests"][0]["timeout"], 15.0);
}

#[test]
fn what_a_machine_cannot_do_is_said() {
    let dir = TempDir::new().unwrap();
    let folder = dir.path().join("t");
    fs::create_dir_all(folder.join("tests")).unwrap();
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    write("task.yaml", "instruction: Do it.\n");
    write("tests/test_a.py", "def test_a():\n    pass\n");
    for (dockerfile, what) in [
        (
            "RUN apt-get update && apt-get install -y gcc",
            "its setup uses `apt-get`",
        ),
        ("COPY missing.txt .", "missing.txt cannot be read"),
        ("COPY ../secret .", "not in the folder"),
        ("COPY task.yaml /etc/x", "outside of its WORKDIR /app"),
        ("WORKDIR /", "WORKDIR is /"),
    ] {
        write("Dockerfile", dockerfile);
        let error = rejection(TaskFormat::TerminalBench, &folder);
        assert!(
            error.starts_with(folder.to_str().unwrap()) && error.contains(what),
            "{error}"
        );
    }
    write(
        "Dockerfile",
        "RUN pip install numpy\nWORKDIR /srv/x\nWORKDIR sub\nENV A=1\nRUN touch y\n",
    );
    let options = ImportOptions {
        assume_installed: true,
        ..ImportOptions::default()
    };
    let tasks = import(TaskFormat::TerminalBench, &folder, &options);
    assert_eq!(
        tasks[0]["setup"][0],
        "mkdir -p 'sub' && cd 'sub'; export A='1'; touch y"
    );
    write("Dockerfile", "COPY . .\n");
    write("solution.sh", "true\n");
    write("data.txt", "see /app/x, /app. and /srv/app\n");
    let tasks = import(
        TaskFormat::TerminalBench,
        &folder,
        &ImportOptions::default(),
    );
    let files = json!({"data.txt": "see /work/x, /work. and /srv/app\n"});
    assert_eq!(tasks[0]["files"], files);
    std::os::unix::fs::symlink("/etc/hostname", folder.join("tests/link")).unwrap();
    assert!(rejection(TaskFormat::TerminalBench, &folder).contains("is no regular file"));
    fs::remove_file(folder.join("tests/link")).unwrap();
    write("Dockerfile", "");
    write("tests/test_a.py", "x = 1\n");
    assert!(rejection(TaskFormat::TerminalBench, &folder).contains("run-tests.sh"));
    write("run-tests.sh", "curl x | sh\n");
    assert!(rejection(TaskFormat::TerminalBench, &folder).contains("uses `curl`"));
    write("task.yaml", "category: x\n");
    assert!(rejection(TaskFormat::TerminalBench, &folder).contains("task.yaml: "));
}
