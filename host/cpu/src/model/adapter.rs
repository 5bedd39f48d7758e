//! The packed weights of an adapter.

use clawhost_model::{Adapter, LoraPair, Target};

use crate::ops::packed_weights::PackedWeights;

/// A pair with packed weights.
#[derive(Debug)]
pub(crate) struct PackedLoraPair {
    pub(crate) a: PackedWeights,
    pub(crate) b: PackedWeights,
}

impl PackedLoraPair {
    fn new(pair: &LoraPair) -> Self {
        let (inputs, outputs) = (pair.a.len() / pair.rank, pair.b.len() / pair.rank);
        Self {
            a: PackedWeights::new(&pair.a, (pair.rank, inputs)),
            b: PackedWeights::new(&pair.b, (outputs, pair.rank)),
        }
    }
}

/// Size in bytes of the packed weights of a pair with these inputs, outputs and rank.
pub(crate) fn planned_pair_bytes((inputs, outputs): (usize, usize), rank: usize) -> usize {
    let shapes = [(rank, inputs), (outputs, rank)];
    shapes.map(PackedWeights::planned_bytes).iter().sum()
}

/// Packs all pairs on first use; they are in the order of [`Adapter::pairs`].
pub(crate) fn pack_adapter(adapter: &Adapter) -> &[Option<PackedLoraPair>] {
    let packed = |pair: &Option<LoraPair>| pair.as_ref().map(PackedLoraPair::new);
    let pack = || adapter.pairs().iter().map(packed).collect::<Vec<_>>();
    adapter.derived().get_or_init(pack)
}

/// The packed pair of a layer's target, if it is adapted.
pub(crate) fn packed_pair(
    adapter: &Adapter,
    layer: usize,
    target: Target,
) -> Option<&PackedLoraPair> {
    pack_adapter(adapter)[Adapter::pair_index(layer, target)].as_ref()
}
