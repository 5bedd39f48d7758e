//! `clawhost plugin run`: one call of a component, its answer and its receipt.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use clawhost_authoring::goldens;
use clawhost_plugins::{
    CallContext, Called, Fault, GrantBook, Kind, Plugin, Receipt, Trajectory, printable,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::author::{built, folder};
use crate::capabilities::{Internet, Models};
use crate::compiling;
use crate::config::Config;
use crate::granting;
use crate::output::{say, say_json};
use crate::serve::{engine, plugin_name, read_plugin};

/// Arguments of `clawhost plugin run`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost plugin run judge.wasm --turn turn.json\n  \
    clawhost plugin run judge.wasm --turn turn.json --set votes=5 --json\n  clawhost plugin run\n\n\
    A turn is {\"prompt\": [messages], \"reply\": message, \"next_state\": [messages]} with messages as OpenAI's API has them; a\n\
    list of turns is a conversation, of which the last is judged, and for a group judge the samples of one prompt. Without FILE\n\
    the plugin of this folder is run, without --turn on its first transcript."
)]
pub(crate) struct RunArgs {
    /// The component
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// What it is shown
    #[arg(long, value_name = "FILE")]
    turn: Option<PathBuf>,
    /// A setting of the plugin; the value is JSON, or text where it is none
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Configuration file, for models, limits and how the plugin is run
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Data directory of the server, where `grants.toml` is kept
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    let config = configuration(args.config.as_deref(), args.data.as_deref())?;
    let (file, dir) = match &args.file {
        Some(file) => (file.clone(), None),
        None => {
            let dir = folder(None)?;
            (built(&dir)?, Some(dir))
        }
    };
    let shown = shown(args.turn.as_deref(), dir.as_deref())?;
    let plugin = load(&file, &config)?;
    let mut call = CallContext {
        run_id: "run".to_owned(),
        limits: config.judging.limits.clone(),
        ..CallContext::default()
    };
    for setting in &args.settings {
        let (key, value) = setting
            .split_once('=')
            .with_context(|| format!("--set {setting} has no value; write --set KEY=VALUE"))?;
        let value = match serde_json::from_str::<Value>(value) {
            Ok(_) => value.to_owned(),
            Err(_) => Value::from(value).to_string(),
        };
        call.settings.insert(key.to_owned(), value);
    }
    let runtime = tokio::runtime::Runtime::new()?;
    let (answer, receipt) = runtime.block_on(ask(&plugin, call, &shown))?;
    if args.json {
        let field = match plugin.kind() {
            Kind::Hint => "extraction",
            Kind::GroupJudge => "verdicts",
            _ => "verdict",
        };
        let (answer, fault) = match &answer {
            Ok(answer) => (answer.clone(), Value::Null),
            Err(fault) => (Value::Null, json!(fault)),
        };
        say_json(&json!({field: answer, "fault": fault, "receipt": receipt}))?;
    } else {
        let told = match &answer {
            Ok(answer) => serde_json::to_string_pretty(answer)?,
            Err(fault) => {
                let mut told = format!("no answer: {fault}");
                for frame in &fault.frames {
                    told.push_str(&format!("\n    {frame}"));
                }
                if !fault.stderr.is_empty() {
                    told.push_str(&format!("\nstandard error ends with: {}", fault.stderr));
                }
                told
            }
        };
        // All of it is the component's text.
        let told = printable::lines(&told);
        say(&format!(
            "{told}\n\n{} µs, {} KiB, {} host calls, {} model calls ({} tokens), {}\n",
            receipt.wall_us,
            receipt.peak_memory_bytes >> 10,
            receipt.host_calls,
            receipt.model_calls,
            receipt.model_tokens,
            match receipt.fuel {
                Some(fuel) => format!("{fuel} units of fuel"),
                None => format!("{} ticks", receipt.ticks),
            },
        ))?;
    }
    Ok(match answer {
        Err(fault) if !fault.is_no_answer() => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    })
}

/// The configuration of a command that runs a component by itself.
pub(super) fn configuration(file: Option<&Path>, data: Option<&Path>) -> Result<Config> {
    let mut config = Config::load(file, None)?;
    if let Some(data) = data {
        config.server.data = data.to_owned();
    }
    Ok(config)
}

