//! Which checkpoints are kept whole, which only as far as they can be served, and which are let go.
//!
//! It decides by the journal's rows alone; removing is done by [`crate::checkpoint`].

use std::collections::BTreeSet;

use clawhost_journal::AdapterRow;

/// How many checkpoints are kept, and how much of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Retention {
    /// The newest so many keep the optimizer's state.
    pub(crate) full: usize,
    /// Versions that this divides keep it too, for ever; 0 = none.
    pub(crate) every: u64,
    /// Beyond the newest so many, what was learned goes as well; 0 = it always stays.
    pub(crate) served: usize,
}

/// What happens to one checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kept {
    /// All of it.
    Full,
    /// What can be served, without the optimizer's state.
    Served,
    /// Where it came from, and nothing else.
    Provenance,
}

impl Retention {
    /// What happens to each version. The active one and the one it was trained from always stay whole, so that training
    /// goes on and a rollback by one loses nothing; and so do those of `also`.
    pub(crate) fn decide(&self, rows: &[AdapterRow], also: &[u64]) -> Vec<(u64, Kept)> {
        let mut newest: Vec<u64> = rows.iter().map(|row| row.version).collect();
        newest.sort_unstable_by(|a, b| b.cmp(a));
        let needed: BTreeSet<u64> = rows
            .iter()
            .filter(|row| row.state == "active")
            .flat_map(|row| [row.version, row.parent])
            .chain(also.iter().copied())
            .collect();
        newest
            .into_iter()
            .enumerate()
            .map(|(place, version)| {
                let marked = self.every > 0 && version.is_multiple_of(self.every);
                let kept = if place < self.full || marked || needed.contains(&version) {
                    Kept::Full
                } else if self.served == 0 || place < self.served {
                    Kept::Served
                } else {
                    Kept::Provenance
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
            })
            .collect()
    }

    fn kept(retention: Retention, rows: &[AdapterRow]) -> String {
        let mut decided = retention.decide(rows, &[]);
        decided.sort_unstable();
        let letter = |(_, kept)| match kept {
            Kept::Full => 'F',
            Kept::Served => 's',
            Kept::Provenance => '-',
        };
        decided.into_iter().map(letter).collect()
    }

    #[test]
    fn the_newest_the_marked_the_active_and_its_parent_stay() {
        let mut retention = Retention {
            full: 2,
            every: 0,
            served: 0,
        };
        assert_eq!(kept(retention, &rows(10, 10)), "ssssssssFF");
        retention.every = 4;
        assert_eq!(kept(retention, &rows(10, 10)), "sssFsssFFF");
        retention.served = 3;
        assert_eq!(kept(retention, &rows(10, 10)), "---F---FFF");
        // After a rollback to 3.
        assert_eq!(kept(retention, &rows(3, 10)), "-FFF---FFF");
        retention.every = 0;
        retention.full = 1;
        assert_eq!(kept(retention, &rows(1, 10)), "F------ssF");
        // What a rollback would return to, and what is trained from while another version is held.
        let mut decided = retention.decide(&rows(1, 10), &[4, 9]);
        decided.retain(|(_, kept)| *kept == Kept::Full);
        let whole: Vec<u64> = decided.into_iter().map(|(version, _)| version).collect();
        assert_eq!(whole, [10, 9, 4, 1]);
    }
}
