//! A forward pass over packed sequences and its backward pass.

use std::sync::{Mutex, PoisonError};

use clawhost_engine::background;
use clawhost_engine::{ForwardError, LossGradients, Sequence, SequenceScores, TrainLimits};
use clawhost_model::{Adapter, ParameterIndex};

use super::gradients::{GradientTarget, Gradients};
use super::layer_backward::{LayerInputs, Scratch, backward as layer_backward};
use super::memory::stored_layers;
use super::packing::PackedSequences;
use crate::model::{Activations, AdapterGroup, Decoder, LayerPass, Purpose};
use crate::ops::head::{self, HeadOutput, Partial};
use crate::ops::thread_pool::{self, Threads};
use crate::ops::{norm, streamed_head};

/// A forward pass whose layer inputs are stored for [`TrainPass::backward`].
pub struct TrainPass<'m> {
    model: Decoder<'m>,
    target: GradientTarget<'m>,
    stored: StoredPass,
}

/// What a forward pass keeps for the backward pass, apart from the weights.
pub(crate) struct StoredPass {
    micro_batches: Vec<MicroBatch>,
    scored: Vec<SequenceScores>,
}

/// What a forward pass over the layers stores.
struct StoredLayers {
    inputs: Vec<Vec<f32>>,
    activations: Vec<Activations>,
    /// Number of first layers whose activations are not stored.
    recomputed: usize,
}

/// The stored state of one micro-batch.
struct MicroBatch {
    packed: PackedSequences,
    /// Residual stream before each layer.
    inputs: Vec<Vec<f32>>,
    /// Activations of the last layers, as many as fit; the others are recomputed.
    activations: Vec<Activations>,
    /// Residual stream at the scored positions, before and after the final norm.
    outputs: Vec<f32>,
    normed: Vec<f32>,
    /// Gradient of each log-prob with respect to `normed`, or empty.
    logprob_gradients: Vec<f32>,
}

/// The gradients of the loss for one micro-batch, flattened.
#[derive(Default)]
struct FlatGradients {
    partials: Vec<Partial>,
    /// dL/dlogprob of all its candidates; empty when no sequence has any.
    candidates: Vec<f32>,
}

