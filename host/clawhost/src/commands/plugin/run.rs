//! `clawhost plugin run`: one call of a component, its answer and its receipt.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use clawhost_authoring::{Exchange, GoldenTurn, exchanges, goldens};
use clawhost_plugins::{
    CallContext, CallResult, Fault, Kind, Plugin, Receipt, StateScope, Trajectory, printable,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::author::{built_component, plugin_dir};
use super::load::{ConfigurationFlags, limits, load_live, load_scripted};
use crate::output::{print, print_json};

/// The run that the call belongs to.
const RUN: &str = "run";

/// Arguments of `clawhost plugin run`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost plugin run judge.wasm --turn turn.json\n  \
    clawhost plugin run judge.wasm --turn turn.json --setting votes=5 --json\n  clawhost plugin run\n\n\
    A turn is {\"prompt\": [messages], \"reply\": message, \"next_state\": [messages]} with messages as OpenAI's API has them; a\n\
    list of turns is a conversation, of which the last is judged, and for a group judge the samples of one prompt. Without FILE\n\
    the plugin of this folder is run, without --turn on its first transcript, with its\n\
    exchanges and state.\n\n\
    Models and HTTP are real and have to be granted to this build. --record writes the calls with their answers in the format\n\
    of \"exchanges\" (see `clawhost plugin test --help`); --exchanges reads such a file in place of models and network,\n\
    and then no grants are needed. State is in memory.",
    mut_arg("set", |set| set.value_parser(config_override))
)]
pub(crate) struct RunArgs {
    /// The component
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// What it is shown
    #[arg(long, value_name = "FILE")]
    turn: Option<PathBuf>,
    /// Answers of models and HTTP to use in place of real ones
    #[arg(long, value_name = "FILE", conflicts_with = "record")]
    exchanges: Option<PathBuf>,
    /// Write the calls of models and HTTP, with their answers
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// A setting of the plugin; the value is JSON, or text where it is none; can be repeated
    #[arg(long = "setting", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    #[command(flatten)]
    configuration: ConfigurationFlags,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Before `--setting` existed, `--set` took a setting of the plugin, which has no section.
fn config_override(set: &str) -> Result<String, String> {
    let (key, _) = set.split_once('=').unwrap_or((set, ""));
    if key.contains('.') {
        Ok(set.to_owned())
    } else {
        Err(format!(
            "a key of the configuration has a section; pass a setting of the plugin with --setting {set}"
        ))
    }
}

/// Runs the command.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    let config = args.configuration.load(None)?;
    let (file, dir) = match &args.file {
        Some(file) => (file.clone(), None),
        None => {
            let dir = plugin_dir(None)?;
            (built_component(&dir)?, Some(dir))
        }
    };
    let input = read_input(args.turn.as_deref(), dir.as_deref())?;
    let scripted = match (&args.exchanges, &args.record) {
        (Some(file), _) => Some(exchanges(file)?),
        (None, None) if input.is_scripted() => Some(input.exchanges.clone()),
        (None, _) => None,
    };
    let (plugin, script, recorder) = match scripted {
        Some(exchanges) => {
            let (plugin, script) = load_scripted(&file, &config)?;
            (plugin, Some((script, exchanges)), None)
        }
        None => {
            let (plugin, recorder) = load_live(&file, &config, args.record.is_some())?;
            (plugin, None, recorder)
        }
    };
    let mut call = CallContext {
        run_id: RUN.to_owned(),
        limits: limits(&config, &plugin),
        ..CallContext::default()
    };
    for setting in &args.settings {
        let (key, value) = setting.split_once('=').with_context(|| {
            format!("--setting {setting} has no value; write --setting KEY=VALUE")
        })?;
        let value = match serde_json::from_str::<Value>(value) {
            Ok(_) => value.to_owned(),
            Err(_) => Value::from(value).to_string(),
        };
        call.settings.insert(key.to_owned(), value);
    }
    let runtime = tokio::runtime::Runtime::new()?;
    let (answer, receipt, mismatch) = runtime.block_on(async {
        if let Some((script, exchanges)) = &script {
            let scope = StateScope {
                plugin: plugin.name().to_owned(),
                run_id: RUN.to_owned(),
            };
            script
                .begin(exchanges, &scope, &input.state)
                .await
                .map_err(anyhow::Error::msg)?;
        }
        let (answer, receipt) = call_plugin(&plugin, call, &input).await?;
        let mismatch = script.as_ref().and_then(|(script, _)| script.end().err());
        anyhow::Ok((answer, receipt, mismatch))
    })?;
    if let (Some(file), Some(recorder)) = (&args.record, &recorder) {
        let exchanges = recorder.exchanges().map_err(anyhow::Error::msg)?;
        std::fs::write(file, serde_json::to_string_pretty(&exchanges)? + "\n")
            .with_context(|| format!("--record {} cannot be written", file.display()))?;
    }
    if args.json {
        let field = match plugin.kind() {
            Kind::Hint => "extraction",
            Kind::Filter => "decision",
            Kind::GroupJudge => "verdicts",
            _ => "verdict",
        };
        let (answer, fault) = match &answer {
            Ok(answer) => (answer.clone(), Value::Null),
            Err(fault) => (Value::Null, json!(fault)),
        };
        print_json(
            &json!({field: answer, "fault": fault, "receipt": receipt, "mismatch": mismatch}),
        )?;
    } else {
        let mut text = match &answer {
            Ok(answer) => serde_json::to_string_pretty(answer)?,
            Err(fault) => {
                let mut text = format!("no answer: {fault}");
                for frame in &fault.frames {
                    text.push_str(&format!("\n    {frame}"));
                }
                if !fault.stderr.is_empty() {
                    text.push_str(&format!("\nstandard error ends with: {}", fault.stderr));
                }
                text
            }
        };
        if let Some(mismatch) = &mismatch {
            text.push_str(&format!("\nthe exchanges do not fit: {mismatch}"));
        }
        // All of it is the component's text.
        let text = printable::lines(&text);
        print(&format!(
            "{text}\n\n{} µs, {} KiB, {} host calls, {} model calls ({} tokens), {}\n",
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
        Err(fault) if !fault.is_unsupported() => ExitCode::FAILURE,
        _ if mismatch.is_some() => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    })
}

/// The input of the call, and the exchanges and state of its transcript.
struct Input {
    turns: Vec<GoldenTurn>,
    /// The reward that a filter is shown.
    reward: Option<f32>,
    exchanges: Vec<Exchange>,
    state: BTreeMap<String, String>,
}

impl Input {
    /// Whether the transcript has exchanges or state, so that the call must not use real ones.
    fn is_scripted(&self) -> bool {
        !self.exchanges.is_empty() || !self.state.is_empty()
    }
}

/// Reads the turns of the file, or the first transcript of the directory.
fn read_input(turn: Option<&Path>, dir: Option<&Path>) -> Result<Input> {
    let input = match (turn, dir) {
        (Some(path), _) => {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("--turn {} cannot be read", path.display()))?;
            let value = serde_json::from_str(&text)
                .with_context(|| format!("--turn {} is not JSON", path.display()))?;
            let turns = match value {
                Value::Array(turns) => turns,
                one => vec![one],
            };
            let turns = turns.into_iter().map(|turn| {
                ensure!(
                    turn.get("reply").is_some_and(Value::is_object),
                    "a turn needs a \"reply\": {{\"prompt\": […], \"reply\": {{…}}, \"next_state\": […]}}"
                );
                Ok(serde_json::from_value(turn)?)
            });
            Input {
                turns: turns
                    .collect::<Result<_>>()
                    .with_context(|| format!("--turn {}", path.display()))?,
                reward: None,
                exchanges: Vec::new(),
                state: BTreeMap::new(),
            }
        }
        (None, Some(dir)) => {
            let transcripts = goldens(dir)?;
            let first = transcripts.into_iter().next().with_context(|| {
                format!(
                    "{} has no transcript in its folder tests; name a file with --turn",
                    dir.display()
                )
            })?;
            let turns = first.turn.iter().chain(&first.turns).chain(&first.group);
            Input {
                turns: turns.cloned().collect(),
                reward: first.reward,
                exchanges: first.exchanges,
                state: first.state,
            }
        }
        (None, None) => bail!("name what the plugin is shown with --turn FILE"),
    };
    ensure!(!input.turns.is_empty(), "there is no turn to show");
    Ok(input)
}

