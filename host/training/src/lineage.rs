//! How many versions lie between two adapters.
//!
//! Versions are numbered in the order in which they were made; after a rollback the next one
//! descends from an older version than its number suggests. Staleness is therefore counted along
//! parents: up from each of the two to the nearest version that both descend from.

use std::collections::BTreeMap;

use clawhost_journal::AdapterRow;

/// Parents by version; 0 is the base model.
#[derive(Debug, Default)]
pub(crate) struct Lineage {
    parents: BTreeMap<u64, u64>,
}

impl Lineage {
    pub(crate) fn of(adapters: &[AdapterRow]) -> Self {
        Self {
            parents: adapters
                .iter()
                .map(|row| (row.version, row.parent))
                .collect(),
        }
    }

    /// Versions from one adapter to the other; none when one of them is not known.
    pub(crate) fn distance(&self, one: u64, other: u64) -> Option<u64> {
        let above: BTreeMap<u64, u64> = self.ancestors(one)?.into_iter().zip(0..).collect();
        self.ancestors(other)?
            .into_iter()
            .zip(0..)
            .find_map(|(version, steps): (u64, u64)| above.get(&version).map(|up| up + steps))
    }

    /// The version itself, its parent and so on up to the base.
    fn ancestors(&self, version: u64) -> Option<Vec<u64>> {
        let mut path = vec![version];
        let mut at = version;
        while at != 0 {
            at = *self.parents.get(&at)?;
            if path.len() > self.parents.len() {
                return None; // a circle: damaged data, not a lineage
            }
            path.push(at);
        }
        Some(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lineage(parents: &[(u64, u64)]) -> Lineage {
        Lineage {
            parents: parents.iter().copied().collect(),
        }
    }

    #[test]
    fn distance_runs_along_parents() {
        // 1 - 2 - 3, then a rollback to 1 and 4 made from it.
        let lineage = lineage(&[(1, 0), (2, 1), (3, 2), (4, 1)]);
        assert_eq!(lineage.distance(4, 4), Some(0));
        assert_eq!(lineage.distance(4, 1), Some(1));
        assert_eq!(lineage.distance(4, 3), Some(3));
        assert_eq!(lineage.distance(3, 0), Some(3));
        assert_eq!(lineage.distance(3, 9), None);
    }

    #[test]
    fn a_circle_is_no_lineage() {
        assert_eq!(lineage(&[(1, 2), (2, 1)]).distance(1, 0), None);
    }
}
