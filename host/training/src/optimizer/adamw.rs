//! AdamW with decoupled weight decay, in one pass over each tensor.
//!
//! θ ← θ (1 − lr·wd) − lr · m̂ / (√v̂ + ε), with m̂ and v̂ corrected for their start at zero
//! (Loshchilov and Hutter, "Decoupled Weight Decay Regularization"). Clipping is folded in as a
//! factor on the gradient, so that gradients are read once. Norm weights and biases do not decay: a norm's neutral
//! value is 1, and neither grows with the size of the model.

use crate::real::Real;

/// A tensor to update.
#[derive(Debug)]
pub struct Parameter<'a, R> {
    /// Its values.
    pub values: &'a mut [R],
    /// Whether weight decay applies to it.
    pub decays: bool,
}

impl<'a, R> Parameter<'a, R> {
    /// A tensor with its name in the checkpoint: norm weights and biases do not decay, everything else does.
    pub fn named(name: &str, values: &'a mut [R]) -> Self {
        Self {
            values,
            decays: !(name.ends_with("norm.weight") || name.ends_with(".bias")),
        }
    }
}

impl<'a, R> From<&'a mut [R]> for Parameter<'a, R> {
    /// A tensor that decays.
    fn from(values: &'a mut [R]) -> Self {
        Self {
            values,
            decays: true,
        }
    }
}

/// Constants of AdamW. Default: betas 0.9 and 0.98, weight decay 0.1, epsilon 1e-8.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Decay of the mean of gradients.
    pub beta1: f64,
    /// Decay of the mean of squared gradients.
    pub beta2: f64,
    /// Added to the root of the second moment.
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

/// Optimizer state: how many updates were made and the two moments, tensor by tensor.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Moments<R> {
    /// Updates made so far.
    pub updates: u64,
    /// Running mean of gradients.
    pub first: Vec<Vec<R>>,
    /// Running mean of squared gradients.
    pub second: Vec<Vec<R>>,
    /// Running mean of the parameters, for a teacher that is one; empty where nobody asks for it.
    pub average: Vec<Vec<R>>,
}

impl<R: Real> Moments<R> {
    /// Zero moments for tensors of these lengths.
    pub fn zeros(lengths: impl IntoIterator<Item = usize>) -> Self {
        let first: Vec<Vec<R>> = lengths.into_iter().map(|n| vec![R::ZERO; n]).collect();
        Self {
            updates: 0,
            second: first.clone(),
            first,
            average: Vec::new(),
        }
    }

    /// Moves the running mean of the parameters towards them: `rate` of the way, all of it the first time.
    pub fn follow<'a>(&mut self, parameters: impl IntoIterator<Item = &'a [R]>, rate: f64) {
        if self.average.is_empty() {
            self.average = parameters.into_iter().map(<[R]>::to_vec).collect();
            return;
        }
        let (kept, taken) = (R::of(1.0 - rate), R::of(rate));
        for (average, parameters) in self.average.iter_mut().zip(parameters) {
            for (average, parameter) in average.iter_mut().zip(parameters) {
                *average = kept * *average + taken * *parameter;
            }
        }
    }

    /// Whether the moments have exactly these tensor lengths.
    pub fn fits(&self, lengths: &[usize]) -> bool {
        let same = |tensors: &[Vec<R>]| {
            tensors.len() == lengths.len()
                && tensors.iter().zip(lengths).all(|(t, &n)| t.len() == n)
        };
        same(&self.first) && same(&self.second) && (self.average.is_empty() || same(&self.average))
    }
}

/// Tensors that do not fit the optimizer state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the optimizer state does not fit: parameters {parameters}, gradients {gradients}, moments {moments} values"
)]
pub struct ShapeError {
    /// Values in the parameters.
    pub parameters: usize,
    /// Values in the gradients.
    pub gradients: usize,
    /// Values in the moments.
    pub moments: usize,
}

/// The update's constants at one step, in the tensors' precision.
#[derive(Clone, Copy)]
struct Constants<R> {
    keep: R,
    rate: R,
    beta1: R,
    rest1: R,
    beta2: R,
    rest2: R,
    correct1: R,
    correct2: R,
    epsilon: R,
    scale: R,
}

