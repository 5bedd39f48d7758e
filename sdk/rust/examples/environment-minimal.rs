//! A minimal environment: the policy has to say the word of the task.
//!
//! ```text
//! cargo build --example environment-minimal --profile guest --target wasm32-unknown-unknown
//! ```

use clawhost_sdk::environment::{Observation, Outcome, Status, Task, Transition};
use clawhost_sdk::{Environment, Message, PluginError, Role};

struct SayIt {
    word: String,
    said: bool,
}

impl Environment for SayIt {
    fn reset(task: Task, _seed: u64) -> Result<(SayIt, Observation), PluginError> {
        if task.instruction.is_empty() {
            return Err(PluginError::InvalidInput(
                "the task names no word".to_owned(),
            ));
        }
        let question = Message::new(Role::User, format!("Say {}.", task.instruction));
        let episode = SayIt {
            word: task.instruction,
            said: false,
        };
        Ok((episode, Observation::of(vec![question])))
    }

    fn step(&mut self, action: Message) -> Result<Transition, PluginError> {
        self.said = action.text().contains(&self.word);
        Ok(Transition {
            observation: Observation::of(Vec::new()),
            reward: 0.0,
            status: Status::Terminated,
            metrics: Vec::new(),
        })
    }

    fn grade(&mut self) -> Result<Outcome, PluginError> {
        Ok(Outcome {
            reward: if self.said { 1.0 } else { -1.0 },
            success: Some(self.said),
            report: String::new(),
            metrics: Vec::new(),
        })
    }
}

clawhost_sdk::export_environment!(SayIt);
