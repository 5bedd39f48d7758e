//! One forward pass over packed sequences, kept so that it can be differentiated.

#![allow(
    clippy::indexing_slicing,
    reason = "offsets into packed buffers are computed here from the sizes that allocated them"
)]

use super::gradients::Gradients;
use super::layer::{Below, backward as layer_backward};
use super::packed::Packed;
use super::sequence::{Partials, Scored, Sequence};
use crate::error::ForwardError;
use crate::lora::Adapter;
use crate::model::{Activations, Group, Model};
use crate::ops::head::{self, Partial};
use crate::ops::linear::Mat;
use crate::ops::norm;
use crate::weights::PER_LAYER;

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
        let mut packed = self.pack(adapter, sequences)?;
        let x = self.run(&packed, adapter, |_| ());
        let (_, normed) = self.scored_rows(&packed, &x);
        Ok(self.scored(&mut packed, &normed))
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
        let mut packed = self.pack(trained.adapter(), sequences)?;
        let mut inputs = Vec::with_capacity(self.config().num_hidden_layers);
        let x = self.run(&packed, trained.adapter(), |x| inputs.push(x.to_vec()));
        let (outputs, normed) = self.scored_rows(&packed, &x);
        let scored = self.scored(&mut packed, &normed);
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

    fn scored(&self, packed: &mut Packed, normed: &[f32]) -> Vec<Scored> {
        let sizes = (self.config().hidden_size, self.config().vocab_size);
        let weight = Mat::new(self.weights.head(), sizes.1, sizes.0);
        let found = head::forward(
            normed,
            weight,
            sizes,
            &packed.positions,
            &mut packed.candidates,
            self.threads,
        );
        let mut values = found.values.into_iter();
        let mut at = 0;
        let mut per_sequence = Vec::with_capacity(packed.counts.len());
        for count in &packed.counts {
            let (logprobs, entropies) = values
                .by_ref()
                .take(*count)
                .map(|v| (v.logprob, v.entropy))
                .unzip();
            let looked_at = packed.looked_at(at..at + count);
            at += count;
            per_sequence.push(Scored {
                logprobs,
                entropies,
                candidates: packed.candidates[looked_at.clone()].to_vec(),
                candidate_logprobs: found.candidates[looked_at].to_vec(),
            });
        }
        per_sequence
    }
}

impl TrainPass<'_> {
    /// One entry per sequence, in order.
    pub fn scored(&self) -> &[Scored] {
        &self.scored
    }

    /// Adds dL/dparameter to `gradients`, given dL/dlogprob and dL/dentropy of every scored token, and
    /// dL/dlogprob of every candidate.
    ///
    /// # Errors
    /// A vector of the wrong length; nothing has been added then.
    pub fn backward(
        self,
        partials: &[Partials],
        gradients: &mut Gradients,
    ) -> Result<(), ForwardError> {
        let flat = self.flatten(partials)?;
        let dcandidates = self.flatten_candidates(partials)?;
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
            (&self.packed.candidates, &dcandidates),
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

    /// Of all sequences, or nothing when none has any.
    fn flatten_candidates(&self, partials: &[Partials]) -> Result<Vec<f32>, ForwardError> {
        if partials.iter().all(|p| p.d_candidates.is_empty()) {
            return Ok(Vec::new());
        }
        let mut flat = Vec::with_capacity(self.packed.candidates.len());
        for (partial, scored) in partials.iter().zip(&self.scored) {
            let expected = scored.candidates.len();
            match partial.d_candidates.len() {
                found if found == expected => flat.extend_from_slice(&partial.d_candidates),
                0 => flat.resize(flat.len() + expected, 0.0),
                found => {
                    return Err(ForwardError::Length {
                        what: "d_candidates",
                        found,
                        expected,
                    });
                }
            }
        }
        Ok(flat)
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
