//! Scores a turn by its next state: the user's next message and the results of tools.
//!
//! The crate `reactions` reads both by rules, in fourteen languages, and English also by a small linear model. Each that tells
//! something is a vote of -1 or +1 with its reason; the reward is the majority, and a tie is a neutral 0. Without a vote the
//! judge abstains: the host treats a reward of 0 without votes as an abstention. If nothing followed there is no verdict.
//!
//! The rules abstain in doubt. They do not assess the response itself, and text about scores has no effect on the verdict.

#[cfg(test)]
mod cases;
#[cfg(test)]
mod order_cases;

use clawhost_sdk::{Judge, PluginError, Role, Trajectory, Turn, Verdict, Vote};

/// The judge.
pub struct JudgeNextState;

impl Judge for JudgeNextState {
    fn score_turn(_trajectory: &Trajectory, turn: &Turn) -> Result<Verdict, PluginError> {
        judge(turn)
    }
}

clawhost_sdk::export_judge!(JudgeNextState);

/// Judges one turn by its next state.
///
/// # Errors
/// [`PluginError::Unsupported`] when neither a user nor a tool message follows the response.
pub fn judge(turn: &Turn) -> Result<Verdict, PluginError> {
    let results = turn.tool_results();
    let reply = turn.response.text();
    let said: Vec<String> = turn
        .next_state
        .iter()
        .filter(|message| message.role == Role::User)
        .map(|message| reactions::spoken(&message.text(), &reply))
        .filter(|text| !text.is_empty())
        .collect();
    if results.is_empty() && said.is_empty() {
        return Err(PluginError::Unsupported(
            "neither a user nor a tool said anything after the reply".to_owned(),
        ));
    }

    let mut read = Vec::new();
    if !results.is_empty() {
        read.extend(reactions::of_tools(&results, &calls(turn)));
    }
    if !said.is_empty() {
        let request = reactions::spoken(&turn.last_request(), "");
        read.extend(reactions::of_user(&said.join("\n"), &request, &reply));
    }
    let votes: Vec<Vote> = read
        .into_iter()
        .map(|read| Vote::new(read.score, read.reason))
        .collect();
    let (tool_count, vote_count) = (results.len(), votes.len());
    let mut verdict = Verdict::majority(votes);
    if verdict.votes.is_empty() {
        verdict.rationale = "nothing in what followed speaks for or against the reply".to_owned();
    }
    Ok(verdict
        .with_metric("rules_that_voted", vote_count as f64)
        .with_metric("tool_results", tool_count as f64))
}

/// The text of the tool calls of the response.
fn calls(turn: &Turn) -> String {
    let call = turn.response.tool_calls.first();
    // The command of a shell says more than the name of the tool.
    let command = call.and_then(|call| {
        let (_, after) = call
            .arguments
            .split_once("\"command\"")
            .or_else(|| call.arguments.split_once("\"cmd\""))?;
        after.trim_start_matches([':', ' ']).strip_prefix('"')
    });
    match (command, call) {
        (Some(command), _) => command.to_owned(),
        (None, Some(call)) => format!("{}({})", call.name, call.arguments),
        (None, None) => turn.response.text(),
    }
}
