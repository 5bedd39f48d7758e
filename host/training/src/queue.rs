//! Order of the queue: a step takes the freshest samples first.
//!
//! If samples arrive faster than steps use them, some become stale; with this order these are the oldest samples, not
//! those of the current policy. Samples of equal staleness keep their order of arrival. Stale samples leave the queue
//! with the next step even if its batch is full, so that the queue length and the stale count are up to date.

use std::collections::BTreeMap;

use clawhost_journal::{
    AdapterOwner, Journal, JournalError, QueuedSample, SampleId, SampleRecord, StaleCount,
};

use crate::batch::stale_reason;
use crate::lineage::Lineage;
use clawhost_config::TrainingOptions;

/// Samples that a step considers, in multiples of the batch size, to make up for dropped ones.
const LOOKAHEAD_BATCHES: usize = 8;

/// The queue, ordered and filtered for a step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StepQueue {
    /// Samples to consider, in this order.
    pub(crate) fresh: Vec<SampleId>,
    /// Stale samples, with the reason.
    pub(crate) stale: Vec<(SampleId, String)>,
}

/// How a step selects from the queue.
pub(crate) struct QueueSelection<'a> {
    pub(crate) lineage: &'a Lineage,
    /// Version that training continues from.
    pub(crate) active: u64,
    pub(crate) max_staleness: u64,
    /// Samples to consider; exceeded rather than split a group.
    pub(crate) limit: usize,
}

impl StepQueue {
    /// Selects from a queue in order of arrival.
    pub(crate) fn select(queued: Vec<QueuedSample>, selection: &QueueSelection<'_>) -> Self {
        let mut stale = Vec::new();
        // Distance of the freshest member and the members of each group, in order of the first member.
        let mut groups: Vec<(u64, Vec<SampleId>)> = Vec::new();
        let mut group_index: BTreeMap<String, usize> = BTreeMap::new();
        for sample in queued {
            let distance = selection
                .lineage
                .distance(selection.active, sample.adapter_version);
            if let Some(reason) =
                stale_reason(distance, sample.adapter_version, selection.max_staleness)
            {
                stale.push((sample.id, reason));
                continue;
            }
            let distance = distance.expect("a sample of an unknown version is stale");
            let group = match group_index.get(&sample.group) {
                Some(index) => groups.get_mut(*index),
                None => None,
            };
            if let Some((freshest, members)) = group {
                *freshest = distance.min(*freshest);
                members.push(sample.id);
            } else {
                group_index.insert(sample.group, groups.len());
                groups.push((distance, vec![sample.id]));
            }
        }
        groups.sort_by_key(|(distance, _)| *distance);
        let mut fresh = Vec::new();
        for (_, members) in groups {
            if fresh.len() >= selection.limit {
                break;
            }
            fresh.extend(members);
        }
        Self { fresh, stale }
    }

    /// Loads the queue of an owner for a step from version `active`.
    pub(crate) fn load(
        journal: &Journal,
        owner: Option<&AdapterOwner>,
        lineage: &Lineage,
        active: u64,
        options: &TrainingOptions,
    ) -> Result<Self, JournalError> {
        let selection = QueueSelection {
            lineage,
            active,
            max_staleness: options.max_staleness,
            limit: options.batch_size.saturating_mul(LOOKAHEAD_BATCHES),
        };
        Ok(Self::select(
            journal.list_queued_samples(owner)?,
            &selection,
        ))
    }
}

/// The queued samples that the next step would consider, in its order, without stale ones.
///
/// # Errors
/// When the journal cannot be read.
pub fn select_next_samples(
    journal: &Journal,
    options: &TrainingOptions,
) -> Result<Vec<SampleRecord>, JournalError> {
    let lineage = Lineage::from_adapters(&journal.adapters()?);
    let owner = next_owner(journal)?;
    let head = journal.release_state_of(owner.as_ref())?.head;
    let queue = StepQueue::load(journal, owner.as_ref(), &lineage, head, options)?;
    journal.load_queued_samples(&queue.fresh)
}