/// The turns in the file that was named, or of the folder's first transcript.
fn shown(turn: Option<&Path>, dir: Option<&Path>) -> Result<Vec<Value>> {
    let value: Value = match (turn, dir) {
        (Some(path), _) => {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("--turn {} cannot be read", path.display()))?;
            serde_json::from_str(&text)
                .with_context(|| format!("--turn {} is not JSON", path.display()))?
        }
        (None, Some(dir)) => {
            let transcripts = goldens(dir)?;
            let first = transcripts.first().with_context(|| {
                format!(
                    "{} has no transcript in its folder tests; name a file with --turn",
                    dir.display()
                )
            })?;
            let turns: Vec<_> = first
                .turn
                .iter()
                .chain(&first.turns)
                .chain(&first.group)
                .collect();
            let turns: Vec<Value> = turns
                .into_iter()
                .map(|turn| {
                    json!({"prompt": turn.prompt, "reply": turn.reply,
                        "next_state": turn.next_state, "truncated": turn.truncated})
                })
                .collect();
            Value::Array(turns)
        }
        (None, None) => bail!("name what the plugin is shown with --turn FILE"),
    };
    let turns = match value {
        Value::Array(turns) => turns,
        one => vec![one],
    };
    ensure!(!turns.is_empty(), "there is no turn to show");
    Ok(turns)
}

/// With all that a server could offer it: the model is loaded only for a component that asks for it.
pub(super) fn load(file: &Path, config: &Config) -> Result<Plugin> {
    let bytes = read_plugin(file)?;
    let name = plugin_name(file);
    let asks_model = compiling::host(config.plugin_host.clone())?
        .inspect(&bytes)
        .with_context(|| format!("{} cannot be used", file.display()))?
        .capabilities
        .contains(&clawhost_plugins::Capability::Model);
    let mut options = config.plugin_host.clone();
    options.network = Some(std::sync::Arc::new(Internet));
    if asks_model {
        let (engine, _) = engine(config)?;
        options.model = Some(std::sync::Arc::new(Models::new(engine, &config.models)?));
    }
    let digest = clawhost_plugins::digest(&bytes);
    let grants = GrantBook::open(&config.grants_file())?.grants(&digest);
    let profile = config
        .plugins
        .get(&name)
        .cloned()
        .unwrap_or_default()
        .profile;
    let host = compiling::host(options)?;
    granting::loaded(Some(file), config, |manifest| {
        host.load_as(&name, &bytes, &grants, manifest, profile)
    })
    .with_context(|| format!("{} cannot be run", file.display()))
}

type Asked = (Result<Value, Fault>, Receipt);

async fn ask(plugin: &Plugin, call: CallContext, turns: &[Value]) -> Result<Asked> {
    fn end<T: Serialize>(called: Called<T>) -> Result<Asked> {
        let outcome = match called.outcome {
            Ok(answer) => Ok(serde_json::to_value(answer)?),
            Err(fault) => Err(fault),
        };
        Ok((outcome, called.receipt))
    }
    match plugin.kind() {
        Kind::Judge | Kind::Hint => {
            let mut all = Trajectory::new("run", "run");
            for turn in turns {
                push(&mut all, turn)?;
            }
            let last = all.turns.last().map_or(0, |turn| turn.index);
            if plugin.kind() == Kind::Judge {
                end(plugin.score_turn(call, &all, last).await)
            } else {
                end(plugin.extract_hint(call, &all, last).await)
            }
        }
        Kind::GroupJudge => {
            let mut group = Vec::new();
            for turn in turns {
                let mut one = Trajectory::new("run", "run");
                push(&mut one, turn)?;
                group.push(one);
            }
            end(plugin.score_group(call, &group).await)
        }
        kind => {
            bail!("a {kind} is not shown turns; `clawhost plugin test` runs it on its transcripts")
        }
    }
}

fn push(trajectory: &mut Trajectory, turn: &Value) -> Result<()> {
    let field = |key: &str| turn.get(key).unwrap_or(&Value::Null);
    ensure!(
        field("reply").is_object(),
        "a turn needs a \"reply\": {{\"prompt\": […], \"reply\": {{…}}, \"next_state\": […]}}"
    );
    let truncated = field("truncated").as_bool().unwrap_or(false);
    trajectory.push_openai(
        field("prompt"),
        field("reply"),
        field("next_state"),
        truncated,
    )?;
    Ok(())
}
