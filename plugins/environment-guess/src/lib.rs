//! Guess a number with a limited number of tries: a minimal environment with a tool, a budget and a grade.
//!
//! The number lies between `low` and `high` and is a function of the seed. The policy calls the tool
//! `guess` with `{"number": N}` and gets "higher", "lower" or "found". Any other action (another tool,
//! invalid arguments, no tool call) is answered with the expected format and costs a try, so that
//! every episode ends, whatever the policy does.
//!
//! The task's payload is JSON with the optional whole numbers `low` (default 1), `high` (default 100)
//! and `tries` (1 to 100, default 7).
//!
//! The grade of a number found on try k of n is `1 - (k - 1) / n`, else -1. The environment uses no
//! files, processes, network or clock.

mod json;

#[cfg(test)]
mod cases;

use clawhost_sdk::environment::{Observation, Outcome, Task, Transition};
use clawhost_sdk::{Environment, Message, Metric, PluginError, Role, ToolCall, ToolSpec};

/// One episode.
pub struct Guess {
    number: i64,
    low: i64,
    high: i64,
    tries: u32,
    used: u32,
    found: bool,
}

const TOOL: &str = "guess";
const PARAMETERS: &str = r#"{"type":"object","properties":{"number":{"type":"integer"}},"required":["number"],"additionalProperties":false}"#;

impl Environment for Guess {
    fn reset(task: Task, seed: u64) -> Result<(Guess, Observation), PluginError> {
        let invalid = |why: &str| PluginError::InvalidInput(format!("task {}: {why}", task.id));
        let payload = match task.payload.trim() {
            "" | "null" => Vec::new(),
            text => json::whole_numbers(text)
                .ok_or_else(|| invalid("the payload is no JSON object of whole numbers"))?,
        };
        let field = |name: &str, default: i64| {
            let found = payload.iter().find(|(key, _)| key == name);
            found.map_or(default, |(_, value)| *value)
        };
        let (low, high) = (field("low", 1), field("high", 100));
        let span = high
            .checked_sub(low)
            .and_then(|span| u64::try_from(span).ok())
            .filter(|span| *span < 1 << 32)
            .ok_or_else(|| invalid("`low` to `high` is no range of at most 2^32 numbers"))?;
        let tries = u32::try_from(field("tries", 7))
            .ok()
            .filter(|tries| (1..=100).contains(tries))
            .ok_or_else(|| invalid("`tries` is not 1 to 100"))?;
        let drawn = u128::from(mixed(seed)) * u128::from(span + 1);
        let number = low + i64::try_from(drawn >> 64).expect("the span is below 2^32");
        let episode = Guess {
            number,
            low,
            high,
            tries,
            used: 0,
            found: false,
        };
        let mut question = format!(
            "I think of a whole number from {low} to {high}. Find it with the tool `{TOOL}` in at most \
             {tries} tries."
        );
        if !task.instruction.is_empty() {
            question = format!("{}\n\n{question}", task.instruction);
        }
        let seen = Observation {
            messages: vec![Message::new(Role::User, question)],
            tools: tools(),
        };
        Ok((episode, seen))
    }

    fn step(&mut self, action: Message) -> Result<Transition, PluginError> {
        if self.is_over() {
            return Err(PluginError::InvalidInput("the episode is over".to_owned()));
        }
        let mut messages = Vec::new();
        if action.tool_calls.is_empty() {
            self.used += 1;
            let text = format!(
                "That was no call of a tool. Call `{TOOL}` with {{\"number\": N}}. {}",
                self.left()
            );
            messages.push(Message::new(Role::User, text));
        }
        for call in &action.tool_calls {
            let text = if self.is_over() {
                "The game is over; this call was not looked at.".to_owned()
            } else {
                self.answer(call)
            };
            messages.push(Message::tool_result(call, text));
        }
        let seen = Observation {
            messages,
            tools: tools(),
        };
        Ok(Transition::of(seen, self.found, self.is_over()))
    }

    fn grade(&mut self) -> Result<Outcome, PluginError> {
        let tries = f64::from(self.tries);
        let (reward, report) = if self.found {
            let reward = 1.0 - f64::from(self.used.saturating_sub(1)) / tries;
            (
                reward,
                format!("found on try {} of {}", self.used, self.tries),
            )
        } else {
            let report = format!("{} not found in {} tries", self.number, self.used);
            (-1.0, report)
        };
        Ok(Outcome {
            reward: reward as f32,
            success: Some(self.found),
            report,
            metrics: vec![Metric::new("tries_used", f64::from(self.used))],
        })
    }
}

clawhost_sdk::export_environment!(Guess);

impl Guess {
    fn is_over(&self) -> bool {
        self.found || self.used >= self.tries
    }

    /// Handles one tool call; every call costs a try.
    fn answer(&mut self, call: &ToolCall) -> String {
        self.used += 1;
        let said = if call.name == TOOL {
            match guessed(&call.arguments) {
                Some(guess) if guess == self.number => {
                    self.found = true;
                    return format!("{guess} is found.");
                }
                Some(guess) if guess < self.low || guess > self.high => {
                    format!("{guess} is not from {} to {}.", self.low, self.high)
                }
                Some(guess) if guess < self.number => format!("The number is higher than {guess}."),
                Some(guess) => format!("The number is lower than {guess}."),
                None => format!("`{TOOL}` takes {{\"number\": N}} with a whole number N."),
            }
        } else {
            format!("There is no such tool; the only one is `{TOOL}` with {{\"number\": N}}.")
        };
        format!("{said} {}", self.left())
    }

    fn left(&self) -> String {
        match self.tries - self.used {
            0 => "No tries are left.".to_owned(),
            1 => "One try is left.".to_owned(),
            left => format!("{left} tries are left."),
        }
    }
}

fn guessed(arguments: &str) -> Option<i64> {
    match json::whole_numbers(arguments)?.as_slice() {
        [(name, number)] if name == "number" => Some(*number),
        _ => None,
    }
}

fn tools() -> Vec<ToolSpec> {
    vec![ToolSpec {
        name: TOOL.to_owned(),
        description: "Guesses the number; the answer says whether it is higher or lower."
            .to_owned(),
        parameters: PARAMETERS.to_owned(),
    }]
}

/// The SplitMix64 finalizer: seeds that differ by one give numbers that differ in half of their bits.
fn mixed(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