impl<'m> Decoder<'m> {
    /// See [`crate::CpuModel::score`].
    pub(crate) fn score(
        self,
        adapter: Option<&Adapter>,
        sequences: &[Sequence<'_>],
    ) -> Result<Vec<SequenceScores>, ForwardError> {
        let micro_batches = self.pack(adapter, sequences)?;
        let scored = parallel_map(micro_batches, self.threads, |mut packed, threads| {
            let outputs = self.forward_layers(&packed, adapter, threads, None);
            let normed = self.final_norm(&outputs);
            self.score_packed(&mut packed, &normed, None, threads)
        });
        Ok(scored.into_iter().flatten().collect())
    }

    /// See [`crate::CpuModel::forward_train`].
    pub(crate) fn forward_train(
        self,
        target: GradientTarget<'m>,
        sequences: &[Sequence<'_>],
        limits: TrainLimits,
    ) -> Result<TrainPass<'m>, ForwardError> {
        let adapter = target.adapter();
        let micro_batches = self.pack(adapter, sequences)?;
        let tokens: usize = micro_batches.iter().map(|packed| packed.tokens.len()).sum();
        let layers = self.config().num_hidden_layers;
        let stored = stored_layers(self.config(), tokens, limits);
        let run = parallel_map(micro_batches, self.threads, |mut packed, threads| {
            let mut stored = StoredLayers {
                inputs: Vec::with_capacity(layers),
                activations: Vec::new(),
                recomputed: layers - stored,
            };
            let outputs = self.forward_layers(&packed, adapter, threads, Some(&mut stored));
            let normed = self.final_norm(&outputs);
            let mut logprob_gradients = Vec::new();
            // Gradients of the head's weight need the logits.
            let wanted = adapter.is_some().then_some(&mut logprob_gradients);
            let scored = self.score_packed(&mut packed, &normed, wanted, threads);
            let micro_batch = MicroBatch {
                packed,
                inputs: stored.inputs,
                activations: stored.activations,
                outputs,
                normed,
                logprob_gradients,
            };
            (micro_batch, scored)
        });
        let (micro_batches, scored): (Vec<MicroBatch>, Vec<Vec<SequenceScores>>) =
            run.into_iter().unzip();
        Ok(TrainPass {
            model: self,
            target,
            stored: StoredPass {
                micro_batches,
                scored: scored.into_iter().flatten().collect(),
            },
        })
    }

    /// Runs all layers, and stores what a backward pass needs if requested. Returns the last layer's output for the rows
    /// that predict scored tokens.
    fn forward_layers(
        &self,
        packed: &PackedSequences,
        adapter: Option<&Adapter>,
        threads: Threads,
        mut stored: Option<&mut StoredLayers>,
    ) -> Vec<f32> {
        let mut x = Vec::new();
        self.embed(&mut x, &packed.tokens);
        let groups: [AdapterGroup<'_>; 1] = [(0..packed.tokens.len(), adapter)];
        let mut act = Activations::default();
        for layer in 0..self.config().num_hidden_layers {
            background::yield_to_requests();
            let mut purpose = Purpose::Output;
            if let Some(stored) = stored.as_deref_mut() {
                stored.inputs.push(x.clone());
                if layer >= stored.recomputed {
                    purpose = Purpose::OutputAndActivations;
                }
            }
            let layer_pass = self.layer_pass(packed, &groups, layer, purpose, threads);
            let attend = |qkv: &[f32], out: &mut [f32]| {
                self.attend_packed(qkv, out, &packed.spans, threads);
            };
            self.layer(layer, &mut x, layer_pass, &mut act, attend);
            if let Some(stored) = stored.as_deref_mut()
                && purpose == Purpose::OutputAndActivations
            {
                stored.activations.push(act.take_stored());
            }
        }
        x
    }

    fn layer_pass<'a>(
        &self,
        packed: &'a PackedSequences,
        groups: &'a [AdapterGroup<'a>],
        layer: usize,
        purpose: Purpose,
        threads: Threads,
    ) -> LayerPass<'a> {
        let last = layer + 1 == self.config().num_hidden_layers;
        LayerPass {
            groups,
            angles: &packed.angles,
            rows: last.then_some(packed.rows.as_slice()),
            purpose,
            threads,
        }
    }

    fn final_norm(&self, outputs: &[f32]) -> Vec<f32> {
        let mut normed = outputs.to_vec();
        let eps = self.config().rms_norm_eps;
        norm::forward_in_place(&mut normed, &self.weights.final_norm, eps);
        normed
    }

    fn score_packed(
        &self,
        packed: &mut PackedSequences,
        normed: &[f32],
        logprob_gradients: Option<&mut Vec<f32>>,
        threads: Threads,
    ) -> Vec<SequenceScores> {
        let sizes = (self.config().hidden_size, self.config().vocab_size);
        let weight = self.lm_head();
        background::yield_to_requests();
        let output = if streamed_head::applies(weight, sizes.1, &packed.positions) {
            let gradients = logprob_gradients.map(|gradients| {
                gradients.resize(normed.len(), 0.0);
                gradients.as_mut_slice()
            });
            let positions = &packed.positions;
            let values =
                streamed_head::forward(normed, weight, sizes, positions, gradients, threads);
            HeadOutput {
                values,
                candidates: Vec::new(),
            }
        } else {
            head::forward(
                normed,
                weight,
                sizes,
                &packed.positions,
                &mut packed.candidates,
                threads,
            )
        };
        let mut values = output.values.into_iter();
        let mut at = 0;
        let mut per_sequence = Vec::with_capacity(packed.counts.len());
        for count in &packed.counts {
            let (logprobs, entropies) = values
                .by_ref()
                .take(*count)
                .map(|v| (v.logprob, v.entropy))
                .unzip();
            let candidate_range = packed.candidate_range(at..at + count);
            at += count;
            per_sequence.push(SequenceScores {
                logprobs,
                entropies,
                candidates: packed.candidates[candidate_range.clone()].to_vec(),
                candidate_logprobs: output.candidates[candidate_range].to_vec(),
            });
        }
        per_sequence
    }
}

impl<'m> Decoder<'m> {
    /// The pass that [`TrainPass::into_stored`] came from, with the same weights.
    pub(crate) fn resume_pass(
        self,
        target: GradientTarget<'m>,
        stored: StoredPass,
    ) -> TrainPass<'m> {
        TrainPass {
            model: self,
            target,
            stored,
        }
    }
}

