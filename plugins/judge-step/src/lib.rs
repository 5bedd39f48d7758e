//! Votes on one reply of an episode by rules, as a step judge beside the outcome.
//!
//! Each rule that applies is a vote of -1 or +1 with its reason; the reward is the mean of the votes.
//!
//! | rule | applies to | +1 | -1 |
//! |---|---|---|---|
//! | end | every reply | it ended by itself | it was cut at the token limit |
//! | call | replies that call a tool, or begin a call | the call could be read | the call is broken |
//! | results | replies whose tool results tell something | they report success | they report a failure |
//! | repetition | replies after the first one | it is new | it is a repetition of an earlier reply |
//! | form | replies without a call, in tasks with the field `"form": "line"` | one line without Markdown | anything else |
//!
//! The rules know neither the expected answer nor the reward of the episode: they say how a reply was made, not whether it is
//! right. Text about scores has no effect.

#[cfg(test)]
mod tests;

use clawhost_sdk::{Judge, Message, PluginError, Trajectory, Turn, Verdict, Vote};

/// Text of a tool call that could not be read.
const CALL_MARKS: [&str; 3] = ["<tool_call>", "</tool_call>", "<function="];

/// The judge.
pub struct JudgeStep;

impl Judge for JudgeStep {
    fn score_turn(trajectory: &Trajectory, turn: &Turn) -> Result<Verdict, PluginError> {
        Ok(judge(trajectory, turn))
    }
}

clawhost_sdk::export_judge!(JudgeStep);

/// Judges one reply of an episode.
pub fn judge(trajectory: &Trajectory, turn: &Turn) -> Verdict {
    let rules = [
        Some(end(turn)),
        call(&turn.response),
        results(turn),
        repetition(trajectory, turn),
        form(trajectory, &turn.response),
    ];
    let votes: Vec<Vote> = rules.into_iter().flatten().collect();
    let sum: f32 = votes.iter().map(|vote| vote.score).sum();
    let against: Vec<&str> = votes
        .iter()
        .filter(|vote| vote.score < 0.0)
        .map(|vote| vote.rationale.as_str())
        .collect();
    let rationale = match against.as_slice() {
        [] => "no rule speaks against the reply".to_owned(),
        against => against.join("; "),
    };
    #[allow(clippy::cast_precision_loss, reason = "there are five rules")]
    let reward = sum / votes.len() as f32;
    Verdict {
        votes,
        ..Verdict::new(reward, rationale)
    }
}

fn vote(holds: bool, good: &str, bad: &str) -> Vote {
    match holds {
        true => Vote::new(1.0, good),
        false => Vote::new(-1.0, bad),
    }
}

fn end(turn: &Turn) -> Vote {
    vote(
        !turn.truncated,
        "it ended by itself",
        "it was cut at the token limit",
    )
}

fn call(reply: &Message) -> Option<Vote> {
    let text = reply.text();
    let broken = CALL_MARKS.iter().any(|mark| text.contains(mark));
    (broken || !reply.tool_calls.is_empty()).then(|| {
        vote(
            !broken,
            "its call could be read",
            "it has a call that cannot be read",
        )
    })
}

fn results(turn: &Turn) -> Option<Vote> {
    let results = turn.tool_results();
    let calls = turn.response.tool_calls.iter();
    let calls: Vec<String> = calls
        .map(|call| format!("{}({})", call.name, call.arguments))
        .collect();
    let read = reactions::of_tools(&results, &calls.join("\n")).filter(|_| !results.is_empty())?;
    Some(Vote::new(read.score, read.reason))
}

fn repetition(trajectory: &Trajectory, turn: &Turn) -> Option<Vote> {
    let earlier = trajectory
        .turns
        .iter()
        .take_while(|one| one.index < turn.index);
    let mut earlier = earlier.peekable();
    earlier.peek()?;
    let same = |one: &Turn| {
        let calls = |turn: &Turn| -> Vec<(String, String)> {
            let calls = turn.response.tool_calls.iter();
            calls
                .map(|call| (call.name.clone(), call.arguments.clone()))
                .collect()
        };
        one.response.text() == turn.response.text() && calls(one) == calls(turn)
    };
    let repeats = earlier.any(same);
    Some(vote(!repeats, "it is new", "it repeats an earlier reply"))
}

fn form(trajectory: &Trajectory, reply: &Message) -> Option<Vote> {
    let mut fields = trajectory.metadata.iter();
    let wanted = fields.any(|(key, value)| key == "form" && value == "\"line\"");
    if !wanted || !reply.tool_calls.is_empty() {
        return None;
    }
    let text = reply.text();
    let text = text.trim();
    let starts_a_list = text.starts_with(['-', '#', '>']) || starts_with_number(text);
    let holds = !text.is_empty() && !text.contains(['\n', '*', '|', '`']) && !starts_a_list;
    Some(vote(
        holds,
        "it is one line without Markdown",
        "it is not one line without Markdown",
    ))
}

/// Whether a text begins as a numbered list does.
fn starts_with_number(text: &str) -> bool {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    rest.len() < text.len() && (rest.starts_with(". ") || rest.starts_with(") "))
}
