//! The evidence for judging a turn: its next state and the user's feedback.

use clawhost_journal::{Feedback, TurnRecord};
use clawhost_plugins::{Message, Role};

/// Source name of a verdict that the user gave.
pub(crate) const USER: &str = "user";

/// The evidence that no earlier judgement has used, and the user's score if there is one.
pub(crate) struct Evidence<'a> {
    /// User scores that no judgement has recorded yet, oldest first.
    pub(crate) new_scores: Vec<(&'a Feedback, f32)>,
    /// The user's latest score, new or not; it wins over every judge.
    pub(crate) user_score: Option<f32>,
    /// Whether there is a next state that no judgement has used.
    new_next_state: bool,
    /// Whether there is feedback text that no judgement has used.
    new_text: bool,
    /// The next state followed by all feedback texts, in order; empty when none of it is new.
    pub(crate) messages: Vec<Message>,
}

impl<'a> Evidence<'a> {
    /// Collects the evidence of a turn.
    pub(crate) fn from_turn(turn: &'a TurnRecord) -> Self {
        // At most all feedback is judged.
        let new = &turn.feedback[turn.feedback_judged as usize..];
        let new_text = new.iter().any(|feedback| feedback.text.is_some());
        let new_next_state = turn.next_state.is_some() && !turn.next_judged;
        let messages = if new_next_state || new_text {
            let mut messages = Message::from_chat(turn.next_state.as_deref().unwrap_or_default());
            messages.extend(
                turn.feedback
                    .iter()
                    .filter_map(|feedback| feedback.text.as_deref())
                    .map(|text| Message::text(Role::User, text)),
            );
            messages
        } else {
            Vec::new()
        };
        Self {
            new_scores: new.iter().filter_map(|f| Some((f, score(f)?))).collect(),
            user_score: last_user_score(turn),
            new_next_state,
            new_text,
            messages,
        }
    }

    /// Whether the single-turn judges must be called. They always see a new next state, unless the turn was judged
    /// together with the other choices of its request. They also see new feedback text, as a message of the user after
    /// the reply, unless the user scored the turn: then the reward is known.
    pub(crate) fn needs_judges(&self, judged_in_group: bool) -> bool {
        (self.new_next_state && !judged_in_group) || (self.new_text && self.user_score.is_none())
    }

    /// Whether there is a new next state or feedback text to show to the hint extractors.
    pub(crate) fn has_new_followup(&self) -> bool {
        self.new_next_state || self.new_text
    }
}

/// The user's latest valid score of a turn.
pub(crate) fn last_user_score(turn: &TurnRecord) -> Option<f32> {
    turn.feedback.iter().rev().find_map(score)
}

/// The score of a feedback entry, if it is between -1 and 1.
fn score(feedback: &Feedback) -> Option<f32> {
    feedback.score.filter(|score| (-1.0..=1.0).contains(score))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::turn;
    use clawhost_journal::TurnId;

    fn feedback(score: Option<f32>, text: Option<&str>) -> Feedback {
        Feedback {
            turn: TurnId(1),
            score,
            text: text.map(str::to_owned),
            ms: 0,
        }
    }

    #[test]
    fn a_user_score_alone_calls_no_judge() {
        let mut record = turn(1);
        record.feedback = vec![
            feedback(Some(1.0), Some("good")),
            feedback(Some(-1.0), None),
        ];
        let evidence = Evidence::from_turn(&record);
        assert_eq!(evidence.user_score, Some(-1.0));
        assert_eq!(evidence.new_scores.len(), 2);
        assert!(!evidence.needs_judges(false));
        assert!(evidence.has_new_followup(), "the score comes with text");
    }

    #[test]
    fn feedback_text_is_appended_to_the_next_state() {
        let mut record = turn(1);
        record.next_state = Some(vec![clawhost_chat::Message::user("next question")]);
        record.next_judged = true;
        record.feedback = vec![feedback(None, Some("too long"))];
        let evidence = Evidence::from_turn(&record);
        let seen: Vec<String> = evidence
            .messages
            .iter()
            .map(Message::visible_text)
            .collect();
        assert_eq!(seen, ["next question", "too long"]);
        record.feedback_judged = 1;
        assert!(!Evidence::from_turn(&record).has_new_followup());
    }

    #[test]
    fn the_next_state_of_a_grouped_choice_goes_to_extractors_only() {
        let mut record = turn(1);
        record.next_state = Some(vec![clawhost_chat::Message::user("next question")]);
        let evidence = Evidence::from_turn(&record);
        assert!(evidence.needs_judges(false) && !evidence.needs_judges(true));
        assert!(evidence.has_new_followup());
        record.feedback = vec![feedback(None, Some("too long"))];
        assert!(Evidence::from_turn(&record).needs_judges(true));
    }

    #[test]
    fn scores_out_of_range_are_ignored() {
        let mut record = turn(1);
        record.feedback = vec![feedback(Some(7.0), None), feedback(Some(f32::NAN), None)];
        let evidence = Evidence::from_turn(&record);
        assert_eq!(evidence.user_score, None);
        assert!(evidence.new_scores.is_empty());
    }
}
