//! The scheduler: each step it chooses rows, lets the backend run them, and finishes complete requests.
//!
//! A failed step does not fail its requests. Each of them is isolated: it recomputes its tokens and runs alone until it
//! has its next token or fails alone. Only a request that fails alone is ended.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rayon::iter::{IntoParallelRefMutIterator, ParallelIterator};

use crate::backend::{
    BLOCK_TOKENS, Backend, Batch, BlockId, ForwardError, RequestId, Row, RowOutput, Runner,
    SampleError,
};
use crate::batch_slots;
use crate::block_pool::BlockPool;
use crate::block_table::{BlockCopy, BlockTable};
use crate::fair_share::FairShare;
use crate::options::{EngineOptions, Priority};
use crate::prefix_cache::PrefixCache;
use crate::sequence::{Sequence, User};
use crate::stats::EngineStats;
use crate::token_budget::schedule_tokens;

/// Admitted requests and the KV cache they share.
pub(super) struct Scheduler {
    runner: Box<dyn Runner>,
    block_bytes: usize,
    pub(super) options: EngineOptions,
    /// In order of precedence.
    pub(super) running: Vec<Sequence>,
    /// Requests that ended in this step; their events are not sent yet.
    finished: Vec<Sequence>,
    pub(super) pool: Arc<BlockPool>,
    /// Blocks to copy in the next step.
    pub(super) copies: Vec<BlockCopy>,
    last_request: u64,
    pub(super) prefix_cache: PrefixCache,
    fair_share: FairShare,
    pub(super) stats: EngineStats,
}

/// Number of tokens that the KV cache of these options holds.
pub(super) fn kv_cache_tokens(backend: &dyn Backend, options: &EngineOptions) -> usize {
    options.kv_cache_blocks(backend.block_bytes()) * BLOCK_TOKENS
}

