//! AdamW with decoupled weight decay, in one pass over each tensor.
//!
//! θ ← θ (1 − lr·wd) − lr · m̂ / (√v̂ + ε), with bias-corrected moments m̂ and v̂ (Loshchilov and Hutter, "Decoupled Weight
//! Decay Regularization"). Gradient clipping is a factor on the gradient, so that gradients are read once. Norm weights and
//! biases have no weight decay.

use crate::float::Float;

/// A tensor to update.
#[derive(Debug)]
pub struct Parameter<'a, R> {
    /// Values of the tensor.
    pub values: &'a mut [R],
    /// Whether weight decay applies to it.
    pub decays: bool,
}

impl<'a, R> Parameter<'a, R> {
    /// A tensor by its name in the checkpoint: norm weights and biases have no weight decay.
    pub fn from_name(name: &str, values: &'a mut [R]) -> Self {
        Self {
            values,
            decays: !(name.ends_with("norm.weight") || name.ends_with(".bias")),
        }
    }
}

impl<'a, R> From<&'a mut [R]> for Parameter<'a, R> {
    /// A tensor with weight decay.
    fn from(values: &'a mut [R]) -> Self {
        Self {
            values,
            decays: true,
        }
    }
}

/// Hyperparameters of AdamW. Default: betas 0.9 and 0.98, weight decay 0.1, epsilon 1e-8.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Decay rate of the first moment.
    pub beta1: f64,
    /// Decay rate of the second moment.
    pub beta2: f64,
    /// Added to the square root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

impl Default for AdamW {
    fn default() -> Self {
        Self {
            beta1: 0.9,
            beta2: 0.98,
            epsilon: 1e-8,
            weight_decay: 0.1,
        }
    }
}

/// Optimizer state: number of updates, and per tensor the two moments and an optional EMA of the parameters.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OptimizerState<R> {
    /// Number of updates.
    pub updates: u64,
    /// First moment: moving average of the gradients.
    pub exp_avg: Vec<Vec<R>>,
    /// Second moment: moving average of the squared gradients.
    pub exp_avg_sq: Vec<Vec<R>>,
    /// EMA of the parameters, for `training.teacher.from = "ema"`; empty otherwise.
    pub ema: Vec<Vec<R>>,
}

impl<R: Float> OptimizerState<R> {
    /// Zero state for tensors of these lengths.
    pub fn zeros(lengths: impl IntoIterator<Item = usize>) -> Self {
        let exp_avg: Vec<Vec<R>> = lengths.into_iter().map(|n| vec![R::ZERO; n]).collect();
        Self {
            updates: 0,
            exp_avg_sq: exp_avg.clone(),
            exp_avg,
            ema: Vec::new(),
        }
    }

    /// Moves the EMA towards the parameters by `rate`; the first call copies them.
    pub fn update_ema<'a>(&mut self, parameters: impl IntoIterator<Item = &'a [R]>, rate: f64) {
        if self.ema.is_empty() {
            self.ema = parameters.into_iter().map(<[R]>::to_vec).collect();
            return;
        }
        let (decay, rate) = (R::from_f64(1.0 - rate), R::from_f64(rate));
        for (average, parameters) in self.ema.iter_mut().zip(parameters) {
            for (average, parameter) in average.iter_mut().zip(parameters) {
                *average = decay * *average + rate * *parameter;
            }
        }
    }

    /// Whether the state has exactly these tensor lengths.
    pub fn fits(&self, lengths: &[usize]) -> bool {
        let same = |tensors: &[Vec<R>]| {
            tensors.len() == lengths.len()
                && tensors.iter().zip(lengths).all(|(t, &n)| t.len() == n)
        };
        same(&self.exp_avg) && same(&self.exp_avg_sq) && (self.ema.is_empty() || same(&self.ema))
    }
}

/// Tensors whose shapes do not match the optimizer state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "tensor shapes do not match: {parameters} parameters, {gradients} gradients, {moments} values in the optimizer state"
)]
pub struct ShapeError {
    /// Number of parameters.
    pub parameters: usize,
    /// Number of gradient values.
    pub gradients: usize,
    /// Number of values in each moment.
    pub moments: usize,
}

