//! Retention policy of checkpoints: which ones keep everything, which only the weights, and which only the provenance.
//!
//! The decision depends only on the journal's rows; [`crate::checkpoint`] removes the files.

use std::collections::{BTreeMap, BTreeSet};

use clawhost_config::TrainingOptions;
use clawhost_journal::{AdapterOwner, AdapterRow};

/// How many checkpoints are kept, and how much of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Retention {
    /// This many newest versions of each owner keep the optimizer state.
    pub(crate) with_optimizer: usize,
    /// Versions divisible by this keep the optimizer state forever; 0 = none.
    pub(crate) every: u64,
    /// This many newest versions of each owner keep the weights; 0 = all.
    pub(crate) with_weights: usize,
}

impl From<&TrainingOptions> for Retention {
    fn from(options: &TrainingOptions) -> Self {
        Self {
            with_optimizer: options.keep_checkpoints,
            every: options.keep_every,
            with_weights: options.keep_adapters,
        }
    }
}

/// What is kept of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RetentionLevel {
    /// Everything.
    Full,
    /// The weights, without the optimizer state.
    WeightsOnly,
    /// The provenance file.
    ProvenanceOnly,
}

impl Retention {
    /// What is kept of each version. The active version, its parent and the `protected` versions always keep everything,
    /// so that training can continue after a rollback.
    pub(crate) fn plan(
        &self,
        rows: &[AdapterRow],
        protected: &[u64],
    ) -> Vec<(u64, RetentionLevel)> {
        let mut newest: Vec<u64> = rows.iter().map(|row| row.version).collect();
        newest.sort_unstable_by(|a, b| b.cmp(a));
        let needed: BTreeSet<u64> = rows
            .iter()
            .filter(|row| row.state == "active")
            .flat_map(|row| [row.version, row.parent])
            .chain(protected.iter().copied())
            .collect();
        // Each owner's versions count on their own.
        let owners: BTreeMap<u64, Option<&AdapterOwner>> = rows
            .iter()
            .map(|row| (row.version, row.owner.as_ref()))
            .collect();
        let mut counts: BTreeMap<Option<&AdapterOwner>, usize> = BTreeMap::new();
        newest
            .into_iter()
            .map(|version| {
                let count = counts.entry(owners[&version]).or_default();
                let place = *count;
                *count += 1;
                let marked = self.every > 0 && version.is_multiple_of(self.every);
                let kept = if place < self.with_optimizer || marked || needed.contains(&version) {
                    RetentionLevel::Full
                } else if self.with_weights == 0 || place < self.with_weights {
                    RetentionLevel::WeightsOnly
                } else {
                    RetentionLevel::ProvenanceOnly
                };
                (version, kept)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn rows(active: u64, count: u64) -> Vec<AdapterRow> {
        (1..=count)
            .map(|version| AdapterRow {
                version,
                parent: version - 1,
                digest: String::new(),
                path: String::new(),
                provenance: Value::Null,
                created_ms: 0,
                state: if version == active {
                    "active"
                } else {
                    "retired"
                }
                .to_owned(),
                step: None,
                owner: None,
            })
            .collect()
    }

    fn levels(retention: Retention, rows: &[AdapterRow]) -> String {
        let mut plan = retention.plan(rows, &[]);
        plan.sort_unstable();
        let letter = |(_, level)| match level {
            RetentionLevel::Full => 'F',
            RetentionLevel::WeightsOnly => 's',
            RetentionLevel::ProvenanceOnly => '-',
        };
        plan.into_iter().map(letter).collect()
    }

    #[test]
    fn newest_marked_active_and_parent_versions_keep_everything() {
        let mut retention = Retention {
            with_optimizer: 2,
            every: 0,
            with_weights: 0,
        };
        assert_eq!(levels(retention, &rows(10, 10)), "ssssssssFF");
        retention.every = 4;
        assert_eq!(levels(retention, &rows(10, 10)), "sssFsssFFF");
        retention.with_weights = 3;
        assert_eq!(levels(retention, &rows(10, 10)), "---F---FFF");
        // After a rollback to 3.
        assert_eq!(levels(retention, &rows(3, 10)), "-FFF---FFF");
        retention.every = 0;
        retention.with_optimizer = 1;
        assert_eq!(levels(retention, &rows(1, 10)), "F------ssF");
        // The rollback target, and the version that training continues from while another one is pinned.
        let mut plan = retention.plan(&rows(1, 10), &[4, 9]);
        plan.retain(|(_, level)| *level == RetentionLevel::Full);
        let full: Vec<u64> = plan.into_iter().map(|(version, _)| version).collect();
        assert_eq!(full, [10, 9, 4, 1]);
    }
}
