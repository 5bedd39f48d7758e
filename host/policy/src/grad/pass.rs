//! One forward pass over packed sequences, kept so that it can be differentiated.

#![allow(
    clippy::indexing_slicing,
    reason = "offsets into packed buffers are computed here from the sizes that allocated them"
)]

use std::ops::Range;

use super::gradients::Gradients;
use super::layer::{Below, backward as layer_backward};
use crate::error::ForwardError;
use crate::lora::Adapter;
use crate::model::{Activations, Group, Model};
use crate::ops::head::{self, Partial, Position};
use crate::ops::linear::Mat;
use crate::ops::norm;
use crate::ops::rope::Angles;
use crate::weights::PER_LAYER;

/// Tokens as they were recorded, and which of them are scored.
#[derive(Debug, Clone, Copy)]
pub struct Sequence<'a> {
    /// Prompt and reply, as ids.
    pub tokens: &'a [u32],
    /// First scored token, at least 1; all tokens from here on are scored.
    pub start: usize,
    /// Logits are divided by this before the softmax; positive.
    pub temperature: f32,
}

/// What a loss may look at: one value per scored token, in nats.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// Log-probability of the recorded token under softmax(logits / temperature).
    pub logprobs: Vec<f32>,
    /// Entropy of that distribution.
    pub entropies: Vec<f32>,
}

/// What a loss hands back: its partial derivative with respect to each scored value.
#[derive(Debug, Clone, PartialEq)]
pub struct Partials {
    /// dL/dlogprob, one per scored token.
    pub d_logprob: Vec<f32>,
    /// dL/dentropy, one per scored token, or empty for none.
    pub d_entropy: Vec<f32>,
}

/// Which parameters a pass is differentiated by.
#[derive(Debug, Clone, Copy)]
pub enum Trained<'m> {
    /// The tensors of this adapter over the frozen base.
    Lora(&'m Adapter),
    /// Every parameter of the model.
    Full,
}

impl<'m> Trained<'m> {
    pub(crate) fn adapter(self) -> Option<&'m Adapter> {
        match self {
            Self::Lora(adapter) => Some(adapter),
            Self::Full => None,
        }
    }
}

/// A forward pass whose layer inputs are kept for [`TrainPass::backward`].
pub struct TrainPass<'m> {
    model: &'m Model,
    trained: Trained<'m>,
    packed: Packed,
    /// Residual stream before each layer.
    inputs: Vec<Vec<f32>>,
    /// Residual stream at the scored positions, before and after the final norm.
    outputs: Vec<f32>,
    normed: Vec<f32>,
    scored: Vec<Scored>,
}

/// Sequences end to end.
struct Packed {
    tokens: Vec<u32>,
    spans: Vec<Range<usize>>,
    angles: Angles,
    /// Packed row of each scored position: the one *before* the scored token.
    rows: Vec<usize>,
    positions: Vec<Position>,
    counts: Vec<usize>,
}

impl Model {
    /// Log-probabilities and entropies of recorded tokens; keeps nothing for a gradient.
    ///
    /// # Errors
    /// A token outside the vocabulary, a start or temperature that cannot be, a foreign adapter.
    pub fn score(
        &self,
        adapter: Option<&Adapter>,
        sequences: &[Sequence<'_>],
    ) -> Result<Vec<Scored>, ForwardError> {
        let packed = self.pack(adapter, sequences)?;
        let x = self.run(&packed, adapter, |_| ());
        let (_, normed) = self.scored_rows(&packed, &x);
        Ok(self.scored(&packed, &normed))
    }

    /// As [`Model::score`], keeping what a backward pass needs: one `[tokens, hidden]` input per layer.
    ///
    /// # Errors
    /// As [`Model::score`].
    pub fn forward_train<'m>(
        &'m self,
        trained: Trained<'m>,
        sequences: &[Sequence<'_>],
    ) -> Result<TrainPass<'m>, ForwardError> {
        let packed = self.pack(trained.adapter(), sequences)?;
        let mut inputs = Vec::with_capacity(self.config().num_hidden_layers);
        let x = self.run(&packed, trained.adapter(), |x| inputs.push(x.to_vec()));
        let (outputs, normed) = self.scored_rows(&packed, &x);
        let scored = self.scored(&packed, &normed);
        Ok(TrainPass {
            model: self,
            trained,
            packed,
            inputs,
            outputs,
            normed,
            scored,
        })
    }

