//! `clawhost plugin new|build|test`: scaffold, build and test a plugin.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use clawhost_authoring::{
    AuthoringError, Language, MANIFEST, Manifest, build as build_in, check, goldens,
    kind_from_name, scaffold,
};
use serde_json::{Value, json};

use super::load::{ConfigurationFlags, limits, load_scripted};
use crate::compiling;
use crate::output::print_result;

/// Arguments of `clawhost plugin new`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost plugin new judge my-judge --lang python\n  clawhost plugin new loss my-loss --lang rust\n\n\
    The directory contains a working plugin, a transcript that it passes, the contract and the SDK. Building it needs\n\
    nothing else of clawhost."
)]
pub(crate) struct NewArgs {
    /// Kind: judge, group-judge, hint, filter, loss, pair-loss, advantage, gate or environment
    #[arg(value_name = "KIND")]
    kind: String,
    /// Name of the plugin and of its directory
    #[arg(value_name = "NAME")]
    name: String,
    /// Language: rust, python, js or c
    #[arg(long, value_name = "LANGUAGE")]
    lang: String,
    /// Directory to create instead of ./NAME
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `plugin new`.
pub(crate) fn new(args: &NewArgs) -> Result<ExitCode> {
    let kind = kind_from_name(&args.kind)?;
    let language: Language = args.lang.parse()?;
    let dir = args
        .dir
        .clone()
        .unwrap_or_else(|| PathBuf::from(&args.name));
    let scaffold = scaffold(kind, &args.name, language, &dir)?;
    let value = json!({"dir": scaffold.dir, "source": scaffold.source, "files": scaffold.files});
    print_result(args.json, &value, || {
        format!(
            "created {} files in {}; edit {}, then run `clawhost plugin build {}`",
            scaffold.files.len(),
            scaffold.dir.display(),
            scaffold.dir.join(&scaffold.source).display(),
            scaffold.dir.display()
        )
    })
}

/// Arguments of `clawhost plugin build`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  clawhost plugin build my-judge\n\n\
    Checks for the tools of the plugin's language first and says how to install missing ones. Unchanged sources give the\n\
    same digest. The tools of Python and JavaScript are not reproducible, so their components are cached by a digest of the\n\
    inputs, in the cache of compiled code (CLAWHOST_CACHE).")]
pub(crate) struct BuildArgs {
    /// Plugin directory [default: the current one, or the only plugin directory in it]
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `plugin build`.
pub(crate) fn build(args: &BuildArgs) -> Result<ExitCode> {
    let cache = compiling::component_cache();
    let output = match build_in(&plugin_dir(args.dir.as_deref())?, cache.as_deref()) {
        // A build failure has the compiler's output, which is printed as it is, on several lines.
        Err(failed @ AuthoringError::Failed { .. }) => {
            let _ = writeln!(std::io::stderr(), "clawhost: {failed}");
            return Ok(ExitCode::FAILURE);
        }
        output => output?,
    };
    print_result(args.json, &output, || {
        let unchanged = match output.unchanged {
            true => ", unchanged (from the cache)",
            false => "",
        };
        format!(
            "{}  {} bytes{unchanged}",
            output.component.display(),
            output.bytes
        )
    })
}

/// Arguments of `clawhost plugin test`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost plugin test my-judge\n  clawhost plugin test my-judge --component other.wasm --json\n\n\
    Runs the component on each transcript in its `tests` directory and compares the results. Exit code 1 if one differs.\n\n\
    A test needs no grants and accesses nothing real: state is in memory, and models and HTTP return what the transcript\n\
    has. Its \"exchanges\" list the calls in order, each with the fields of the request to compare, and \"answer\" or \"error\":\n\
    {\"call\": \"model.complete\", \"request\": {\"model\": \"judge\"}, \"answer\": {\"choices\": [\"1\"]}}\n\
    {\"call\": \"model.score\", \"request\": {\"completion\": \"yes\"}, \"answer\": {\"logprobs\": [-0.5]}}\n\
    {\"call\": \"http.send\", \"request\": {\"url\": \"https://api.example/v1\"}, \"answer\": {\"status\": 200, \"body\": \"ok\"}}\n\
    {\"call\": \"http.send\", \"request\": {\"method\": \"GET\"}, \"error\": \"timeout\"}\n\
    A call that is not the next exchange fails the transcript, and so does an exchange that is not used. \"state\" is the\n\
    state before the call: {\"key\": \"text\"}. `clawhost plugin run --record FILE` writes the exchanges of a real call.\n\n\
    The gradients of a loss are checked by finite differences: each differentiated input is perturbed and the loss is\n\
    called again. For a loss that treats a part of itself as constant, such as CISPO's weights, set\n\
    \"stop_gradient\": true in the transcript."
)]
pub(crate) struct TestArgs {
    /// Plugin directory [default: the current one, or the only plugin directory in it]
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Component to test instead of the directory's build
    #[arg(long, value_name = "FILE")]
    component: Option<PathBuf>,
    #[command(flatten)]
    configuration: ConfigurationFlags,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `plugin test`.
pub(crate) fn test(args: &TestArgs) -> Result<ExitCode> {
    let dir = plugin_dir(args.dir.as_deref())?;
    let file = match &args.component {
        Some(file) => file.clone(),
        None => built_component(&dir)?,
    };
    let transcripts = goldens(&dir)?;
    ensure!(
        !transcripts.is_empty(),
        "{} has no transcripts in its directory tests; add one with the plugin's input and the expected answer",
        dir.display()
    );
    let config = args.configuration.load(None)?;
    let (plugin, script) = load_scripted(&file, &config)?;
    let limits = limits(&config, &plugin);
    let runtime = tokio::runtime::Runtime::new()?;
    let checked = runtime.block_on(check(&plugin, &transcripts, &limits, &script));
    let failed = checked
        .iter()
        .filter(|result| result.outcome.is_err())
        .count();
    let passed = checked.len() - failed;
    let results: Vec<Value> = checked
        .iter()
        .map(|result| json!({"name": result.name, "ok": result.outcome.is_ok(), "error": result.outcome.as_ref().err(), "gradient": result.gradient}))
        .collect();
    let value = json!({"passed": passed, "failed": failed, "transcripts": results});
    let done = print_result(args.json, &value, || {
        let mut text = String::new();
        for result in &checked {
            let name = &result.name;
            match &result.outcome {
                Ok(()) => text.push_str(&format!("ok      {name}\n")),
                Err(reason) => text.push_str(&format!("FAILED  {name}\n        {reason}\n")),
            }
            if let Some(found) = &result.gradient {
                text.push_str(&format!("        {found}\n"));
            }
        }
        text + &format!("\n{passed} passed, {failed} failed\n")
    })?;
    Ok(if failed == 0 { done } else { ExitCode::FAILURE })
}

/// The plugin directory: the argument, the current directory, or the only plugin directory in it.
pub(super) fn plugin_dir(dir: Option<&Path>) -> Result<PathBuf> {
    if let Some(dir) = dir {
        return Ok(dir.to_owned());
    }
    let current = PathBuf::from(".");
    if current.join(MANIFEST).exists() {
        return Ok(current);
    }
    let unreadable = "cannot read the current directory";
    let mut candidates = Vec::new();
    for entry in std::fs::read_dir(&current).context(unreadable)? {
        let path = entry.context(unreadable)?.path();
        if path.join(MANIFEST).exists() {
            candidates.push(path);
        }
    }
    match (candidates.pop(), candidates.is_empty()) {
        (Some(dir), true) => Ok(dir),
        (Some(_), false) => {
            bail!("the current directory contains several plugins; pass the directory of one")
        }
        (None, _) => bail!(
            "no {MANIFEST} in the current directory; pass the plugin's directory, or create one with `clawhost plugin new`"
        ),
    }
}

/// Path of the output component.
pub(super) fn built_component(dir: &Path) -> Result<PathBuf> {
    let file = dir.join(Manifest::read(dir)?.component);
    ensure!(
        file.exists(),
        "{} does not exist yet; run `clawhost plugin build {}`",
        file.display(),
        dir.display()
    );
    Ok(file)
}
