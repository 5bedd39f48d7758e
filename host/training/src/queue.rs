//! Which queued samples a step looks at: the freshest first.
//!
//! Where more samples come than steps can take, some grow too old to train whatever is done. Those are the oldest ones
//! then, not the ones that the policy of now has just sampled. Samples of the same age keep the order in which they
//! came. A sample that is too old leaves the queue with the next step, also behind a full batch, so that the queue and
//! the number of stale samples say how things stand.

use std::collections::BTreeMap;

use clawhost_journal::{Journal, JournalError, QueuedSample, SampleId, SampleRecord, StaleCount};

use crate::advantage::Estimation;
use crate::batch::stale_reason;
use crate::lineage::Lineage;
use crate::options::TrainingOptions;

/// Samples that a step looks at, in multiples of the batch: room for those that it drops.
const LOOK_AHEAD: usize = 8;

/// The queue as a step sees it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Queue {
    /// Samples to look at, in this order.
    pub(crate) fresh: Vec<SampleId>,
    /// Samples that are too old, with the reason.
    pub(crate) stale: Vec<(SampleId, String)>,
}

/// How a step chooses from the queue.
pub(crate) struct Choice<'a> {
    pub(crate) lineage: &'a Lineage,
    /// Version that is trained from.
    pub(crate) active: u64,
    pub(crate) max_staleness: u64,
    /// Whether the samples of a group are looked at together.
    pub(crate) by_group: bool,
    /// Samples to look at, at least where there are as many; a group is never cut.
    pub(crate) limit: usize,
}

impl Queue {
    /// Sorts a queue that is ordered by age.
    pub(crate) fn of(queued: Vec<QueuedSample>, choice: &Choice<'_>) -> Self {
        let mut stale = Vec::new();
        // Members of a group, by the distance of the freshest and the place of the first.
        let mut portions: Vec<(u64, Vec<SampleId>)> = Vec::new();
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        for sample in queued {
            let distance = choice
                .lineage
                .distance(choice.active, sample.adapter_version);
            if let Some(reason) =
                stale_reason(distance, sample.adapter_version, choice.max_staleness)
            {
                stale.push((sample.id, reason));
                continue;
            }
            let distance = distance.unwrap_or(0);
            let place = match places.get(&sample.group) {
                Some(place) if choice.by_group => portions.get_mut(*place),
                _ => None,
            };
            if let Some((freshest, members)) = place {
                *freshest = distance.min(*freshest);
                members.push(sample.id);
            } else {
                places.insert(sample.group, portions.len());
                portions.push((distance, vec![sample.id]));
            }
        }
        portions.sort_by_key(|(distance, _)| *distance);
        let mut fresh = Vec::new();
        for (_, members) in portions {
            if fresh.len() >= choice.limit {
                break;
            }
            fresh.extend(members);
        }
        Self { fresh, stale }
    }

    /// Reads the queue that a step from version `active` chooses from.
    pub(crate) fn read(
        journal: &Journal,
        lineage: &Lineage,
        active: u64,
        options: &TrainingOptions,
        by_component: bool,
    ) -> Result<Self, JournalError> {
        let Estimation { estimator, .. } = options.estimation();
        let choice = Choice {
            lineage,
            active,
            max_staleness: options.max_staleness,
            by_group: by_component || estimator.needs_groups(),
            limit: options.batch.saturating_mul(LOOK_AHEAD),
        };
        Ok(Self::of(journal.queue()?, &choice))
    }
}

/// The queued samples that the next step would look at, in the order in which it would; those that are too old are left
/// out. `by_component`: a component estimates the advantages.
///
/// # Errors
/// When the journal cannot be read.
pub fn next_samples(
    journal: &Journal,
    options: &TrainingOptions,
    by_component: bool,
) -> Result<Vec<SampleRecord>, JournalError> {
    let lineage = Lineage::of(&journal.adapters()?);
    let head = journal.standing()?.head;
    let queue = Queue::read(journal, &lineage, head, options, by_component)?;
    journal.queued(&queue.fresh)
}

/// How many samples went stale and which settings change it; none while none has.
pub fn stale_note(count: StaleCount) -> Option<String> {
    let StaleCount { samples, stale } = count;
    (stale > 0).then(|| {
        format!(
            "{stale} of {samples} judged samples went stale before a step took them; raise training.max_staleness to \
             train on older ones, or training.batch to take more in each step"
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

    /// Versions 1 to 4, each made from the one before it.
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
            })
            .collect();
        Lineage::of(&rows)
    }

    fn ids(samples: &[SampleId]) -> Vec<i64> {
        samples.iter().map(|id| id.0).collect()
    }

    #[test]
    fn fresh_samples_come_first_and_stale_ones_leave_at_once() {
        let lineage = lineage();
        let mut choice = Choice {
            lineage: &lineage,
            active: 4,
            max_staleness: 2,
            by_group: false,
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
        let chosen = Queue::of(queue.clone(), &choice);
        assert_eq!(ids(&chosen.fresh), [3, 5, 4]);
        let stale: Vec<i64> = chosen.stale.iter().map(|(id, _)| id.0).collect();
        assert_eq!(stale, [1, 6]);
        assert!(chosen.stale[0].1.contains("training.max_staleness"));
        assert!(chosen.stale[1].1.contains("the journal does not know"));

        // After a rollback to version 2, what it sampled is the freshest.
        choice.active = 2;
        assert_eq!(ids(&Queue::of(queue, &choice).fresh), [2, 1, 4]);
    }

    #[test]
    fn a_group_is_as_fresh_as_its_freshest_and_never_cut() {
        let lineage = lineage();
        let choice = Choice {
            lineage: &lineage,
            active: 4,
            max_staleness: 9,
            by_group: true,
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
        assert_eq!(ids(&Queue::of(queue, &choice).fresh), [2, 4, 5]);
    }

    #[test]
    fn the_note_names_the_count_and_the_settings() {
        assert_eq!(stale_note(StaleCount::default()), None);
        let note = stale_note(StaleCount {
            samples: 4174,
            stale: 3510,
        })
        .unwrap();
        assert!(note.starts_with("3510 of 4174 judged samples went stale"));
        assert!(note.contains("training.max_staleness") && note.contains("training.batch"));
    }
}
