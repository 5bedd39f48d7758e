//! Scores a turn by the share of passed tests: `2 * share - 1`.
//!
//! The share comes from what followed the reply: results of tools, and what a user pasted. The summaries
//! of pytest, unittest, cargo test and nextest, go test, jest and vitest, mocha, TAP, JUnit XML and
//! ctest are read; several are added up. Where the environment reported a reward of its own, that is the
//! measure instead: the environment ran the tests itself, text can be made to say anything.
//!
//! Settings, as JSON in the configuration:
//!
//! | name | meaning | default |
//! |---|---|---|
//! | `env_reward` | `"share"`: the environment's reward is a share, 0 to 1; `"reward"`: it is taken as it is; `"ignore"` | `"share"` |
//!
//! What it refuses: to guess. Without a summary that it knows there is no verdict, and neither when no
//! test ran. A summary that the reply itself contains proves nothing: text that reads otherwise without
//! the lines of the reply is not counted. It runs nothing, and cannot tell a test that was weakened from one
//! that was passed; that is the environment's work.

mod runners;
mod text;

#[cfg(test)]
mod cases;

use clawhost_sdk::{Judge, Message, PluginError, Role, Settings, Trajectory, Turn, Verdict, Vote};

pub use crate::runners::Counts;

/// The judge.
pub struct JudgeTests;

impl Judge for JudgeTests {
    fn score_turn(trajectory: &Trajectory, turn: &Turn) -> Result<Verdict, PluginError> {
        judge(trajectory, turn, &Settings::of_plugin())
    }
}

clawhost_sdk::export_judge!(JudgeTests);

/// How the environment's reward is read.
#[derive(Debug, Clone, Copy, PartialEq)]
enum EnvReward {
    Share,
    Reward,
    Ignore,
}

/// Judges one turn.
///
/// # Errors
/// [`PluginError::Unsupported`] when nothing says how many tests passed,
/// [`PluginError::InvalidInput`] when the environment's reward is outside of its range.
pub fn judge(
    trajectory: &Trajectory,
    turn: &Turn,
    settings: &Settings,
) -> Result<Verdict, PluginError> {
    let choices = [
        ("share", EnvReward::Share),
        ("reward", EnvReward::Reward),
        ("ignore", EnvReward::Ignore),
    ];
    let reading = settings.choice("env_reward", EnvReward::Share, &choices)?;
    match trajectory.env_reward {
        Some(reward) if reading != EnvReward::Ignore => from_environment(reward, reading),
        _ => from_text(turn),
    }
}

fn from_environment(reward: f32, reading: EnvReward) -> Result<Verdict, PluginError> {
    let (range, scaled) = match reading {
        EnvReward::Share => (0.0..=1.0, 2.0 * reward - 1.0),
        _ => (-1.0..=1.0, reward),
    };
    if !range.contains(&reward) {
        return Err(PluginError::InvalidInput(format!(
            "the environment's reward is {reward}, expected {} to {}; the setting `env_reward` says \
             how it is read",
            range.start(),
            range.end()
        )));
    }
    Ok(measured(
        scaled,
        format!("the environment reported {reward}"),
    ))
}

/// A verdict with a vote, since the host reads a reward of 0 without one as an abstention: half of the
/// tests passed is a measure like any other.
fn measured(reward: f32, rationale: String) -> Verdict {
    let mut verdict = Verdict::new(reward, rationale.clone());
    verdict.votes.push(Vote::new(reward, rationale));
    verdict
}

fn from_text(turn: &Turn) -> Result<Verdict, PluginError> {
    let reply = reply_lines(&turn.response);
    let mut counts = Counts::default();
    let mut doubtful = 0u32;
    for message in &turn.next_state {
        if !matches!(message.role, Role::User | Role::Tool) {
            continue;
        }
        let said = text::plain(&message.text(), message.role == Role::User);
        let seen = runners::read(&said);
        if seen == Counts::default() {
            continue;
        }
        if seen == runners::read(&text::without_lines(&said, &reply)) {
            counts += seen;
        } else {
            doubtful += 1;
        }
    }
    let total = counts.passed + counts.failed;
    if total == 0 {
        return Err(PluginError::Unsupported(
            if doubtful > 0 {
                "the only test summary is one that the reply itself contains"
            } else if counts.skipped > 0 {
                "every test was skipped"
            } else {
                "no test summary followed the reply"
            }
            .to_owned(),
        ));
    }
    let share = counts.passed as f64 / total as f64;
    Ok(measured(
        (2.0 * share - 1.0) as f32,
        format!("{} of {total} tests passed", counts.passed),
    )
    .with_metric("tests_passed", counts.passed as f64)
    .with_metric("tests_failed", counts.failed as f64)
    .with_metric("tests_skipped", counts.skipped as f64)
    .with_metric("share", share))
}

/// The lines of the reply and of what it gave to tools, where a summary would be its own invention.
/// Only those that could be part of one: each line of what followed is compared with all of them.
fn reply_lines(reply: &Message) -> Vec<String> {
    let mut written = text::plain(&reply.text(), false);
    for call in &reply.tool_calls {
        // The arguments are JSON: a line end in them is written as two characters.
        let arguments = call.arguments.replace("\\n", "\n").replace("\\\"", "\"");
        written.push('\n');
        written.push_str(&arguments);
    }
    written
        .lines()
        .map(str::trim)
        .filter(|line| runners::may_be_read(line))
        .map(str::to_owned)
        .collect()
}
