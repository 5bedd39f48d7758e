//! The judge that `clawhost plugin new` writes, in each language: built, loaded, called.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clawhost_authoring::{AuthoringError, Language, build, scaffold};
use clawhost_plugins::measure::{self, bytes_per_instance};
use clawhost_plugins::{Grants, HostOptions, Kind, Plugin, Profile};
use serde::Serialize;
use tokio::runtime::Runtime;

use super::calls::Calls;
use super::{MANY, sample};
use crate::compiling;
use crate::progress::Progress;

/// Interpreters need a millisecond a call: fewer calls tell as much.
const CALLS: usize = 1000;
/// Live instances whose memory is looked at together.
const HELD: usize = 16;

/// What a judge in one language costs.
#[derive(Serialize)]
pub(super) struct InLanguage {
    pub(super) language: Language,
    pub(super) component_bytes: usize,
    /// Checking, compiling and linking it, in a process of its own as a server does.
    pub(super) compile_ms: f64,
    /// The same once its compiled code is in the cache.
    pub(super) cached_ms: f64,
    /// Resident memory of an instance that has judged; none where the system does not tell.
    pub(super) bytes_per_instance: Option<f64>,
    pub(super) calls: Vec<Calls>,
}

/// A language that was not measured, and why.
#[derive(Serialize)]
pub(super) struct Absent {
    pub(super) language: Language,
    pub(super) reason: String,
}

/// The languages of a list with commas.
pub(super) fn wanted(list: &str) -> Result<Vec<Language>> {
    if list == "none" {
        return Ok(Vec::new());
    }
    list.split(',')
        .map(|name| Ok(name.trim().parse()?))
        .collect()
}

/// Measures each language whose tools are here.
pub(super) fn languages(
    wanted: &[Language],
    runtime: &Runtime,
    progress: &mut Progress,
) -> Result<(Vec<InLanguage>, Vec<Absent>)> {
    let (mut found, mut absent) = (Vec::new(), Vec::new());
    for &language in wanted {
        progress.stage(&format!("building a judge in {language}"));
        let folder = Folder::new(language)?;
        scaffold(Kind::Judge, "measured", language, &folder.0)?;
        match build(&folder.0, None) {
            Ok(built) => {
                progress.done(10.0);
                progress.stage(&format!("calling the judge in {language}"));
                let component = std::fs::read(&built.component)
                    .with_context(|| format!("cannot read {}", built.component.display()))?;
                let cache = folder.0.join("compiled");
                found.push(runtime.block_on(measure_one(language, &component, cache))?);
                progress.done(5.0);
            }
            Err(error @ AuthoringError::MissingTools { .. }) => {
                progress.done(15.0);
                absent.push(Absent {
                    language,
                    reason: error.to_string(),
                });
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok((found, absent))
}

async fn measure_one(language: Language, component: &[u8], cache: PathBuf) -> Result<InLanguage> {
    let options = HostOptions {
        cache: Some(cache),
        ..HostOptions::default()
    };
    let (_, compile_ms) = load(&options, component)?;
    let (plugin, cached_ms) = load(&options, component)?;
    ensure!(
        plugin.was_cached(),
        "the compiled code of a judge in {language} was not kept"
    );
    let sample = sample(&plugin).await?;
    let bytes_per_instance = bytes_per_instance(&plugin, &sample, HELD).await;
    let mut calls = Vec::new();
    for at_once in [1, MANY] {
        let measured = measure::calls(&plugin, &Arc::clone(&sample), at_once, CALLS).await;
        let name = format!("judge in {language}");
        calls.push(Calls::of(
            &name,
            component.len(),
            "clawhost, deterministic",
            &[measured],
        ));
    }
    Ok(InLanguage {
        language,
        component_bytes: component.len(),
        compile_ms,
        cached_ms,
        bytes_per_instance,
        calls,
    })
}

/// Loads it into a host of its own, and says how many milliseconds that took.
fn load(options: &HostOptions, component: &[u8]) -> Result<(Plugin, f64)> {
    let host = compiling::host(options.clone())?;
    // Starts the engine, whose pool must not count as the component's.
    host.is_pooled(Profile::Deterministic)?;
    let started = Instant::now();
    let none = Grants::default();
    let plugin = host.load("measured", component, &none, Profile::Deterministic)?;
    Ok((plugin, started.elapsed().as_secs_f64() * 1e3))
}

/// A folder that is removed again.
struct Folder(PathBuf);

impl Folder {
    fn new(language: Language) -> Result<Self> {
        let name = format!("clawhost-bench-{language}-{}", std::process::id());
        let path: PathBuf = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, folder = %self.0.display(), "what was built for the measurement stays behind");
        }
    }
}
