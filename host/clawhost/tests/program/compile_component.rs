//! The program compiles plugins in a limited subprocess and caches the code.
//!
//! These tests are in this package because cargo tells only its tests the path of the program.

#![cfg(target_os = "linux")]

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
    CallContext, CompileLimits, CompileResource, CompilerCommand, Grants, HostOptions, JudgeResult,
    Message, Plugin, PluginError, PluginHost, PluginHostConfig, Profile, Role, Trajectory, Turn,
    digest, embedded_component,
};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_clawhost");

fn component() -> &'static [u8] {
    embedded_component("judge-minimal").unwrap()
}

fn options(compiling: CompileLimits) -> HostOptions {
    HostOptions {
        config: PluginHostConfig {
            num_threads: 1,
            max_instances: 4,
            compiling,
            ..PluginHostConfig::default()
        },
        compiler: Some(CompilerCommand::new(PROGRAM, ["compile-component"])),
        ..HostOptions::default()
    }
}

/// A host that compiles in a subprocess of the program.
fn subprocess_host(compiling: CompileLimits) -> PluginHost {
    PluginHost::new(options(compiling)).unwrap()
}

/// A host that compiles in this process.
fn in_process_host() -> PluginHost {
    PluginHost::new(HostOptions {
        compiler: None,
        ..options(CompileLimits::default())
    })
    .unwrap()
}

fn load(host: &PluginHost, bytes: &[u8]) -> Result<Plugin, PluginError> {
    host.load("it", bytes, &Grants::default(), Profile::default())
}

async fn judge(plugin: &Plugin) -> JudgeResult {
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

/// A valid component of 100,000 small functions, expensive to compile.
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
async fn components_compiled_in_a_subprocess_and_in_process_behave_the_same() {
    let subprocess = load(&subprocess_host(CompileLimits::default()), component()).unwrap();
    let in_process = load(&in_process_host(), component()).unwrap();
    let (subprocess, in_process) = (judge(&subprocess).await, judge(&in_process).await);
    assert!(subprocess.outcome.is_ok(), "{subprocess:?}");
    assert_eq!(subprocess.outcome, in_process.outcome);
    assert_eq!(subprocess.receipt.fuel, in_process.receipt.fuel);
}

#[test]
fn code_compiled_in_a_subprocess_is_cached_for_in_process_hosts() {
    let dir = TempDir::new().unwrap();
    let cached_host = |options: HostOptions| {
        let cache = Some(dir.path().join("compiled"));
        PluginHost::new(HostOptions { cache, ..options }).unwrap()
    };
    let subprocess = options(CompileLimits::default());
    let in_process = HostOptions {
        compiler: None,
        pooling: false,
        ..subprocess.clone()
    };
    assert!(
        !load(&cached_host(subprocess), component())
            .unwrap()
            .was_cached()
    );
    assert!(
        load(&cached_host(in_process), component())
            .unwrap()
            .was_cached()
    );
}

#[test]
fn errors_of_subprocess_and_in_process_compilers_are_the_same() {
    let message = |bytes: &[u8]| {
        let errors = [subprocess_host(CompileLimits::default()), in_process_host()].map(|host| {
            let error = load(&host, bytes).unwrap_err();
            assert!(matches!(error, PluginError::Invalid(_)), "{error}");
            error
        });
        assert_eq!(errors[0], errors[1]);
        errors[0].to_string()
    };
    let wrong = wat::parse_str("(component (core module (func (result i32))))").unwrap();
    assert!(message(&wrong).contains("type mismatch"));
    let doubled = wat::parse_str(
        "(component (core module (func) (export \"\\1b[31m\\n\" (func 0)) (export \"\\1b[31m\\n\" (func 0))))",
    );
    assert!(!message(&doubled.unwrap()).contains(['\x1b', '\n']));
}

#[tokio::test]
async fn an_expensive_component_is_rejected_with_the_exceeded_limit() {
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
                cpu_time: Duration::from_secs(1),
                ..limits
            },
        ),
        (
            wall,
            300,
            CompileLimits {
                wall_time: Duration::from_millis(300),
                ..limits
            },
        ),
        // Hardly enough to start.
        (
            memory,
            64 << 20,
            CompileLimits {
                memory: 64 << 20,
                ..limits
            },
        ),
    ];
    for (resource, limit, compiling) in cases {
        let host = subprocess_host(compiling);
        let error = load(&host, &BOMB).unwrap_err();
        assert_eq!(error, PluginError::CompilerLimit { resource, limit });
        let key = format!("plugins.host.compiling.{}", resource.key());
        assert!(error.to_string().contains(&key), "{error}");
    }
    // Enough for a small component but not for this one, in the same host.
    let limit = 300 << 20;
    let host = subprocess_host(CompileLimits {
        memory: limit,
        ..limits
    });
    let error = load(&host, &BOMB).unwrap_err();
    let resource = memory;
    assert_eq!(error, PluginError::CompilerLimit { resource, limit });
    let good = load(&host, component()).unwrap();
    assert!(judge(&good).await.outcome.is_ok());

    let tight = subprocess_host(CompileLimits {
        code_size: 1000,
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
fn the_compiler_sets_its_limits_before_it_reads_the_component() {
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
        "{\"profile\":\"fast\",\"limits\":{\"cpu_time\":\"7s\",\"memory\":\"3000000000B\"}}\n";
    stdin.write_all(order.as_bytes()).unwrap();
    let limits = format!("/proc/{}/limits", child.id());
    // This limit is set last.
    let (path, since) = (Path::new(&limits), Instant::now());
    let set = loop {
        let limits = fs::read_to_string(path).unwrap();
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
    // No component follows.
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(10), "{output:?}");
    assert!(output.stdout.is_empty());
    assert_eq!(
        output.stderr.iter().filter(|byte| **byte == b'\n').count(),
        1
    );
}

/// Soft and hard limit as shown in `/proc`.
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

/// Asserts exit code 0; returns whether the code of [`component`] came from the cache or was compiled.
fn was_cached(output: &Output) -> bool {
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(output.status.success(), "{stderr}");
    let message = |word: &str| stderr.contains(&format!("{word} {}", digest(component())));
    assert_ne!(message("compiled"), message("loaded"), "{stderr}");
    message("loaded")
}

#[test]
fn a_second_command_uses_the_code_cached_by_the_first() {
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

    // Other commands share the cache.
    let ran = clawhost(&run, &home);
    assert!(was_cached(&ran));
    let result: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(result["verdict"]["rationale"], "3 words");

    // A directory that others can write to is reported once per command and not used, without failing.
    fs::set_permissions(&compiled, fs::Permissions::from_mode(0o777)).unwrap();
    let warned = clawhost(&inspect, &home);
    assert!(!was_cached(&warned));
    let message = String::from_utf8(warned.stderr).unwrap();
    assert!(message.contains("its mode is 777"), "{message}");
    assert!(message.contains("chmod 700"), "{message}");
    let named = dir.path().join("named");
    let named = [("CLAWHOST_CACHE", named.as_path()), ("HOME", dir.path())];
    assert!(!was_cached(&clawhost(&inspect, &named)));
    assert!(was_cached(&clawhost(&inspect, &named)));
}
