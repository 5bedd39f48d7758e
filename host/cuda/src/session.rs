//! A training session: weights in f32 with their gradients and moments in flat buffers, and their copy in the precision of
//! the products.

use std::sync::Arc;

use clawhost_engine::ForwardError;
use clawhost_engine::backend::{
    AdamWState, LossGradients, OptimizerStep, Sequence, SequenceScores, TrainSession,
};
use clawhost_model::TrainedWeights;

use crate::adapters::DeviceAdapter;
use crate::backward::{Backward, GradientWorkspace, Trained};
use crate::device::{Address, Buffer, Precision, Result, Stream};
use crate::head::Partials;
use crate::kernels::AdamWArguments;
use crate::packing::pack;
use crate::scoring::{MicroBatch, Scorer};
use crate::shared::Shared;
use crate::weights::{DeviceModel, TensorPlace, gather, scatter};

/// The weights as the products read them.
#[derive(Debug)]
enum Compute {
    Lora(DeviceAdapter),
    Full(Box<DeviceModel>),
}

/// Trainable weights on the device.
#[derive(Debug)]
pub(crate) struct CudaTrainSession {
    shared: Arc<Shared>,
    /// The weights that the session started from: shape and kind.
    initial: TrainedWeights,
    scorer: Scorer,
    work: Option<GradientWorkspace>,
    compute: Compute,
    /// Where each named tensor lies in the flat buffers.
    places: Vec<TensorPlace>,
    /// Values of the flat buffers to which weight decay applies, which are the first, and which the products read.
    matrices: usize,
    weights: Arc<Buffer<f32>>,
    gradients: Buffer<f32>,
    exp_avg: Buffer<f32>,
    exp_avg_sq: Buffer<f32>,
    partials: Buffer<f64>,
    norm: Buffer<f64>,
    updates: u64,
    /// The micro-batches that wait for the backward pass.
    forward: Option<Vec<(MicroBatch, Vec<SequenceScores>)>>,
}

impl CudaTrainSession {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        weights: &TrainedWeights,
        state: Option<AdamWState>,
    ) -> Result<Self> {
        if !weights.fits(&shared.model) {
            return Err(ForwardError::Adapter);
        }
        let state = state.unwrap_or_else(|| AdamWState::for_weights(weights));
        let tensors = weights.tensors();
        let lengths: Vec<usize> = tensors.iter().map(|(_, values)| values.len()).collect();
        if !state.fits(&lengths) {
            return Err(ForwardError::OptimizerState {
                found: state.exp_avg.iter().map(Vec::len).sum(),
                expected: lengths.iter().sum(),
            });
        }
        let scorer = Scorer::new(shared)?;
        let (stream, driver) = (&scorer.stream, &shared.driver);
        let (places, total, matrices) = match weights {
            TrainedWeights::Lora(adapter) => {
                let layout = crate::adapters::AdapterLayout::new(shared.model.config(), adapter);
                (layout.tensors, layout.total, layout.total)
            }
            TrainedWeights::Full(model) => {
                let layout = crate::weights::ModelLayout::new(model.config());
                (layout.tensors, layout.total, layout.matrices)
            }
        };
        let flat = |tensors: Vec<&[f32]>| -> Result<Buffer<f32>> {
            let values = scatter(&places, total, tensors);
            let buffer = Buffer::new(driver, total)?;
            stream.upload(&buffer, 0, &values)?;
            Ok(buffer)
        };
        let moment = |moment: &[Vec<f32>]| flat(moment.iter().map(Vec::as_slice).collect());
        let master = Arc::new(flat(tensors.iter().map(|(_, values)| *values).collect())?);
        let compute = match weights {
            TrainedWeights::Lora(adapter) => Compute::Lora(DeviceAdapter::new(
                stream,
                shared.model.config(),
                adapter,
                shared.precision,
            )?),
            TrainedWeights::Full(model) => Compute::Full(Box::new(DeviceModel::with_exact(
                stream,
                model,
                shared.precision,
                (Arc::clone(&master), 0),
            )?)),
        };
        let gradients = Buffer::new(driver, total)?;
        stream.clear_buffer(&gradients)?;
        let session = Self {
            initial: weights.clone(),
            work: None,
            compute,
            matrices,
            weights: master,
            gradients,
            exp_avg: moment(&state.exp_avg)?,
            exp_avg_sq: moment(&state.exp_avg_sq)?,
            partials: Buffer::new(driver, Stream::NORM_PARTS)?,
            norm: Buffer::new(driver, 1)?,
            updates: state.updates,
            forward: None,
            shared: Arc::clone(shared),
            scorer,
            places,
        };
        session.scorer.stream.synchronize()?;
        Ok(session)
    }

    /// The named tensors of a flat buffer.
    fn read(&self, buffer: &Buffer<f32>) -> Result<Vec<Vec<f32>>> {
        let mut flat = vec![0.0; buffer.len()];
        self.scorer.stream.download(buffer, 0, &mut flat)?;
        Ok(gather(&self.places, &flat))
    }

    /// Makes room for the backward pass of micro-batches of this many tokens.
    fn reserve(&mut self, tokens: usize) -> Result<()> {
        let rank = match &self.compute {
            Compute::Lora(adapter) => adapter.layout.max_stacked,
            Compute::Full(_) => 8,
        };
        let fits = |work: &GradientWorkspace| work.fits((tokens, rank));
        if !self.work.as_ref().is_some_and(fits) {
            self.work = None;
            let (driver, c) = (&self.shared.driver, self.shared.model.config());
            let size = (tokens, rank);
            let work = GradientWorkspace::new(driver, c, self.shared.precision, size)?;
            self.work = Some(work);
        }
        Ok(())
    }
}

