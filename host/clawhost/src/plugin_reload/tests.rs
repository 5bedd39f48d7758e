//! A slow compile or an unreadable file of one plugin does not delay the reload or revocation of others.

use std::path::Path;
use std::time::{Duration, Instant};

use clawhost_config::{ExperienceOptions, PluginsConfig};
use clawhost_judging::{JudgeWorker, JudgingOptions};
use clawhost_plugins::{
    CompilerCommand, Grants, HostOptions, PluginHost, PluginHostConfig, Profile,
};
use clawhost_training::ComponentOptions;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::config::Config;

const MINIMAL: &[u8] = include_bytes!("../../../../plugins/artifacts/judge-minimal.wasm");
const LENGTH: &[u8] = include_bytes!("../../../../plugins/artifacts/judge-length.wasm");
const NEXT_STATE: &[u8] = include_bytes!("../../../../plugins/artifacts/judge-next-state.wasm");
const MODEL: &[u8] = include_bytes!("../../../../plugins/artifacts/judge-model.wasm");

/// Upper bound of every wait.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A test compiler that waits for the file `go` and then fails.
fn slow_compiler(dir: &Path) -> CompilerCommand {
    let at = |name: &str| dir.join(name).display().to_string();
    let script = format!(
        "touch {}; while [ ! -e {} ]; do sleep 0.01; done; exit 3",
        at("compiling"),
        at("go")
    );
    CompilerCommand::new("/bin/sh", ["-c", &script])
}

/// A model client that is never called here.
struct UnusedModel;

impl clawhost_plugins::ModelClient for UnusedModel {
    fn complete(
        &self,
        _: clawhost_plugins::ModelRequest,
    ) -> clawhost_plugins::Answer<
        Result<clawhost_plugins::ModelResponse, clawhost_plugins::ModelError>,
    > {
        Box::pin(async { Err(clawhost_plugins::ModelError::Timeout) })
    }

    fn score(
        &self,
        _: String,
        _: Vec<clawhost_plugins::Message>,
        _: String,
    ) -> clawhost_plugins::Answer<Result<Vec<f32>, clawhost_plugins::ModelError>> {
        Box::pin(async { Err(clawhost_plugins::ModelError::Timeout) })
    }
}

fn grant_model(dir: &Path) {
    let digest = clawhost_plugins::digest(MODEL);
    let text = format!(
        "[{digest}]\nplugin = \"asks\"\nat_ms = 0\n[{digest}.grants]\nallow = [\"model\"]\n"
    );
    std::fs::write(dir.join("grants.toml"), text).unwrap();
}

/// Three judges in files whose compiled code is cached, and a compiler that blocks until released.
async fn three_judges(dir: &Path) -> Arc<PluginReloader> {
    let cache = Some(dir.join("compiled"));
    let options = HostOptions {
        config: PluginHostConfig {
            num_threads: 1,
            max_instances: 4,
            ..PluginHostConfig::default()
        },
        cache,
        model: Some(Arc::new(UnusedModel)),
        ..HostOptions::default()
    };
    let host = PluginHost::new(options.clone()).unwrap();
    for bytes in [MINIMAL, LENGTH, MODEL] {
        let grants = Grants {
            allow: [clawhost_plugins::Capability::Model].into(),
            ..Grants::default()
        };
        host.load("cached", bytes, &grants, Profile::default())
            .unwrap();
    }
    grant_model(dir);
    let mut files = Vec::new();
    for (name, bytes) in [("slow", MINIMAL), ("asks", MODEL), ("other", MINIMAL)] {
        let file = dir.join(name).with_extension("wasm");
        std::fs::write(&file, bytes).unwrap();
        files.push(file);
    }
    let mut config = Config::default();
    config.server.data_dir = dir.to_owned();
    config.training.enabled = false;
    let options = HostOptions {
        compiler: Some(slow_compiler(dir)),
        ..options
    };
    let loader = Loader::new(&config, options).unwrap();
    let loaded = loader.load_all(&files).unwrap();
    let journal = Journal::in_memory().unwrap();
    let judging = JudgeWorker::new(
        journal.clone(),
        loader.threads(),
        loaded.judging(),
        JudgingOptions::default(),
        ExperienceOptions::default(),
        PluginsConfig::default(),
    );
    let components = Components::new(&[], &ComponentOptions::default())
        .await
        .unwrap();
    let targets = ReloadTargets {
        judge_slots: judging.slots(),
        components,
    };
    Arc::new(PluginReloader::new(
        loader,
        loaded.sources,
        targets,
        journal,
    ))
}

