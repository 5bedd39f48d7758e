//! LoRA adapters in device memory. The matrices A of targets that read the same input are stacked, so that one product
//! serves all of them; ranks are padded with zeros to multiples of 8, which changes neither results nor gradients.

use std::sync::Arc;

use clawhost_model::{Adapter, ModelConfig, TargetLayer};

use crate::device::{Precision, Result, Staging, Stream, Values};
use crate::identity::Identity;
use crate::kernels::LoraMatrices;
use crate::layout::TensorPlace;
use crate::projection::Projection;
use crate::transfer::upload_values;

/// Ranks are padded to a multiple of this.
const RANK_STEP: usize = 8;

/// The rank of a pair on the device.
pub(crate) fn padded_rank(rank: usize) -> usize {
    rank.next_multiple_of(RANK_STEP)
}

/// Targets of a layer.
pub(crate) const TARGETS: usize = 7;

/// One adapted target.
#[derive(Debug, Clone)]
pub(crate) struct AdaptedTarget {
    /// Position among the targets of its projection.
    pub(crate) index: usize,
    /// First column of the projection's output.
    pub(crate) column: usize,
    pub(crate) outputs: usize,
    /// Padded.
    pub(crate) rank: usize,
    /// First column of the stacked inner product.
    pub(crate) inner: usize,
    /// Offset of A.
    pub(crate) a: usize,
    /// Offset of B, `[outputs, rank]`.
    pub(crate) b: usize,
    pub(crate) scale: f32,
}

/// The adapted targets of one projection of one layer.
#[derive(Debug, Clone, Default)]
pub(crate) struct AdaptedProjection {
    /// Offset of the stacked A, `[rank, inputs]`.
    pub(crate) a: usize,
    /// Rows of the stacked A.
    pub(crate) rank: usize,
    pub(crate) targets: Vec<AdaptedTarget>,
}

/// Offsets of an adapter's matrices.
#[derive(Debug, Clone)]
pub(crate) struct AdapterLayout {
    projections: Vec<[AdaptedProjection; 4]>,
    pub(crate) total: usize,
    /// Largest padded rank of a target.
    pub(crate) max_rank: usize,
    /// Largest stacked rank of a projection.
    pub(crate) max_stacked: usize,
    /// The named tensors, in the order of [`Adapter::tensors`].
    pub(crate) tensors: Vec<TensorPlace>,
}

impl AdapterLayout {
    pub(crate) fn new(c: &ModelConfig, adapter: &Adapter) -> Self {
        let mut layout = Self {
            projections: Vec::with_capacity(c.num_hidden_layers),
            total: 0,
            max_rank: RANK_STEP,
            max_stacked: RANK_STEP,
            tensors: Vec::new(),
        };
        let mut tensors = Vec::new();
        for layer in 0..c.num_hidden_layers {
            let own = Projection::ALL.map(|projection| {
                layout.place_projection(c, adapter, (layer, projection), &mut tensors)
            });
            layout.projections.push(own);
        }
        tensors.sort_unstable_by_key(|(index, _)| *index);
        layout.tensors = tensors.into_iter().map(|(_, place)| place).collect();
        layout
    }

