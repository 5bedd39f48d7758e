//! The steps: choose rows, run the model, draw tokens, end what is complete.
//!
//! A step that fails is not the end of its requests. Each runs by itself from then on, from its
//! recorded tokens, until it has its next token or is known to be the one to blame; only that one
//! fails.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::options::{EngineOptions, Priority};
use super::plan::plan;
use super::prefix::{self, PrefixStore};
use super::sequence::Sequence;
use super::stats::EngineStats;
use crate::error::ForwardError;
use crate::model::{Model, Row};

/// The model's forward pass, as a seam: tests watch it and make it fail.
pub(super) type Forward =
    Box<dyn FnMut(&Model, &mut [Row<'_>]) -> Result<Vec<f32>, ForwardError> + Send>;

/// Requests that are running, and what they share.
pub(super) struct Batcher {
    model: Arc<Model>,
    forward: Forward,
    options: EngineOptions,
    /// In order of precedence: priority, then arrival.
    active: Vec<Sequence>,
    /// Requests that ended in this step.
    ended: Vec<Sequence>,
    store: PrefixStore,
    pub(super) stats: EngineStats,
}

impl Batcher {
    pub(super) fn new(model: Arc<Model>, forward: Forward, options: EngineOptions) -> Self {
        let budget = if options.prefix_reuse {
            options.cache_budget
        } else {
            0
        };
        Self {
            model,
            forward,
            options,
            active: Vec::new(),
            ended: Vec::new(),
            store: PrefixStore::new(budget),
            stats: EngineStats::default(),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.active.is_empty()
    }

    /// Whether a request of this priority may start now: a higher one may even when the batch is
    /// full, since it then takes the place of a lower one.
    pub(super) fn admits(&self, priority: Priority) -> bool {
        let before = self
            .active
            .iter()
            .filter(|other| other.priority <= priority)
            .count();
        before < self.options.max_batch.max(1)
    }

    /// Takes a request on.
    pub(super) fn admit(&mut self, sequence: Sequence) {
        let precedence = (sequence.priority, sequence.order);
        let place = self
            .active
            .partition_point(|other| (other.priority, other.order) <= precedence);
        self.active.insert(place, sequence);
    }

    /// Runs one step.
    pub(super) fn step(&mut self) {
        self.drop_cancelled();
        let waits = self.begin();
        let chunk = self.options.prefill_chunk.max(1);
        let counts = plan(&self.active, &waits, self.options.max_batch.max(1), chunk);
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
        self.stats.running = self.active.len();
        self.stats.active_cache_bytes = self
            .active
            .iter()
            .filter_map(|s| s.cache.as_ref())
            .map(|cache| cache.bytes())
            .sum();
        self.stats.cache_bytes = self.store.bytes();
        self.stats.cache_entries = self.store.len();
    }

    fn drop_cancelled(&mut self) {
        let before = self.active.len();
        self.active.retain(|sequence| !sequence.is_cancelled());
        self.stats.cancelled += (before - self.active.len()) as u64;
    }

    /// Gives memory to requests that have none yet, as much of it as others can lend, and marks those
    /// that had better wait: one before them is just running the prompt that they share.
    fn begin(&mut self) -> Vec<bool> {
        let mut waits = vec![false; self.active.len()];
        let batch = self.options.max_batch.max(1).min(self.active.len());
        for index in 0..batch {
            let (before, rest) = self.active.split_at_mut(index);
            let Some((sequence, after)) = rest.split_first_mut() else {
                break;
            };
            if sequence.cache.is_some() {
                continue;
            }
            let most = sequence.tokens.len() - 1;
            let mut held = 0;
            let mut lender = None;
            let mut coming = 0;
            if self.options.prefix_reuse && sequence.shares {
                held = self
                    .store
                    .longest(&sequence.served, &sequence.tokens)
                    .min(most);
                for (place, peer) in before.iter().chain(after.iter()).enumerate() {
                    let lends = peer.shares && !peer.suspect;
                    if !lends || !peer.served.same_weights(&sequence.served) {
                        continue;
                    }
                    let shared = prefix::common(&peer.tokens, &sequence.tokens).min(most);
                    if shared.min(peer.seen()) > held {
                        held = shared.min(peer.seen());
                        lender = peer.cache.as_ref();
                    }
                    if place < index && peer.unseen() > 1 {
                        coming = coming.max(shared);
                    }
                }
            }
            if coming >= held + prefix::LEAST && !sequence.suspect {
                if let Some(flag) = waits.get_mut(index) {
                    *flag = true;
                }
                continue;
            }
            let lent = match lender {
                _ if held < prefix::LEAST => None,
                Some(cache) => Some(prefix::copy(cache, held)),
                None => self.store.lend(&sequence.served, &sequence.tokens, most),
            };
            let cache = lent.unwrap_or_else(|| self.model.new_cache());
            if sequence.tokens.len() == sequence.prompt {
                sequence.reused = cache.len();
                self.stats.cached_tokens += cache.len() as u64;
            }
            sequence.cache = Some(cache);
        }
        waits
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
        let mut ended = vec![false; self.active.len()];
        for (index, logits) in order.iter().zip(logits.chunks_exact(vocab)) {
            let (Some(sequence), Some(ended)) =
                (self.active.get_mut(*index), ended.get_mut(*index))
            else {
                continue;
            };
            let count = counts.get(*index).copied().unwrap_or(0);
            let in_prompt = (sequence.prompt + count)
                .saturating_sub(sequence.seen())
                .min(count);
            self.stats.prefill_tokens += in_prompt as u64;
            if sequence.unseen() > 0 {
                continue;
            }
            match sequence.sampler.draw(logits) {
                Ok(drawn) => {
                    self.stats.tokens_generated += 1;
                    if sequence.accept(drawn) {
                        self.stats.finished += 1;
                        *ended = true;
                        if let Some(cache) = sequence.cache.take().filter(|_| sequence.shares) {
                            let tokens = std::mem::take(&mut sequence.tokens);
                            self.store.keep(&sequence.served, tokens, cache);
                        }
                    }
                }
                Err(error) => {
                    sequence.fail(error.to_string());
                    self.stats.failed += 1;
                    *ended = true;
                }
            }
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
