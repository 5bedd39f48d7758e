//! What a set of episodes shows: pass@1 and pass@k with an interval over tasks, rewards, lengths and failures.

use std::collections::{BTreeMap, HashMap};

use clawhost_evaluation::statistics::{Estimate, clustered, mean, t_interval};
use serde::Serialize;

use crate::runner::EpisodeRecord;

/// Figures of a set of episodes. Episodes without a verdict enter only `no_verdict`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EpisodeReport {
    /// Number of tasks with a verdict.
    pub tasks: usize,
    /// Number of episodes with a verdict.
    pub episodes: usize,
    /// Share of solved episodes, with the 95 % interval over tasks; none without a verdict.
    pub pass_at_1: Option<Estimate>,
    /// `k` of `pass_at_k`: the largest number of verdicts that every task has.
    pub k: usize,
    /// Probability that one of `k` episodes of a task solves it, with the 95 % interval over tasks.
    pub pass_at_k: Option<Estimate>,
    /// Mean reward.
    pub reward: Option<f64>,
    /// Mean number of replies.
    pub steps: Option<f64>,
    /// Mean number of sampled tokens.
    pub tokens: Option<f64>,
    /// Mean wall time of an episode in seconds.
    pub seconds: Option<f64>,
    /// Number of episodes without a verdict.
    pub no_verdict: usize,
    /// The reasons of those, most frequent first.
    pub no_verdict_reasons: Vec<(String, usize)>,
    /// Figures of each task family, by name.
    pub families: BTreeMap<String, FamilyReport>,
}

/// Figures of a task family.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FamilyReport {
    /// Number of episodes with a verdict.
    pub episodes: usize,
    /// Share of solved episodes.
    pub pass_at_1: f64,
}

impl EpisodeReport {
    /// Summarizes episodes.
    pub fn new(records: &[EpisodeRecord]) -> Self {
        let mut solved: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        let mut by_family: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        let mut reasons: HashMap<&str, usize> = HashMap::new();
        let (mut rewards, mut steps, mut tokens, mut seconds) = (vec![], vec![], vec![], vec![]);
        for record in records {
            match &record.result {
                Ok(episode) => {
                    let success = f64::from(u8::from(episode.success));
                    let task = &record.plan.task;
                    solved.entry(&task.id).or_default().push(success);
                    if let Some(family) = &task.family {
                        by_family.entry(family).or_default().push(success);
                    }
                    rewards.push(f64::from(episode.reward));
                    steps.push(f64::from(episode.steps));
                    tokens.push(count(episode.sampled_tokens));
                    seconds.push(record.seconds);
                }
                Err(reason) => *reasons.entry(&reason.0).or_default() += 1,
            }
        }
        let k = solved.values().map(Vec::len).min().unwrap_or(0);
        let at_k: Vec<f64> = solved.values().map(|task| pass_at_k(task, k)).collect();
        let mut no_verdict_reasons: Vec<(String, usize)> = reasons
            .into_iter()
            .map(|(reason, count)| (reason.to_owned(), count))
            .collect();
        no_verdict_reasons.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        let share = |estimate: Estimate| estimate.within(0.0, 1.0);
        Self {
            tasks: solved.len(),
            episodes: rewards.len(),
            pass_at_1: clustered(solved.values().map(Vec::as_slice)).map(share),
            k,
            pass_at_k: t_interval(&at_k).map(share),
            reward: mean(&rewards),
            steps: mean(&steps),
            tokens: mean(&tokens),
            seconds: mean(&seconds),
            no_verdict: no_verdict_reasons.iter().map(|(_, count)| count).sum(),
            no_verdict_reasons,
            families: by_family
                .into_iter()
                .map(|(family, values)| {
                    let report = FamilyReport {
                        episodes: values.len(),
                        pass_at_1: mean(&values).expect("a family has an episode"),
                    };
                    (family.to_owned(), report)
                })
                .collect(),
        }
    }
}

/// The unbiased estimate of the probability that one of `k` of these episodes is solved (Chen et al. 2021):
/// 1 - C(n - c, k) / C(n, k).
fn pass_at_k(solved: &[f64], k: usize) -> f64 {
    let failed = solved.iter().filter(|value| **value == 0.0).count();
    let mut all_fail = 1.0;
    for drawn in 0..k {
        all_fail *= count(failed.saturating_sub(drawn)) / count(solved.len() - drawn);
    }
    1.0 - all_fail
}

#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn count(n: usize) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::episode::{FinishedEpisode, NoVerdict};
    use crate::runner::plan_groups;
    use crate::task::parse_tasks;

    #[test]
    fn pass_at_k_is_unbiased() {
        assert_eq!(pass_at_k(&[0.0, 0.0], 2), 0.0);
        assert_eq!(pass_at_k(&[0.0, 1.0], 2), 1.0);
        assert!((pass_at_k(&[0.0, 0.0, 1.0, 0.0], 2) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn episodes_without_a_verdict_count_only_as_failures() {
        let text = "{\"id\":\"a\",\"instruction\":\"x\",\"family\":\"f\"}\n{\"id\":\"b\",\"instruction\":\"x\"}";
        let tasks: Vec<_> = parse_tasks(text, "t")
            .unwrap()
            .into_iter()
            .map(Arc::new)
            .collect();
        let rewards = [Some(1.0), Some(-1.0), None, Some(-1.0)];
        let records: Vec<EpisodeRecord> = plan_groups(&tasks, 2, 0, "r")
            .into_iter()
            .zip(rewards)
            .map(|(plan, reward)| EpisodeRecord {
                plan,
                result: reward
                    .map(|reward| FinishedEpisode {
                        reward,
                        success: reward > 0.0,
                        report: String::new(),
                        metrics: Vec::new(),
                        steps: 1,
                        sequences: Vec::new(),
                        sampled_tokens: 4,
                        version: 0,
                        digest: String::new(),
                        started_ms: 0,
                        receipts: Vec::new(),
                        judged: None,
                    })
                    .ok_or(NoVerdict("fault".to_owned())),
                seconds: 0.5,
            })
            .collect();
        let report = EpisodeReport::new(&records);
        assert_eq!(
            (report.tasks, report.episodes, report.no_verdict),
            (2, 3, 1)
        );
        assert_eq!(report.no_verdict_reasons, [("fault".to_owned(), 1)]);
        // Tasks count equally: (0.5 + 0) / 2, not 1 of 3.
        assert_eq!(report.pass_at_1.unwrap().mean, 0.25);
        assert_eq!((report.k, report.pass_at_k.unwrap().mean), (1, 0.25));
        assert_eq!(report.families["f"].pass_at_1, 0.5);
        assert!((report.reward.unwrap() + 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(EpisodeReport::new(&[]).pass_at_1, None);
    }
}
