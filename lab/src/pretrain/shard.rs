//! The fixed shards of a step: balanced by size, computed by any number of threads, summed in order.

use clawhost_cpu::{CpuModel, GradientTarget, Gradients};
use std::sync::{Mutex, PoisonError};

use clawhost_engine::{LossGradients, Sequence, TrainLimits};
use clawhost_model::Model;

use super::example::{Example, PretrainError, validate_and_trim};

/// Gradient values that a thread sums at once.
const CHUNK: usize = 1 << 15;

/// The shards' gradient buffers, reused by every step.
pub(super) struct Shards {
    gradients: Vec<Gradients>,
    pass_tokens: usize,
    threads: usize,
}

/// One shard's examples, its gradient buffer and the resulting loss.
struct ShardTask<'a, 'e> {
    examples: Vec<&'e Example>,
    gradients: &'a mut Gradients,
    loss: Result<f64, PretrainError>,
}

impl Shards {
    pub(super) fn new(model: &Model, shards: usize, pass_tokens: usize, threads: usize) -> Self {
        Self {
            gradients: (0..shards).map(|_| Gradients::for_model(model)).collect(),
            pass_tokens,
            threads,
        }
    }

    /// Fills `total` with the gradient of the weighted cross-entropy and returns the loss.
    pub(super) fn gradients(
        &mut self,
        model: &Model,
        batch: &[Example],
        total: &mut Gradients,
    ) -> Result<f64, PretrainError> {
        let scale = 1.0 / weight(batch);
        let mut tasks: Vec<ShardTask<'_, '_>> = distribute(batch, self.gradients.len())
            .into_iter()
            .zip(&mut self.gradients)
            .map(|(examples, gradients)| ShardTask {
                examples,
                gradients,
                loss: Ok(0.0),
            })
            .collect();
        let pass_tokens = self.pass_tokens;
        parallel_for_each(&mut tasks, self.threads, |task| {
            task.gradients.clear();
            task.loss =
                accumulate_gradients(model, &task.examples, pass_tokens, scale, task.gradients);
        })?;
        let mut loss = 0.0;
        for task in tasks {
            loss += task.loss?;
        }
        self.sum_gradients(total)?;
        Ok(loss)
    }

    /// Sums the shards' gradients chunk by chunk, each in shard order.
    fn sum_gradients(&self, total: &mut Gradients) -> Result<(), PretrainError> {
        let shards = &self.gradients;
        let mut chunks: Vec<(usize, usize, &mut [f32])> = total
            .tensors
            .iter_mut()
            .enumerate()
            .flat_map(|(tensor, values)| {
                values
                    .chunks_mut(CHUNK)
                    .enumerate()
                    .map(move |(index, values)| (tensor, index * CHUNK, values))
            })
            .collect();
        parallel_for_each(&mut chunks, self.threads, |(tensor, start, values)| {
            values.fill(0.0);
            for shard in shards {
                for (sum, value) in values.iter_mut().zip(&shard.tensors[*tensor][*start..]) {
                    *sum += value;
                }
            }
        })
    }
}

/// Mean weighted cross-entropy without gradients, shard by shard; none if no token has weight.
pub(super) fn loss(
    model: &Model,
    examples: &[Example],
    shards: usize,
    pass_tokens: usize,
    threads: usize,
) -> Result<Option<f64>, PretrainError> {
    let context = model.config().max_position_embeddings;
    let mut checked = Vec::with_capacity(examples.len());
    for (index, example) in (0u64..).zip(examples) {
        checked.extend(validate_and_trim(example.clone(), index, context)?);
    }
    if checked.is_empty() {
        return Ok(None);
    }
    let scale = 1.0 / weight(&checked);
    let mut parts: Vec<(Vec<&Example>, Result<f64, PretrainError>)> = distribute(&checked, shards)
        .into_iter()
        .map(|examples| (examples, Ok(0.0)))
        .collect();
    parallel_for_each(&mut parts, threads, |(examples, loss)| {
        *loss = evaluate(model, examples, pass_tokens, scale);
    })?;
    let mut loss = 0.0;
    for (_, part) in parts {
        loss += part?;
    }
    Ok(Some(loss))
}

/// Applies `work` to all items on `threads` threads, which take items from a shared queue.
fn parallel_for_each<T: Send>(
    items: &mut [T],
    threads: usize,
    work: impl Fn(&mut T) + Sync,
) -> Result<(), PretrainError> {
    let threads = threads.min(items.len());
    if threads <= 1 {
        items.iter_mut().for_each(work);
        return Ok(());
    }
    let queue = Mutex::new(items.iter_mut());
    let take = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    while let Some(item) = take() {
                        work(item);
                    }
                })
            })
            .collect();
        let mut outcome = Ok(());
        for worker in workers {
            if worker.join().is_err() {
                outcome = Err(PretrainError::Thread);
            }
        }
        outcome
    })
}

