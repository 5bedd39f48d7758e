//! Counts votes of -1, 0 and 1.

use clawhost_sdk::{PluginError, Verdict, Vote};

/// The most frequent value of the votes; 0 for a tie and for no votes.
pub fn plurality(scores: &[i8]) -> i8 {
    let counts = [-1, 0, 1].map(|value| {
        let count = scores.iter().filter(|score| **score == value).count();
        (count, value)
    });
    let most = counts.iter().map(|(count, _)| *count).max().unwrap_or(0);
    let mut first = counts.iter().filter(|(count, _)| *count == most);
    match (first.next(), first.next()) {
        (Some((_, value)), None) => *value,
        _ => 0,
    }
}

/// The parsed votes, and the number of completions.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Completions of the model.
    pub asked: usize,
    /// Score and reason of each vote that could be parsed.
    pub votes: Vec<(i8, String)>,
}

impl Tally {
    /// The most frequent value of the votes.
    pub fn outcome(&self) -> i8 {
        let scores: Vec<i8> = self.votes.iter().map(|(score, _)| *score).collect();
        plurality(&scores)
    }

    /// The verdict of the votes, including each vote.
    ///
    /// # Errors
    /// [`PluginError::Unsupported`] when no vote could be parsed: that is no verdict, not a 0.
    pub fn verdict(self) -> Result<Verdict, PluginError> {
        if self.votes.is_empty() {
            return Err(PluginError::Unsupported(format!(
                "none of {} answers of the model held one clear score",
                self.asked
            )));
        }
        let count = |value: i8| {
            self.votes
                .iter()
                .filter(|(score, _)| *score == value)
                .count()
        };
        let unread = self.asked.saturating_sub(self.votes.len());
        let rationale = format!(
            "{} for, {} against, {} undecided, {unread} unreadable",
            count(1),
            count(-1),
            count(0)
        );
        let mut verdict = Verdict::new(f32::from(self.outcome()), rationale)
            .with_metric("votes_read", self.votes.len() as f64)
            .with_metric("votes_unreadable", unread as f64);
        verdict.votes = self
            .votes
            .into_iter()
            .map(|(score, reason)| Vote::new(f32::from(score), reason))
            .collect();
        Ok(verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_frequent_vote_wins_and_a_tie_is_neutral() {
        for (scores, outcome) in [
            (&[1, 1, -1][..], 1),
            (&[1, -1], 0),
            (&[1], 1),
            (&[], 0),
            (&[0, 0, 1], 0),
            (&[1, -1, 0], 0),
            (&[-1, -1, 1, 1, 0], 0),
            (&[-1, -1, -1, 1, 1], -1),
        ] {
            assert_eq!(plurality(scores), outcome, "{scores:?}");
        }
    }

    #[test]
    fn no_vote_is_no_verdict() {
        let none = Tally {
            asked: 3,
            votes: Vec::new(),
        };
        assert!(matches!(none.verdict(), Err(PluginError::Unsupported(_))));
        let tie = Tally {
            asked: 3,
            votes: vec![(1, "a".into()), (-1, "b".into())],
        };
        let verdict = tie.verdict().unwrap();
        assert_eq!(verdict.reward, 0.0);
        assert_eq!(
            verdict.rationale,
            "1 for, 1 against, 0 undecided, 1 unreadable"
        );
        assert_eq!(verdict.votes.len(), 2);
    }
}