impl AdamW {
    /// One update of all tensors. `scale` multiplies every gradient (the clip factor); `threads`
    /// share the work, element by element, so that their number cannot change the result.
    ///
    /// # Errors
    /// When parameters, gradients and moments differ in shape; nothing is changed then.
    pub fn update<R: Real>(
        &self,
        rate: f64,
        scale: f64,
        moments: &mut Moments<R>,
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
                moments: moments.first.iter().map(Vec::len).sum(),
            });
        }
        moments.updates += 1;
        let decayed = self.constants::<R>(rate, scale, moments.updates);
        let kept = Constants {
            keep: R::of(1.0),
            ..decayed
        };
        let tensors = parameters
            .iter_mut()
            .zip(gradients)
            .zip(moments.first.iter_mut().zip(&mut moments.second))
            .map(|((p, g), (m, v))| {
                let constants = if p.decays { decayed } else { kept };
                let (m, v) = (m.as_mut_slice(), v.as_mut_slice());
                (constants, (&mut *p.values, g.as_slice(), m, v))
            });
        let total: usize = lengths.iter().sum();
        let threads = threads.clamp(1, total.div_ceil(SHARE).max(1));
        if threads == 1 {
            tensors.for_each(|(constants, part)| constants.pass(part));
            return Ok(());
        }
        let share = total.div_ceil(threads);
        std::thread::scope(|scope| {
            let mut open = Vec::new();
            let mut room = share;
            for (constants, (mut p, mut g, mut m, mut v)) in tensors {
                while !p.is_empty() {
                    let take = room.min(p.len());
                    let (p_now, p_rest) = p.split_at_mut(take);
                    let (g_now, g_rest) = g.split_at(take);
                    let (m_now, m_rest) = m.split_at_mut(take);
                    let (v_now, v_rest) = v.split_at_mut(take);
                    open.push((constants, (p_now, g_now, m_now, v_now)));
                    (p, g, m, v) = (p_rest, g_rest, m_rest, v_rest);
                    room -= take;
                    if room == 0 {
                        room = share;
                        let part = std::mem::take(&mut open);
                        scope.spawn(move || pass_all(part));
                    }
                }
            }
            pass_all(open);
        });
        Ok(())
    }

    fn constants<R: Real>(&self, rate: f64, scale: f64, updates: u64) -> Constants<R> {
        #[allow(
            clippy::cast_precision_loss,
            reason = "the number of updates is far below 2^53"
        )]
        let power = |beta: f64| beta.powf(updates as f64);
        Constants {
            keep: R::of(1.0 - rate * self.weight_decay),
            rate: R::of(rate),
            beta1: R::of(self.beta1),
            rest1: R::of(1.0 - self.beta1),
            beta2: R::of(self.beta2),
            rest2: R::of(1.0 - self.beta2),
            correct1: R::of(1.0 / (1.0 - power(self.beta1))),
            correct2: R::of(1.0 / (1.0 - power(self.beta2))),
            epsilon: R::of(self.epsilon),
            scale: R::of(scale),
        }
    }
}

/// Fewer values than this per thread are not worth a thread.
const SHARE: usize = 1 << 16;

/// A stretch of one tensor: parameters, gradients and the two moments.
type Stretch<'a, R> = (&'a mut [R], &'a [R], &'a mut [R], &'a mut [R]);

fn pass_all<R: Real>(parts: Vec<(Constants<R>, Stretch<'_, R>)>) {
    for (constants, part) in parts {
        constants.pass(part);
    }
}

impl<R: Real> Constants<R> {
    fn pass(self, (p, g, m, v): Stretch<'_, R>) {
        for (((p, &g), m), v) in p.iter_mut().zip(g).zip(m.iter_mut()).zip(v.iter_mut()) {
            let g = g * self.scale;
            *m = self.beta1 * *m + self.rest1 * g;
            *v = self.beta2 * *v + self.rest2 * g * g;
            let step = *m * self.correct1 / ((*v * self.correct2).sqrt() + self.epsilon);
            *p = *p * self.keep - self.rate * step;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(threads: usize) -> (Vec<f32>, Moments<f32>) {
        let n = 3 * SHARE + 17;
        let mut first: Vec<f32> = (0..n).map(|i| (i % 7) as f32 * 0.1).collect();
        let mut second = vec![1.0f32; 5];
        let mut moments = Moments::zeros([n, 5]);
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
    fn the_number_of_threads_changes_no_bit() {
        let one = run(1);
        for threads in [2, 3, 8] {
            assert!(run(threads) == one, "{threads} threads differ");
        }
    }

    #[test]
    fn norms_and_biases_do_not_decay() {
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
            // Large enough that threads share the tensors, and without a gradient: what moves is decay alone.
            let mut values = vec![vec![1.0f64; SHARE]; names.len()];
            let gradients = vec![vec![0.0; SHARE]; names.len()];
            let mut moments = Moments::zeros(gradients.iter().map(Vec::len));
            let mut parameters: Vec<Parameter<'_, f64>> = names
                .iter()
                .zip(&mut values)
                .map(|(name, values)| Parameter::named(name, values))
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
    fn shapes_that_differ_change_nothing() {
        let mut values = vec![1.0f32; 3];
        let mut moments = Moments::zeros([3]);
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
        assert!(error.to_string().contains("gradients 2"), "{error}");
        assert_eq!((values, moments.updates), (vec![1.0; 3], 0));
    }
}