impl TrainPass<'_> {
    /// The scores of each sequence, in order.
    pub fn scores(&self) -> &[SequenceScores] {
        &self.stored.scored
    }

    /// The pass without the weights that it borrows.
    pub(crate) fn into_stored(self) -> StoredPass {
        self.stored
    }

    /// Adds dL/dparameter to `gradients`, given dL/dlogprob and dL/dentropy of every scored token and dL/dlogprob of
    /// every candidate. Frees the stored state as it goes.
    ///
    /// # Errors
    /// A vector of the wrong length; nothing has been added then.
    pub fn backward(
        self,
        partials: &[LossGradients],
        gradients: &mut Gradients,
    ) -> Result<(), ForwardError> {
        let loss_gradients = self.stored.flatten(partials)?;
        let (model, target) = (self.model, self.target);
        let mut work = self.stored.micro_batches.into_iter().zip(loss_gradients);
        let GradientTarget::Lora(adapter) = target else {
            // One gradient buffer per thread would take as much memory as the model each.
            for (micro_batch, loss_gradients) in work {
                micro_batch.backward(model, target, &loss_gradients, gradients, model.threads);
            }
            return Ok(());
        };
        // As many micro-batches per round as run in parallel, to bound the number of gradient buffers; summed in order,
        // so that the result does not depend on the number of threads.
        loop {
            let round: Vec<_> = work.by_ref().take(model.threads.0.max(1)).collect();
            if round.is_empty() {
                return Ok(());
            }
            let results = parallel_map(
                round,
                model.threads,
                |(micro_batch, loss_gradients), threads| {
                    let mut own = Gradients::for_adapter(adapter);
                    micro_batch.backward(model, target, &loss_gradients, &mut own, threads);
                    own
                },
            );
            results.iter().for_each(|own| gradients.add(own));
        }
    }
}

impl StoredPass {
    /// Checks the lengths and flattens the loss gradients per micro-batch.
    fn flatten(&self, partials: &[LossGradients]) -> Result<Vec<FlatGradients>, ForwardError> {
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
        let mut sequences = partials.iter().zip(&self.scored);
        let mut all = Vec::with_capacity(self.micro_batches.len());
        for micro_batch in &self.micro_batches {
            let mut loss_gradients = FlatGradients::default();
            let mut has_candidates = false;
            for (partial, scored) in sequences.by_ref().take(micro_batch.packed.counts.len()) {
                let tokens = scored.logprobs.len();
                length("d_logprob", partial.d_logprob.len(), tokens)?;
                if !partial.d_entropy.is_empty() {
                    length("d_entropy", partial.d_entropy.len(), tokens)?;
                }
                let entropies = partial.d_entropy.iter().chain(std::iter::repeat(&0.0));
                let pairs = partial.d_logprob.iter().zip(entropies);
                loss_gradients
                    .partials
                    .extend(pairs.map(|(logprob, entropy)| Partial {
                        logprob: *logprob,
                        entropy: *entropy,
                    }));
                let candidates = scored.candidates.len();
                if partial.d_candidates.is_empty() {
                    let zeros = loss_gradients.candidates.len() + candidates;
                    loss_gradients.candidates.resize(zeros, 0.0);
                } else {
                    length("d_candidates", partial.d_candidates.len(), candidates)?;
                    loss_gradients
                        .candidates
                        .extend_from_slice(&partial.d_candidates);
                    has_candidates = true;
                }
            }
            if !has_candidates {
                loss_gradients.candidates.clear();
            }
            all.push(loss_gradients);
        }
        Ok(all)
    }
}

