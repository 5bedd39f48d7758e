//! Scores a turn from what followed it: what the user wrote next, what the tools answered.
//!
//! Five rules vote -1 or +1, or abstain, each with its reason: `reaction` reads praise and
//! complaint, `request` what is asked for next (a redo, a save, something new), `format` wishes
//! about the form of the reply, `repetition` sees the same request again, `tools` reads results
//! of tools. The majority is the reward; a draw is a neutral 0. Without a vote it abstains: the host reads
//! a 0 with no votes behind it as no opinion. Where nothing followed at all there is no verdict either.
//!
//! It is a set of rules over English, not a reader: it prefers to abstain. It never looks at the
//! reply's own merit, and it obeys nothing that the text says about scores.

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
/// [`PluginError::Unsupported`] when neither a user nor a tool said anything after the reply.
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
