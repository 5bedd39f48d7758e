//! The program compiles plugins in a process of its own, under limits, and keeps the code.
//!
//! These tests stand here because the tests of a package are told where its program is.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may fail by panicking"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use clawhost_plugins::{
    CallContext, CompileLimits, CompileResource, CompilerCommand, Grants, HostOptions, Judged,
    Message, Plugin, PluginError, PluginHost, Profile, Role, Trajectory, Turn, digest, embedded,
};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_clawhost");

fn component() -> &'static [u8] {
    embedded("judge-minimal").unwrap()
}

fn options(compiling: CompileLimits) -> HostOptions {
    HostOptions {
        threads: 1,
        instances: 4,
        compiler: Some(CompilerCommand::new(PROGRAM, ["compile-component"])),
        compiling,
        ..HostOptions::default()
    }
}

/// A host that has the program compile.
fn apart(compiling: CompileLimits) -> PluginHost {
    PluginHost::new(options(compiling)).unwrap()
}

/// A host that compiles in this process.
fn within() -> PluginHost {
    PluginHost::new(HostOptions {
        compiler: None,
        ..options(CompileLimits::default())
    })
    .unwrap()
}

fn load(host: &PluginHost, bytes: &[u8]) -> Result<Plugin, PluginError> {
    host.load("it", bytes, &Grants::default(), Profile::default())
}

async fn judge(plugin: &Plugin) -> Judged {
    let mut trajectory = Trajectory::new("session", "group");
    trajectory.turns.push(Turn {
        index: 0,
        prompt: vec![Message::text(Role::User, "What is 12 - 5?")],
        response: Message::text(Role::Assistant, "It is seven"),
        next_state: vec![Message::text(Role::User, "thanks")],
        truncated: false,
    });
    let call = CallContext {
        seed: 7,
        settings: BTreeMap::new(),
        ..CallContext::default()
    };
    plugin.score_turn(call, &trajectory, 0).await
}

/// A valid component of 100,000 functions that say little each and much together.
static BOMB: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut functions = String::new();
    for n in 0..100_000 {
        write!(
            functions,
            "(func (param i32 i32) (result i32)
               (if (result i32) (local.get 0)
                 (then (i32.mul (i32.add (local.get 0) (i32.const {n})) (local.get 1)))
                 (else (i32.rem_u (local.get 1) (i32.const {})))))",
            n + 1
        )
        .unwrap();
    }
    wat::parse_str(format!("(component (core module {functions}))")).unwrap()
});

#[tokio::test]
async fn a_component_that_was_compiled_apart_judges_as_one_that_was_compiled_here() {
    let there = load(&apart(CompileLimits::default()), component()).unwrap();
    let here = load(&within(), component()).unwrap();
    let (there, here) = (judge(&there).await, judge(&here).await);
    assert!(there.outcome.is_ok(), "{there:?}");
    assert_eq!(there.outcome, here.outcome);
    assert_eq!(there.receipt.fuel, here.receipt.fuel);
}

#[test]
fn code_that_was_compiled_apart_is_kept_for_all_who_run_this_version() {
    let dir = TempDir::new().unwrap();
    let keeping = |options: HostOptions| {
        let cache = Some(dir.path().join("compiled"));
        PluginHost::new(HostOptions { cache, ..options }).unwrap()
    };
    let there = options(CompileLimits::default());
    let here = HostOptions {
        compiler: None,
        pooling: false,
        ..there.clone()
    };
    assert!(!load(&keeping(there), component()).unwrap().was_cached());
    assert!(load(&keeping(here), component()).unwrap().was_cached());
}

#[test]
fn what_is_wrong_with_a_component_is_told_in_the_same_words() {
    let told = |bytes: &[u8]| {
        let errors = [apart(CompileLimits::default()), within()].map(|host| {
            let error = load(&host, bytes).unwrap_err();
            assert!(matches!(error, PluginError::Invalid(_)), "{error}");
            error
        });
        assert_eq!(errors[0], errors[1]);
        errors[0].to_string()
    };
    let wrong = wat::parse_str("(component (core module (func (result i32))))").unwrap();
    assert!(told(&wrong).contains("type mismatch"));
    let doubled = wat::parse_str(
        "(component (core module (func) (export \"\\1b[31m\\n\" (func 0)) (export \"\\1b[31m\\n\" (func 0))))",
    );
    assert!(!told(&doubled.unwrap()).contains(['\x1b', '\n']));
}

#[tokio::test]
async fn a_component_that_is_too_expensive_is_refused_by_the_limit_that_it_met() {
    let limits = CompileLimits::default();
    let (memory, cpu, wall, code) = (
        CompileResource::MemoryBytes,
        CompileResource::CpuSeconds,
        CompileResource::WallMs,
        CompileResource::CodeBytes,
    );
    let cases = [
        (
            cpu,
            1,
            CompileLimits {
                cpu_seconds: 1,
                ..limits
            },
        ),
        (
            wall,
            300,
            CompileLimits {
                wall_ms: 300,
                ..limits
            },
        ),
        // Hardly enough to begin at all.
        (
            memory,
            64 << 20,
            CompileLimits {
                memory_bytes: 64 << 20,
                ..limits
            },
        ),
    ];
    for (resource, limit, compiling) in cases {
        let host = apart(compiling);
        let error = load(&host, &BOMB).unwrap_err();
        assert_eq!(error, PluginError::CompilerLimit { resource, limit });
        let key = format!("plugin_host.compiling.{}", resource.key());
        assert!(error.to_string().contains(&key), "{error}");
    }
    // Enough for a small component and not for this one, in the same host.
    let limit = 300 << 20;
    let host = apart(CompileLimits {
        memory_bytes: limit,
        ..limits
    });
    let error = load(&host, &BOMB).unwrap_err();
    let resource = memory;
    assert_eq!(error, PluginError::CompilerLimit { resource, limit });
    let good = load(&host, component()).unwrap();
    assert!(judge(&good).await.outcome.is_ok());

    let tight = apart(CompileLimits {
        code_bytes: 1000,
        ..limits
    });
    let error = load(&tight, component()).unwrap_err();
    assert_eq!(
        error,
        PluginError::CompilerLimit {
            resource: code,
            limit: 1000
        }
    );
}