/// The partial derivatives of a micro-batch, flattened.
///
/// # Errors
/// A vector of the wrong length.
fn flatten(scores: &[SequenceScores], gradients: &[LossGradients]) -> Result<Partials> {
    let check = |what, found, expected| {
        if found == expected {
            return Ok(());
        }
        Err(ForwardError::Length {
            what,
            found,
            expected,
        })
    };
    let mut partials = Partials::default();
    let mut has_candidates = false;
    for (own, scored) in gradients.iter().zip(scores) {
        let tokens = scored.logprobs.len();
        check("d_logprob", own.d_logprob.len(), tokens)?;
        partials.logprobs.extend_from_slice(&own.d_logprob);
        if own.d_entropy.is_empty() {
            partials.entropies.resize(partials.logprobs.len(), 0.0);
        } else {
            check("d_entropy", own.d_entropy.len(), tokens)?;
            partials.entropies.extend_from_slice(&own.d_entropy);
        }
        let candidates = scored.candidates.len();
        if own.d_candidates.is_empty() {
            let len = partials.candidates.len() + candidates;
            partials.candidates.resize(len, 0.0);
        } else {
            check("d_candidates", own.d_candidates.len(), candidates)?;
            partials.candidates.extend_from_slice(&own.d_candidates);
            has_candidates = true;
        }
    }
    if !has_candidates {
        partials.candidates.clear();
    }
    Ok(partials)
}

impl TrainSession for CudaTrainSession {
    fn zero_gradients(&mut self) -> Result<()> {
        self.scorer.stream.clear_buffer(&self.gradients)
    }

