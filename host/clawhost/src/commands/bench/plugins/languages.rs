//! The judge scaffold of `clawhost plugin new` in each language: build, load and call.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clawhost_authoring::{AuthoringError, Language, build, scaffold};
use clawhost_plugins::measure::{self, Callers, bytes_per_instance};
use clawhost_plugins::{Grants, HostOptions, Kind, Plugin, Profile};
use serde::Serialize;
use tokio::runtime::Runtime;

use super::calls::{Calls, MANY, sample};
use crate::compiling;
use crate::progress::Progress;

/// Interpreters need about a millisecond per call, so fewer calls suffice.
const CALLS: usize = 1000;
/// Live instances over which memory is averaged.
const LIVE_INSTANCES: usize = 16;

/// Cost of a judge in one language.
#[derive(Serialize)]
pub(super) struct LanguageFigures {
    pub(super) language: Language,
    pub(super) component_bytes: usize,
    /// Milliseconds to validate, compile and link it in a subprocess, as a server does.
    pub(super) compile_ms: f64,
    /// The same with the compiled code cached.
    pub(super) cached_ms: f64,
    /// Resident memory of an instance that has judged; None where the system does not report it.
    pub(super) bytes_per_instance: Option<f64>,
    pub(super) calls: Vec<Calls>,
}

/// A language that was skipped, and why.
#[derive(Serialize)]
pub(super) struct SkippedLanguage {
    pub(super) language: Language,
    pub(super) reason: String,
}

/// Parses a comma-separated list of languages.
pub(super) fn parse_list(list: &str) -> Result<Vec<Language>> {
    if list == "none" {
        return Ok(Vec::new());
    }
    list.split(',')
        .map(|name| Ok(name.trim().parse()?))
        .collect()
}

/// Measures each language whose tools are installed.
pub(super) fn languages(
    selected: &[Language],
    runtime: &Runtime,
    progress: &mut Progress,
) -> Result<(Vec<LanguageFigures>, Vec<SkippedLanguage>)> {
    let (mut figures, mut skipped) = (Vec::new(), Vec::new());
    for &language in selected {
        progress.stage(&format!("building a judge in {language}"));
        let dir = tempfile::tempdir().context("cannot create a temporary directory")?;
        scaffold(Kind::Judge, "measured", language, dir.path())?;
        match build(dir.path(), None) {
            Ok(output) => {
                progress.advance(10.0);
                progress.stage(&format!("calling the judge in {language}"));
                let component = std::fs::read(&output.component)
                    .with_context(|| format!("cannot read {}", output.component.display()))?;
                let cache = dir.path().join("compiled");
                figures.push(runtime.block_on(measure_one(language, &component, cache))?);
                progress.advance(5.0);
            }
            Err(error @ AuthoringError::MissingTools { .. }) => {
                progress.advance(15.0);
                skipped.push(SkippedLanguage {
                    language,
                    reason: error.to_string(),
                });
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok((figures, skipped))
}

async fn measure_one(
    language: Language,
    component: &[u8],
    cache: PathBuf,
) -> Result<LanguageFigures> {
    let options = HostOptions {
        cache: Some(cache),
        ..HostOptions::default()
    };
    let (_, compile_ms) = load(&options, component)?;
    let (plugin, cached_ms) = load(&options, component)?;
    ensure!(
        plugin.was_cached(),
        "the compiled code of the {language} judge was not cached"
    );
    let sample = sample(&plugin).await?;
    let bytes_per_instance = bytes_per_instance(&plugin, &sample, LIVE_INSTANCES).await;
    let mut calls = Vec::new();
    for concurrency in [1, MANY] {
        let measured = measure::measure_calls(
            &plugin,
            &sample,
            Callers::OnPluginThreads,
            concurrency,
            CALLS,
        )
        .await;
        let name = format!("judge in {language}");
        calls.push(Calls::summarize(
            &name,
            component.len(),
            "clawhost, deterministic",
            &[measured],
        ));
    }
    Ok(LanguageFigures {
        language,
        component_bytes: component.len(),
        compile_ms,
        cached_ms,
        bytes_per_instance,
        calls,
    })
}

/// Loads the component into a new host; returns the milliseconds.
fn load(options: &HostOptions, component: &[u8]) -> Result<(Plugin, f64)> {
    let host = compiling::host(options.clone())?;
    // Start the engine first, so that its pool does not count as the component's cost.
    host.is_pooled(Profile::Deterministic)?;
    let started = Instant::now();
    let grants = Grants::default();
    let plugin = host.load("measured", component, &grants, Profile::Deterministic)?;
    Ok((plugin, started.elapsed().as_secs_f64() * 1e3))
}
