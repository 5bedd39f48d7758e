//! The command line: help with examples, and one-line errors that name the fix.

use std::net::TcpListener;
use std::path::Path;

use clawhost::config::Config;
use clawhost_journal::Journal;
use clawhost_tests::{Command, ProcessOutput};
use tempfile::TempDir;

fn clawhost(arguments: &[&str]) -> ProcessOutput {
    Command::new(arguments).run()
}

/// Command names under `Commands:` in a help text.
fn commands(help: &str) -> Vec<String> {
    help.lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| line.starts_with("  "))
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

/// Checks the help of a command and its subcommands; returns how many there are.
fn assert_help_has_example(path: &[&str]) -> usize {
    let ended = clawhost(&[path, &["--help"]].concat());
    assert_eq!(ended.code, Some(0), "{path:?}: {ended:?}");
    assert!(
        ended.stdout.contains("Example"),
        "{path:?}: {}",
        ended.stdout
    );
    assert_eq!(ended.stderr, "");
    let below = commands(&ended.stdout);
    let counts = below
        .iter()
        .map(|name| assert_help_has_example(&[path, &[name]].concat()));
    1 + counts.sum::<usize>()
}

#[test]
fn help_of_every_command_has_an_example() {
    let count = assert_help_has_example(&[]);
    assert!(count >= 10, "only {count} commands were found");
}

#[test]
fn wrong_usage_exits_with_code_2_and_names_the_fix() {
    let rows: [(&[&str], &[&str]); 13] = [
        (
            &["run", "--prot", "1"],
            &["unexpected argument '--prot'", "'--port'"],
        ),
        (&["run", "extra"], &["Usage: clawhost run", "'extra'"]),
        (
            &["run", "--port"],
            &["a value is required for '--port <PORT>'"],
        ),
        (
            &["run", "--port", "seventy"],
            &["seventy", "'--port <PORT>'"],
        ),
        (&["run", "--port", "70000"], &["65535"]),
        (&["run", "--port", "1", "--port", "2"], &["multiple times"]),
        (&["run", "--no-train=yes"], &["'yes'", "--no-train"]),
        (&["rum"], &["'rum'", "'run'"]),
        (&["explain"], &["<TURN>"]),
        (&["bench"], &["Usage: clawhost bench", "soak"]),
        (&["bench", "serv"], &["'serve'"]),
        (&["bench", "serve", "--rounds", "0"], &["1..=1000"]),
        (&[], &["Usage: clawhost", "explain"]),
    ];
    for (arguments, named) in rows {
        let ended = clawhost(arguments);
        assert_eq!(ended.code, Some(2), "{arguments:?}: {ended:?}");
        let stderr = &ended.stderr;
        for part in named {
            assert!(
                stderr.contains(part),
                "{arguments:?} does not say {part}: {stderr}"
            );
        }
        assert!(stderr.contains("--help"), "{arguments:?}: {stderr}");
        assert_eq!(ended.stdout, "");
    }
}

