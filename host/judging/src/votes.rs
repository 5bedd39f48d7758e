//! From votes to one verdict, and from several judges to one opinion.

use clawhost_journal::VerdictOutcome;
use serde::{Deserialize, Serialize};

/// How the verdicts of several judges become one. A judge that gave none, because it failed or abstained, takes no
/// part: it never counts as 0.
/// Whatever the rule, a turn trains only when all that take part accept it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Combine {
    /// Verdicts of −1, 0 and +1 go by majority (a tie for the first place is 0), finer ones by their mean.
    #[default]
    Majority,
    /// The first verdict in the order given counts; the judges after it are not asked.
    First,
    /// The mean of the rewards.
    Mean,
    /// The mean where all rewards have the same sign, else 0.
    All,
}

/// What the judges say of a turn together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Opinion {
    /// The reward; none when no judge gave a verdict.
    pub reward: Option<f32>,
    /// Whether all that take part let the turn train.
    pub accept: bool,
}

impl Combine {
    /// The opinion that follows from what each judge gave, in the order given.
    pub fn opinion(self, outcomes: &[VerdictOutcome]) -> Opinion {
        let mut given: Vec<(f32, bool)> = outcomes
            .iter()
            .filter_map(|outcome| match outcome {
                VerdictOutcome::Verdict { reward, accept } => Some((*reward, *accept)),
                VerdictOutcome::None { .. } => None,
            })
            .collect();
        if self == Combine::First {
            given.truncate(1);
        }
        let rewards: Vec<f32> = given.iter().map(|(reward, _)| *reward).collect();
        Opinion {
            reward: self.reward(&rewards),
            accept: given.iter().all(|(_, accept)| *accept),
        }
    }

    /// Whether the judges that are left cannot change the opinion.
    pub(crate) fn is_decided(self, outcomes: &[VerdictOutcome]) -> bool {
        self == Combine::First
            && outcomes
                .iter()
                .any(|outcome| matches!(outcome, VerdictOutcome::Verdict { .. }))
    }

    fn reward(self, given: &[f32]) -> Option<f32> {
        match self {
            Combine::Majority => {
                let votes: Vec<Option<f32>> = given.iter().copied().map(Some).collect();
                combine(&votes)
            }
            Combine::First => given.first().copied(),
            Combine::Mean => mean(given),
            Combine::All => {
                let agree = given.iter().all(|reward| *reward > 0.0)
                    || given.iter().all(|reward| *reward < 0.0);
                mean(given).map(|mean| if agree { mean } else { 0.0 })
            }
        }
    }
}

fn mean(given: &[f32]) -> Option<f32> {
    #[allow(clippy::cast_precision_loss, reason = "there are few votes")]
    let count = given.len() as f32;
    (!given.is_empty()).then(|| given.iter().sum::<f32>() / count)
}

/// The verdict of several votes; a missing vote is `None` and does not count.
///
/// Votes that are all −1, 0 or +1 go by majority (a tie for the first place is 0); votes that grade
/// more finely are averaged. Without any vote there is no verdict.
pub fn combine(votes: &[Option<f32>]) -> Option<f32> {
    let given: Vec<f32> = votes.iter().flatten().copied().collect();
    if !given.is_empty() && given.iter().all(|vote| [-1.0, 0.0, 1.0].contains(vote)) {
        return Some(majority(&given));
    }
    mean(&given)
}

