//! `clawhost eval judge`: runs judges and a hint extractor on labelled reactions.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;
use clawhost_evaluation::{
    ReactionAnswer, ReactionItem, ReactionReport, ReactionRole, parse_reactions,
};
use clawhost_plugins::{CallContext, Fault, Kind, Message, Plugin, Role, Trajectory};
use serde_json::json;

use crate::commands::plugin::load::{ConfigurationFlags, limits, load_live};
use crate::config::Config;
use crate::output::{print, print_json};

/// The run that the calls belong to.
const RUN: &str = "eval";

/// Arguments of `clawhost eval judge`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost eval judge --reactions benches/reactions/development.jsonl --plugin judge-next-state --hints hint-next-state\n  \
    clawhost eval judge --reactions development.jsonl --plugin judge-next-state --plugin judge-llm.wasm --config server.toml\n\n\
    Precision is the share of the verdicts of a sign whose label has it, recall the share of a label that got it; a reward of 0\n\
    and an abstention are no verdict. With several judges, the next one is asked where those before abstained, as\n\
    judging.combine = \"first\" does in a server. Models have to be granted to the build, and --config names them; a remote\n\
    endpoint needs no server of this program.\n\n\
    Exit codes: 0 success, 1 a call failed, 2 wrong usage."
)]
pub(crate) struct JudgeArgs {
    /// Labelled reactions, one JSON object in each line
    #[arg(long, value_name = "FILE")]
    reactions: PathBuf,
    /// A judge: the path of a component, or the name of an embedded one; can be repeated
    #[arg(long = "plugin", value_name = "FILE", required = true)]
    judges: Vec<PathBuf>,
    /// A hint extractor to measure, too
    #[arg(long, value_name = "FILE")]
    hints: Option<PathBuf>,
    #[command(flatten)]
    configuration: ConfigurationFlags,
    /// Print one JSON object, with the answer to each item
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn judge(args: &JudgeArgs) -> Result<ExitCode> {
    let text = std::fs::read_to_string(&args.reactions)
        .with_context(|| format!("--reactions {} cannot be read", args.reactions.display()))?;
    let items = parse_reactions(&text)
        .with_context(|| format!("--reactions {}", args.reactions.display()))?;
    let config = args.configuration.load(None)?;
    let judges = args
        .judges
        .iter()
        .map(|file| load(file, Kind::Judge, &config))
        .collect::<Result<Vec<_>>>()?;
    let extractor = args
        .hints
        .as_ref()
        .map(|file| load(file, Kind::Hint, &config))
        .transpose()?;
    let runtime = tokio::runtime::Runtime::new()?;
    let (answers, faults) = runtime.block_on(async {
        let mut answers = Vec::with_capacity(items.len());
        let mut faults = Vec::new();
        for item in &items {
            let all = trajectory(item);
            let reward = first_reward(&judges, &all, item, &config, &mut faults).await;
            let hint = match &extractor {
                Some(extractor) => {
                    let called = extractor
                        .extract_hint(call(&config, extractor), &all, 0)
                        .await;
                    note(&called.outcome, extractor, item, &mut faults);
                    Some(
                        called
                            .outcome
                            .is_ok_and(|extraction| extraction.hint.is_some()),
                    )
                }
                None => None,
            };
            answers.push(ReactionAnswer { reward, hint });
        }
        (answers, faults)
    });
    let report = ReactionReport::new(&items, &answers);
    if args.json {
        let answers: Vec<_> = items
            .iter()
            .zip(&answers)
            .map(|(item, answer)| {
                json!({"id": item.id, "label": item.label, "reward": answer.reward, "hint": answer.hint})
            })
            .collect();
        print_json(&json!({"report": report, "answers": answers, "faults": faults}))?;
    } else {
        let mut text = report.table();
        for fault in &faults {
            text.push_str(&format!("\nno answer: {fault}"));
        }
        print(&text)?;
    }
    Ok(if faults.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn load(file: &std::path::Path, kind: Kind, config: &Config) -> Result<Plugin> {
    let (plugin, _) = load_live(file, config, false)?;
    ensure!(
        plugin.kind() == kind,
        "{} is a {}, not a {kind}",
        file.display(),
        plugin.kind()
    );
    Ok(plugin)
}

/// The reward of the first judge that does not abstain.
async fn first_reward(
    judges: &[Plugin],
    all: &Trajectory,
    item: &ReactionItem,
    config: &Config,
    faults: &mut Vec<String>,
) -> Option<f32> {
    for judge in judges {
        let called = judge.score_turn(call(config, judge), all, 0).await;
        note(&called.outcome, judge, item, faults);
        // A reward of 0 without votes is an abstention, as in a server.
        if let Ok(verdict) = called.outcome
            && (verdict.reward != 0.0 || !verdict.votes.is_empty())
        {
            return Some(verdict.reward);
        }
    }
    None
}

fn note<T>(
    outcome: &Result<T, Fault>,
    plugin: &Plugin,
    item: &ReactionItem,
    faults: &mut Vec<String>,
) {
    if let Err(fault) = outcome
        && !fault.is_unsupported()
    {
        faults.push(format!("{} on {}: {fault}", plugin.name(), item.id));
    }
}

fn call(config: &Config, plugin: &Plugin) -> CallContext {
    CallContext {
        run_id: RUN.to_owned(),
        limits: limits(config, plugin),
        settings: config.plugins.settings(plugin.name()),
        ..CallContext::default()
    }
}

/// The turn of an item. A tool result follows a call with the text of the reply.
fn trajectory(item: &ReactionItem) -> Trajectory {
    let mut reply = Message::text(Role::Assistant, &item.reply);
    let role = match item.role {
        ReactionRole::User => Role::User,
        ReactionRole::Tool => {
            let (name, arguments) = tool_call(&item.reply);
            reply.push_call("call", name, arguments);
            Role::Tool
        }
    };
    let mut all = Trajectory::new(RUN, &item.id);
    all.push(
        vec![Message::text(Role::User, &item.request)],
        reply,
        vec![Message::text(role, &item.reaction)],
        false,
    );
    all
}

/// The name and arguments of a call that is written as `name(arguments)`, or as the command of a shell.
fn tool_call(reply: &str) -> (String, String) {
    let is_name =
        |name: &str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    match reply.trim().split_once('(') {
        Some((name, rest)) if is_name(name) => (
            name.to_owned(),
            rest.strip_suffix(')').unwrap_or(rest).to_owned(),
        ),
        _ => {
            let command = reply.trim().trim_matches('`');
            ("bash".to_owned(), json!({ "command": command }).to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_read_from_both_ways_of_writing_it() {
        let (name, arguments) = tool_call("read_file({\"path\": \"a.txt\"})");
        assert_eq!(
            (name.as_str(), arguments.as_str()),
            ("read_file", "{\"path\": \"a.txt\"}")
        );
        let (name, arguments) = tool_call("`SELECT COUNT(*) FROM orders;`");
        assert_eq!(name, "bash");
        assert_eq!(arguments, "{\"command\":\"SELECT COUNT(*) FROM orders;\"}");
    }
}
