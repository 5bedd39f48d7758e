//! Distance between two adapter versions, for staleness.
//!
//! Version numbers follow creation order; after a rollback the next version descends from an older one than its number
//! suggests. The distance is therefore counted along parents, through the nearest common ancestor.

use std::collections::BTreeMap;

use clawhost_journal::AdapterRow;

/// Parents by version; 0 is the base model.
#[derive(Debug, Default)]
pub(crate) struct Lineage {
    parents: BTreeMap<u64, u64>,
}

impl Lineage {
    pub(crate) fn from_adapters(adapters: &[AdapterRow]) -> Self {
        Self {
            parents: adapters
                .iter()
                .map(|row| (row.version, row.parent))
                .collect(),
        }
    }

    /// Number of parent links between two versions; none if one of them is unknown.
    pub(crate) fn distance(&self, one: u64, other: u64) -> Option<u64> {
        let depths: BTreeMap<u64, u64> = self.ancestors(one)?.into_iter().zip(0..).collect();
        self.ancestors(other)?
            .into_iter()
            .zip(0..)
            .find_map(|(version, steps): (u64, u64)| {
                depths.get(&version).map(|depth| depth + steps)
            })
    }

    /// The version, its parent and so on up to the base model. None for an unknown version or a cycle.
    fn ancestors(&self, version: u64) -> Option<Vec<u64>> {
        let mut path = vec![version];
        let mut current = version;
        while current != 0 {
            current = *self.parents.get(&current)?;
            if path.len() > self.parents.len() {
                return None; // a cycle: corrupt data
            }
            path.push(current);
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
    fn distance_follows_parents() {
        // 1 - 2 - 3, then a rollback to 1 and version 4 trained from it.
        let lineage = lineage(&[(1, 0), (2, 1), (3, 2), (4, 1)]);
        assert_eq!(lineage.distance(4, 4), Some(0));
        assert_eq!(lineage.distance(4, 1), Some(1));
        assert_eq!(lineage.distance(4, 3), Some(3));
        assert_eq!(lineage.distance(3, 0), Some(3));
        assert_eq!(lineage.distance(3, 9), None);
    }

    #[test]
    fn a_cycle_has_no_distance() {
        assert_eq!(lineage(&[(1, 2), (2, 1)]).distance(1, 0), None);
    }
}