/// Waits until a plugin's status matches.
async fn wait_until(
    reloading: &PluginReloader,
    at: usize,
    what: &str,
    expected: impl Fn(&Value) -> bool,
) {
    let start = Instant::now();
    loop {
        let status = reloading.status();
        if expected(&status[at]) {
            return;
        }
        assert!(
            start.elapsed() < TIMEOUT,
            "timed out waiting until {what}: {status:?}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Renames a new build into place, as build tools do.
fn build(path: &Path, bytes: &[u8]) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, bytes).unwrap();
    std::fs::rename(&beside, path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_compile_delays_neither_revocation_nor_other_reloads() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    let reloading = three_judges(dir.path()).await;
    let (stop, stopped) = watch::channel(false);
    let running = tokio::spawn(reloading.clone().run(stopped));

    build(&at("slow.wasm"), NEXT_STATE);
    let start = Instant::now();
    while !at("compiling").exists() {
        assert!(start.elapsed() < TIMEOUT, "the compiler was not called");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    std::fs::write(at("grants.toml"), "").unwrap();
    wait_until(&reloading, 1, "the grant is revoked", |status| {
        status["revoked"].is_object()
    })
    .await;
    build(&at("other.wasm"), LENGTH);
    let length = clawhost_plugins::digest(LENGTH);
    wait_until(&reloading, 2, "the other plugin is reloaded", |status| {
        status["digest"] == length.as_str()
    })
    .await;
    grant_model(dir.path());
    wait_until(&reloading, 1, "it is granted again", |status| {
        status["revoked"].is_null() && status["granted"] == json!(["model"])
    })
    .await;
    assert!(
        reloading.status()[0]["refused"].is_null(),
        "it is still compiling"
    );

    std::fs::write(at("go"), "").unwrap();
    wait_until(&reloading, 0, "the build is rejected", |status| {
        status["refused"].is_object()
    })
    .await;
    stop.send(true).unwrap();
    running.await.unwrap();
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn irregular_files_are_rejected_and_do_not_block_other_reloads() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    let reloading = three_judges(dir.path()).await;
    let (stop, stopped) = watch::channel(false);
    let running = tokio::spawn(reloading.clone().run(stopped));
    let minimal = clawhost_plugins::digest(MINIMAL);
    let rejected = async |expected: &str| {
        wait_until(&reloading, 0, expected, |status| {
            let reason = status["refused"]["reason"].as_str().unwrap_or_default();
            status["digest"] == minimal.as_str() && reason.contains(expected)
        })
        .await;
    };

    // Nothing ever writes to this pipe.
    std::fs::remove_file(at("slow.wasm")).unwrap();
    let status = std::process::Command::new("mkfifo")
        .arg(at("slow.wasm"))
        .status();
    assert!(status.unwrap().success());
    rejected("a named pipe").await;
    std::fs::remove_file(at("slow.wasm")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", at("slow.wasm")).unwrap();
    rejected("a device").await;
    std::fs::remove_file(at("slow.wasm")).unwrap();
    let sparse = std::fs::File::create(at("sparse")).unwrap();
    sparse.set_len(6 << 30).unwrap();
    std::fs::rename(at("sparse"), at("slow.wasm")).unwrap();
    rejected("6442450944 bytes").await;

    build(&at("other.wasm"), LENGTH);
    let length = clawhost_plugins::digest(LENGTH);
    wait_until(&reloading, 2, "the other plugin is reloaded", |status| {
        status["digest"] == length.as_str()
    })
    .await;
    stop.send(true).unwrap();
    running.await.unwrap();
}