/// Constants of one update in the tensors' precision.
#[derive(Clone, Copy)]
struct Constants<R> {
    decay_factor: R,
    rate: R,
    beta1: R,
    one_minus_beta1: R,
    beta2: R,
    one_minus_beta2: R,
    bias_correction1: R,
    bias_correction2: R,
    epsilon: R,
    scale: R,
}

impl AdamW {
    /// One update of all tensors. `scale` (the clip factor) multiplies every gradient. The work is element-wise, so the number
    /// of threads does not change the result.
    ///
    /// # Errors
    /// The shapes of parameters, gradients and state differ; nothing changes then.
    pub fn update<R: Float>(
        &self,
        rate: f64,
        scale: f64,
        moments: &mut OptimizerState<R>,
        parameters: &mut [Parameter<'_, R>],
        gradients: &[Vec<R>],
        threads: usize,
    ) -> Result<(), ShapeError> {
        let lengths: Vec<usize> = parameters.iter().map(|p| p.values.len()).collect();
        let fits = gradients.len() == lengths.len()
            && gradients.iter().zip(&lengths).all(|(g, &n)| g.len() == n)
            && moments.fits(&lengths);
        if !fits {
            return Err(ShapeError {
                parameters: lengths.iter().sum(),
                gradients: gradients.iter().map(Vec::len).sum(),
                moments: moments.exp_avg.iter().map(Vec::len).sum(),
            });
        }
        moments.updates += 1;
        let with_decay = self.constants::<R>(rate, scale, moments.updates);
        let without_decay = Constants {
            decay_factor: R::from_f64(1.0),
            ..with_decay
        };
        let tensors = parameters
            .iter_mut()
            .zip(gradients)
            .zip(moments.exp_avg.iter_mut().zip(&mut moments.exp_avg_sq))
            .map(|((p, g), (m, v))| {
                let constants = if p.decays { with_decay } else { without_decay };
                let (m, v) = (m.as_mut_slice(), v.as_mut_slice());
                (constants, (&mut *p.values, g.as_slice(), m, v))
            });
        let total: usize = lengths.iter().sum();
        let threads = threads.clamp(1, total.div_ceil(MIN_VALUES_PER_THREAD).max(1));
        if threads == 1 {
            tensors.for_each(|(constants, part)| constants.update_slice(part));
            return Ok(());
        }
        let per_thread = total.div_ceil(threads);
        std::thread::scope(|scope| {
            let mut slices = Vec::new();
            let mut remaining = per_thread;
            for (constants, (mut p, mut g, mut m, mut v)) in tensors {
                while !p.is_empty() {
                    let take = remaining.min(p.len());
                    let (p_now, p_rest) = p.split_at_mut(take);
                    let (g_now, g_rest) = g.split_at(take);
                    let (m_now, m_rest) = m.split_at_mut(take);
                    let (v_now, v_rest) = v.split_at_mut(take);
                    slices.push((constants, (p_now, g_now, m_now, v_now)));
                    (p, g, m, v) = (p_rest, g_rest, m_rest, v_rest);
                    remaining -= take;
                    if remaining == 0 {
                        remaining = per_thread;
                        let part = std::mem::take(&mut slices);
                        scope.spawn(move || update_slices(part));
                    }
                }
            }
            update_slices(slices);
        });
        Ok(())
    }

    fn constants<R: Float>(&self, rate: f64, scale: f64, updates: u64) -> Constants<R> {
        #[allow(
            clippy::cast_precision_loss,
            reason = "the number of updates is far below 2^53"
        )]
        let power = |beta: f64| beta.powf(updates as f64);
        Constants {
            decay_factor: R::from_f64(1.0 - rate * self.weight_decay),
            rate: R::from_f64(rate),
            beta1: R::from_f64(self.beta1),
            one_minus_beta1: R::from_f64(1.0 - self.beta1),
            beta2: R::from_f64(self.beta2),
            one_minus_beta2: R::from_f64(1.0 - self.beta2),
            bias_correction1: R::from_f64(1.0 / (1.0 - power(self.beta1))),
            bias_correction2: R::from_f64(1.0 / (1.0 - power(self.beta2))),
            epsilon: R::from_f64(self.epsilon),
            scale: R::from_f64(scale),
        }
    }
}