/// The most frequent of −1, 0 and +1; 0 when there is none or the first place is shared.
pub fn majority(votes: &[f32]) -> f32 {
    let count = |value: f32| votes.iter().filter(|vote| **vote == value).count();
    let counts = [(-1.0, count(-1.0)), (0.0, count(0.0)), (1.0, count(1.0))];
    let most = counts.iter().map(|(_, n)| *n).max().unwrap_or(0);
    let mut first = counts.iter().filter(|(_, n)| *n == most);
    match (first.next(), first.next()) {
        (Some((value, _)), None) => *value,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn votes_agree_with_the_reference() {
        let page: serde_json::Value =
            serde_json::from_str(include_str!("../tests/goldens/15_votes_hints.json")).unwrap();
        let mut seen = 0;
        for case in page["cases"].as_array().unwrap() {
            if case["id"] != "vote" {
                continue;
            }
            seen += 1;
            let votes: Vec<Option<f32>> = case["inputs"]["votes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|vote| vote.as_f64().map(|vote| vote as f32))
                .collect();
            let expected = case["expected"]["score"].as_f64().unwrap() as f32;
            // Where every vote is missing, the reference's peer says 0; here that is no verdict.
            let expected = votes.iter().any(Option::is_some).then_some(expected);
            assert_eq!(combine(&votes), expected, "{votes:?}");
        }
        assert_eq!(seen, 8);
    }

    #[test]
    fn finer_grades_are_averaged() {
        assert_eq!(combine(&[Some(0.5), None, Some(1.0)]), Some(0.75));
    }

    fn outcome(reward: Option<f32>, accept: bool) -> VerdictOutcome {
        match reward {
            Some(reward) => VerdictOutcome::Verdict { reward, accept },
            None => VerdictOutcome::None {
                reason: "trap".to_owned(),
            },
        }
    }

    #[test]
    fn judges_combine_by_the_declared_rule() {
        type Row<'a> = (&'a [Option<f32>], [Option<f32>; 4]);
        const N: Option<f32> = None;
        // What the judges give; then majority, first, mean and all.
        let rows: [Row<'_>; 9] = [
            (&[], [N, N, N, N]),
            (&[N, N], [N, N, N, N]),
            (&[N, Some(1.0)], [Some(1.0); 4]),
            (
                &[Some(1.0), Some(1.0), Some(-1.0)],
                [Some(1.0), Some(1.0), Some(1.0 / 3.0), Some(0.0)],
            ),
            (
                &[Some(-1.0), N, Some(1.0)],
                [Some(0.0), Some(-1.0), Some(0.0), Some(0.0)],
            ),
            (
                &[Some(0.5), Some(1.0), N],
                [Some(0.75), Some(0.5), Some(0.75), Some(0.75)],
            ),
            (
                &[Some(-0.5), Some(-1.0)],
                [Some(-0.75), Some(-0.5), Some(-0.75), Some(-0.75)],
            ),
            // A neutral judge does not agree with one that is not.
            (
                &[Some(0.0), Some(1.0)],
                [Some(0.0), Some(0.0), Some(0.5), Some(0.0)],
            ),
            (&[Some(0.0), Some(-0.0)], [Some(0.0); 4]),
        ];
        let rules = [
            Combine::Majority,
            Combine::First,
            Combine::Mean,
            Combine::All,
        ];
        for (given, expected) in rows {
            let outcomes: Vec<VerdictOutcome> =
                given.iter().map(|reward| outcome(*reward, true)).collect();
            for (rule, expected) in rules.into_iter().zip(expected) {
                let opinion = rule.opinion(&outcomes);
                assert_eq!(opinion.reward, expected, "{rule:?} of {given:?}");
                assert!(opinion.accept);
            }
        }
    }

    #[test]
    fn all_that_take_part_must_accept() {
        let refuses = outcome(Some(1.0), false);
        let accepts = outcome(Some(1.0), true);
        let none = outcome(None, false);
        for rule in [Combine::Majority, Combine::Mean, Combine::All] {
            assert!(!rule.opinion(&[accepts.clone(), refuses.clone()]).accept);
            assert!(rule.opinion(&[none.clone(), accepts.clone()]).accept);
        }
        let first = Combine::First;
        assert!(first.opinion(&[accepts.clone(), refuses.clone()]).accept);
        assert!(
            !first
                .opinion(&[none.clone(), refuses, accepts.clone()])
                .accept
        );
        assert!(first.is_decided(&[none.clone(), accepts.clone()]));
        assert!(!first.is_decided(&[none]) && !Combine::Mean.is_decided(&[accepts]));
    }

    proptest! {
        #[test]
        fn the_order_of_votes_does_not_matter(votes in prop::collection::vec(prop::sample::select(vec![-1.0f32, 0.0, 1.0]), 0..9), turn in 0usize..9) {
            let mut other = votes.clone();
            if !other.is_empty() {
                let by = turn % other.len();
                other.rotate_left(by);
            }
            prop_assert_eq!(majority(&votes), majority(&other));
        }
    }
}
