//! `clawhost explain`: how a turn was matched, judged and trained on, or why not; and what a training step consisted
//! of.

pub(super) mod step;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use clawhost_inspect::{explain_session, explain_turn};
use clawhost_journal::{Journal, SessionId, StepId, TurnId};
use serde_json::Value;

use crate::output::print_result;

/// Arguments of `clawhost explain`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  clawhost explain 12                       turn 12\n  \
    clawhost explain chatcmpl-0f3a…           the turns of a response\n  \
    clawhost explain --session conv-7 --json  a whole session\n  \
    clawhost explain step 12                  training step 12: its samples and their effect\n\n\
    Works while a server runs on the same data directory.",
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
pub(crate) struct ExplainArgs {
    #[command(subcommand)]
    what: Option<What>,
    /// Turn number, or response id (`x-clawhost-turn`, `id` of the reply)
    #[arg(value_name = "TURN", required_unless_present = "session")]
    turn: Option<String>,
    /// Explain a whole session, by id or name
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
    /// Explain which samples a training step used, how much each moved, and which were dropped
    #[command(
        after_help = "Examples:\n  clawhost explain step 12\n  clawhost explain step        the last step\n  \
        clawhost explain step 12 --json\n\n\
        A sample's share is its part of the total gradient weight. 'moved' is the change of the log-prob of its \
        reply by the step, in nats. Samples of deleted sessions are counted but not shown."
    )]
    Step {
        /// Step number [default: the last step]
        #[arg(value_name = "N")]
        step: Option<StepId>,
    },
}

/// Runs the command.
pub(crate) fn explain(args: &ExplainArgs) -> Result<ExitCode> {
    let journal = Journal::open_read_only(&args.data)?;
    if let Some(What::Step { step }) = &args.what {
        anyhow::ensure!(
            args.turn.is_none() && args.session.is_none(),
            "pass either a step or a turn, not both"
        );
        return step::explain(&journal, *step, &args.data, args.json);
    }
    let explained = match (&args.turn, &args.session) {
        (Some(turn), _) => {
            let turns = turns(&journal, turn)?;
            let mut all = Vec::new();
            for turn in turns {
                all.extend(explain_turn(&journal, turn)?);
            }
            let not_found = || {
                format!(
                    "no turn or response {turn} in {}; `clawhost status` lists what is recorded",
                    args.data.display()
                )
            };
            if all.len() > 1 {
                Value::Array(all)
            } else {
                all.pop().with_context(not_found)?
            }
        }
        (None, Some(name)) => find_session(&journal, name)?
            .map(|id| explain_session(&journal, &id))
            .transpose()?
            .flatten()
            .with_context(|| {
                format!(
                    "no session {name} in {}; `clawhost status` lists what is recorded",
                    args.data.display()
                )
            })?,
        (None, None) => anyhow::bail!("pass a turn, a response or --session"),
    };
    print_result(args.json, &explained, || indented_text(&explained, 0))
}

/// Finds the session with this id or name. Different keys may have sessions of the same name.
///
/// # Errors
/// Several sessions have the name; the message lists their ids.
pub(super) fn find_session(journal: &Journal, name: &str) -> Result<Option<SessionId>> {
    let mut matches = journal.find_sessions_by_name(name)?;
    let exact = matches
        .iter()
        .position(|session| session.id.as_str() == name);
    if let Some(session) = exact.map(|at| matches.swap_remove(at)) {
        return Ok(Some(session.id));
    }
    match matches.as_slice() {
        [] => Ok(None),
        [session] => Ok(Some(session.id.clone())),
        several => {
            let each = several.iter().map(|session| {
                let key = session.key.as_deref().unwrap_or("no key");
                format!("{} ({key})", session.id)
            });
            let each: Vec<String> = each.collect();
            anyhow::bail!(
                "{} sessions are named {name}; pass one of their ids: {}",
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

/// Formats JSON as indented text without punctuation.
fn indented_text(value: &Value, depth: usize) -> String {
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
            format!("{pad}{label}\n{}", indented_text(v, depth + 1))
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
    fn indented_text_omits_empty_values() {
        let value = serde_json::json!({"turn": 3, "why": "no\nnext", "votes": [{"score": 1}], "none": null, "empty": []});
        assert_eq!(
            indented_text(&value, 0),
            "turn: 3\nwhy: no\n    next\nvotes:\n  1.\n    score: 1\n"
        );
    }
}