/// The owner whose turn it is; the shared adapter if no samples are queued.
pub(crate) fn next_owner(journal: &Journal) -> Result<Option<AdapterOwner>, JournalError> {
    let first = journal.owner_queues()?.into_iter().next();
    Ok(first.and_then(|queue| queue.owner))
}

/// A note on the number of stale samples and the settings that reduce it; none if no sample went stale.
pub fn describe_stale_samples(count: StaleCount) -> Option<String> {
    let StaleCount { samples, stale } = count;
    (stale > 0).then(|| {
        format!(
            "{stale} of {samples} judged samples went stale before a step used them; raise training.max_staleness to \
             train on older samples, or training.batch_size to use more per step"
        )
    })
}

#[cfg(test)]
mod tests {
    use clawhost_journal::AdapterRow;

    use super::*;

    fn queued(id: i64, group: &str, adapter_version: u64) -> QueuedSample {
        QueuedSample {
            id: SampleId(id),
            group: group.to_owned(),
            adapter_version,
            created_ms: id,
        }
    }

    /// Versions 1 to 4, each the parent of the next.
    fn lineage() -> Lineage {
        let rows: Vec<AdapterRow> = (1..=4)
            .map(|version| AdapterRow {
                version,
                parent: version - 1,
                digest: String::new(),
                path: String::new(),
                provenance: serde_json::Value::Null,
                created_ms: 0,
                state: "retired".to_owned(),
                step: None,
                owner: None,
            })
            .collect();
        Lineage::from_adapters(&rows)
    }

    fn ids(samples: &[SampleId]) -> Vec<i64> {
        samples.iter().map(|id| id.0).collect()
    }

    #[test]
    fn fresh_samples_come_first_and_stale_ones_are_dropped() {
        let lineage = lineage();
        let mut selection = QueueSelection {
            lineage: &lineage,
            active: 4,
            max_staleness: 2,
            limit: 3,
        };
        let queue = vec![
            queued(1, "a", 1),
            queued(2, "b", 2),
            queued(3, "c", 4),
            queued(4, "d", 3),
            queued(5, "e", 4),
            queued(6, "f", 9),
        ];
        let selected = StepQueue::select(queue.clone(), &selection);
        assert_eq!(ids(&selected.fresh), [3, 5, 4]);
        let stale: Vec<i64> = selected.stale.iter().map(|(id, _)| id.0).collect();
        assert_eq!(stale, [1, 6]);
        assert!(selected.stale[0].1.contains("training.max_staleness"));
        assert!(selected.stale[1].1.contains("the journal does not know"));

        // After a rollback to version 2, its samples are the freshest.
        selection.active = 2;
        assert_eq!(ids(&StepQueue::select(queue, &selection).fresh), [2, 1, 4]);
    }

    #[test]
    fn a_group_is_as_fresh_as_its_freshest_sample_and_never_split() {
        let lineage = lineage();
        let selection = QueueSelection {
            lineage: &lineage,
            active: 4,
            max_staleness: 9,
            limit: 2,
        };
        let queue = vec![
            queued(1, "old", 2),
            queued(2, "a", 3),
            queued(3, "old", 2),
            queued(4, "a", 3),
            queued(5, "a", 4),
            queued(6, "b", 4),
        ];
        assert_eq!(ids(&StepQueue::select(queue, &selection).fresh), [2, 4, 5]);
    }

    #[test]
    fn the_stale_note_names_the_count_and_the_settings() {
        assert_eq!(describe_stale_samples(StaleCount::default()), None);
        let note = describe_stale_samples(StaleCount {
            samples: 4174,
            stale: 3510,
        })
        .unwrap();
        assert!(note.starts_with("3510 of 4174 judged samples went stale"));
        assert!(note.contains("training.max_staleness") && note.contains("training.batch_size"));
    }
}
