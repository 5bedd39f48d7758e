//! `clawhost env try`: a person plays an episode.

use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use clawhost_episodes::{Artifacts, Task, load_tasks};
use clawhost_plugins::{
    EpisodeTask, Message, Observation, Part, Plugin, Progress, Role, ToolSpec, printable,
};

use super::rollout::load_environment;
use crate::commands::plugin::load::ConfigurationFlags;
use crate::environments::{call_context, open_artifacts};
use crate::output::print;

/// Starts a line that calls a tool.
const CALL: &str = "/call ";

/// Arguments of `clawhost env try`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost env try environment.wasm --tasks tasks.jsonl --task 3\n  \
    clawhost env try environment.wasm --tasks tasks.jsonl --task gained-4\n\n\
    Each line of standard input is one action: the text of the reply, or `/call TOOL {\"argument\": \"value\"}` for a tool call.\n\
    The end of the input ends the episode."
)]
pub(crate) struct TryArgs {
    /// Environment component
    #[arg(value_name = "FILE")]
    env: PathBuf,
    /// Task set, one JSON object per line
    #[arg(long, value_name = "FILE")]
    tasks: PathBuf,
    /// The task: its number, from 1, or its id
    #[arg(long, value_name = "N", default_value = "1")]
    task: String,
    /// Seed of the episode
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    /// Keep a transcript, the outcome and the screenshots below this directory, with a page to watch them
    #[arg(long, value_name = "DIR")]
    artifacts: Option<PathBuf>,
    #[command(flatten)]
    configuration: ConfigurationFlags,
}

/// Runs the command.
pub(crate) fn play(args: &TryArgs) -> Result<ExitCode> {
    let tasks = load_tasks(&args.tasks)?;
    let task = find_task(&tasks, &args.task)?;
    let config = args.configuration.load(None)?;
    let environment = load_environment(&args.env, &config)?;
    let mut call = call_context(&config, &environment, args.seed);
    let mut artifacts = None;
    if let Some(root) = &args.artifacts {
        let created = open_artifacts(root)?
            .create(&task.id, &task.id)
            .with_context(|| format!("cannot keep the episode in {}", root.display()))?;
        call.artifacts = Some(created.dir().to_owned());
        artifacts = Some(created);
    }
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    runtime.block_on(run(&environment, call, task, args.seed, artifacts))
}

pub(super) fn find_task<'a>(tasks: &'a [Task], wanted: &str) -> Result<&'a Task> {
    let by_number = wanted.parse::<usize>().ok();
    let by_number = by_number.and_then(|number| tasks.get(number.checked_sub(1)?));
    let by_id = || tasks.iter().find(|task| task.id == wanted);
    let Some(task) = by_number.or_else(by_id) else {
        bail!(
            "there is no task {wanted}; pass a number from 1 to {}, or an id",
            tasks.len()
        );
    };
    Ok(task)
}

async fn run(
    environment: &Plugin,
    call: clawhost_plugins::CallContext,
    task: &Task,
    seed: u64,
    mut artifacts: Option<Artifacts>,
) -> Result<ExitCode> {
    let start = EpisodeTask {
        id: task.id.clone(),
        instruction: task.instruction.clone(),
        payload: task.payload.clone(),
    };
    let (mut episode, observation) = environment
        .start_episode(call, start, seed)
        .await
        .outcome
        .with_context(|| format!("the environment rejects the task {}", task.id))?;
    print(&format!("task {}", task.id))?;
    show(&observation)?;
    let mut keep = |messages: &[Message]| match &mut artifacts {
        Some(artifacts) => artifacts
            .add(messages)
            .context("cannot write the transcript"),
        None => Ok(()),
    };
    keep(&observation.messages)?;
    let mut steps = 0;
    let mut reward = 0.0;
    let mut input = std::io::stdin().lock().lines();
    let mut number = 0;
    while let Some(line) = next_line(&mut input)? {
        number += 1;
        let action = match parse_action(&line, number) {
            Ok(action) => action,
            Err(reason) => {
                print(&reason)?;
                continue;
            }
        };
        match episode.step(&action).await.outcome {
            Ok(transition) => {
                steps += 1;
                keep(std::slice::from_ref(&action))?;
                keep(&transition.observation.messages)?;
                reward += transition.reward;
                show(&transition.observation)?;
                print(&format!("reward {}", transition.reward))?;
                if transition.progress != Progress::Running {
                    break;
                }
            }
            Err(fault) if matches!(fault.kind, clawhost_plugins::FaultKind::PluginError { .. }) => {
                print(&fault.to_string())?;
            }
            Err(fault) => return Err(fault.into()),
        }
    }
    let outcome = episode.grade().await.outcome.context("no grade")?;
    let solved = match outcome.success {
        Some(true) => "solved",
        Some(false) => "not solved",
        None => "not said whether it is solved",
    };
    print(&format!(
        "grade {} ({solved}): {}\ntotal reward {}",
        outcome.reward,
        printable::lines(&outcome.report),
        reward + outcome.reward
    ))?;
    if let Some(artifacts) = &artifacts {
        let finished = artifacts.finish(&outcome, reward + outcome.reward, steps);
        finished.context("cannot write the outcome")?;
        print(&format!("kept in {}", artifacts.dir().display()))?;
    }
    for metric in &outcome.metrics {
        print(&format!("  {} {}", metric.name, metric.value))?;
    }
    episode.close().await.outcome.context("close failed")?;
    Ok(ExitCode::SUCCESS)
}