    fn pack(
        &self,
        adapter: Option<&Adapter>,
        sequences: &[Sequence<'_>],
    ) -> Result<Packed, ForwardError> {
        self.check_adapter(adapter)?;
        let (mut tokens, mut spans, mut rows) = (Vec::new(), Vec::new(), Vec::new());
        let (mut positions, mut counts) = (Vec::new(), Vec::new());
        for s in sequences {
            self.check_tokens(s.tokens)?;
            let len = s.tokens.len();
            if s.start == 0 || s.start >= len {
                return Err(ForwardError::Start {
                    start: s.start,
                    len,
                });
            }
            if !(s.temperature.is_finite() && s.temperature > 0.0) {
                return Err(ForwardError::Temperature(s.temperature.to_string()));
            }
            let at = tokens.len();
            spans.push(at..at + len);
            tokens.extend_from_slice(s.tokens);
            rows.extend(at + s.start - 1..at + len - 1);
            positions.extend(s.tokens[s.start..].iter().map(|target| Position {
                target: *target,
                inverse_temperature: 1.0 / s.temperature,
            }));
            counts.push(len - s.start);
        }
        let angles = self.rope.angles(spans.iter().flat_map(|s| 0..s.len()));
        Ok(Packed {
            tokens,
            spans,
            angles,
            rows,
            positions,
            counts,
        })
    }

    /// Runs all layers; `before` sees the residual stream before each.
    fn run(
        &self,
        packed: &Packed,
        adapter: Option<&Adapter>,
        mut before: impl FnMut(&[f32]),
    ) -> Vec<f32> {
        let mut x = Vec::new();
        self.embed(&mut x, &packed.tokens);
        let groups: [Group<'_>; 1] = [(0..packed.tokens.len(), adapter)];
        let mut act = Activations::default();
        for layer in 0..self.config().num_hidden_layers {
            before(&x);
            let attend = |qkv: &[f32], out: &mut [f32]| self.attend_packed(qkv, out, &packed.spans);
            self.layer(
                layer,
                &mut x,
                &groups,
                &packed.angles,
                &mut act,
                false,
                attend,
            );
        }
        x
    }

    /// The rows of `x` that predict scored tokens, before and after the final norm.
    fn scored_rows(&self, packed: &Packed, x: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let h = self.config().hidden_size;
        let mut outputs = Vec::with_capacity(packed.rows.len() * h);
        for row in &packed.rows {
            outputs.extend_from_slice(&x[row * h..(row + 1) * h]);
        }
        let mut normed = outputs.clone();
        norm::forward_in_place(
            &mut normed,
            &self.weights.final_norm,
            self.config().rms_norm_eps,
        );
        (outputs, normed)
    }

    fn scored(&self, packed: &Packed, normed: &[f32]) -> Vec<Scored> {
        let sizes = (self.config().hidden_size, self.config().vocab_size);
        let weight = Mat::new(self.weights.head(), sizes.1, sizes.0);
        let values = head::forward(normed, weight, sizes, &packed.positions, self.threads);
        let mut values = values.into_iter();
        let per_sequence = packed.counts.iter().map(|count| {
            let (logprobs, entropies) = values
                .by_ref()
                .take(*count)
                .map(|v| (v.logprob, v.entropy))
                .unzip();
            Scored {
                logprobs,
                entropies,
            }
        });
        per_sequence.collect()
    }
}

impl TrainPass<'_> {
    /// One entry per sequence, in order.
    pub fn scored(&self) -> &[Scored] {
        &self.scored
    }

    /// Adds dL/dparameter to `gradients`, given dL/dlogprob and dL/dentropy of every scored token.
    ///
    /// # Errors
    /// A vector of the wrong length; nothing has been added then.
    pub fn backward(
        self,
        partials: &[Partials],
        gradients: &mut Gradients,
    ) -> Result<(), ForwardError> {
        let flat = self.flatten(partials)?;
        let model = self.model;
        let c = model.config();
        let sizes = (c.hidden_size, c.vocab_size);
        let h = c.hidden_size;
        let full = matches!(self.trained, Trained::Full);
        let (embed_index, norm_index) = (0, 1 + c.num_hidden_layers * PER_LAYER);
        let head_index = if c.tie_word_embeddings {
            embed_index
        } else {
            norm_index + 1
        };

        let mut dnormed = vec![0f32; self.normed.len()];
        head::backward(
            &mut dnormed,
            full.then(|| gradients.slot(head_index)),
            &self.normed,
            Mat::new(model.weights.head(), sizes.1, sizes.0),
            sizes,
            &self.packed.positions,
            &flat,
            model.threads,
        );
        let mut doutputs = vec![0f32; self.outputs.len()];
        norm::backward(
            &mut doutputs,
            &dnormed,
            &self.outputs,
            &model.weights.final_norm,
            c.rms_norm_eps,
            false,
            full.then(|| gradients.slot(norm_index)),
        );
        let mut dx = vec![0f32; self.packed.tokens.len() * h];
        for (row, d) in self.packed.rows.iter().zip(doutputs.chunks_exact(h)) {
            for (dx, d) in dx[row * h..(row + 1) * h].iter_mut().zip(d) {
                *dx += d;
            }
        }

        let groups: [Group<'_>; 1] = [(0..self.packed.tokens.len(), self.trained.adapter())];
        let mut act = Activations::default();
        for (layer, input) in self.inputs.iter().enumerate().rev() {
            let mut x = input.clone();
            let attend =
                |qkv: &[f32], out: &mut [f32]| model.attend_packed(qkv, out, &self.packed.spans);
            model.layer(
                layer,
                &mut x,
                &groups,
                &self.packed.angles,
                &mut act,
                true,
                attend,
            );
            let below = Below {
                layer,
                input,
                spans: &self.packed.spans,
                angles: &self.packed.angles,
                last: layer == 0 && !full,
            };
            layer_backward(model, self.trained, &below, &mut act, &mut dx, gradients);
        }
        if full {
            let slot = gradients.slot(embed_index);
            for (id, d) in self.packed.tokens.iter().zip(dx.chunks_exact(h)) {
                let at = *id as usize * h;
                for (g, d) in slot[at..at + h].iter_mut().zip(d) {
                    *g += d;
                }
            }
        }
        Ok(())
    }

    fn flatten(&self, partials: &[Partials]) -> Result<Vec<Partial>, ForwardError> {
        let length = |what, found, expected| {
            if found == expected {
                Ok(())
            } else {
                Err(ForwardError::Length {
                    what,
                    found,
                    expected,
                })
            }
        };
        length("sequences", partials.len(), self.scored.len())?;
        let mut flat = Vec::with_capacity(self.packed.positions.len());
        for (partial, scored) in partials.iter().zip(&self.scored) {
            length("d_logprob", partial.d_logprob.len(), scored.logprobs.len())?;
            if !partial.d_entropy.is_empty() {
                length("d_entropy", partial.d_entropy.len(), scored.logprobs.len())?;
            }
            let entropies = partial
                .d_entropy
                .iter()
                .copied()
                .chain(std::iter::repeat(0.0));
            let pairs = partial.d_logprob.iter().copied().zip(entropies);
            flat.extend(pairs.map(|(logprob, entropy)| Partial { logprob, entropy }));
        }
        Ok(flat)
    }
}
