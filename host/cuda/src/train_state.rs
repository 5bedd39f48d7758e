//! Trainable weights on the device: in f32 with their gradients and moments in flat buffers, and their copy in the precision
//! of the products.

use std::sync::Arc;

use clawhost_engine::ForwardError;
use clawhost_engine::backend::AdamWState;
use clawhost_model::TrainedWeights;

use crate::adapters::{AdapterLayout, DeviceAdapter};
use crate::device::{Buffer, Result, Stream, Values};
use crate::shared::Shared;
use crate::transfer::{download_tensors, upload_tensors};
use crate::weights::{DeviceModel, ModelLayout, TensorPlace};

/// The weights as the products read them.
#[derive(Debug)]
pub(crate) enum Compute {
    Lora(DeviceAdapter),
    Full(Box<DeviceModel>),
}

impl Compute {
    /// The model and the adapter of passes over this base model.
    pub(crate) fn weights<'a>(
        &'a self,
        base: &'a DeviceModel,
    ) -> (&'a DeviceModel, Option<&'a DeviceAdapter>) {
        match self {
            Self::Lora(adapter) => (base, Some(adapter)),
            Self::Full(model) => (model, None),
        }
    }

    pub(crate) fn values(&self) -> &Values {
        match self {
            Self::Lora(adapter) => &adapter.values,
            Self::Full(model) => &model.values,
        }
    }
}

/// The state of a training session on the device.
#[derive(Debug)]
pub(crate) struct TrainState {
    /// The same weights and moments in host memory, where they are known.
    pub(crate) host: Option<(TrainedWeights, AdamWState)>,
    pub(crate) compute: Compute,
    /// Where each named tensor lies in the flat buffers.
    places: Vec<TensorPlace>,
    /// Values of the flat buffers to which weight decay applies, which are the first, and which the products read.
    pub(crate) matrices: usize,
    pub(crate) weights: Arc<Buffer<f32>>,
    pub(crate) gradients: Buffer<f32>,
    pub(crate) exp_avg: Buffer<f32>,
    pub(crate) exp_avg_sq: Buffer<f32>,
    /// Of the norm of the gradients.
    pub(crate) partials: Buffer<f64>,
    pub(crate) norm: Buffer<f64>,
}

impl TrainState {
    /// Uploads weights and moments; without moments they are zero. The gradients are undefined.
    ///
    /// # Errors
    /// Weights or moments of another shape, or no memory.
    pub(crate) fn new(
        shared: &Shared,
        stream: &Stream,
        weights: &TrainedWeights,
        moments: Option<&AdamWState>,
    ) -> Result<Self> {
        if !weights.fits(&shared.model) {
            return Err(ForwardError::Adapter);
        }
        let tensors = weights.tensors();
        let lengths: Vec<usize> = tensors.iter().map(|(_, values)| values.len()).collect();
        if let Some(state) = moments.filter(|state| !state.fits(&lengths)) {
            return Err(ForwardError::OptimizerState {
                found: state.exp_avg.iter().map(Vec::len).sum(),
                expected: lengths.iter().sum(),
            });
        }
        let c = shared.model.config();
        let (places, total, matrices) = match weights {
            TrainedWeights::Lora(adapter) => {
                let layout = AdapterLayout::new(c, adapter);
                (layout.tensors, layout.total, layout.total)
            }
            TrainedWeights::Full(_) => {
                let layout = ModelLayout::new(c);
                (layout.tensors, layout.total, layout.matrices)
            }
        };
        let driver = &shared.driver;
        let upload = |tensors: Vec<&[f32]>| -> Result<Buffer<f32>> {
            let to = Buffer::new(driver, total)?;
            shared.transfer(|staging| upload_tensors(stream, staging, &to, &places, &tensors))?;
            Ok(to)
        };
        let moment = |moment: Option<&[Vec<f32>]>| match moment {
            Some(moment) => upload(moment.iter().map(Vec::as_slice).collect()),
            None => {
                let zeros = Buffer::new(driver, total)?;
                stream.clear_buffer(&zeros).map(|()| zeros)
            }
        };
        let master = Arc::new(upload(tensors.iter().map(|(_, values)| *values).collect())?);
        let compute = match weights {
            TrainedWeights::Lora(adapter) => Compute::Lora(shared.transfer(|staging| {
                DeviceAdapter::new(stream, staging, c, adapter, shared.precision)
            })?),
            TrainedWeights::Full(model) => Compute::Full(Box::new(DeviceModel::with_exact(
                stream,
                model,
                shared.precision,
                (Arc::clone(&master), 0),
            )?)),
        };
        Ok(Self {
            host: None,
            compute,
            matrices,
            weights: master,
            gradients: Buffer::new(driver, total)?,
            exp_avg: moment(moments.map(|state| state.exp_avg.as_slice()))?,
            exp_avg_sq: moment(moments.map(|state| state.exp_avg_sq.as_slice()))?,
            partials: Buffer::new(driver, Stream::NORM_PARTS)?,
            norm: Buffer::new(driver, 1)?,
            places,
        })
    }

    /// The named tensors of a flat buffer.
    pub(crate) fn read(
        &self,
        shared: &Shared,
        stream: &Stream,
        buffer: &Buffer<f32>,
    ) -> Result<Vec<Vec<f32>>> {
        shared.transfer(|staging| download_tensors(stream, staging, buffer, &self.places))
    }

    /// Replaces the gradients by these named tensors.
    pub(crate) fn write_gradients(
        &self,
        shared: &Shared,
        stream: &Stream,
        tensors: &[&[f32]],
    ) -> Result<()> {
        let (to, places) = (&self.gradients, &self.places);
        shared.transfer(|staging| upload_tensors(stream, staging, to, places, tensors))
    }
}
