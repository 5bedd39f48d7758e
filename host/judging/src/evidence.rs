//! What there is to judge a turn by: what followed the reply, and what the user said of it.

use clawhost_journal::{Feedback, TurnRecord};
use clawhost_plugins::{BadMessage, Message, Role};
use serde_json::Value;

/// The evidence that no judgement has seen, and the user's word where there is one.
pub(crate) struct Evidence<'a> {
    /// Scores that the user gave and no judgement has recorded yet, oldest first.
    pub(crate) new_scores: Vec<(&'a Feedback, f32)>,
    /// The user's last score, new or not: it wins over every judge.
    pub(crate) users_word: Option<f32>,
    /// Whether a next state is new to those who judge.
    next: bool,
    /// Whether words of the user are.
    words: bool,
    /// What followed and what the user said of it, in order; empty when none of it is new.
    pub(crate) shown: Vec<Message>,
}

impl<'a> Evidence<'a> {
    /// Sorts a turn's evidence.
    ///
    /// # Errors
    /// When what followed is not a list of chat messages.
    pub(crate) fn of(turn: &'a TurnRecord) -> Result<Self, BadMessage> {
        let seen = usize::try_from(turn.feedback_judged).unwrap_or(usize::MAX);
        let new = turn.feedback.get(seen..).unwrap_or_default();
        let words = new.iter().any(|feedback| feedback.text.is_some());
        let next = turn.next_state.is_some() && !turn.next_judged;
        let shown = if next || words {
            let mut messages =
                Message::list_from_openai(turn.next_state.as_ref().unwrap_or(&Value::Null))?;
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
        Ok(Self {
            new_scores: new.iter().filter_map(|f| Some((f, score(f)?))).collect(),
            users_word: users_score(turn),
            next,
            words,
            shown,
        })
    }

    /// Whether there is something to ask the judges of single turns. A new next state is always shown to them, unless
    /// the turn was judged together with the other choices of its request. New words of the user are shown as well, as
    /// what a user says after a reply; once a score was given with them, there is nothing left to find out.
    pub(crate) fn asks_judges(&self, judged_together: bool) -> bool {
        (self.next && !judged_together) || (self.words && self.users_word.is_none())
    }

    /// Whether anything followed that nobody was told of yet.
    pub(crate) fn is_told(&self) -> bool {
        self.next || self.words
    }
}

/// The last score that the user gave to a turn, where it is one.
pub(crate) fn users_score(turn: &TurnRecord) -> Option<f32> {
    turn.feedback.iter().rev().find_map(score)
}

/// A score that is a number from −1 to 1.
fn score(feedback: &Feedback) -> Option<f32> {
    feedback.score.filter(|score| (-1.0..=1.0).contains(score))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::turn;
    use clawhost_journal::TurnId;
    use serde_json::json;

    fn feedback(score: Option<f32>, text: Option<&str>) -> Feedback {
        Feedback {
            turn: TurnId(1),
            score,
            text: text.map(str::to_owned),
            ms: 0,
        }
    }

    #[test]
    fn a_score_alone_needs_no_judge() {
        let mut record = turn(1);
        record.feedback = vec![
            feedback(Some(1.0), Some("good")),
            feedback(Some(-1.0), None),
        ];
        let evidence = Evidence::of(&record).unwrap();
        assert_eq!(evidence.users_word, Some(-1.0));
        assert_eq!(evidence.new_scores.len(), 2);
        assert!(!evidence.asks_judges(false));
        assert!(evidence.is_told(), "there are words with the score");
    }

    #[test]
    fn words_alone_are_shown_after_what_followed() {
        let mut record = turn(1);
        record.next_state = Some(json!([{"role": "user", "content": "next question"}]));
        record.next_judged = true;
        record.feedback = vec![feedback(None, Some("too long"))];
        let evidence = Evidence::of(&record).unwrap();
        let seen: Vec<String> = evidence.shown.iter().map(Message::visible_text).collect();
        assert_eq!(seen, ["next question", "too long"]);
        record.feedback_judged = 1;
        assert!(!Evidence::of(&record).unwrap().is_told());
    }

    #[test]
    fn what_follows_a_choice_is_told_but_not_judged_once_more() {
        let mut record = turn(1);
        record.next_state = Some(json!([{"role": "user", "content": "next question"}]));
        let evidence = Evidence::of(&record).unwrap();
        assert!(evidence.asks_judges(false) && !evidence.asks_judges(true));
        assert!(evidence.is_told());
        record.feedback = vec![feedback(None, Some("too long"))];
        assert!(Evidence::of(&record).unwrap().asks_judges(true));
    }

    #[test]
    fn a_score_out_of_range_is_no_score() {
        let mut record = turn(1);
        record.feedback = vec![feedback(Some(7.0), None), feedback(Some(f32::NAN), None)];
        let evidence = Evidence::of(&record).unwrap();
        assert_eq!(evidence.users_word, None);
        assert!(evidence.new_scores.is_empty());
    }
}