    fn forward(&mut self, sequences: &[Sequence<'_>]) -> Result<Vec<SequenceScores>> {
        self.forward = None;
        let (model, adapter) = match &self.compute {
            Compute::Lora(adapter) => (&*self.shared.device_model, Some(adapter)),
            Compute::Full(model) => (&**model, None),
        };
        let mut batches = Vec::new();
        for packed in pack(self.shared.model.config(), sequences)? {
            batches.push(self.scorer.forward_train(model, adapter, packed)?);
        }
        let scores = batches.iter().flat_map(|(_, scores)| scores).cloned();
        let scores = scores.collect();
        self.forward = Some(batches);
        Ok(scores)
    }

    fn backward(&mut self, gradients: &[LossGradients]) -> Result<()> {
        let batches = self.forward.take();
        let batches = batches.expect("a forward pass comes before its backward pass");
        let expected: usize = batches.iter().map(|(_, scores)| scores.len()).sum();
        if gradients.len() != expected {
            return Err(ForwardError::Length {
                what: "sequences",
                found: gradients.len(),
                expected,
            });
        }
        let mut rest = gradients;
        let mut all = Vec::with_capacity(batches.len());
        for (batch, scores) in batches {
            let (own, later) = rest.split_at(scores.len());
            rest = later;
            all.push((batch, flatten(&scores, own)?));
        }
        let most = all.iter().map(|(batch, _)| batch.inputs.token_count).max();
        self.reserve(most.unwrap_or(0))?;
        let work = self.work.as_ref().expect("it has just been made");
        let (model, trained) = match &self.compute {
            Compute::Lora(adapter) => (&*self.shared.device_model, Trained::Lora(adapter)),
            Compute::Full(model) => (&**model, Trained::Full),
        };
        for (batch, partials) in all {
            let mut backward = Backward {
                scorer: &mut self.scorer,
                model,
                trained,
                gradients: &self.gradients,
                work,
            };
            backward.run(batch, &partials)?;
        }
        Ok(())
    }

    fn gradient_norm(&mut self) -> Result<f64> {
        let stream = &self.scorer.stream;
        let (values, partials) = (self.gradients.address(), self.partials.address());
        let at = (values, partials, self.norm.address());
        stream.squared_norm(at, self.gradients.len())?;
        let mut norm = [0.0];
        stream.download(&self.norm, 0, &mut norm)?;
        Ok(norm[0].sqrt())
    }

    fn step(&mut self, step: OptimizerStep) -> Result<()> {
        let OptimizerStep {
            adamw,
            learning_rate,
            gradient_scale,
        } = step;
        let updates = self.updates + 1;
        let power = |beta: f64| 1.0 / (1.0 - beta.powf(updates as f64));
        let values = match &self.compute {
            Compute::Lora(adapter) => &adapter.values,
            Compute::Full(model) => &model.values,
        };
        let bf16 = values.precision == Precision::Bf16;
        let arguments = |from: usize, count: usize, decays: bool, copy: Address| AdamWArguments {
            parameters: self.weights.at(from),
            gradients: self.gradients.at(from),
            exp_avg: self.exp_avg.at(from),
            exp_avg_sq: self.exp_avg_sq.at(from),
            copy,
            count: count as i64,
            decayed: if decays { count as i64 } else { 0 },
            rate: learning_rate as f32,
            beta1: adamw.beta1 as f32,
            one_minus_beta1: (1.0 - adamw.beta1) as f32,
            beta2: adamw.beta2 as f32,
            one_minus_beta2: (1.0 - adamw.beta2) as f32,
            bias_correction1: power(adamw.beta1) as f32,
            bias_correction2: power(adamw.beta2) as f32,
            epsilon: adamw.epsilon as f32,
            decay_factor: (1.0 - learning_rate * adamw.weight_decay) as f32,
            scale: gradient_scale as f32,
        };
        let stream = &self.scorer.stream;
        let copy = if bf16 {
            values.address()
        } else {
            Address::NULL
        };
        stream.adamw(arguments(0, self.matrices, true, copy))?;
        let rest = self.weights.len() - self.matrices;
        stream.adamw(arguments(self.matrices, rest, false, Address::NULL))?;
        if !bf16 {
            let bytes = self.matrices * size_of::<f32>();
            stream.copy_bytes(self.weights.address(), values.address(), bytes)?;
        }
        stream.synchronize()?;
        self.updates = updates;
        Ok(())
    }

    fn score(&mut self, sequences: &[Sequence<'_>]) -> Result<Vec<SequenceScores>> {
        let (model, adapter) = match &self.compute {
            Compute::Lora(adapter) => (&*self.shared.device_model, Some(adapter)),
            Compute::Full(model) => (&**model, None),
        };
        self.scorer.score(model, adapter, sequences)
    }

    fn updates(&self) -> u64 {
        self.updates
    }

    fn gradients(&self) -> Result<Vec<Vec<f32>>> {
        self.read(&self.gradients)
    }

    fn weights(&self) -> Result<TrainedWeights> {
        let values = self.read(&self.weights)?;
        let mut weights = self.initial.clone();
        for ((_, to), from) in weights.tensors_mut().into_iter().zip(&values) {
            to.copy_from_slice(from);
        }
        Ok(weights)
    }

    fn optimizer_state(&self) -> Result<AdamWState> {
        Ok(AdamWState {
            updates: self.updates,
            exp_avg: self.read(&self.exp_avg)?,
            exp_avg_sq: self.read(&self.exp_avg_sq)?,
        })
    }
}
