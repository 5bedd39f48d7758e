//! Which samples of the queue are compared with each other.

use std::collections::{BTreeSet, HashMap};

use clawhost_journal::SampleRecord;

use super::BatchRules;
use crate::advantage::ComparisonScope;
use crate::reward_shaping::is_episode;

/// Splits the queue into sets whose advantages are estimated together: single samples, groups, or one batch.
pub(super) fn comparison_sets(
    queue: Vec<SampleRecord>,
    rules: &BatchRules<'_>,
) -> Vec<Vec<SampleRecord>> {
    if rules.component.is_some() {
        // A component gets one batch of complete groups.
        let mut all: Vec<SampleRecord> = Vec::new();
        for group in by_group(queue) {
            if all.len() < rules.batch {
                all.extend(group);
            }
        }
        return vec![all];
    }
    let mut sets: Vec<Vec<SampleRecord>> = Vec::new();
    // Index in `sets` of each group, and of the conversations of the batch.
    let mut groups: HashMap<(bool, String), usize> = HashMap::new();
    let mut conversations = None;
    for sample in queue {
        let next = sets.len();
        let index = match rules.estimator_of(&sample).estimator.comparison_scope() {
            ComparisonScope::Sample => next,
            ComparisonScope::Batch => *conversations.get_or_insert(next),
            ComparisonScope::Group => {
                let group = (is_episode(&sample), sample.group.clone());
                *groups.entry(group).or_insert(next)
            }
        };
        match sets.get_mut(index) {
            // What does not fit the batch stays in the queue.
            Some(set) if conversations == Some(index) && set.len() >= rules.batch => {}
            Some(set) => set.push(sample),
            None => sets.push(vec![sample]),
        }
    }
    sets
}

/// Groups samples, in the order of the groups' first samples.
fn by_group(queue: Vec<SampleRecord>) -> Vec<Vec<SampleRecord>> {
    let mut groups: Vec<Vec<SampleRecord>> = Vec::new();
    for sample in queue {
        match groups
            .iter_mut()
            .find(|group| group.first().is_some_and(|s| s.group == sample.group))
        {
            Some(group) => group.push(sample),
            None => groups.push(vec![sample]),
        }
    }
    groups
}

/// Removes samples of groups that may still grow. Those of episodes are in the queue only when their groups are complete.
pub(super) fn drop_growing_groups(
    queue: Vec<SampleRecord>,
    rules: &BatchRules<'_>,
) -> Vec<SampleRecord> {
    let growing: BTreeSet<String> = queue
        .iter()
        .filter(|one| {
            rules.needs_group(one) && !is_episode(one) && one.created_ms > rules.group_cutoff_ms
        })
        .map(|sample| sample.group.clone())
        .collect();
    queue
        .into_iter()
        .filter(|one| !(rules.needs_group(one) && growing.contains(&one.group)))
        .collect()
}
