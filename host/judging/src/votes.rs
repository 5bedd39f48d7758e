//! Combines votes into one verdict, and the verdicts of several judges into one.

use clawhost_config::CombineRule;
use clawhost_journal::VerdictOutcome;

/// The combined verdict of several judges on a turn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CombinedVerdict {
    /// The reward; none when no judge gave a verdict.
    pub reward: Option<f32>,
    /// Whether all counted verdicts accept the turn for training.
    pub accept: bool,
}

impl CombinedVerdict {
    /// No verdict.
    pub(crate) const NONE: Self = Self {
        reward: None,
        accept: true,
    };

    /// A score of the user, which is accepted without the judges.
    pub(crate) fn of_user(score: f32) -> Self {
        Self {
            reward: Some(score),
            accept: true,
        }
    }
}

/// Applies a rule to the verdicts of several judges.
pub trait CombineVerdicts {
    /// Combines the judges' outcomes, given in call order.
    fn apply(&self, outcomes: &[VerdictOutcome]) -> CombinedVerdict;
    /// Whether the remaining judges cannot change the result.
    fn is_decided(&self, outcomes: &[VerdictOutcome]) -> bool;
}

impl CombineVerdicts for CombineRule {
    fn apply(&self, outcomes: &[VerdictOutcome]) -> CombinedVerdict {
        let mut present: Vec<(f32, bool)> = outcomes
            .iter()
            .filter_map(|outcome| match outcome {
                VerdictOutcome::Verdict { reward, accept } => Some((*reward, *accept)),
                VerdictOutcome::None { .. } => None,
            })
            .collect();
        if *self == CombineRule::First {
            present.truncate(1);
        }
        let rewards: Vec<f32> = present.iter().map(|(reward, _)| *reward).collect();
        CombinedVerdict {
            reward: combine_rewards(*self, &rewards),
            accept: present.iter().all(|(_, accept)| *accept),
        }
    }

    fn is_decided(&self, outcomes: &[VerdictOutcome]) -> bool {
        *self == CombineRule::First
            && outcomes
                .iter()
                .any(|outcome| matches!(outcome, VerdictOutcome::Verdict { .. }))
    }
}

fn combine_rewards(rule: CombineRule, present: &[f32]) -> Option<f32> {
    match rule {
        CombineRule::Majority => {
            let votes: Vec<Option<f32>> = present.iter().copied().map(Some).collect();
            combine_votes(&votes)
        }
        CombineRule::First => present.first().copied(),
        CombineRule::Mean => mean(present),
        CombineRule::All => {
            let agree = present.iter().all(|reward| *reward > 0.0)
                || present.iter().all(|reward| *reward < 0.0);
            mean(present).map(|mean| if agree { mean } else { 0.0 })
        }
    }
}

fn mean(present: &[f32]) -> Option<f32> {
    #[allow(clippy::cast_precision_loss, reason = "there are few votes")]
    let count = present.len() as f32;
    (!present.is_empty()).then(|| present.iter().sum::<f32>() / count)
}

/// Combines votes into one reward; missing votes (`None`) are ignored.
///
/// Votes that are all −1, 0 or +1 are combined by majority (a tie for first place is 0), other votes by their mean.
/// Without any vote the result is `None`.
pub fn combine_votes(votes: &[Option<f32>]) -> Option<f32> {
    let present: Vec<f32> = votes.iter().flatten().copied().collect();
    if !present.is_empty() && present.iter().all(|vote| [-1.0, 0.0, 1.0].contains(vote)) {
        return Some(majority_vote(&present));
    }
    mean(&present)
}

/// The most frequent of −1, 0 and +1; 0 without votes or when first place is tied.
pub fn majority_vote(votes: &[f32]) -> f32 {
    let count = |value: f32| votes.iter().filter(|vote| **vote == value).count();
    let counts = [(-1.0, count(-1.0)), (0.0, count(0.0)), (1.0, count(1.0))];
    let most = counts.iter().map(|(_, n)| *n).max().expect("three counts");
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
            // Where every vote is missing, the reference returns 0; here that is no verdict.
            let expected = votes.iter().any(Option::is_some).then_some(expected);
            assert_eq!(combine_votes(&votes), expected, "{votes:?}");
        }
        assert_eq!(seen, 8);
    }

    #[test]
    fn fractional_votes_are_averaged() {
        assert_eq!(combine_votes(&[Some(0.5), None, Some(1.0)]), Some(0.75));
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
        // The judges' rewards, then the results of majority, first, mean and all.
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
            // A neutral verdict does not agree with a non-neutral one.
            (
                &[Some(0.0), Some(1.0)],
                [Some(0.0), Some(0.0), Some(0.5), Some(0.0)],
            ),
            (&[Some(0.0), Some(-0.0)], [Some(0.0); 4]),
        ];
        let rules = [
            CombineRule::Majority,
            CombineRule::First,
            CombineRule::Mean,
            CombineRule::All,
        ];
        for (present, expected) in rows {
            let outcomes: Vec<VerdictOutcome> = present
                .iter()
                .map(|reward| outcome(*reward, true))
                .collect();
            for (rule, expected) in rules.into_iter().zip(expected) {
                let combined = rule.apply(&outcomes);
                assert_eq!(combined.reward, expected, "{rule:?} of {present:?}");
                assert!(combined.accept);
            }
        }
    }

    #[test]
    fn all_counted_verdicts_must_accept() {
        let refuses = outcome(Some(1.0), false);
        let accepts = outcome(Some(1.0), true);
        let none = outcome(None, false);
        for rule in [CombineRule::Majority, CombineRule::Mean, CombineRule::All] {
            assert!(!rule.apply(&[accepts.clone(), refuses.clone()]).accept);
            assert!(rule.apply(&[none.clone(), accepts.clone()]).accept);
        }
        let first = CombineRule::First;
        assert!(first.apply(&[accepts.clone(), refuses.clone()]).accept);
        assert!(
            !first
                .apply(&[none.clone(), refuses, accepts.clone()])
                .accept
        );
        assert!(first.is_decided(&[none.clone(), accepts.clone()]));
        assert!(!first.is_decided(&[none]) && !CombineRule::Mean.is_decided(&[accepts]));
    }

    proptest! {
        #[test]
        fn the_order_of_votes_does_not_matter(votes in prop::collection::vec(prop::sample::select(vec![-1.0f32, 0.0, 1.0]), 0..9), turn in 0usize..9) {
            let mut other = votes.clone();
            if !other.is_empty() {
                let by = turn % other.len();
                other.rotate_left(by);
            }
            prop_assert_eq!(majority_vote(&votes), majority_vote(&other));
        }
    }
}