/// Runs a command that must fail with a one-line error that contains all of `parts`.
fn assert_fails(within: &Path, arguments: &[&str], parts: &[&str]) {
    let ended = Command::new(arguments).in_directory(within).run();
    let stderr = ended.stderr.trim_end();
    assert_eq!(ended.code, Some(1), "{arguments:?}: {ended:?}");
    assert!(stderr.starts_with("clawhost: "), "{arguments:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
    for part in parts {
        assert!(
            stderr.contains(part),
            "{arguments:?} does not say {part}: {stderr}"
        );
    }
    for internal in ["panicked", "Os {", "RUST_BACKTRACE", "Error("] {
        assert!(!stderr.contains(internal), "{arguments:?}: {stderr}");
    }
    assert_eq!(ended.stdout, "");
}

#[test]
fn errors_name_the_problem_and_the_fix() {
    let dir = TempDir::new().unwrap();
    let within = dir.path();
    std::fs::create_dir(within.join("empty")).unwrap();
    std::fs::write(within.join("notes.txt"), "hello").unwrap();
    std::fs::write(within.join("core.wasm"), b"\0asm\x01\0\0\0").unwrap();
    assert_fails(
        within,
        &["run", "--port", "0", "--model", "nowhere"],
        &["--model nowhere", "config.json"],
    );
    assert_fails(
        within,
        &["run", "--port", "0", "--model", "empty"],
        &["empty", "config.json"],
    );
    for arguments in [
        &["run", "--port", "0", "--device", "cuda:99"][..],
        &["demo", "--device", "cuda:99"],
    ] {
        assert_fails(
            within,
            arguments,
            &["engine.device = \"cuda:99\"", "engine.device = \"cpu\""],
        );
    }
    assert_fails(
        within,
        &[
            "run",
            "--port",
            "0",
            "--set",
            "engine.kv_cache_memory=900TiB",
        ],
        &["does not fit", "engine.kv_cache_memory = \"900TiB\""],
    );
    assert_fails(
        within,
        &["run", "--port", "0", "--adapter", "empty"],
        &["--adapter empty", "adapter_config.json"],
    );
    assert_fails(
        within,
        &["run", "--port", "0", "--plugin", "judge.wasm"],
        &["judge.wasm", ".wasm component"],
    );
    assert_fails(
        within,
        &["run", "--port", "0", "--plugin", "notes.txt"],
        &["--plugin notes.txt", "not WebAssembly", "component"],
    );
    assert_fails(
        within,
        &["run", "--port", "0", "--plugin", "core.wasm"],
        &[
            "--plugin core.wasm",
            "core module",
            "wasm-tools component new",
        ],
    );
    assert_fails(
        within,
        &["plugin", "inspect", "notes.txt"],
        &["notes.txt", "not WebAssembly"],
    );
    assert_fails(
        within,
        &["run", "--config", "clawhost.toml"],
        &["cannot read", "clawhost.toml"],
    );
    assert_fails(
        within,
        &["run", "--port", "0", "--host", "0.0.0.0"],
        &["key"],
    );
    assert_fails(
        within,
        &[
            "run",
            "--port",
            "0",
            "--host",
            "0.0.0.0",
            "--api-key",
            "hunter2",
        ],
        &["`command-line`", "16 characters", "openssl rand"],
    );
    assert_fails(
        within,
        &[
            "run",
            "--port",
            "0",
            "--tls-cert",
            "gone.pem",
            "--tls-key",
            "gone.pem",
        ],
        &["cannot read the TLS certificate gone.pem"],
    );
    assert_fails(
        within,
        &["run", "--port", "0", "--tls-cert", "gone.pem"],
        &["server.tls_cert", "--tls-key"],
    );
    for command in ["status", "export", "explain", "replay"] {
        let mut arguments = vec![command];
        if command == "explain" {
            arguments.push("1");
        }
        assert_fails(
            within,
            &[&arguments[..], &["--data", "nowhere"]].concat(),
            &["nowhere"],
        );
    }
}

#[test]
fn doctor_says_whether_the_model_would_start() {
    let doctor = |arguments: &[&str]| {
        let ended = clawhost(&[&["doctor", "--json"], arguments].concat());
        let value: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        (ended.code, value)
    };
    let (code, value) = doctor(&["--device", "cpu", "--set", "engine.kv_cache_memory=16MiB"]);
    assert_eq!((code, &value["starts"]), (Some(0), &true.into()), "{value}");
    assert_eq!(value["device"]["device"], "cpu");
    assert!(value["plan"]["total"].as_u64().unwrap() > 16 << 20);
    assert!(value["processors"]["usable_threads"].as_u64().unwrap() > 0);
    let (code, value) = doctor(&["--device", "cuda:99"]);
    assert_eq!((code, &value["starts"]), (Some(1), &false.into()));
    assert!(value["problems"][0].as_str().unwrap().contains("cuda:99"));
}

#[test]
fn unknown_config_key_is_reported_with_line_and_suggestion() {
    let dir = TempDir::new().unwrap();
    std::fs::write(
        dir.path().join("clawhost.toml"),
        "[training]\nbatch_size = 4\n[training.optimizer]\nlearning_rat = 1.0\n",
    )
    .unwrap();
    for arguments in [
        &["run", "--config", "clawhost.toml"][..],
        &["config", "--config", "clawhost.toml"],
    ] {
        assert_fails(
            dir.path(),
            arguments,
            &[
                "clawhost.toml",
                "line 4",
                "learning_rat",
                "did you mean `learning_rate`",
            ],
        );
    }
    std::fs::write(
        dir.path().join("clawhost.toml"),
        "[training]\nbatch_size = 4\nmin_batch_size = 5\n",
    )
    .unwrap();
    assert_fails(
        dir.path(),
        &["run", "--config", "clawhost.toml"],
        &["training.min_batch_size = 5"],
    );
}

#[test]
fn port_and_data_directory_in_use_are_reported() {
    let dir = TempDir::new().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    assert_fails(
        dir.path(),
        &["run", "--port", &port],
        &[&format!("127.0.0.1:{port}"), "--port"],
    );
    let data = dir.path().join("data");
    let held = Journal::open(&data).unwrap();
    assert_fails(
        dir.path(),
        &["run", "--port", "0", "--data", "data"],
        &["data", "another"],
    );
    drop(held);
}

#[test]
fn bench_serve_reports_every_figure_with_median_and_spread() {
    let ended = clawhost(&["bench", "serve", "--rounds", "1", "--json"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    let figures = report["figures"].as_array().unwrap();
    for streams in ["1 stream", "4 streams", "16 streams"] {
        for (what, unit) in [
            ("decode", "tokens/s"),
            ("first token after a prompt of 128", "ms"),
            ("first token over HTTP", "ms"),
            ("first token over HTTP, share of a reply of 200 tokens", "%"),
        ] {
            let name = format!("{what}, {streams}");
            let found = figures
                .iter()
                .find(|figure| figure["name"] == name.as_str());
            let figure = found.unwrap_or_else(|| panic!("no {name}: {report}"));
            assert_eq!(figure["unit"], unit);
            let number = |key: &str| figure[key].as_f64().unwrap();
            assert!(number("low") > 0.0 && number("low") <= number("median"));
            assert!(number("median") <= number("high"));
        }
    }
}

#[test]
fn printed_configuration_parses_again() {
    let dir = TempDir::new().unwrap();
    let printed = Command::new(&["config"]).in_directory(dir.path()).run();
    assert_eq!(printed.code, Some(0), "{printed:?}");
    Config::parse(&printed.stdout).unwrap();
    std::fs::write(dir.path().join("clawhost.toml"), &printed.stdout).unwrap();
    let again = Command::new(&["config", "--config", "clawhost.toml"])
        .in_directory(dir.path())
        .run();
    assert_eq!(again.stdout, printed.stdout);
}

#[test]
fn secrets_are_not_printed() {
    let dir = TempDir::new().unwrap();
    std::fs::write(
        dir.path().join("clawhost.toml"),
        "[[api_keys]]\nname = \"mine\"\nsecret = \"hunter2hunter2\"\n",
    )
    .unwrap();
    let printed = Command::new(&["config", "--config", "clawhost.toml"])
        .in_directory(dir.path())
        .run();
    assert_eq!(printed.code, Some(0), "{printed:?}");
    assert!(printed.stdout.contains("mine"));
    assert!(!format!("{printed:?}").contains("hunter2"));
}