impl Scheduler {
    pub(super) fn new(backend: &dyn Backend, options: EngineOptions) -> Result<Self, ForwardError> {
        let blocks = options.kv_cache_blocks(backend.block_bytes());
        Ok(Self {
            pool: BlockPool::new(blocks),
            copies: Vec::new(),
            last_request: 0,
            runner: backend.runner(blocks)?,
            block_bytes: backend.block_bytes(),
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
        })
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Whether one more request of this priority and user may start now, and its sort key among requests of that
    /// priority: the smallest goes first. A request that precedes others may start even when the batch is full,
    /// because it takes the slot of one of them.
    pub(super) fn admission_key(&self, priority: Priority, user: &User) -> Option<(usize, u64)> {
        let slots = self.options.max_num_seqs.max(1);
        let rank = batch_slots::admission_rank(&self.running, slots, priority, user)?;
        Some((rank, self.fair_share.usage(user)))
    }

    /// Admits a request. It starts as soon as there are KV-cache blocks for it.
    pub(super) fn admit(&mut self, mut sequence: Sequence) {
        self.last_request += 1;
        sequence.id = RequestId(self.last_request);
        let sampler = sequence.sampler.take();
        let sampler = sampler.expect("a request is admitted once");
        self.runner.add_request(sequence.id, sampler);
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
        let chunk = self.options.max_num_batched_tokens.max(1);
        let mut counts = schedule_tokens(&self.running, &scheduled, &self.fair_share, chunk);
        self.reserve_blocks(&mut counts);
        self.compute_bitmasks(&mut counts);
        let rows = counts.iter().filter(|count| **count > 0).count();
        if rows == 0 {
            return;
        }
        match self.run_model(&counts) {
            Ok(outputs) => {
                self.copies.clear();
                self.stats.count_step(rows);
                self.append_tokens(&counts, outputs);
            }
            Err(reason) => self.handle_step_failure(&counts, rows, &reason),
        }
    }

    /// Fails all admitted requests.
    pub(super) fn fail_all(&mut self, reason: &str) {
        for sequence in &mut self.running {
            sequence.fail(reason.to_owned());
            self.stats.failed += 1;
        }
        self.remove_finished(vec![true; self.running.len()]);
        self.prefix_cache.clear();
        self.copies.clear();
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
        let bytes = self.block_bytes;
        stats.kv_cache_bytes = self.pool.active() * bytes;
        stats.prefix_cache_bytes = stats.blocks_cached * bytes;
        stats.prefix_cache_entries = self.prefix_cache.len();
    }

    fn drop_cancelled(&mut self) {
        let gone = self.running.extract_if(.., |one| one.is_cancelled());
        let mut count = 0;
        for sequence in gone {
            self.runner.remove_request(sequence.id);
            count += 1;
        }
        self.stats.cancelled += count;
        if count > 0 {
            batch_slots::sort_by_precedence(&mut self.running);
        }
    }

    /// Computes the bitmasks of the rows that sample under a grammar. A request whose grammar fails ends before the
    /// step, and its count is removed.
    fn compute_bitmasks(&mut self, counts: &mut Vec<usize>) {
        let rows = self.running.iter_mut().zip(counts.iter());
        let mut constrained: Vec<(&mut Sequence, Result<(), SampleError>)> = rows
            .filter(|(one, count)| one.grammar.is_some() && **count == one.uncomputed_tokens())
            .map(|(one, _)| (one, Ok(())))
            .collect();
        if constrained.is_empty() {
            return;
        }
        // A mask may take milliseconds.
        let compute = |(sequence, result): &mut (&mut Sequence, Result<(), SampleError>)| {
            *result = sequence.compute_bitmask();
        };
        if let [only] = constrained.as_mut_slice() {
            compute(only);
        } else {
            constrained.par_iter_mut().for_each(compute);
        }
        let failed: HashMap<RequestId, SampleError> = constrained
            .into_iter()
            .filter_map(|(sequence, result)| Some((sequence.id, result.err()?)))
            .collect();
        if failed.is_empty() {
            return;
        }
        let mut ended = Vec::with_capacity(self.running.len());
        for sequence in &mut self.running {
            let error = failed.get(&sequence.id);
            if let Some(error) = error {
                sequence.fail(error.to_string());
                self.stats.failed += 1;
            }
            ended.push(error.is_some());
        }
        let mut kept = ended.clone().into_iter().map(|ended| !ended);
        counts.retain(|_| kept.next().expect("every request has a count"));
        self.remove_finished(ended);
    }

    /// Runs the scheduled tokens. Returns what each running request sampled.
    fn run_model(&mut self, counts: &[usize]) -> Result<Vec<RowOutput>, String> {
        let mut rows = Vec::with_capacity(counts.len());
        for (sequence, count) in self.running.iter().zip(counts) {
            if *count == 0 {
                continue;
            }
            let cache = sequence.cache.as_ref();
            let cache = cache.expect("scheduled requests have blocks");
            let computed = cache.len();
            rows.push(Row {
                request: sequence.id,
                tokens: &sequence.tokens[computed..computed + count],
                computed,
                blocks: cache.ids(),
                slot: sequence.version.slot(),
                sample: computed + count == sequence.tokens.len(),
                bitmask: sequence.bitmask.as_ref(),
            });
        }
        let batch = Batch {
            copies: &self.copies,
            rows: &rows,
        };
        let runner = &mut self.runner;
        match catch_unwind(AssertUnwindSafe(|| runner.step(batch))) {
            Ok(Ok(outputs)) => {
                assert_eq!(outputs.len(), rows.len(), "a step has an output per row");
                Ok(outputs)
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(panic) => Err(format!(
                "the model panicked: {}",
                panic_message(panic.as_ref())
            )),
        }
    }

    /// Appends the sampled tokens of a step, and finishes requests that are complete.
    fn append_tokens(&mut self, counts: &[usize], outputs: Vec<RowOutput>) {
        let mut outputs = outputs.into_iter();
        let mut ended = Vec::with_capacity(self.running.len());
        for (sequence, count) in self.running.iter_mut().zip(counts) {
            self.fair_share.charge(&sequence.user, *count);
            if *count == 0 {
                ended.push(false);
                continue;
            }
            let cache = sequence.cache.as_mut();
            let cache = cache.expect("scheduled requests have blocks");
            let in_prompt = sequence.prompt_len.saturating_sub(cache.len()).min(*count);
            self.stats.prefill_tokens += in_prompt as u64;
            cache.advance(*count);
            let output = outputs.next().expect("a step has an output per row");
            ended.push(
                match output.map(|sampled| sequence.append_token(sampled?)) {
                    None => false,
                    Some(Ok(complete)) => {
                        self.stats.tokens_generated += 1;
                        if complete {
                            self.stats.finished += 1;
                            let cacheable =
                                self.options.enable_prefix_caching && sequence.shares_prefix;
                            if let Some(cache) = sequence.cache.take().filter(|_| cacheable) {
                                self.prefix_cache.insert(
                                    &sequence.version,
                                    &sequence.tokens,
                                    &cache,
                                );
                                if let Some(dispatched) = &sequence.dispatched {
                                    let version = sequence.version.version;
                                    dispatched.remember(version, &sequence.tokens);
                                }
                            }
                        }
                        complete
                    }
                    Some(Err(error)) => {
                        sequence.fail(error.to_string());
                        self.stats.failed += 1;
                        true
                    }
                },
            );
        }
        self.remove_finished(ended);
    }

    /// Moves the marked requests out of the batch and frees their blocks.
    fn remove_finished(&mut self, marks: Vec<bool>) {
        let mut marks = marks.into_iter();
        let ended = self
            .running
            .extract_if(.., |_| marks.next().expect("every request has a mark"));
        for mut sequence in ended {
            sequence.cache = None;
            // Before its reader sees the end, so that the reader's next request finds this replica free.
            sequence.dispatched = None;
            self.runner.remove_request(sequence.id);
            self.finished.push(sequence);
        }
        batch_slots::sort_by_precedence(&mut self.running);
    }

    /// Handles a failed step: drops the KV cache of its requests. A request that was alone in the step fails; several
    /// are isolated to find the one that caused it.
    fn handle_step_failure(&mut self, counts: &[usize], rows: usize, reason: &str) {
        tracing::error!(rows, reason, "a step of the model failed");
        // It is not known which blocks were copied before the failure.
        let copies: HashSet<BlockId> = self.copies.drain(..).map(|(_, to)| to).collect();
        let mut ended = Vec::with_capacity(counts.len());
        for (sequence, count) in self.running.iter_mut().zip(counts) {
            let involved = *count > 0;
            let copied = |cache: &BlockTable| cache.ids().iter().any(|id| copies.contains(id));
            if involved || sequence.cache.as_ref().is_some_and(copied) {
                sequence.cache = None;
            }
            sequence.isolated |= involved;
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
