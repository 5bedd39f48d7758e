//! A judge that scores a response by the messages after it: thanks, a complaint, a failed tool.

use clawhost_sdk::{Judge, PluginError, Trajectory, Turn, Verdict, Vote};

struct Thanks;

impl Judge for Thanks {
    fn score_turn(_all: &Trajectory, turn: &Turn) -> Result<Verdict, PluginError> {
        if turn.next_state.is_empty() {
            let reason = "nothing followed the reply".to_owned();
            return Err(PluginError::Unsupported(reason));
        }
        let text = turn.user_text().to_lowercase();
        let mut votes = Vec::new();
        if text.contains("thank") {
            votes.push(Vote::new(1.0, "the user gave thanks"));
        }
        if text.contains("wrong") || text.contains("again") {
            votes.push(Vote::new(-1.0, "the user asked for a change"));
        }
        for result in turn.tool_results() {
            if result.to_lowercase().contains("error") {
                votes.push(Vote::new(-1.0, "a tool failed"));
            }
        }
        Ok(Verdict::majority(votes))
    }
}

clawhost_sdk::export_judge!(Thanks);

#[cfg(test)]
mod tests {
    use super::*;
    use clawhost_sdk::{Message, Role};

    /// The reward of a response that the user answers with this text.
    fn reward(text: &str) -> f32 {
        let next = vec![Message::new(Role::User, text)];
        let turn = Turn::new(Vec::new(), Message::new(Role::Assistant, "Done."), next);
        let all = Trajectory::of(turn);
        Thanks::score_turn(&all, &all.turns[0]).unwrap().reward
    }

    #[test]
    fn thanks_are_good_and_complaints_are_bad() {
        assert_eq!(reward("Thanks!"), 1.0);
        assert_eq!(reward("That is wrong."), -1.0);
        assert_eq!(reward("What time is it?"), 0.0);
    }
}
