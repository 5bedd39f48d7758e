//! `clawhost plugin new|build|test`: from an empty folder to a component that passes its transcripts.

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

use super::offer::{configuration, limits, load_scripted};
use crate::compiling;
use crate::output::{say, say_json};

/// Arguments of `clawhost plugin new`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost plugin new judge my-judge --lang python\n  clawhost plugin new loss my-loss --lang rust\n\n\
    The folder holds a plugin that works, a transcript that it passes, the contract and the SDK, and needs nothing else\n\
    of clawhost to be built."
)]
pub(crate) struct NewArgs {
    /// judge, group-judge, hint, loss, advantage or environment
    #[arg(value_name = "KIND")]
    kind: String,
    /// Name of the plugin and of its folder
    #[arg(value_name = "NAME")]
    name: String,
    /// rust, python, js or c
    #[arg(long, value_name = "LANGUAGE")]
    lang: String,
    /// Folder to make instead of ./NAME
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
    let made = scaffold(kind, &args.name, language, &dir)?;
    if args.json {
        say_json(&json!({"dir": made.dir, "source": made.source, "files": made.files}))?;
    } else {
        say(&format!(
            "{} files in {}; go on in {}, then: clawhost plugin build {}",
            made.files.len(),
            made.dir.display(),
            made.dir.join(&made.source).display(),
            made.dir.display()
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Arguments of `clawhost plugin build`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  clawhost plugin build my-judge\n\n\
    Looks for the tools of the plugin's language first and says how to get each that is missing. The same sources give the\n\
    same digest again. The tools of Python and JavaScript do not see to that, so their components are kept by what they were\n\
    built from, in the folder of compiled code (CLAWHOST_CACHE), and taken from there when nothing has changed.")]
pub(crate) struct BuildArgs {
    /// The plugin's folder; by default this one, or the only one in it that is a plugin's
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `plugin build`.
pub(crate) fn build(args: &BuildArgs) -> Result<ExitCode> {
    let kept = compiling::kept_builds();
    let built = match build_in(&folder(args.dir.as_deref())?, kept.as_deref()) {
        // A compiler's words are lines, and an error of ours is one.
        Err(failed @ AuthoringError::Failed { .. }) => {
            let _ = writeln!(std::io::stderr(), "clawhost: {failed}");
            return Ok(ExitCode::FAILURE);
        }
        built => built?,
    };
    if args.json {
        say_json(&built)?;
    } else {
        let unchanged = match built.unchanged {
            true => ", as built before from the same files",
            false => "",
        };
        say(&format!(
            "{}  {} bytes{unchanged}",
            built.component.display(),
            built.bytes
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Arguments of `clawhost plugin test`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost plugin test my-judge\n  clawhost plugin test my-judge --component other.wasm --json\n\n\
    Runs the component on each transcript in the folder `tests` beside it and compares. Exit code 1 when one differs.\n\n\
    Nothing is reached and nothing has to be granted: state is in memory, and models and HTTP answer what the transcript\n\
    says. Its \"exchanges\" list the calls in order, each with what is asked, as far as it matters, and \"answer\" or \"error\":\n\
    {\"call\": \"model.complete\", \"request\": {\"model\": \"judge\"}, \"answer\": {\"choices\": [\"1\"]}}\n\
    {\"call\": \"model.score\", \"request\": {\"completion\": \"yes\"}, \"answer\": {\"logprobs\": [-0.5]}}\n\
    {\"call\": \"http.send\", \"request\": {\"url\": \"https://api.example/v1\"}, \"answer\": {\"status\": 200, \"body\": \"ok\"}}\n\
    {\"call\": \"http.send\", \"request\": {\"method\": \"GET\"}, \"error\": \"timeout\"}\n\
    A call that is not the next one of them fails the transcript, and so does one that is left over. \"state\" is what the\n\
    state holds before the call: {\"key\": \"text\"}. `clawhost plugin run --record FILE` writes the exchanges of a real call.\n\n\
    The partials of a loss have to be the slopes of its value: each input that it is differentiated by is moved a little,\n\
    and the loss is asked again. A loss that holds a part of itself constant, as CISPO does its weights, says\n\
    \"stop_gradient\": true in the transcript."
)]
pub(crate) struct TestArgs {
    /// The plugin's folder; by default this one, or the only one in it that is a plugin's
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Another component than the one that the folder builds
    #[arg(long, value_name = "FILE")]
    component: Option<PathBuf>,
    /// Configuration file, for limits and how the plugin is run
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Data directory of the server, where `grants.toml` is kept
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `plugin test`.
pub(crate) fn test(args: &TestArgs) -> Result<ExitCode> {
    let dir = folder(args.dir.as_deref())?;
    let file = match &args.component {
        Some(file) => file.clone(),
        None => built(&dir)?,
    };
    let transcripts = goldens(&dir)?;
    ensure!(
        !transcripts.is_empty(),
        "{} has no transcript in its folder tests; write what the plugin is shown and what it has to answer there",
        dir.display()
    );
    let config = configuration(args.config.as_deref(), args.data.as_deref())?;
    let (plugin, script) = load_scripted(&file, &config)?;
    let limits = limits(&config, plugin.kind());
    let runtime = tokio::runtime::Runtime::new()?;
    let checked = runtime.block_on(check(&plugin, &transcripts, &limits, &script));
    let failed = checked.iter().filter(|one| one.outcome.is_err()).count();
    if args.json {
        let results: Vec<Value> = checked
            .iter()
            .map(|one| json!({"name": one.name, "ok": one.outcome.is_ok(), "error": one.outcome.as_ref().err(), "gradient": one.gradient}))
            .collect();
        say_json(
            &json!({"passed": checked.len() - failed, "failed": failed, "transcripts": results}),
        )?;
    } else {
        let mut text = String::new();
        for one in &checked {
            let name = &one.name;
            match &one.outcome {
                Ok(()) => text.push_str(&format!("ok      {name}\n")),
                Err(reason) => text.push_str(&format!("FAILED  {name}\n        {reason}\n")),
            }
            if let Some(found) = &one.gradient {
                text.push_str(&format!("        {found}\n"));
            }
        }
        text.push_str(&format!(
            "\n{} passed, {failed} failed\n",
            checked.len() - failed
        ));
        say(&text)?;
    }
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The folder that is meant: the one that was named, this one, or the only one in it that holds a
/// plugin.
pub(super) fn folder(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(dir) = named {
        return Ok(dir.to_owned());
    }
    let here = PathBuf::from(".");
    if here.join(MANIFEST).exists() {
        return Ok(here);
    }
    let mut found: Vec<PathBuf> = std::fs::read_dir(&here)
        .context("this folder cannot be read")?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join(MANIFEST).exists())
        .collect();
    match (found.pop(), found.is_empty()) {
        (Some(dir), true) => Ok(dir),
        (Some(_), false) => {
            bail!("there are several plugins in this folder; name the folder of one")
        }
        (None, _) => bail!(
            "there is no {MANIFEST} in this folder; name the plugin's folder, or make one with `clawhost plugin new`"
        ),
    }
}

/// Where the folder's build leaves the component.
pub(super) fn built(dir: &Path) -> Result<PathBuf> {
    let file = dir.join(Manifest::read(dir)?.component);
    ensure!(
        file.exists(),
        "{} is not built yet; run `clawhost plugin build {}`",
        file.display(),
        dir.display()
    );
    Ok(file)
}