type CallOutcome = (Result<Value, Fault>, Receipt);

async fn call_plugin(plugin: &Plugin, call: CallContext, input: &Input) -> Result<CallOutcome> {
    let turns = &input.turns;
    fn end<T: Serialize>(called: CallResult<T>) -> Result<CallOutcome> {
        let outcome = match called.outcome {
            Ok(answer) => Ok(serde_json::to_value(answer)?),
            Err(fault) => Err(fault),
        };
        Ok((outcome, called.receipt))
    }
    match plugin.kind() {
        Kind::Judge | Kind::Hint | Kind::Filter => {
            let mut all = Trajectory::new("run", "run");
            for turn in turns {
                turn.push_to(&mut all);
            }
            let last = all.turns.last().map_or(0, |turn| turn.index);
            match plugin.kind() {
                Kind::Judge => end(plugin.score_turn(call, &all, last).await),
                Kind::Hint => end(plugin.extract_hint(call, &all, last).await),
                _ => end(plugin.filter_turn(call, &all, last, input.reward).await),
            }
        }
        Kind::GroupJudge => {
            let mut group = Vec::new();
            for turn in turns {
                let mut one = Trajectory::new("run", "run");
                turn.push_to(&mut one);
                group.push(one);
            }
            end(plugin.score_group(call, &group).await)
        }
        kind => {
            bail!("a {kind} is not shown turns; `clawhost plugin test` runs it on its transcripts")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_of_the_plugin_is_not_an_override_of_the_configuration() {
        let parse = |set| {
            let command = RunArgs::augment_args(clap::Command::new("run"));
            command.try_get_matches_from(["run", "--set", set])
        };
        assert!(parse("plugins.host.num_threads=2").is_ok());
        let error = parse("votes=5").unwrap_err().to_string();
        assert!(error.contains("--setting votes=5"), "{error}");
    }
}
