//! Rehearsal: replies of the base model to prompts that have nothing to do with the user, from which auxiliary losses keep
//! the policy close to the base model ([`crate::auxiliary`]).
//!
//! The base model replies to each prompt once, through the engine and behind all other requests; the replies are kept in
//! the data directory. How many prompts have a reply is a function of the version that a step makes, so that a step depends
//! on the version and the cached replies alone. This module computes no loss.

mod cache;
mod generate;
mod prompts;

use std::path::Path;
use std::sync::atomic::AtomicBool;

use clawhost_engine::Engine;
use sha2::{Digest, Sha256};

use crate::auxiliary::permutation;
use crate::error::TrainingError;
pub(crate) use cache::RehearsalReply;
use cache::ReplyCache;
use clawhost_config::TrainingOptions;
use generate::hex;
use generate::{RenderedPrompt, generate_replies, render};

/// One prompt in this many is held out from training.
const HELD_OUT_EVERY: usize = 8;

/// The replies that a step uses.
#[derive(Debug, Default)]
pub(crate) struct RehearsalSet {
    /// Replies that updates draw from.
    pub(crate) train: Vec<RehearsalReply>,
    /// Replies to held-out prompts; empty if this version is not to be scored.
    pub(crate) held_out: Vec<RehearsalReply>,
    /// Digest of `train`.
    pub(crate) digest: String,
}

/// The prompts in the order in which they get replies, and the replies so far.
pub(crate) struct Rehearsal {
    train: Vec<String>,
    held_out: Vec<String>,
    cache: ReplyCache,
}

impl Rehearsal {
    /// Reads prompts and cached replies; none if `training.rehearsal` is off. With `writable` false, new replies are kept
    /// in memory only.
    ///
    /// # Errors
    /// The prompts file or the cache cannot be read.
    pub(crate) fn open(
        data: &Path,
        options: &TrainingOptions,
        writable: bool,
    ) -> Result<Option<Self>, TrainingError> {
        if !(options.enabled && options.rehearsal.enabled) {
            return Ok(None);
        }
        let prompts = prompts::load(options.rehearsal.prompts_file.as_deref())?;
        let is_held_out = |index: usize| index % HELD_OUT_EVERY == HELD_OUT_EVERY - 1;
        let select = |held_out: bool| -> Vec<String> {
            permutation(prompts.len(), options.seed)
                .into_iter()
                .filter(|&index| is_held_out(index) == held_out)
                .map(|index| prompts[index].clone())
                .collect()
        };
        Ok(Some(Self {
            train: select(false),
            held_out: select(true),
            cache: ReplyCache::open(data, writable)?,
        }))
    }

    /// The replies for the step that makes `version`. Lets the base model give those that are missing.
    ///
    /// # Errors
    /// The engine gives no reply now, or the cache cannot be written; the step's samples stay queued.
    pub(crate) fn prepare(
        &mut self,
        engine: &Engine,
        options: &TrainingOptions,
        version: u64,
        stop: &AtomicBool,
    ) -> Result<RehearsalSet, TrainingError> {
        let rehearsal = &options.rehearsal;
        let steps = usize::try_from(version.saturating_sub(1)).unwrap_or(usize::MAX);
        let count = steps
            .saturating_mul(rehearsal.new_replies)
            .saturating_add(rehearsal.first_replies);
        let train = render_all(engine, options, &self.train, count);
        // A limit needs the divergence of each version.
        let scores = rehearsal.max_kl > 0.0 || version.is_multiple_of(rehearsal.report_every);
        let held_out = match scores {
            true => render_all(engine, options, &self.held_out, rehearsal.held_out),
            false => Vec::new(),
        };
        let missing: Vec<&RenderedPrompt> = train
            .iter()
            .chain(&held_out)
            .filter(|prompt| !self.cache.contains(&prompt.key))
            .collect();
        if !missing.is_empty() {
            tracing::info!(
                replies = missing.len(),
                "the base model replies to rehearsal prompts"
            );
            let replies = generate_replies(engine, options, &missing, stop)?;
            self.cache.add(replies)?;
        }
        let load = |prompts: &[RenderedPrompt]| -> Vec<RehearsalReply> {
            prompts
                .iter()
                .map(|prompt| {
                    self.cache
                        .get(&prompt.key)
                        .expect("its reply was added")
                        .clone()
                })
                .collect()
        };
        let train = load(&train);
        let mut digest = Sha256::new();
        for reply in &train {
            digest.update(&reply.key);
            for id in &reply.token_ids {
                digest.update(id.to_le_bytes());
            }
        }
        Ok(RehearsalSet {
            digest: hex(digest),
            held_out: load(&held_out),
            train,
        })
    }
}

/// Most bytes of the replies in memory, and of the base model's scores of those that a step uses. A prompt has at most as
/// many tokens as bytes.
///
/// # Errors
/// The prompts file cannot be read.
pub(crate) fn max_bytes(options: &TrainingOptions) -> Result<usize, TrainingError> {
    let rehearsal = &options.rehearsal;
    if !(options.enabled && rehearsal.enabled) {
        return Ok(0);
    }
    let prompts = prompts::load(rehearsal.prompts_file.as_deref())?;
    let reply = rehearsal.max_tokens as usize;
    let ids: usize = prompts.iter().map(|prompt| prompt.len() + reply).sum();
    let updates = options.num_epochs * options.num_minibatches;
    let drawn = updates.saturating_mul(rehearsal.replies_per_update);
    let scored = (drawn + rehearsal.held_out).min(prompts.len());
    // Each id in the cache and in the step's copy; of each score the token and its log-prob.
    Ok((2 * ids + 2 * scored * reply * rehearsal.top_k) * size_of::<u32>())
}

/// The first `count` prompts that the model can read, rendered.
fn render_all(
    engine: &Engine,
    options: &TrainingOptions,
    prompts: &[String],
    count: usize,
) -> Vec<RenderedPrompt> {
    prompts
        .iter()
        .filter_map(|prompt| match render(engine, options, prompt) {
            Ok(rendered) => Some(rendered),
            Err(reason) => {
                tracing::debug!(prompt, reason, "skipping a rehearsal prompt");
                None
            }
        })
        .take(count)
        .collect()
}
