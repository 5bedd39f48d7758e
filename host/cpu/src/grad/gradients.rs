//! Accumulated gradients: one buffer per trained tensor; and which tensors are trained.

use clawhost_model::{Adapter, Model};

/// The parameters for which gradients are computed.
#[derive(Debug, Clone, Copy)]
pub enum GradientTarget<'m> {
    /// The tensors of this adapter; the base model is frozen.
    Lora(&'m Adapter),
    /// Every parameter of the model.
    Full,
}

impl<'m> GradientTarget<'m> {
    pub(crate) fn adapter(self) -> Option<&'m Adapter> {
        match self {
            Self::Lora(adapter) => Some(adapter),
            Self::Full => None,
        }
    }
}

/// Gradients in the order of [`Adapter::tensors`] or [`Model::parameters`].
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients {
    /// One buffer per tensor, of its size.
    pub tensors: Vec<Vec<f32>>,
}

impl Gradients {
    /// Zeros for an adapter's tensors.
    pub fn for_adapter(adapter: &Adapter) -> Self {
        Self {
            tensors: adapter
                .tensors()
                .iter()
                .map(|(_, v)| vec![0.0; v.len()])
                .collect(),
        }
    }

    /// Zeros for every parameter of a model.
    pub fn for_model(model: &Model) -> Self {
        Self {
            tensors: model
                .parameters()
                .iter()
                .map(|(_, v)| vec![0.0; v.len()])
                .collect(),
        }
    }

    /// Sets every value to zero.
    pub fn clear(&mut self) {
        self.tensors.iter_mut().for_each(|t| t.fill(0.0));
    }

    /// Adds `other`, tensor by tensor.
    pub fn add(&mut self, other: &Self) {
        for (own, other) in self.tensors.iter_mut().zip(&other.tensors) {
            for (own, other) in own.iter_mut().zip(other) {
                *own += other;
            }
        }
    }

    /// Euclidean norm over all tensors, accumulated in f64 in their order; NaN when a value is.
    pub fn norm(&self) -> f64 {
        let square = |value: &f32| f64::from(*value) * f64::from(*value);
        let sums = self.tensors.iter();
        let sums = sums.map(|tensor| tensor.iter().map(square).sum::<f64>());
        sums.sum::<f64>().sqrt()
    }

    /// Multiplies every value.
    pub fn scale(&mut self, factor: f32) {
        self.tensors.iter_mut().flatten().for_each(|v| *v *= factor);
    }

    /// Whether every value is finite.
    pub fn is_finite(&self) -> bool {
        self.tensors.iter().flatten().all(|v| v.is_finite())
    }

    /// The buffer of a tensor.
    pub(crate) fn buffer(&mut self, index: usize) -> &mut [f32] {
        &mut self.tensors[index]
    }
}
