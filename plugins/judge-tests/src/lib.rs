//! Scores a turn by the fraction of passed tests: `2 * fraction - 1`.
//!
//! The fraction comes from the messages after the response: tool results and what a user pasted. The summaries of pytest,
//! unittest, cargo test and nextest, go test, jest and vitest, mocha, TAP, JUnit XML and ctest are parsed; several summaries
//! are added up. If the environment reported a reward, that is used instead: the environment ran the tests itself, while text
//! can be faked.
//!
//! Settings, as JSON in the configuration:
//!
//! | name | meaning | default |
//! |---|---|---|
//! | `env_reward` | `"share"`: the environment's reward is a fraction, 0 to 1; `"reward"`: it is used as it is; `"ignore"` | `"share"` |
//!
//! Without a known summary, or if no test ran, there is no verdict. A summary that the response itself contains is no
//! evidence: text whose result changes when the lines of the response are removed does not count. The judge runs nothing and
//! cannot distinguish a weakened test from a passed one; that is the task of the environment.

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

/// How the environment's reward is interpreted.
#[derive(Debug, Clone, Copy, PartialEq)]
enum EnvReward {
    Share,
    Reward,
    Ignore,
}

/// Judges one turn.
///
/// # Errors
/// [`PluginError::Unsupported`] when there is no test summary, [`PluginError::InvalidInput`] when the environment's reward is
/// out of range.
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

/// Creates a verdict with a vote, because the host treats a reward of 0 without votes as an abstention, but half of the tests
/// passed is a valid result.
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

/// The lines of the response and of its tool arguments, where a summary would be fabricated. Only lines that could be part of
/// a summary are included, because each line of the following messages is compared with all of them.
fn reply_lines(reply: &Message) -> Vec<String> {
    let mut written = text::plain(&reply.text(), false);
    for call in &reply.tool_calls {
        // The arguments are JSON, in which a newline is two characters.
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