#[test]
fn the_compiler_limits_itself_before_it_reads_the_component() {
    let mut child = Command::new(PROGRAM)
        .arg("compile-component")
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let order =
        "{\"profile\":\"fast\",\"limits\":{\"cpu_seconds\":7,\"memory_bytes\":3000000000}}\n";
    stdin.write_all(order.as_bytes()).unwrap();
    let limits = format!("/proc/{}/limits", child.id());
    // The last one that is set.
    let (place, since) = (Path::new(&limits), Instant::now());
    let set = loop {
        let limits = fs::read_to_string(place).unwrap();
        if limit_in(&limits, "Max address space") == "3000000000 3000000000" {
            break limits;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "{limits}");
        std::thread::yield_now();
    };
    assert_eq!(limit_in(&set, "Max cpu time"), "7 9");
    assert_eq!(limit_in(&set, "Max core file size"), "0 0");
    assert_eq!(limit_in(&set, "Max file size"), "0 0");
    assert_eq!(limit_in(&set, "Max open files"), "32 32");
    // Nothing more comes, which is no component.
    drop(stdin);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(10), "{ended:?}");
    assert!(ended.stdout.is_empty());
    assert_eq!(
        ended.stderr.iter().filter(|byte| **byte == b'\n').count(),
        1
    );
}

/// Soft and hard limit, as `/proc` shows them.
fn limit_in(limits: &str, name: &str) -> String {
    let line = limits.lines().find_map(|line| line.strip_prefix(name));
    let words: Vec<&str> = line.unwrap().split_whitespace().take(2).collect();
    words.join(" ")
}

/// Runs the program with only these variables in its environment.
fn clawhost(arguments: &[&str], environment: &[(&str, &Path)]) -> Output {
    Command::new(PROGRAM)
        .args(arguments)
        .env_clear()
        .env("CLAWHOST_LOG", "warn,clawhost_plugins=debug")
        .envs(environment.iter().copied())
        .output()
        .unwrap()
}

/// Exit code 0, and whether the code of [`component`] was compiled or taken from the cache.
fn was_cached(ended: &Output) -> bool {
    let said = String::from_utf8(ended.stderr.clone()).unwrap();
    assert!(ended.status.success(), "{said}");
    let told = |word: &str| said.contains(&format!("{word} {}", digest(component())));
    assert_ne!(told("compiled"), told("took"), "{said}");
    told("took")
}

#[test]
fn the_second_command_takes_the_code_that_the_first_one_left() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("judge.wasm");
    fs::write(&file, component()).unwrap();
    let turn = dir.path().join("turn.json");
    fs::write(
        &turn,
        r#"{"reply": {"role": "assistant", "content": "one two three"}}"#,
    )
    .unwrap();
    let (file, turn) = (file.to_str().unwrap(), turn.to_str().unwrap());
    let data = dir.path().join("data");
    let run = [
        "plugin",
        "run",
        file,
        "--turn",
        turn,
        "--data",
        data.to_str().unwrap(),
        "--json",
    ];
    let inspect = ["plugin", "inspect", file, "--json"];

    let off = [("CLAWHOST_CACHE", Path::new("off")), ("HOME", dir.path())];
    let bare = clawhost(&inspect, &off);
    assert!(!was_cached(&bare));
    assert!(!was_cached(&clawhost(&inspect, &off)));
    assert!(!dir.path().join(".cache").exists());

    let home = [("HOME", dir.path())];
    let first = clawhost(&inspect, &home);
    assert!(!was_cached(&first));
    let second = clawhost(&inspect, &home);
    assert!(was_cached(&second));
    assert_eq!(first.stdout, second.stdout);
    assert_eq!(bare.stdout, second.stdout);
    let compiled = dir.path().join(".cache/clawhost/compiled");
    assert_eq!(
        fs::metadata(&compiled).unwrap().permissions().mode() & 0o777,
        0o700
    );

    // Other commands share it.
    let ran = clawhost(&run, &home);
    assert!(was_cached(&ran));
    let said: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(said["verdict"]["rationale"], "3 words");

    // A directory that others can write to is told once for each command, and nothing fails.
    fs::set_permissions(&compiled, fs::Permissions::from_mode(0o777)).unwrap();
    let warned = clawhost(&inspect, &home);
    assert!(!was_cached(&warned));
    let told = String::from_utf8(warned.stderr).unwrap();
    assert!(told.contains("its mode is 777"), "{told}");
    assert!(told.contains("chmod 700"), "{told}");
    let named = dir.path().join("named");
    let named = [("CLAWHOST_CACHE", named.as_path()), ("HOME", dir.path())];
    assert!(!was_cached(&clawhost(&inspect, &named)));
    assert!(was_cached(&clawhost(&inspect, &named)));
}
