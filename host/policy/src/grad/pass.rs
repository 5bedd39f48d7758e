//! One forward pass over packed sequences, kept so that it can be differentiated.

#![allow(
    clippy::indexing_slicing,
    reason = "offsets into packed buffers are computed here from the sizes that allocated them"
)]

use std::sync::{Mutex, PoisonError};

use super::gradients::Gradients;
use super::layer::{Below, Scratch, backward as layer_backward};
use super::packed::Packed;
use super::sequence::{Partials, Scored, Sequence};
use crate::background;
use crate::error::ForwardError;
use crate::lora::Adapter;
use crate::model::{Activations, Group, Model, Way};
use crate::ops::head::{self, Partial};
use crate::ops::linear::Threads;
use crate::ops::norm;
use crate::weights::Places;

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
    portions: Vec<Portion>,
    scored: Vec<Scored>,
}

/// What is kept of a few sequences.
struct Portion {
    packed: Packed,
    /// Residual stream before each layer.
    inputs: Vec<Vec<f32>>,
    /// Residual stream at the scored positions, before and after the final norm.
    outputs: Vec<f32>,
    normed: Vec<f32>,
}

/// What a loss said of a portion.
#[derive(Default)]
struct Said {
    partials: Vec<Partial>,
    /// Of all its candidates, or nothing when none has any.
    candidates: Vec<f32>,
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
        let portions = self.pack(adapter, sequences)?;
        let scored = apart(portions, self.threads, |mut packed, threads| {
            let outputs = self.run(&packed, adapter, threads, |_| ());
            let normed = self.final_norm(&outputs);
            self.scored(&mut packed, &normed, threads)
        });
        Ok(scored.into_iter().flatten().collect())
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
        let adapter = trained.adapter();
        let portions = self.pack(adapter, sequences)?;
        let run = apart(portions, self.threads, |mut packed, threads| {
            let mut inputs = Vec::with_capacity(self.config().num_hidden_layers);
            let outputs = self.run(&packed, adapter, threads, |x| inputs.push(x.to_vec()));
            let normed = self.final_norm(&outputs);
            let scored = self.scored(&mut packed, &normed, threads);
            let portion = Portion {
                packed,
                inputs,
                outputs,
                normed,
            };
            (portion, scored)
        });
        let (portions, scored): (Vec<Portion>, Vec<Vec<Scored>>) = run.into_iter().unzip();
        Ok(TrainPass {
            model: self,
            trained,
            portions,
            scored: scored.into_iter().flatten().collect(),
        })
    }

    /// Runs all layers; `before` sees the residual stream before each. What is left of the last one are the
    /// rows that predict scored tokens.
    fn run(
        &self,
        packed: &Packed,
        adapter: Option<&Adapter>,
        threads: Threads,
        mut before: impl FnMut(&[f32]),
    ) -> Vec<f32> {
        let mut x = Vec::new();
        self.embed(&mut x, &packed.tokens);
        let groups: [Group<'_>; 1] = [(0..packed.tokens.len(), adapter)];
        let mut act = Activations::default();
        for layer in 0..self.config().num_hidden_layers {
            background::yield_to_requests();
            before(&x);
            let way = self.way(packed, &groups, layer, false, threads);
            let attend = |qkv: &[f32], out: &mut [f32]| {
                self.attend_packed(qkv, out, &packed.spans, threads);
            };
            self.layer(layer, &mut x, way, &mut act, attend);
        }
        x
    }

    fn way<'a>(
        &self,
        packed: &'a Packed,
        groups: &'a [Group<'a>],
        layer: usize,
        keep: bool,
        threads: Threads,
    ) -> Way<'a> {
        let last = layer + 1 == self.config().num_hidden_layers;
        Way {
            groups,
            angles: &packed.angles,
            rows: last.then_some(packed.rows.as_slice()),
            keep,
            threads,
        }
    }

    fn final_norm(&self, outputs: &[f32]) -> Vec<f32> {
        let mut normed = outputs.to_vec();
        let eps = self.config().rms_norm_eps;
        norm::forward_in_place(&mut normed, &self.weights.final_norm, eps);
        normed
    }

    fn scored(&self, packed: &mut Packed, normed: &[f32], threads: Threads) -> Vec<Scored> {
        let sizes = (self.config().hidden_size, self.config().vocab_size);
        let weight = self.head();
        background::yield_to_requests();
        let found = head::forward(
            normed,
            weight,
            sizes,
            &packed.positions,
            &mut packed.candidates,
            threads,
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
    /// dL/dlogprob of every candidate. What it kept is given up as it goes.
    ///
    /// # Errors
    /// A vector of the wrong length; nothing has been added then.
    pub fn backward(
        self,
        partials: &[Partials],
        gradients: &mut Gradients,
    ) -> Result<(), ForwardError> {
        let said = self.flatten(partials)?;
        let (model, trained) = (self.model, self.trained);
        let mut work = self.portions.into_iter().zip(said);
        let Trained::Lora(adapter) = trained else {
            // A buffer of gradients for each thread would be as large as the model.
            for (portion, said) in work {
                portion.backward(model, trained, &said, gradients, model.threads);
            }
            return Ok(());
        };
        // In turns of as many as run at once, so that no more buffers are needed; added up in order, so that the
        // number of threads changes nothing.
        loop {
            let turn: Vec<_> = work.by_ref().take(model.threads.0.max(1)).collect();
            if turn.is_empty() {
                return Ok(());
            }
            let made = apart(turn, model.threads, |(portion, said), threads| {
                let mut own = Gradients::for_adapter(adapter);
                portion.backward(model, trained, &said, &mut own, threads);
                own
            });
            made.iter().for_each(|own| gradients.add(own));
        }
    }

    /// Checks the partials and lays them out portion by portion.
    fn flatten(&self, partials: &[Partials]) -> Result<Vec<Said>, ForwardError> {
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
        let mut all = Vec::with_capacity(self.portions.len());
        for portion in &self.portions {
            let mut said = Said::default();
            let mut looks = false;
            for (partial, scored) in sequences.by_ref().take(portion.packed.counts.len()) {
                let tokens = scored.logprobs.len();
                length("d_logprob", partial.d_logprob.len(), tokens)?;
                if !partial.d_entropy.is_empty() {
                    length("d_entropy", partial.d_entropy.len(), tokens)?;
                }
                let entropies = partial.d_entropy.iter().chain(std::iter::repeat(&0.0));
                let pairs = partial.d_logprob.iter().zip(entropies);
                said.partials
                    .extend(pairs.map(|(logprob, entropy)| Partial {
                        logprob: *logprob,
                        entropy: *entropy,
                    }));
                let candidates = scored.candidates.len();
                if partial.d_candidates.is_empty() {
                    let zeros = said.candidates.len() + candidates;
                    said.candidates.resize(zeros, 0.0);
                } else {
                    length("d_candidates", partial.d_candidates.len(), candidates)?;
                    said.candidates.extend_from_slice(&partial.d_candidates);
                    looks = true;
                }
            }
            if !looks {
                said.candidates.clear();
            }
            all.push(said);
        }
        Ok(all)
    }
}

impl Portion {
    /// Adds what this portion contributes to `gradients`.
    fn backward(
        self,
        model: &Model,
        trained: Trained<'_>,
        said: &Said,
        gradients: &mut Gradients,
        threads: Threads,
    ) {
        let Self {
            packed,
            mut inputs,
            outputs,
            normed,
        } = self;
        let c = model.config();
        let sizes = (c.hidden_size, c.vocab_size);
        let h = c.hidden_size;
        let full = matches!(trained, Trained::Full);
        let places = Places::new(c);
        let head_index = if c.tie_word_embeddings {
            places.embed()
        } else {
            places.head()
        };

        background::yield_to_requests();
        let mut dnormed = vec![0f32; normed.len()];
        head::backward(
            &mut dnormed,
            full.then(|| gradients.slot(head_index)),
            &normed,
            model.head(),
            sizes,
            &packed.positions,
            &said.partials,
            (&packed.candidates, &said.candidates),
            threads,
        );
        drop(normed);
        let mut dx = vec![0f32; outputs.len()];
        norm::backward(
            &mut dx,
            &dnormed,
            &outputs,
            &model.weights.final_norm,
            c.rms_norm_eps,
            false,
            full.then(|| gradients.slot(places.final_norm())),
        );
        drop((dnormed, outputs));

        let groups: [Group<'_>; 1] = [(0..packed.tokens.len(), trained.adapter())];
        let mut act = Activations::default();
        let mut scratch = Scratch::default();
        let mut x = Vec::new();
        while let Some(input) = inputs.pop() {
            background::yield_to_requests();
            let layer = inputs.len();
            x.clone_from(&input);
            let way = model.way(&packed, &groups, layer, true, threads);
            let attend = |qkv: &[f32], out: &mut [f32]| {
                model.attend_packed(qkv, out, &packed.spans, threads);
            };
            model.layer(layer, &mut x, way, &mut act, attend);
            let below = Below {
                layer,
                input: &input,
                middle: &x,
                rows: way.rows,
                spans: &packed.spans,
                angles: &packed.angles,
                last: layer == 0 && !full,
                places: &places,
                threads,
            };
            layer_backward(
                model,
                trained,
                &below,
                &mut act,
                &mut dx,
                gradients,
                &mut scratch,
            );
        }
        if full {
            let slot = gradients.slot(places.embed());
            for (id, d) in packed.tokens.iter().zip(dx.chunks_exact(h)) {
                let at = *id as usize * h;
                for (g, d) in slot[at..at + h].iter_mut().zip(d) {
                    *g += d;
                }
            }
        }
    }
}

/// Does some work on several threads at once, and gives the results in the order of the work. Threads of its own,
/// because work this long would keep those that matrix products share from people's requests.
fn apart<T: Send, R: Send>(
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
            let mut own = Vec::new();
            while let Some((at, one)) = next() {
                own.push((at, each(one, share)));
            }
            own
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
    fn results_come_in_the_order_of_the_work_whoever_did_it() {
        for threads in [1, 2, 3, 16] {
            let made = apart((0..50).collect(), Threads(threads), |n: usize, share| {
                assert!(share.0 >= 1 && share.0 <= threads);
                n * n
            });
            assert!(made.into_iter().eq((0..50).map(|n| n * n)));
        }
        assert!(apart(Vec::<u8>::new(), Threads(4), |n, _| n).is_empty());
    }
}