/// Assigns sequences, longest first, to the shard with the fewest tokens so far.
fn distribute(batch: &[Example], shards: usize) -> Vec<Vec<&Example>> {
    let mut order: Vec<&Example> = batch.iter().collect();
    order.sort_by_key(|e| std::cmp::Reverse(e.tokens.len()));
    let mut loads: Vec<(usize, Vec<&Example>)> = (0..shards).map(|_| (0, Vec::new())).collect();
    for example in order {
        let (load, shard) = loads
            .iter_mut()
            .min_by_key(|(load, _)| *load)
            .expect("the options are validated: there is a shard");
        *load += example.tokens.len();
        shard.push(example);
    }
    loads.into_iter().map(|(_, shard)| shard).collect()
}

/// Sum of all weights except those of first tokens.
fn weight(batch: &[Example]) -> f64 {
    batch
        .iter()
        .flat_map(|e| e.weights.iter().skip(1))
        .map(|w| f64::from(*w))
        .sum()
}

/// Index of the first token with weight, at least 1.
fn start(example: &Example) -> usize {
    let weighted = example.weights.iter().skip(1).position(|w| *w > 0.0);
    1 + weighted.expect("sequences without weight were dropped")
}

fn sequence(example: &Example) -> Sequence<'_> {
    Sequence {
        tokens: &example.tokens,
        start: start(example),
        temperature: 1.0,
        candidates: clawhost_engine::Candidates::None,
    }
}

/// Splits sequences into micro-batches of at most `tokens` tokens; a longer one gets its own.
fn split_micro_batches<'a, 'e>(
    examples: &'a [&'e Example],
    tokens: usize,
) -> Vec<&'a [&'e Example]> {
    let mut micro_batches = Vec::new();
    let (mut rest, mut count, mut size) = (examples, 0, 0);
    for example in examples {
        let length = example.tokens.len();
        if count > 0 && size + length > tokens {
            let (micro_batch, after) = rest.split_at(count);
            micro_batches.push(micro_batch);
            (rest, count, size) = (after, 0, 0);
        }
        count += 1;
        size += length;
    }
    if !rest.is_empty() {
        micro_batches.push(rest);
    }
    micro_batches
}

/// Weights of the scored tokens of a sequence.
fn scored_weights(example: &Example) -> &[f32] {
    &example.weights[start(example)..]
}

fn accumulate_gradients(
    model: &Model,
    examples: &[&Example],
    pass_tokens: usize,
    scale: f64,
    gradients: &mut Gradients,
) -> Result<f64, PretrainError> {
    let mut loss = 0.0;
    for micro_batch in split_micro_batches(examples, pass_tokens) {
        let sequences: Vec<Sequence<'_>> = micro_batch.iter().map(|e| sequence(e)).collect();
        let forward =
            model.forward_train(GradientTarget::Full, &sequences, TrainLimits::default())?;
        let mut partials = Vec::with_capacity(micro_batch.len());
        for (example, scored) in micro_batch.iter().zip(forward.scores()) {
            let weights = scored_weights(example);
            loss += cross_entropy(weights, &scored.logprobs, scale);
            #[allow(
                clippy::cast_possible_truncation,
                reason = "gradients are computed in f32"
            )]
            let d_logprob = weights
                .iter()
                .map(|w| -(f64::from(*w) * scale) as f32)
                .collect();
            partials.push(LossGradients {
                d_logprob,
                d_entropy: Vec::new(),
                d_candidates: Vec::new(),
            });
        }
        forward.backward(&partials, gradients)?;
    }
    Ok(loss)
}

fn evaluate(
    model: &Model,
    examples: &[&Example],
    pass_tokens: usize,
    scale: f64,
) -> Result<f64, PretrainError> {
    let mut loss = 0.0;
    for micro_batch in split_micro_batches(examples, pass_tokens) {
        let sequences: Vec<Sequence<'_>> = micro_batch.iter().map(|e| sequence(e)).collect();
        for (example, scored) in micro_batch.iter().zip(model.score(None, &sequences)?) {
            loss += cross_entropy(scored_weights(example), &scored.logprobs, scale);
        }
    }
    Ok(loss)
}

fn cross_entropy(weights: &[f32], logprobs: &[f32], scale: f64) -> f64 {
    weights
        .iter()
        .zip(logprobs)
        .map(|(w, lp)| -f64::from(*w) * f64::from(*lp) * scale)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(length: usize) -> Example {
        Example {
            tokens: vec![0; length],
            weights: vec![1.0; length],
        }
    }

    #[test]
    fn shards_are_balanced() {
        let batch: Vec<Example> = [9, 1, 2, 8, 3, 7].map(example).into();
        let loads: Vec<usize> = distribute(&batch, 3)
            .iter()
            .map(|s| s.iter().map(|e| e.tokens.len()).sum())
            .collect();
        assert_eq!(loads, vec![10, 10, 10]);
    }

    #[test]
    fn micro_batches_contain_every_sequence_once() {
        let batch: Vec<Example> = [5, 5, 20, 1].map(example).into();
        let all: Vec<&Example> = batch.iter().collect();
        let sizes: Vec<usize> = split_micro_batches(&all, 10)
            .iter()
            .map(|p| p.len())
            .collect();
        assert_eq!(sizes, vec![2, 1, 1]);
        assert!(split_micro_batches(&[], 10).is_empty());
    }
}