    fn place_projection(
        &mut self,
        c: &ModelConfig,
        adapter: &Adapter,
        (layer, projection): (usize, Projection),
        tensors: &mut Vec<(usize, TensorPlace)>,
    ) -> AdaptedProjection {
        let mut own = AdaptedProjection {
            a: self.total,
            ..AdaptedProjection::default()
        };
        for (index, target) in projection.targets().iter().enumerate() {
            let (Some(pair), Some(tensor)) = (
                adapter.pair(layer, *target),
                adapter.tensor_index(layer, *target),
            ) else {
                continue;
            };
            let (inputs, outputs) = target.widths(c);
            let rank = padded_rank(pair.rank);
            let a = self.total;
            self.total += rank * inputs;
            let place = TensorPlace {
                at: a,
                rows: pair.rank,
                width: inputs,
                stride: inputs,
            };
            tensors.push((tensor, place));
            own.targets.push(AdaptedTarget {
                index,
                column: projection.first_column(c, *target),
                outputs,
                rank,
                inner: own.rank,
                a,
                b: 0,
                scale: pair.scale(),
            });
            own.rank += rank;
            self.max_rank = self.max_rank.max(rank);
            let place = TensorPlace {
                at: 0,
                rows: outputs,
                width: pair.rank,
                stride: rank,
            };
            tensors.push((tensor + 1, place));
        }
        // The stacked A is contiguous; the matrices B follow it.
        let first = tensors.len() - 2 * own.targets.len();
        for (target, pair) in own
            .targets
            .iter_mut()
            .zip(tensors[first..].chunks_exact_mut(2))
        {
            target.b = self.total;
            pair[1].1.at = self.total;
            self.total += target.outputs * target.rank;
        }
        self.max_stacked = self.max_stacked.max(own.rank);
        own
    }

    pub(crate) fn projection(&self, layer: usize, projection: Projection) -> &AdaptedProjection {
        &self.projections[layer][projection as usize]
    }
}

/// An adapter on the device.
#[derive(Debug)]
pub(crate) struct DeviceAdapter {
    pub(crate) layout: Arc<AdapterLayout>,
    pub(crate) values: Values,
    /// The adapter in host memory that it was loaded from.
    pub(crate) source: Identity<Adapter>,
}

impl DeviceAdapter {
    /// Uploads an adapter that fits the model.
    pub(crate) fn new(
        stream: &Stream,
        staging: &mut Staging,
        c: &ModelConfig,
        adapter: &Arc<Adapter>,
        precision: Precision,
    ) -> Result<Self> {
        let layout = Arc::new(AdapterLayout::new(c, adapter));
        let values = Values::new(&stream.driver, precision, layout.total)?;
        let tensors = adapter.tensors();
        let tensors: Vec<&[f32]> = tensors.iter().map(|(_, tensor)| *tensor).collect();
        upload_values(stream, staging, &values, &layout.tensors, &tensors)?;
        Ok(Self {
            layout,
            values,
            source: Identity::of(adapter),
        })
    }

    /// Copies the values, which are now those of `source`.
    pub(crate) fn copy(&self, stream: &Stream, source: &Arc<Adapter>) -> Result<Self> {
        let values = Values::new(&stream.driver, self.values.precision, self.values.len())?;
        let bytes = self.values.len() * self.values.precision.bytes();
        stream.copy_bytes(self.values.address(), values.address(), bytes)?;
        stream.synchronize()?;
        Ok(Self {
            layout: Arc::clone(&self.layout),
            values,
            source: Identity::of(source),
        })
    }

    /// The matrices of a projection's targets, as the kernels' table has them.
    pub(crate) fn matrices(&self, layer: usize, projection: Projection) -> Vec<LoraMatrices> {
        let mut all = vec![LoraMatrices::default(); projection.targets().len()];
        for target in &self.layout.projection(layer, projection).targets {
            all[target.index] = LoraMatrices {
                a: self.values.at(target.a),
                b: self.values.at(target.b),
                rank: i32::try_from(target.rank).expect("ranks are small"),
                scale: target.scale,
            };
        }
        all
    }
}

/// The matrices of several adapters for the kernels that give each row its own: for every layer and projection
/// `[adapters, targets]`.
pub(crate) fn table(layers: usize, adapters: &[Arc<DeviceAdapter>]) -> Vec<LoraMatrices> {
    let mut all = Vec::with_capacity(layers * TARGETS * adapters.len());
    for layer in 0..layers {
        for projection in Projection::ALL {
            for adapter in adapters {
                all.extend(adapter.matrices(layer, projection));
            }
        }
    }
    all
}

/// Index in [`table`] of a layer's projection.
pub(crate) fn table_index(layer: usize, projection: Projection, adapters: usize) -> usize {
    (layer * TARGETS + projection.first_target()) * adapters
}
