//! An environment: guess a number from 1 to 10 in at most five turns.

use clawhost_sdk::environment::{Observation, Outcome, Status, Task, Transition};
use clawhost_sdk::{Environment, Message, PluginError, Role};

const TURNS: u32 = 5;

struct Guess {
    secret: u64,
    turns: u32,
    won: bool,
}

impl Guess {
    fn reward(&self) -> f32 {
        if self.won { 1.0 } else { 0.0 }
    }
}

fn says(text: &str) -> Observation {
    Observation::of(vec![Message::new(Role::User, text)])
}

impl Environment for Guess {
    fn reset(_task: Task, seed: u64) -> Result<(Self, Observation), PluginError> {
        let game = Guess {
            secret: seed % 10 + 1,
            turns: 0,
            won: false,
        };
        Ok((game, says("Guess my number, from 1 to 10.")))
    }

    fn step(&mut self, action: Message) -> Result<Transition, PluginError> {
        let guess = action.text().trim().parse().unwrap_or(0);
        self.turns += 1;
        self.won = guess == self.secret;
        let (answer, status) = match guess.cmp(&self.secret) {
            std::cmp::Ordering::Equal => ("Yes.", Status::Terminated),
            _ if self.turns >= TURNS => ("Too late.", Status::Truncated),
            std::cmp::Ordering::Less => ("Higher.", Status::Running),
            std::cmp::Ordering::Greater => ("Lower.", Status::Running),
        };
        Ok(Transition {
            observation: says(answer),
            reward: self.reward(),
            status,
            metrics: Vec::new(),
        })
    }

    fn grade(&mut self) -> Result<Outcome, PluginError> {
        Ok(Outcome {
            reward: self.reward(),
            success: Some(self.won),
            report: format!("{} turns", self.turns),
            metrics: Vec::new(),
        })
    }
}

clawhost_sdk::export_environment!(Guess);