fn next_line(input: &mut impl Iterator<Item = std::io::Result<String>>) -> Result<Option<String>> {
    if std::io::stdin().is_terminal() {
        print("your action:")?;
    }
    input.next().transpose().context("cannot read the action")
}

pub(super) fn parse_action(line: &str, number: usize) -> Result<Message, String> {
    let Some(call) = line.strip_prefix(CALL) else {
        return Ok(Message::text(Role::Assistant, line));
    };
    let (name, arguments) = call.trim().split_once(' ').unwrap_or((call.trim(), "{}"));
    if name.is_empty() {
        return Err("write a call as /call TOOL {\"argument\": \"value\"}".to_owned());
    }
    let mut action = Message {
        content: Vec::new(),
        ..Message::text(Role::Assistant, "")
    };
    action.push_call(format!("call-{number}"), name, arguments.trim());
    Ok(action)
}

fn show(observation: &Observation) -> Result<()> {
    for message in &observation.messages {
        let role = serde_json::to_value(message.role)?;
        let role = role.as_str().unwrap_or_default();
        print(&format!("{role}: {}", printable::lines(&text(message))))?;
    }
    if !observation.tools.is_empty() {
        let tools: Vec<String> = observation.tools.iter().map(signature).collect();
        print(&format!("tools: {}", tools.join(", ")))?;
    }
    Ok(())
}

fn signature(tool: &ToolSpec) -> String {
    format!("{} {}", tool.name, tool.parameters)
}

fn text(message: &Message) -> String {
    let parts = message.content.iter().map(|part| match part {
        Part::Text(text) | Part::Reasoning(text) => text.clone(),
        Part::Image(blob) => format!("[{} of {} bytes]", blob.media_type, blob.data.len()),
        Part::Other(kind, _) => format!("[{kind}]"),
    });
    parts.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use clawhost_episodes::parse_tasks;

    use super::*;

    #[test]
    fn a_task_is_found_by_number_and_by_id() {
        let text = "{\"id\":\"a\",\"instruction\":\"x\"}\n{\"id\":\"b\",\"instruction\":\"x\"}";
        let tasks = parse_tasks(text, "t").unwrap();
        assert_eq!(find_task(&tasks, "2").unwrap().id, "b");
        assert_eq!(find_task(&tasks, "a").unwrap().id, "a");
        let error = find_task(&tasks, "0").unwrap_err().to_string();
        assert!(error.contains("from 1 to 2"), "{error}");
    }

    #[test]
    fn a_line_is_a_text_or_a_call() {
        assert_eq!(
            parse_action("It is 19.", 1).unwrap().visible_text(),
            "It is 19."
        );
        let call = parse_action("/call lookup {\"key\": \"lamp\"}", 2).unwrap();
        assert_eq!(call.tool_calls[0].name, "lookup");
        assert_eq!(call.tool_calls[0].arguments, "{\"key\": \"lamp\"}");
        assert!(call.content.is_empty());
        assert!(parse_action("/call  ", 3).is_err());
    }
}
