//! AdamW on the CPU, in one pass over each tensor: see [`OptimizerStep`] for the formula.
//!
//! Gradient clipping is a factor on the gradient, so that gradients are read once.

use std::sync::Arc;

use clawhost_engine::{AdamW, AdamWState, ForwardError, OptimizerStep};

/// A tensor to update.
#[derive(Debug)]
pub struct Parameter<'a> {
    /// Values of the tensor.
    pub values: &'a mut [f32],
    /// Whether weight decay applies to it.
    pub decays: bool,
}

impl<'a> Parameter<'a> {
    /// A tensor by its name in the checkpoint; see [`AdamW::decays`].
    pub fn from_name(name: &str, values: &'a mut [f32]) -> Self {
        Self {
            values,
            decays: AdamW::decays(name),
        }
    }
}

impl<'a> From<&'a mut [f32]> for Parameter<'a> {
    /// A tensor with weight decay.
    fn from(values: &'a mut [f32]) -> Self {
        Self {
            values,
            decays: true,
        }
    }
}

/// Minimum number of values per thread.
const MIN_VALUES_PER_THREAD: usize = 1 << 16;

/// One update of all tensors. The work is element-wise, so the number of threads does not change the result.
///
/// # Errors
/// The shapes of parameters and state differ; nothing changes then.
///
/// # Panics
/// When the shapes of parameters and gradients differ.
pub fn update_adamw(
    step: OptimizerStep,
    state: &mut AdamWState,
    parameters: &mut [Parameter<'_>],
    gradients: &[Vec<f32>],
    threads: usize,
) -> Result<(), ForwardError> {
    let lengths: Vec<usize> = parameters.iter().map(|p| p.values.len()).collect();
    assert!(
        gradients.iter().map(Vec::len).eq(lengths.iter().copied()),
        "every parameter has a gradient"
    );
    let total: usize = lengths.iter().sum();
    if !state.fits(&lengths) {
        return Err(ForwardError::OptimizerState {
            found: state.exp_avg.iter().map(Vec::len).sum(),
            expected: total,
        });
    }
    state.updates += 1;
    let with_decay = Constants::new(step, state.updates);
    let without_decay = Constants {
        decay_factor: 1.0,
        ..with_decay
    };
    let exp_avg = Arc::make_mut(&mut state.exp_avg).iter_mut();
    let moments = exp_avg.zip(Arc::make_mut(&mut state.exp_avg_sq));
    let tensors = parameters
        .iter_mut()
        .zip(gradients)
        .zip(moments)
        .map(|((p, g), (m, v))| {
            let constants = if p.decays { with_decay } else { without_decay };
            let (m, v) = (m.as_mut_slice(), v.as_mut_slice());
            (constants, (&mut *p.values, g.as_slice(), m, v))
        });
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

/// Constants of one update, rounded to f32.
#[derive(Clone, Copy)]
struct Constants {
    decay_factor: f32,
    rate: f32,
    beta1: f32,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    bias_correction1: f32,
    bias_correction2: f32,
    epsilon: f32,
    scale: f32,
}

/// A slice of one tensor: parameters, gradients, first and second moments.
type TensorSlice<'a> = (&'a mut [f32], &'a [f32], &'a mut [f32], &'a mut [f32]);

fn update_slices(parts: Vec<(Constants, TensorSlice<'_>)>) {
    for (constants, part) in parts {
        constants.update_slice(part);
    }
}

impl Constants {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "rounding to f32 is the purpose; the number of updates is far below 2^53"
    )]
    fn new(step: OptimizerStep, updates: u64) -> Self {
        let OptimizerStep {
            adamw,
            learning_rate,
            gradient_scale,
        } = step;
        let power = |beta: f64| beta.powf(updates as f64);
        Self {
            decay_factor: (1.0 - learning_rate * adamw.weight_decay) as f32,
            rate: learning_rate as f32,
            beta1: adamw.beta1 as f32,
            one_minus_beta1: (1.0 - adamw.beta1) as f32,
            beta2: adamw.beta2 as f32,
            one_minus_beta2: (1.0 - adamw.beta2) as f32,
            bias_correction1: (1.0 / (1.0 - power(adamw.beta1))) as f32,
            bias_correction2: (1.0 / (1.0 - power(adamw.beta2))) as f32,
            epsilon: adamw.epsilon as f32,
            scale: gradient_scale as f32,
        }
    }

    fn update_slice(self, (p, g, m, v): TensorSlice<'_>) {
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

    fn step(learning_rate: f64, gradient_scale: f64) -> OptimizerStep {
        OptimizerStep {
            adamw: AdamW::default(),
            learning_rate,
            gradient_scale,
        }
    }

    fn run(threads: usize) -> (Vec<f32>, AdamWState) {
        let n = 3 * MIN_VALUES_PER_THREAD + 17;
        let mut first: Vec<f32> = (0..n).map(|i| (i % 7) as f32 * 0.1).collect();
        let mut second = vec![1.0f32; 5];
        let mut state = AdamWState::zeros([n, 5]);
        for round in 1..4 {
            let gradients = vec![
                (0..n).map(|i| ((i * round) % 11) as f32 - 5.0).collect(),
                vec![0.5f32; 5],
            ];
            update_adamw(
                step(1e-2, 0.5),
                &mut state,
                &mut [first.as_mut_slice().into(), second.as_mut_slice().into()],
                &gradients,
                threads,
            )
            .unwrap();
        }
        first.extend(second);
        (first, state)
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
            let mut values = vec![vec![1.0; MIN_VALUES_PER_THREAD]; names.len()];
            let gradients = vec![vec![0.0; MIN_VALUES_PER_THREAD]; names.len()];
            let mut state = AdamWState::zeros(gradients.iter().map(Vec::len));
            let mut parameters: Vec<Parameter<'_>> = names
                .iter()
                .zip(&mut values)
                .map(|(name, values)| Parameter::from_name(name, values))
                .collect();
            update_adamw(
                step(0.5, 1.0),
                &mut state,
                &mut parameters,
                &gradients,
                threads,
            )
            .unwrap();
            let expected = [1.0, 1.0, 1.0, 1.0, 0.95, 0.95, 0.95];
            for ((name, values), expected) in names.iter().zip(&values).zip(expected) {
                assert!(values.iter().all(|v| *v == expected), "{name}");
            }
        }
    }

    #[test]
    fn a_state_of_another_shape_changes_nothing() {
        let mut values = vec![1.0f32; 3];
        let mut state = AdamWState::zeros([2]);
        let error = update_adamw(
            step(0.1, 1.0),
            &mut state,
            &mut [values.as_mut_slice().into()],
            &[vec![1.0; 3]],
            1,
        )
        .unwrap_err();
        let expected = ForwardError::OptimizerState {
            found: 2,
            expected: 3,
        };
        assert_eq!(error, expected);
        assert_eq!((values, state.updates), (vec![1.0; 3], 0));
    }
}