impl MicroBatch {
    /// Adds the gradients of this micro-batch to `gradients`.
    fn backward(
        self,
        model: Decoder<'_>,
        target: GradientTarget<'_>,
        loss_gradients: &FlatGradients,
        gradients: &mut Gradients,
        threads: Threads,
    ) {
        let Self {
            packed,
            mut inputs,
            mut activations,
            outputs,
            normed,
            logprob_gradients: mut dnormed,
        } = self;
        let c = model.config();
        let sizes = (c.hidden_size, c.vocab_size);
        let h = c.hidden_size;
        let full = matches!(target, GradientTarget::Full);
        let parameters = ParameterIndex::new(c);
        let head_index = if c.tie_word_embeddings {
            parameters.embed()
        } else {
            parameters.head()
        };

        background::yield_to_requests();
        let partials = &loss_gradients.partials;
        if !dnormed.is_empty() && partials.iter().all(|partial| partial.entropy == 0.0) {
            for (row, partial) in dnormed.chunks_exact_mut(h).zip(partials) {
                row.iter_mut().for_each(|value| *value *= partial.logprob);
            }
        } else {
            dnormed.resize(normed.len(), 0.0);
            head::backward(
                &mut dnormed,
                full.then(|| gradients.buffer(head_index)),
                &normed,
                model.lm_head(),
                sizes,
                &packed.positions,
                partials,
                (&packed.candidates, &loss_gradients.candidates),
                threads,
            );
        }
        drop(normed);
        let mut dx = vec![0f32; outputs.len()];
        if full {
            let dgain = gradients.buffer(parameters.final_norm());
            norm::gain_gradient(dgain, &dnormed, &outputs, c.rms_norm_eps);
        }
        norm::backward(
            &mut dx,
            &dnormed,
            &outputs,
            &model.weights.final_norm,
            c.rms_norm_eps,
            false,
            threads,
        );
        drop((dnormed, outputs));

        let groups: [AdapterGroup<'_>; 1] = [(0..packed.tokens.len(), target.adapter())];
        let mut act = Activations::default();
        let mut scratch = Scratch::default();
        let mut x = Vec::new();
        while let Some(input) = inputs.pop() {
            background::yield_to_requests();
            let layer = inputs.len();
            let layer_pass =
                model.layer_pass(&packed, &groups, layer, Purpose::Activations, threads);
            if let Some(stored) = activations.pop() {
                model.restore(layer, &input, stored, &mut act, threads);
            } else {
                x.clone_from(&input);
                let attend = |qkv: &[f32], out: &mut [f32]| {
                    model.attend_packed(qkv, out, &packed.spans, threads);
                };
                model.layer(layer, &mut x, layer_pass, &mut act, attend);
            }
            let layer_inputs = LayerInputs {
                layer,
                input: &input,
                rows: layer_pass.rows,
                spans: &packed.spans,
                angles: &packed.angles,
                is_last: layer == 0 && !full,
                parameters: &parameters,
                threads,
            };
            layer_backward(
                model,
                target,
                &layer_inputs,
                &mut act,
                &mut dx,
                gradients,
                &mut scratch,
            );
        }
        if full {
            let slot = gradients.buffer(parameters.embed());
            for (id, d) in packed.tokens.iter().zip(dx.chunks_exact(h)) {
                let at = *id as usize * h;
                for (g, d) in slot[at..at + h].iter_mut().zip(d) {
                    *g += d;
                }
            }
        }
    }
}

/// Maps items in parallel and returns the results in order. It starts its own threads, and pools for the jobs of each:
/// jobs this long would block the thread pool that serves requests, and a pool has one caller at a time.
fn parallel_map<T: Send, R: Send>(
    work: Vec<T>,
    threads: Threads,
    each: impl Fn(T, Threads) -> R + Sync,
) -> Vec<R> {
    let workers = threads.0.min(work.len());
    if workers <= 1 {
        return work.into_iter().map(|one| each(one, threads)).collect();
    }
    let share = Threads((threads.0 / workers).max(1));
    let queue = Mutex::new(work.into_iter().enumerate());
    let next = || {
        let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.next()
    };
    let background = background::current();
    let mut done: Vec<(usize, R)> = std::thread::scope(|scope| {
        let worker = || {
            let _entered = background::enter(background.clone());
            thread_pool::with_own_pool(share, || {
                let mut own = Vec::new();
                while let Some((at, one)) = next() {
                    own.push((at, each(one, share)));
                }
                own
            })
        };
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        workers
            .into_iter()
            .flat_map(|worker| {
                worker
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parallel_map_returns_results_in_order() {
        for threads in [1, 2, 3, 16] {
            let results = parallel_map((0..50).collect(), Threads(threads), |n: usize, share| {
                assert!(share.0 >= 1 && share.0 <= threads);
                n * n
            });
            assert!(results.into_iter().eq((0..50).map(|n| n * n)));
        }
        assert!(parallel_map(Vec::<u8>::new(), Threads(4), |n, _| n).is_empty());
    }
}
