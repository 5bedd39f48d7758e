//! The refusal prints a command; typed as it stands into a shell, it grants what was lacking.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clawhost_tests::{Command, Ended};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::errand::Errand;
use super::site::{Site, WELCOME};

/// A folder whose name a shell would take apart, with a component and a turn to judge.
struct Bench {
    dir: TempDir,
}

impl Bench {
    fn new(errand: &Errand) -> Bench {
        let bench = Bench {
            dir: TempDir::new().unwrap(),
        };
        std::fs::create_dir(bench.folder()).unwrap();
        std::fs::write(bench.file(), errand.wasm()).unwrap();
        let turn = json!({"reply": {"role": "assistant", "content": "7"},
            "next_state": [{"role": "user", "content": "thanks"}]});
        std::fs::write(bench.turn(), turn.to_string()).unwrap();
        bench
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

    /// `clawhost plugin run`, and what it printed.
    fn run(&self) -> (Ended, Value) {
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

/// The command that a refusal ends with.
fn printed(refused: &Ended) -> &str {
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let at = refused.stderr.find("clawhost plugin grant ");
    let at = at.unwrap_or_else(|| panic!("no command: {refused:?}"));
    refused.stderr[at..].trim_end()
}

/// Types a command line into a shell, in which `clawhost` is the real one.
fn type_in(line: &str) -> Ended {
    let dir = TempDir::new().unwrap();
    // The real one is this test's own executable, which is told its words as JSON; the shell takes the line apart.
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
fn what_the_refusal_prints_grants_what_the_manifest_wants_and_no_more() {
    let site = Site::on("127.0.0.1", "");
    let bench = Bench::new(&Errand::to(format!("{}/v1", site.origin())));
    bench.manifest(&format!("[wants]\nhttp = [\"{}\"]\n", site.origin()));
    let (refused, _) = bench.run();
    let command = printed(&refused);
    assert!(
        command.ends_with(&format!(
            " http={} --data '{}'",
            site.origin(),
            bench.data().display()
        )),
        "{command}"
    );
    assert!(site.seen().is_empty());

    let granted = type_in(command);
    assert_eq!(granted.code, Some(0), "{granted:?}");
    let (accepted, said) = bench.run();
    assert_eq!(accepted.code, Some(0), "{accepted:?}");
    assert_eq!(said["verdict"]["rationale"], WELCOME);
    assert_eq!(said["receipt"]["http_calls"], 1);
    assert_eq!(site.seen().len(), 1);
}

#[test]
fn without_a_manifest_the_command_has_a_place_to_fill_in_and_says_so() {
    let site = Site::on("127.0.0.1", "");
    let bench = Bench::new(&Errand::to(site.origin()));
    let (refused, _) = bench.run();
    let command = printed(&refused);
    assert!(refused.stderr.contains("in place of HOST"), "{refused:?}");
    assert!(command.contains(" http=https://HOST "), "{command}");
    // As it stands it grants nothing.
    let unfilled = type_in(command);
    assert_eq!(unfilled.code, Some(1), "{unfilled:?}");
    assert!(unfilled.stderr.contains("place to fill in"), "{unfilled:?}");
    let (refused, _) = bench.run();
    let filled = printed(&refused).replace("https://HOST", &site.origin());
    assert_eq!(type_in(&filled).code, Some(0));
    assert_eq!(bench.run().1["verdict"]["rationale"], WELCOME);
}

#[test]
fn a_manifest_narrows_what_was_granted_and_the_surplus_is_pointed_out() {
    let (site, other) = (Site::on("127.0.0.1", ""), Site::on("127.0.0.1", ""));
    // It says that it wants one place and goes to another.
    let bench = Bench::new(&Errand::to(other.origin()));
    bench.manifest(&format!("[wants]\nhttp = [\"{}\"]\n", site.origin()));
    let surplus = format!("http={}", other.origin());
    let granted = Command::new(&[
        "plugin",
        "grant",
        text(&bench.file()),
        &format!("http={}", site.origin()),
        &surplus,
        "--data",
        text(&bench.data()),
        "--json",
    ])
    .run();
    let told: Value = serde_json::from_str(&granted.stdout).unwrap();
    assert_eq!(told["unwanted"], json!([surplus]));
    assert_eq!(told["lacks"], json!([]));
    let (_, said) = bench.run();
    let fault = said["fault"]["kind"].to_string();
    assert!(
        fault.contains("denied") && fault.contains(&format!("{} is not granted", other.origin())),
        "{said}"
    );
    // So do its limits.
    bench.manifest("[limits]\nhttp_calls = 0\n");
    let (_, said) = bench.run();
    assert_eq!(said["fault"]["kind"]["fault"], "budget", "{said}");
    assert_eq!(said["fault"]["kind"]["what"], "http_calls");
    // Nobody was there; without a manifest it is what was granted that counts.
    assert!(site.seen().is_empty() && other.seen().is_empty());
    std::fs::remove_file(bench.folder().join("plugin.toml")).unwrap();
    assert_eq!(bench.run().1["verdict"]["rationale"], WELCOME);

    let listed = Command::new(&["plugin", "list", "--data", text(&bench.data()), "--json"]).run();
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(
        listed["grants"][0]["wants"],
        json!([format!("http={}", site.origin())])
    );
}

#[test]
fn a_bad_manifest_keeps_its_component_out_with_file_line_and_cure() {
    let bench = Bench::new(&Errand::to("https://api.example"));
    bench.manifest("[wants]\nhttp = [\"api.example\"]\n");
    let (refused, _) = bench.run();
    assert_eq!(refused.code, Some(1));
    for part in ["plugin.toml: line 2: ", "https://api.example"] {
        assert!(refused.stderr.contains(part), "{refused:?}");
    }
}

#[test]
fn every_command_that_loads_a_component_prints_it_with_the_grants_that_it_reads() {
    let bench = Bench::new(&Errand::to("https://api.example"));
    bench.manifest("[wants]\nhttp = [\"https://api.example\"]\n");
    let folder = bench.folder();
    let (config, tests) = (folder.join("claw.toml"), folder.join("tests"));
    let apart = bench.dir.path().join("apart.toml");
    std::fs::write(&config, format!("grants = {:?}\n", text(&apart))).unwrap();
    std::fs::create_dir(&tests).unwrap();
    // A name that begins with a hyphen is no flag.
    std::fs::copy(bench.file(), folder.join("-j.wasm")).unwrap();

    let refused = Command::new(&[
        "run",
        "--port",
        "0",
        "--data",
        "d",
        "--plugin",
        "fetches.wasm",
    ])
    .within(&folder)
    .run();
    assert_eq!(
        printed(&refused),
        "clawhost plugin grant fetches.wasm http=https://api.example --data d"
    );
    let refused = Command::new(&["replay", "--data", "d", "--plugin", "./fetches.wasm"])
        .within(&folder)
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
    .within(&folder)
    .run();
    assert_eq!(
        printed(&refused),
        format!(
            "clawhost plugin grant ./-j.wasm http=https://api.example --grants {}",
            apart.display()
        )
    );
    let told = Command::new(&["plugin", "bench", text(&bench.file())]).run();
    assert!(
        told.stderr.contains("a measurement grants nothing"),
        "{told:?}"
    );
}
