//! `clawhost explain`: how a turn was matched, judged and trained, or why not; and what a step was made of.

pub(super) mod step;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use clawhost_journal::{Journal, SessionId, StepId, TurnId};
use clawhost_sessions::{SessionOptions, Sessions};
use serde_json::Value;

use crate::output::{say, say_json};

/// Arguments of `clawhost explain`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost explain 12                       turn 12\n  \
    clawhost explain chatcmpl-0f3a…           the turns of a response\n  \
    clawhost explain --session conv-7 --json  a whole session\n  \
    clawhost explain step 12                  training step 12: which samples moved what\n\n\
    Works while a server runs on the same data directory.",
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
pub(crate) struct ExplainArgs {
    #[command(subcommand)]
    what: Option<What>,
    /// Number of a turn, or id of a response (`x-clawhost-turn`, `id` of the reply)
    #[arg(value_name = "TURN", required_unless_present = "session")]
    turn: Option<String>,
    /// A whole session instead, by id or name
    #[arg(long, value_name = "ID", conflicts_with = "turn")]
    session: Option<String>,
    /// Data directory of the server
    #[arg(
        long,
        value_name = "DIR",
        default_value = "clawhost-data",
        global = true
    )]
    data: PathBuf,
    /// Print JSON on one line
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Tell which samples a training step was made of, what each moved, and what was dropped
    #[command(
        after_help = "Examples:\n  clawhost explain step 12\n  clawhost explain step        the last one\n  \
        clawhost explain step 12 --json\n\n\
        A sample's share is its part of all that pulled at the parameters. How far it moved is how much likelier its \
        whole reply is after the step, in nats. Samples of sessions that were forgotten are counted, not shown."
    )]
    Step {
        /// Number of the step [default: the last one]
        #[arg(value_name = "N")]
        step: Option<StepId>,
    },
}

/// Runs the command.
pub(crate) fn explain(args: &ExplainArgs) -> Result<ExitCode> {
    let journal = Journal::open_read_only(&args.data)?;
    let sessions = Sessions::new(journal.clone(), SessionOptions::default());
    if let Some(What::Step { step }) = &args.what {
        anyhow::ensure!(
            args.turn.is_none() && args.session.is_none(),
            "name a step or a turn, not both"
        );
        return step::explain(&journal, &sessions, *step, args);
    }
    let explained = match (&args.turn, &args.session) {
        (Some(turn), _) => {
            let turns = turns(&journal, turn)?;
            let mut all = Vec::new();
            for turn in turns {
                all.extend(sessions.explain_turn(turn)?);
            }
            let known = || {
                format!(
                    "no turn or response {turn} in {}; `clawhost status` shows what there is",
                    args.data.display()
                )
            };
            if all.len() > 1 {
                Value::Array(all)
            } else {
                all.pop().with_context(known)?
            }
        }
        (None, Some(name)) => session_called(&journal, name)?
            .map(|id| sessions.explain(&id))
            .transpose()?
            .flatten()
            .with_context(|| {
                format!(
                    "no session {name} in {}; `clawhost status` shows what there is",
                    args.data.display()
                )
            })?,
        (None, None) => anyhow::bail!("name a turn, a response or --session"),
    };
    if args.json {
        say_json(&explained)?
    } else {
        say(&readable(&explained, 0))?
    }
    Ok(ExitCode::SUCCESS)
}

/// The session with this id or name, if there is one. Keys may use the same name for sessions of their own.
///
/// # Errors
/// Several sessions have the name; their ids are listed.
pub(super) fn session_called(journal: &Journal, name: &str) -> Result<Option<SessionId>> {
    let mut found = journal.sessions_called(name)?;
    let exact = found.iter().position(|session| session.id.as_str() == name);
    if let Some(session) = exact.map(|at| found.swap_remove(at)) {
        return Ok(Some(session.id));
    }
    match found.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(one.id.clone())),
        several => {
            let each = several.iter().map(|session| {
                let key = session.key.as_deref().unwrap_or("no key");
                format!("{} ({key})", session.id)
            });
            let each: Vec<String> = each.collect();
            anyhow::bail!(
                "{} sessions are named {name}; give the id of one: {}",
                several.len(),
                each.join(", ")
            )
        }
    }
}

fn turns(journal: &Journal, text: &str) -> Result<Vec<TurnId>> {
    if let Ok(turn) = text.parse::<TurnId>() {
        return Ok(vec![turn]);
    }
    Ok(journal
        .turns_of_response(text)?
        .iter()
        .map(|t| t.id)
        .collect())
}

/// JSON as indented text without its punctuation.
fn readable(value: &Value, depth: usize) -> String {
    let pad = "  ".repeat(depth);
    let scalar = |v: &Value| match v {
        Value::String(s) => s.replace('\n', &format!("\n{pad}    ")),
        other => other.to_string(),
    };
    let entry = |label: String, v: &Value| match v {
        Value::Null => String::new(),
        Value::Object(o) if o.is_empty() => String::new(),
        Value::Array(a) if a.is_empty() => String::new(),
        Value::Object(_) | Value::Array(_) => {
            format!("{pad}{label}\n{}", readable(v, depth + 1))
        }
        v => format!("{pad}{label} {}\n", scalar(v)),
    };
    match value {
        Value::Object(map) => map.iter().map(|(k, v)| entry(format!("{k}:"), v)).collect(),
        Value::Array(list) => list
            .iter()
            .enumerate()
            .map(|(i, v)| entry(format!("{}.", i + 1), v))
            .collect(),
        other => format!("{pad}{}\n", scalar(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readable_text_leaves_out_what_is_empty() {
        let value = serde_json::json!({"turn": 3, "why": "no\nnext", "votes": [{"score": 1}], "none": null, "empty": []});
        assert_eq!(
            readable(&value, 0),
            "turn: 3\nwhy: no\n    next\nvotes:\n  1.\n    score: 1\n"
        );
    }
}
