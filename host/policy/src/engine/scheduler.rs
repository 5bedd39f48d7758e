//! The scheduler: each step it chooses rows, runs the model, samples tokens and finishes complete requests.
//!
//! A failed step does not fail its requests. Each of them is isolated: it recomputes its tokens and runs alone until it
//! has its next token or fails alone. Only a request that fails alone is ended.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::batch_slots;
use super::fair_share::FairShare;
use super::options::{EngineOptions, Priority};
use super::prefix_cache::PrefixCache;
use super::sequence::{Sequence, User};
use super::stats::EngineStats;
use super::token_budget::schedule_tokens;
use crate::cache::{BLOCK_TOKENS, BlockPool, BlockShape};
use crate::error::ForwardError;
use crate::model::{BatchRow, Model};
use crate::ops::thread_pool;

/// Cost of sampling per logit, in multiply-adds.
const SAMPLE_COST_PER_LOGIT: usize = 16;

/// The model's forward pass. Tests replace it to observe batches and to make it fail.
pub(super) type Forward =
    Box<dyn FnMut(&Model, &mut [BatchRow<'_>]) -> Result<Vec<f32>, ForwardError> + Send>;

/// Admitted requests and the KV cache they share.
pub(super) struct Scheduler {
    model: Arc<Model>,
    forward: Forward,
    pub(super) options: EngineOptions,
    /// In order of precedence.
    pub(super) running: Vec<Sequence>,
    /// Requests that ended in this step; their events are not sent yet.
    finished: Vec<Sequence>,
    pub(super) pool: Arc<BlockPool>,
    pub(super) prefix_cache: PrefixCache,
    fair_share: FairShare,
    pub(super) stats: EngineStats,
}

/// Number of tokens that the KV cache of these options holds.
pub(super) fn kv_cache_tokens(model: &Model, options: &EngineOptions) -> usize {
    options.kv_cache_bytes / BlockShape::new(model.config()).bytes().max(1) * BLOCK_TOKENS
}

impl Scheduler {
    pub(super) fn new(model: Arc<Model>, forward: Forward, options: EngineOptions) -> Self {
        let blocks = kv_cache_tokens(&model, &options) / BLOCK_TOKENS;
        Self {
            pool: BlockPool::new(BlockShape::new(model.config()), blocks),
            model,
            forward,
            options,
            running: Vec::new(),
            finished: Vec::new(),
            prefix_cache: PrefixCache::default(),
            fair_share: FairShare::default(),
            stats: EngineStats {
                blocks,
                blocks_free: blocks,
                ..EngineStats::default()
            },
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Whether one more request of this priority and user may start now, and its sort key among requests of that
    /// priority: the smallest goes first. A request that precedes others may start even when the batch is full,
    /// because it takes the slot of one of them.
    pub(super) fn admission_key(&self, priority: Priority, user: &User) -> Option<(usize, u64)> {
        let slots = self.options.max_batch.max(1);
        let rank = batch_slots::admission_rank(&self.running, slots, priority, user)?;
        Some((rank, self.fair_share.usage(user)))
    }

    /// Admits a request. It starts as soon as there are KV-cache blocks for it.
    pub(super) fn admit(&mut self, sequence: Sequence) {
        self.running.push(sequence);
        batch_slots::sort_by_precedence(&mut self.running);
    }

    /// Runs one step.
    pub(super) fn step(&mut self) {
        self.drop_cancelled();
        self.prefix_cache.remove_unloaded();
        self.fair_share
            .advance(self.running.iter().map(|one| &one.user));
        let scheduled = self.schedule_rows();
        let chunk = self.options.prefill_chunk.max(1);
        let mut counts = schedule_tokens(&self.running, &scheduled, &self.fair_share, chunk);
        self.reserve_blocks(&mut counts);
        let rows = counts.iter().filter(|count| **count > 0).count();
        if rows == 0 {
            return;
        }
        match self.run_model(&counts) {
            Ok((order, logits)) => {
                self.stats.count_step(rows);
                self.sample_tokens(&counts, &order, &logits);
            }
            Err(reason) => self.handle_step_failure(&counts, rows, &reason),
        }
    }

    /// Fails all admitted requests.
    pub(super) fn fail_all(&mut self, reason: &str) {
        for sequence in &mut self.running {
            sequence.fail(reason.to_owned());
            sequence.cache = None;
            self.stats.failed += 1;
        }
        self.finished.append(&mut self.running);
        self.prefix_cache.clear();
    }

    /// Sends the events of the last step to their readers. Called after the statistics are published, so that a client
    /// that saw a reply end finds it counted.
    pub(super) fn send_events(&mut self) {
        self.running.iter_mut().for_each(Sequence::send_events);
        for mut sequence in self.finished.drain(..) {
            sequence.send_events();
        }
    }

    /// Updates the statistics that describe the current load.
    pub(super) fn update_gauges(&mut self) {
        let stats = &mut self.stats;
        stats.running = self.running.len();
        stats.preempted = self
            .running
            .iter()
            .filter(|one| one.cache.is_none())
            .count();
        stats.blocks_free = self.pool.free();
        stats.blocks_cached = self.pool.cached();
        stats.blocks_shared = self.pool.shared();
        let bytes = self.pool.shape().bytes();
        stats.kv_cache_bytes = self.pool.active() * bytes;
        stats.prefix_cache_bytes = stats.blocks_cached * bytes;
        stats.prefix_cache_entries = self.prefix_cache.len();
    }

    fn drop_cancelled(&mut self) {
        let before = self.running.len();
        self.running.retain(|sequence| !sequence.is_cancelled());
        let gone = before - self.running.len();
        self.stats.cancelled += gone as u64;
        if gone > 0 {
            batch_slots::sort_by_precedence(&mut self.running);
        }
    }

    /// Runs the scheduled tokens. Returns the logits, and the indices of the requests in the order of their rows.
    fn run_model(&mut self, counts: &[usize]) -> Result<(Vec<usize>, Vec<f32>), String> {
        let base = &*self.model;
        let mut rows: Vec<(usize, &Model, BatchRow<'_>)> = Vec::new();
        for (index, (sequence, count)) in self.running.iter_mut().zip(counts).enumerate() {
            let computed = sequence.computed_tokens();
            let Some(cache) = sequence.cache.as_mut().filter(|_| *count > 0) else {
                continue;
            };
            let tokens = sequence
                .tokens
                .get(computed..computed + count)
                .unwrap_or_default();
            let model = sequence.version.model(base);
            if !model.same_shape(base) {
                return Err(format!(
                    "version {} was made for a model of another shape",
                    sequence.version.version
                ));
            }
            let adapter = sequence.version.adapter().map(Arc::as_ref);
            let row = BatchRow {
                tokens,
                cache,
                adapter,
            };
            rows.push((index, model, row));
        }
        // Rows of one model form one pass, and rows of one adapter are adjacent in it, so each adapter's matrices are
        // multiplied once.
        rows.sort_by_key(|(_, model, row)| {
            let adapter = row.adapter.map_or(0, |a| std::ptr::from_ref(a) as usize);
            (std::ptr::from_ref(*model) as usize, adapter)
        });
        let (mut order, mut models) = (Vec::new(), Vec::new());
        let mut rows: Vec<BatchRow<'_>> = rows
            .into_iter()
            .map(|(index, model, row)| {
                order.push(index);
                models.push(model);
                row
            })
            .collect();
        let forward = &mut self.forward;
        let passes = || {
            let (mut rest, mut all) = (rows.as_mut_slice(), Vec::new());
            for models in models.chunk_by(|one, other| std::ptr::eq(*one, *other)) {
                let (rows, later) = std::mem::take(&mut rest).split_at_mut(models.len());
                rest = later;
                let Some(model) = models.first() else { break };
                let logits = forward(model, rows)?;
                if all.is_empty() {
                    all = logits;
                } else {
                    all.extend(logits);
                }
            }
            Ok::<_, ForwardError>(all)
        };
        match catch_unwind(AssertUnwindSafe(passes)) {
            Ok(Ok(logits)) => Ok((order, logits)),
            Ok(Err(error)) => Err(error.to_string()),
            Err(panic) => Err(format!(
                "the model panicked: {}",
                panic_message(panic.as_ref())
            )),
        }
    }

    /// Samples a token for each request whose tokens are all computed, and finishes requests that are complete.
    fn sample_tokens(&mut self, counts: &[usize], order: &[usize], logits: &[f32]) {
        let vocab = self.model.config().vocab_size;
        let mut rows: Vec<Option<&[f32]>> = vec![None; self.running.len()];
        for (index, logits) in order.iter().zip(logits.chunks_exact(vocab)) {
            if let Some(row) = rows.get_mut(*index) {
                *row = Some(logits);
            }
        }
        for (sequence, count) in self.running.iter().zip(counts) {
            let in_prompt = (sequence.prompt_len + count)
                .saturating_sub(sequence.computed_tokens())
                .min(*count);
            self.stats.prefill_tokens += in_prompt as u64;
            self.fair_share.charge(&sequence.user, *count);
        }
        // Every request has its own random stream, so they can be sampled in parallel.
        let tasks = self.running.iter_mut().zip(rows).map(|(sequence, logits)| {
            let logits = logits.filter(|_| sequence.uncomputed_tokens() == 0);
            (&mut sequence.sampler, logits, None)
        });
        let mut tasks: Vec<_> = tasks.collect();
        let cost = logits.len() * SAMPLE_COST_PER_LOGIT;
        thread_pool::parallel_for_each(self.model.threads, &mut tasks, cost, |task| {
            let (sampler, logits, sampled) = task;
            *sampled = logits.map(|logits| sampler.sample(logits));
        });
        let sampled: Vec<_> = tasks.into_iter().map(|(_, _, sampled)| sampled).collect();
        let mut ended = Vec::with_capacity(self.running.len());
        for (sequence, sampled) in self.running.iter_mut().zip(sampled) {
            ended.push(match sampled {
                None => false,
                Some(Ok(sampled)) => {
                    self.stats.tokens_generated += 1;
                    let complete = sequence.append_token(sampled);
                    if complete {
                        self.stats.finished += 1;
                        let cacheable = self.options.prefix_caching && sequence.shares_prefix;
                        if let Some(cache) = sequence.cache.take().filter(|_| cacheable) {
                            self.prefix_cache
                                .insert(&sequence.version, &sequence.tokens, &cache);
                        }
                    }
                    complete
                }
                Some(Err(error)) => {
                    sequence.fail(error.to_string());
                    self.stats.failed += 1;
                    true
                }
            });
        }
        self.remove_finished(ended);
    }

    /// Moves the marked requests out of the batch and frees their blocks.
    fn remove_finished(&mut self, marks: Vec<bool>) {
        let mut marks = marks.into_iter();
        let ended = self
            .running
            .extract_if(.., |_| marks.next().unwrap_or(false));
        self.finished.extend(ended.map(|mut sequence| {
            sequence.cache = None;
            sequence
        }));
        batch_slots::sort_by_precedence(&mut self.running);
    }

    /// Handles a failed step: drops the KV cache of its requests. A request that was alone in the step fails; several
    /// are isolated to find the one that caused it.
    fn handle_step_failure(&mut self, counts: &[usize], rows: usize, reason: &str) {
        tracing::error!(rows, reason, "a step of the model failed");
        let involved = self
            .running
            .iter_mut()
            .zip(counts)
            .map(|(s, count)| (s, *count > 0));
        let mut ended = Vec::with_capacity(counts.len());
        for (sequence, involved) in involved {
            if involved {
                sequence.cache = None;
                sequence.isolated = true;
            }
            let failed = involved && rows == 1;
            if failed {
                sequence.fail(reason.to_owned());
                self.stats.failed += 1;
            }
            ended.push(failed);
        }
        self.remove_finished(ended);
    }
}

/// Message of a panic payload.
pub(super) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
