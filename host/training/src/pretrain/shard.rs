//! The fixed shards of a step: dealt out by size, computed by any number of threads, added up in
//! their order.

use std::sync::{Mutex, PoisonError};

use clawhost_policy::{Gradients, Model, Partials, Sequence, Trained};

use super::{Example, PretrainError};

/// Values per piece of the summing-up that one thread takes.
const PIECE: usize = 1 << 15;

/// Shards with their gradients, kept from step to step.
pub(super) struct Shards {
    gradients: Vec<Gradients>,
    pass_tokens: usize,
    threads: usize,
}

/// One shard's work and what came of it.
struct Work<'a, 'e> {
    examples: Vec<&'e Example>,
    gradients: &'a mut Gradients,
    outcome: Result<f64, PretrainError>,
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
        let mut works: Vec<Work<'_, '_>> = deal(batch, self.gradients.len())
            .into_iter()
            .zip(&mut self.gradients)
            .map(|(examples, gradients)| Work {
                examples,
                gradients,
                outcome: Ok(0.0),
            })
            .collect();
        let pass_tokens = self.pass_tokens;
        each(&mut works, self.threads, |work| {
            work.gradients.clear();
            work.outcome = differentiate(model, &work.examples, pass_tokens, scale, work.gradients);
        })?;
        let mut loss = 0.0;
        for work in works {
            loss += work.outcome?;
        }
        self.add_up(total)?;
        Ok(loss)
    }

    /// Adds the shards' gradients up, piece by piece, each piece in the order of the shards.
    fn add_up(&self, total: &mut Gradients) -> Result<(), PretrainError> {
        let shards = &self.gradients;
        let mut pieces: Vec<(usize, usize, &mut [f32])> = total
            .tensors
            .iter_mut()
            .enumerate()
            .flat_map(|(tensor, values)| {
                values
                    .chunks_mut(PIECE)
                    .enumerate()
                    .map(move |(piece, values)| (tensor, piece * PIECE, values))
            })
            .collect();
        each(&mut pieces, self.threads, |(tensor, start, values)| {
            values.fill(0.0);
            for shard in shards {
                let own = shard.tensors.get(*tensor).and_then(|t| t.get(*start..));
                for (sum, value) in values.iter_mut().zip(own.unwrap_or_default()) {
                    *sum += value;
                }
            }
        })
    }
}

/// Mean weighted cross-entropy without a gradient, shard by shard; none when nothing has weight.
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
        checked.extend(super::prepare(example.clone(), index, context)?);
    }
    if checked.is_empty() {
        return Ok(None);
    }
    let scale = 1.0 / weight(&checked);
    let mut parts: Vec<(Vec<&Example>, Result<f64, PretrainError>)> = deal(&checked, shards)
        .into_iter()
        .map(|examples| (examples, Ok(0.0)))
        .collect();
    each(&mut parts, threads, |(examples, outcome)| {
        *outcome = measure(model, examples, pass_tokens, scale);
    })?;
    let mut loss = 0.0;
    for (_, outcome) in parts {
        loss += outcome?;
    }
    Ok(Some(loss))
}

/// Lets `threads` threads take items one after the other.
fn each<T: Send>(
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

/// Deals sequences out, longest first, each to the shard with the fewest tokens so far.
fn deal(batch: &[Example], shards: usize) -> Vec<Vec<&Example>> {
    let mut order: Vec<&Example> = batch.iter().collect();
    order.sort_by_key(|e| std::cmp::Reverse(e.tokens.len()));
    let mut dealt: Vec<(usize, Vec<&Example>)> = (0..shards).map(|_| (0, Vec::new())).collect();
    for example in order {
        if let Some((load, shard)) = dealt.iter_mut().min_by_key(|(load, _)| *load) {
            *load += example.tokens.len();
            shard.push(example);
        }
    }
    dealt.into_iter().map(|(_, shard)| shard).collect()
}

/// Sum of the weights that count.
fn weight(batch: &[Example]) -> f64 {
    batch
        .iter()
        .flat_map(|e| e.weights.iter().skip(1))
        .map(|w| f64::from(*w))
        .sum()
}

/// The first token that counts, at least 1.
fn start(example: &Example) -> usize {
    1 + example
        .weights
        .iter()
        .skip(1)
        .position(|w| *w > 0.0)
        .unwrap_or(0)
}

fn sequence(example: &Example) -> Sequence<'_> {
    Sequence {
        tokens: &example.tokens,
        start: start(example),
        temperature: 1.0,
        candidates: clawhost_policy::Candidates::None,
    }
}

/// Sequences in passes of at most `tokens` tokens; a longer one goes alone.
fn passes<'a, 'e>(examples: &'a [&'e Example], tokens: usize) -> Vec<&'a [&'e Example]> {
    let mut passes = Vec::new();
    let (mut rest, mut count, mut size) = (examples, 0, 0);
    for example in examples {
        let length = example.tokens.len();
        if count > 0 && size + length > tokens {
            let (pass, after) = rest.split_at(count);
            passes.push(pass);
            (rest, count, size) = (after, 0, 0);
        }
        count += 1;
        size += length;
    }
    if !rest.is_empty() {
        passes.push(rest);
    }
    passes
}

/// Weights of the scored tokens of a sequence.
fn scored_weights(example: &Example) -> &[f32] {
    example.weights.get(start(example)..).unwrap_or_default()
}

fn differentiate(
    model: &Model,
    examples: &[&Example],
    pass_tokens: usize,
    scale: f64,
    gradients: &mut Gradients,
) -> Result<f64, PretrainError> {
    let mut loss = 0.0;
    for pass in passes(examples, pass_tokens) {
        let sequences: Vec<Sequence<'_>> = pass.iter().map(|e| sequence(e)).collect();
        let forward = model.forward_train(Trained::Full, &sequences)?;
        let mut partials = Vec::with_capacity(pass.len());
        for (example, scored) in pass.iter().zip(forward.scored()) {
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
            partials.push(Partials {
                d_logprob,
                d_entropy: Vec::new(),
                d_candidates: Vec::new(),
            });
        }
        forward.backward(&partials, gradients)?;
    }
    Ok(loss)
}

fn measure(
    model: &Model,
    examples: &[&Example],
    pass_tokens: usize,
    scale: f64,
) -> Result<f64, PretrainError> {
    let mut loss = 0.0;
    for pass in passes(examples, pass_tokens) {
        let sequences: Vec<Sequence<'_>> = pass.iter().map(|e| sequence(e)).collect();
        for (example, scored) in pass.iter().zip(model.score(None, &sequences)?) {
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
    fn shards_are_even() {
        let batch: Vec<Example> = [9, 1, 2, 8, 3, 7].map(example).into();
        let loads: Vec<usize> = deal(&batch, 3)
            .iter()
            .map(|s| s.iter().map(|e| e.tokens.len()).sum())
            .collect();
        assert_eq!(loads, vec![10, 10, 10]);
    }

    #[test]
    fn passes_hold_every_sequence_once() {
        let batch: Vec<Example> = [5, 5, 20, 1].map(example).into();
        let all: Vec<&Example> = batch.iter().collect();
        let sizes: Vec<usize> = passes(&all, 10).iter().map(|p| p.len()).collect();
        assert_eq!(sizes, vec![2, 1, 1]);
        assert!(passes(&[], 10).is_empty());
    }
}