/// Minimum number of values per thread.
const MIN_VALUES_PER_THREAD: usize = 1 << 16;

/// A slice of one tensor: parameters, gradients, first and second moments.
type TensorSlice<'a, R> = (&'a mut [R], &'a [R], &'a mut [R], &'a mut [R]);

fn update_slices<R: Float>(parts: Vec<(Constants<R>, TensorSlice<'_, R>)>) {
    for (constants, part) in parts {
        constants.update_slice(part);
    }
}

impl<R: Float> Constants<R> {
    fn update_slice(self, (p, g, m, v): TensorSlice<'_, R>) {
        for (((p, &g), m), v) in p.iter_mut().zip(g).zip(m.iter_mut()).zip(v.iter_mut()) {
            let g = g * self.scale;
            *m = self.beta1 * *m + self.one_minus_beta1 * g;
            *v = self.beta2 * *v + self.one_minus_beta2 * g * g;
            let step =
                *m * self.bias_correction1 / ((*v * self.bias_correction2).sqrt() + self.epsilon);
            *p = *p * self.decay_factor - self.rate * step;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(threads: usize) -> (Vec<f32>, OptimizerState<f32>) {
        let n = 3 * MIN_VALUES_PER_THREAD + 17;
        let mut first: Vec<f32> = (0..n).map(|i| (i % 7) as f32 * 0.1).collect();
        let mut second = vec![1.0f32; 5];
        let mut moments = OptimizerState::zeros([n, 5]);
        for round in 1..4 {
            let gradients = vec![
                (0..n).map(|i| ((i * round) % 11) as f32 - 5.0).collect(),
                vec![0.5f32; 5],
            ];
            AdamW::default()
                .update(
                    1e-2,
                    0.5,
                    &mut moments,
                    &mut [first.as_mut_slice().into(), second.as_mut_slice().into()],
                    &gradients,
                    threads,
                )
                .unwrap();
        }
        first.extend(second);
        (first, moments)
    }

    #[test]
    fn results_are_bit_identical_for_any_number_of_threads() {
        let one = run(1);
        for threads in [2, 3, 8] {
            assert!(run(threads) == one, "{threads} threads differ");
        }
    }

    #[test]
    fn norms_and_biases_have_no_weight_decay() {
        let names = [
            "model.layers.0.input_layernorm.weight",
            "model.layers.0.self_attn.q_norm.weight",
            "model.norm.weight",
            "model.layers.0.self_attn.q_proj.bias",
            "model.layers.0.self_attn.q_proj.weight",
            "model.embed_tokens.weight",
            "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight",
        ];
        for threads in [1, 4] {
            // Large enough for several threads; with zero gradients only weight decay changes the values.
            let mut values = vec![vec![1.0f64; MIN_VALUES_PER_THREAD]; names.len()];
            let gradients = vec![vec![0.0; MIN_VALUES_PER_THREAD]; names.len()];
            let mut moments = OptimizerState::zeros(gradients.iter().map(Vec::len));
            let mut parameters: Vec<Parameter<'_, f64>> = names
                .iter()
                .zip(&mut values)
                .map(|(name, values)| Parameter::from_name(name, values))
                .collect();
            AdamW::default()
                .update(0.5, 1.0, &mut moments, &mut parameters, &gradients, threads)
                .unwrap();
            let expected = [1.0, 1.0, 1.0, 1.0, 0.95, 0.95, 0.95];
            for ((name, values), expected) in names.iter().zip(&values).zip(expected) {
                assert!(values.iter().all(|v| *v == expected), "{name}");
            }
        }
    }

    #[test]
    fn a_shape_mismatch_changes_nothing() {
        let mut values = vec![1.0f32; 3];
        let mut moments = OptimizerState::zeros([3]);
        let error = AdamW::default()
            .update(
                0.1,
                1.0,
                &mut moments,
                &mut [values.as_mut_slice().into()],
                &[vec![1.0; 2]],
                1,
            )
            .unwrap_err();
        assert!(error.to_string().contains("2 gradients"), "{error}");
        assert_eq!((values, moments.updates), (vec![1.0; 3], 0));
    }
}
