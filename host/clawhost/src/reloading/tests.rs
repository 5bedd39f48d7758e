//! One plugin's build that is long in the making, or no file at all, holds up nobody else's reload or revocation.

use std::path::Path;
use std::time::{Duration, Instant};

use clawhost_judging::{Judging, JudgingOptions};
use clawhost_plugins::{CompilerCommand, Grants, HostOptions, PluginHost, Profile};
use clawhost_training::ComponentCalls;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::config::Config;

const MINIMAL: &[u8] = include_bytes!("../../../../plugins/artifacts/judge-minimal.wasm");
const LENGTH: &[u8] = include_bytes!("../../../../plugins/artifacts/judge-length.wasm");
const NEXT_STATE: &[u8] = include_bytes!("../../../../plugins/artifacts/judge-next-state.wasm");
const MODEL: &[u8] = include_bytes!("../../../../plugins/artifacts/judge-model.wasm");

/// Longer than any of this takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A compiler for tests: it waits until the file `go` is there, and gives up.
fn slow_compiler(dir: &Path) -> CompilerCommand {
    let at = |name: &str| dir.join(name).display().to_string();
    let script = format!(
        "touch {}; while [ ! -e {} ]; do sleep 0.01; done; exit 3",
        at("compiling"),
        at("go")
    );
    CompilerCommand::new("/bin/sh", ["-c", &script])
}

/// No model, which nobody asks here.
struct NoModel;

impl clawhost_plugins::ModelClient for NoModel {
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

/// Three judges in files whose code is in the cache, and a compiler that never ends before it is let.
async fn three(dir: &Path) -> Arc<Reloading> {
    let cache = Some(dir.join("compiled"));
    let options = HostOptions {
        threads: 1,
        instances: 4,
        cache,
        model: Some(Arc::new(NoModel)),
        ..HostOptions::default()
    };
    let here = PluginHost::new(options.clone()).unwrap();
    for bytes in [MINIMAL, LENGTH, MODEL] {
        let grants = Grants {
            allow: [clawhost_plugins::Capability::Model].into(),
            ..Grants::default()
        };
        here.load("kept", bytes, &grants, Profile::default())
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
    config.server.data = dir.to_owned();
    config.training.enabled = false;
    let options = HostOptions {
        compiler: Some(slow_compiler(dir)),
        ..options
    };
    let loader = Loader::new(&config, options).unwrap();
    let loaded = loader.all(&files).unwrap();
    let journal = Journal::in_memory().unwrap();
    let judging = Judging::new(journal.clone(), loaded.judging(), JudgingOptions::default());
    let components = Components::new(&[], &ComponentCalls::default())
        .await
        .unwrap();
    let places = Places {
        seats: judging.seats(),
        components,
    };
    Arc::new(Reloading::new(loader, loaded.sources, places, journal))
}

/// Waits until what is told of the plugin at this place is as wanted.
async fn until(reloading: &Reloading, at: usize, what: &str, wanted: impl Fn(&Value) -> bool) {
    let began = Instant::now();
    loop {
        let told = reloading.told();
        if wanted(&told[at]) {
            return;
        }
        assert!(
            began.elapsed() < PATIENCE,
            "waited in vain until {what}: {told:?}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Moves a file to its place, as build tools do.
fn build(path: &Path, bytes: &[u8]) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, bytes).unwrap();
    std::fs::rename(&beside, path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_is_long_in_the_making_holds_up_neither_revocation_nor_the_reload_of_others() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    let reloading = three(dir.path()).await;
    let (stop, stopped) = watch::channel(false);
    let running = tokio::spawn(reloading.clone().run(stopped));

    build(&at("slow.wasm"), NEXT_STATE);
    let began = Instant::now();
    while !at("compiling").exists() {
        assert!(began.elapsed() < PATIENCE, "the compiler is never called");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    std::fs::write(at("grants.toml"), "").unwrap();
    until(&reloading, 1, "the grant is taken back", |told| {
        told["revoked"].is_object()
    })
    .await;
    build(&at("other.wasm"), LENGTH);
    let length = clawhost_plugins::digest(LENGTH);
    until(&reloading, 2, "the other plugin is reloaded", |told| {
        told["digest"] == length.as_str()
    })
    .await;
    grant_model(dir.path());
    until(&reloading, 1, "it is granted again", |told| {
        told["revoked"].is_null() && told["granted"] == json!(["model"])
    })
    .await;
    assert!(
        reloading.told()[0]["refused"].is_null(),
        "it is still compiled"
    );

    std::fs::write(at("go"), "").unwrap();
    until(&reloading, 0, "the build is refused", |told| {
        told["refused"].is_object()
    })
    .await;
    stop.send(true).unwrap();
    running.await.unwrap();
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_regular_file_is_refused_and_holds_up_nobody() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    let reloading = three(dir.path()).await;
    let (stop, stopped) = watch::channel(false);
    let running = tokio::spawn(reloading.clone().run(stopped));
    let minimal = clawhost_plugins::digest(MINIMAL);
    let refused = async |said: &str| {
        until(&reloading, 0, said, |told| {
            let reason = told["refused"]["reason"].as_str().unwrap_or_default();
            told["digest"] == minimal.as_str() && reason.contains(said)
        })
        .await;
    };

    // Nobody ever writes to it.
    std::fs::remove_file(at("slow.wasm")).unwrap();
    let made = std::process::Command::new("mkfifo")
        .arg(at("slow.wasm"))
        .status();
    assert!(made.unwrap().success());
    refused("a named pipe").await;
    std::fs::remove_file(at("slow.wasm")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", at("slow.wasm")).unwrap();
    refused("a device").await;
    std::fs::remove_file(at("slow.wasm")).unwrap();
    let sparse = std::fs::File::create(at("sparse")).unwrap();
    sparse.set_len(6 << 30).unwrap();
    std::fs::rename(at("sparse"), at("slow.wasm")).unwrap();
    refused("6442450944 bytes").await;

    build(&at("other.wasm"), LENGTH);
    let length = clawhost_plugins::digest(LENGTH);
    until(&reloading, 2, "the other plugin is reloaded", |told| {
        told["digest"] == length.as_str()
    })
    .await;
    stop.send(true).unwrap();
    running.await.unwrap();
}
