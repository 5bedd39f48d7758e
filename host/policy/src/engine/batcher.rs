//! The steps: choose rows, run the model, draw tokens, end what is complete.
//!
//! A step that fails is not the end of its requests. Each runs by itself from then on, from its
//! recorded tokens, until it has its next token or is known to be the one to blame; only that one
//! fails.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::options::{EngineOptions, Priority};
use super::places;
use super::plan::plan;
use super::prefix::PrefixStore;
use super::sequence::{Sequence, User};
use super::shares::Shares;
use super::stats::EngineStats;
use crate::cache::{BLOCK_TOKENS, BlockShape, Pool};
use crate::error::ForwardError;
use crate::model::{Model, Row};
use crate::ops::team;

/// What drawing from one logit takes, in multiply-adds.
const PER_LOGIT: usize = 16;

/// The model's forward pass, as a seam: tests watch it and make it fail.
pub(super) type Forward =
    Box<dyn FnMut(&Model, &mut [Row<'_>]) -> Result<Vec<f32>, ForwardError> + Send>;

/// Requests that are running, and what they share.
pub(super) struct Batcher {
    model: Arc<Model>,
    forward: Forward,
    pub(super) options: EngineOptions,
    /// In order of precedence.
    pub(super) active: Vec<Sequence>,
    /// Requests that ended in this step.
    ended: Vec<Sequence>,
    pub(super) pool: Arc<Pool>,
    pub(super) store: PrefixStore,
    shares: Shares,
    pub(super) stats: EngineStats,
}

/// Tokens that the attention memory of these options holds.
pub(super) fn memory_tokens(model: &Model, options: &EngineOptions) -> usize {
    options.cache_budget / BlockShape::new(model.config()).bytes().max(1) * BLOCK_TOKENS
}

impl Batcher {
    pub(super) fn new(model: Arc<Model>, forward: Forward, options: EngineOptions) -> Self {
        let blocks = memory_tokens(&model, &options) / BLOCK_TOKENS;
        Self {
            pool: Pool::new(BlockShape::new(model.config()), blocks),
            model,
            forward,
            options,
            active: Vec::new(),
            ended: Vec::new(),
            store: PrefixStore::default(),
            shares: Shares::default(),
            stats: EngineStats {
                blocks,
                blocks_free: blocks,
                ..EngineStats::default()
            },
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.active.is_empty()
    }

    /// Whether one more request of this priority and user may start now: one that goes before others may even
    /// when the batch is full, since it then takes the place of one of them. Of several the least goes first.
    pub(super) fn admits(&self, priority: Priority, user: &User) -> Option<(usize, u64)> {
        let places = self.options.max_batch.max(1);
        let rank = places::admits(&self.active, places, priority, user)?;
        Some((rank, self.shares.of(user)))
    }

    /// Takes a request on. It begins as soon as there is memory for it.
    pub(super) fn admit(&mut self, sequence: Sequence) {
        self.active.push(sequence);
        places::arrange(&mut self.active);
    }

    /// Runs one step.
    pub(super) fn step(&mut self) {
        self.drop_cancelled();
        self.store.sweep();
        self.shares.settle(self.active.iter().map(|one| &one.user));
        let seated = self.seat();
        let chunk = self.options.prefill_chunk.max(1);
        let mut counts = plan(&self.active, &seated, &self.shares, chunk);
        self.grow(&mut counts);
        let rows = counts.iter().filter(|count| **count > 0).count();
        if rows == 0 {
            return;
        }
        match self.run(&counts) {
            Ok((order, logits)) => {
                self.stats.count_step(rows);
                self.draw(&counts, &order, &logits);
            }
            Err(reason) => self.blame(&counts, rows, &reason),
        }
    }

    /// Fails everything that is running.
    pub(super) fn fail_all(&mut self, reason: &str) {
        for sequence in &mut self.active {
            sequence.fail(reason.to_owned());
            sequence.cache = None;
            self.stats.failed += 1;
        }
        self.ended.append(&mut self.active);
        self.store.clear();
    }

    /// Hands the events of the last step to their readers. It comes after the step is counted, so
    /// that whoever saw a reply's end sees it in the numbers as well.
    pub(super) fn deliver(&mut self) {
        self.active.iter_mut().for_each(Sequence::deliver);
        for mut sequence in self.ended.drain(..) {
            sequence.deliver();
        }
    }

    /// Brings the numbers that describe the present up to date.
    pub(super) fn measure(&mut self) {
        let stats = &mut self.stats;
        stats.running = self.active.len();
        stats.paused = self.active.iter().filter(|one| one.cache.is_none()).count();
        stats.blocks_free = self.pool.free();
        stats.blocks_kept = self.pool.kept();
        stats.blocks_shared = self.pool.shared();
        let bytes = self.pool.shape().bytes();
        stats.active_cache_bytes = self.pool.held() * bytes;
        stats.cache_bytes = stats.blocks_kept * bytes;
        stats.cache_entries = self.store.len();
    }

    fn drop_cancelled(&mut self) {
        let before = self.active.len();
        self.active.retain(|sequence| !sequence.is_cancelled());
        let gone = before - self.active.len();
        self.stats.cancelled += gone as u64;
        if gone > 0 {
            places::arrange(&mut self.active);
        }
    }

    /// Runs the planned tokens; gives the running requests in the order of their logits.
    fn run(&mut self, counts: &[usize]) -> Result<(Vec<usize>, Vec<f32>), String> {
        let base = &*self.model;
        let mut rows: Vec<(usize, &Model, Row<'_>)> = Vec::new();
        for (index, (sequence, count)) in self.active.iter_mut().zip(counts).enumerate() {
            let seen = sequence.seen();
            let Some(cache) = sequence.cache.as_mut().filter(|_| *count > 0) else {
                continue;
            };
            let tokens = sequence.tokens.get(seen..seen + count).unwrap_or_default();
            let model = sequence.served.model(base);
            if !model.same_shape(base) {
                return Err(format!(
                    "version {} was made for a model of another shape",
                    sequence.served.version
                ));
            }
            let adapter = sequence.served.adapter().map(Arc::as_ref);
            let row = Row {
                tokens,
                cache,
                adapter,
            };
            rows.push((index, model, row));
        }
        // Rows of one model run together, and those of one adapter lie together in it, so that its
        // matrices are multiplied once.
        rows.sort_by_key(|(_, model, row)| {
            let adapter = row.adapter.map_or(0, |a| std::ptr::from_ref(a) as usize);
            (std::ptr::from_ref(*model) as usize, adapter)
        });
        let (mut order, mut models) = (Vec::new(), Vec::new());
        let mut rows: Vec<Row<'_>> = rows
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
            Err(panic) => Err(format!("the model panicked: {}", message(panic.as_ref()))),
        }
    }

    /// Draws a token for each request that has run all of its tokens.
    fn draw(&mut self, counts: &[usize], order: &[usize], logits: &[f32]) {
        let vocab = self.model.config().vocab_size;
        let mut rows: Vec<Option<&[f32]>> = vec![None; self.active.len()];
        for (index, logits) in order.iter().zip(logits.chunks_exact(vocab)) {
            if let Some(row) = rows.get_mut(*index) {
                *row = Some(logits);
            }
        }
        for (sequence, count) in self.active.iter().zip(counts) {
            let in_prompt = (sequence.prompt + count)
                .saturating_sub(sequence.seen())
                .min(*count);
            self.stats.prefill_tokens += in_prompt as u64;
            self.shares.charge(&sequence.user, *count);
        }
        // Each request draws from its own random stream.
        let tasks = self.active.iter_mut().zip(rows).map(|(sequence, logits)| {
            let logits = logits.filter(|_| sequence.unseen() == 0);
            (&mut sequence.sampler, logits, None)
        });
        let mut tasks: Vec<_> = tasks.collect();
        let weight = logits.len() * PER_LOGIT;
        team::each_of(self.model.threads, &mut tasks, weight, |task| {
            let (sampler, logits, drawn) = task;
            *drawn = logits.map(|logits| sampler.draw(logits));
        });
        let drawn: Vec<_> = tasks.into_iter().map(|(_, _, drawn)| drawn).collect();
        let mut ended = Vec::with_capacity(self.active.len());
        for (sequence, drawn) in self.active.iter_mut().zip(drawn) {
            ended.push(match drawn {
                None => false,
                Some(Ok(drawn)) => {
                    self.stats.tokens_generated += 1;
                    let complete = sequence.accept(drawn);
                    if complete {
                        self.stats.finished += 1;
                        let keeps = self.options.prefix_reuse && sequence.shares;
                        if let Some(cache) = sequence.cache.take().filter(|_| keeps) {
                            self.store.keep(&sequence.served, &sequence.tokens, &cache);
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
        self.end(ended);
    }

    /// Takes the marked requests out of the batch.
    fn end(&mut self, marks: Vec<bool>) {
        let mut marks = marks.into_iter();
        let ended = self
            .active
            .extract_if(.., |_| marks.next().unwrap_or(false));
        self.ended.extend(ended.map(|mut sequence| {
            sequence.cache = None;
            sequence
        }));
        places::arrange(&mut self.active);
    }

    /// A step failed: its memory is worthless now. A request that was in it alone fails, many
    /// become suspects.
    fn blame(&mut self, counts: &[usize], rows: usize, reason: &str) {
        tracing::error!(rows, reason, "a step of the model failed");
        let involved = self
            .active
            .iter_mut()
            .zip(counts)
            .map(|(s, count)| (s, *count > 0));
        let mut ended = Vec::with_capacity(counts.len());
        for (sequence, involved) in involved {
            if involved {
                sequence.cache = None;
                sequence.suspect = true;
            }
            let guilty = involved && rows == 1;
            if guilty {
                sequence.fail(reason.to_owned());
                self.stats.failed += 1;
            }
            ended.push(guilty);
        }
        self.end(ended);
    }
}

/// What a panic said.
pub(super) fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
