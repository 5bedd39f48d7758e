//! Scores a turn by its next state: the user's next message and the results of tools.
//!
//! Five rules vote -1 or +1 or abstain, each with a reason: `reaction` detects praise and complaints, `request` what the user
//! asks for next (a redo, to keep the response, something new), `format` wishes about the form of the response, `repetition`
//! the same request again, `tools` results of tools. The reward is the majority; a tie is a neutral 0. Without a vote the
//! judge abstains: the host treats a reward of 0 without votes as an abstention. If nothing followed there is no verdict.
//!
//! The rules only know English patterns and abstain in doubt. They do not assess the response itself, and text about scores
//! has no effect on the verdict.

mod cleaning;
mod compiled;
mod format;
mod lexicon;
mod order;
mod pattern;
mod praise;
mod reaction;
mod repetition;
mod request;
mod speech;
mod tools;

#[cfg(test)]
mod cases;
#[cfg(test)]
mod order_cases;

use clawhost_sdk::{Judge, PluginError, Role, Trajectory, Turn, Verdict, Vote};

use crate::speech::Speech;

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
        .map(|message| cleaning::spoken(&message.text(), &reply))
        .filter(|text| !text.is_empty())
        .collect();
    if results.is_empty() && said.is_empty() {
        return Err(PluginError::Unsupported(
            "neither a user nor a tool said anything after the reply".to_owned(),
        ));
    }

    let mut votes = Vec::new();
    if !results.is_empty() {
        votes.extend(tools::vote(&results));
    }
    if !said.is_empty() {
        votes.extend(votes_on_speech(&said.join("\n"), turn, &reply));
    }
    let (tool_count, vote_count) = (results.len(), votes.len());
    let mut verdict = Verdict::majority(votes);
    if verdict.votes.is_empty() {
        verdict.rationale = "nothing in what followed speaks for or against the reply".to_owned();
    }
    Ok(verdict
        .with_metric("rules_that_voted", vote_count as f64)
        .with_metric("tool_results", tool_count as f64))
}

fn votes_on_speech(text: &str, turn: &Turn, reply: &str) -> Vec<Vote> {
    let speech = Speech::read(text);
    if speech.sentences.is_empty() {
        return Vec::new();
    }
    let before = cleaning::spoken(&turn.last_request(), "");
    let orders = order::Orders::read(&speech);
    let repetition =
        repetition::vote(text, &before, reply).filter(|_| !orders.differ_from(&speech, &before));
    let asked = request::read(&speech, &orders, text, &before, reply);
    let remarks = orders.left_out(&speech);
    let format = format::vote(&remarks, asked.asked);
    let wants_change =
        repetition.is_some() || format.is_some() || asked.asked == request::Asked::ForChange;
    let own_words = if request::brings_material(&speech, text, &before, reply) {
        remarks.without_material()
    } else {
        remarks
    };
    let reaction = reaction::vote(&own_words, wants_change);
    let complains = wants_change || reaction.as_ref().is_some_and(|vote| vote.score < 0.0);
    let mut votes = Vec::new();
    votes.extend(reaction);
    votes.extend(asked.vote(complains));
    votes.extend(format);
    votes.extend(repetition);
    votes
}
