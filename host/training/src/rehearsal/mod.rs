//! Rehearsal: replies to prompts that have nothing to do with the user, on which auxiliary losses keep the policy close to the
//! base model ([`crate::auxiliary`]).
//!
//! The base model replies to each prompt once, through the engine and behind all other requests; the replies are kept in
//! the data directory. How many prompts a step uses is a function of the version that it makes, and which ones a function of
//! the feedback in the journal: explicit requests for the opposite of what it asks for come first, since these are what a
//! wish that is learned too widely breaks; a section about a topic is skipped while the user asks about it. The policy
//! replies to some of these requests anew before each step: on-policy distillation (Agarwal et al. 2024, arXiv 2306.13649)
//! corrects what the policy begins to say and the base model seldom would. This module
//! computes no loss.

mod cache;
mod prompts;

use std::path::Path;
use std::sync::atomic::AtomicBool;

use clawhost_chat::Message;
use clawhost_engine::{Engine, LoadedVersion};
use sha2::{Digest, Sha256};

use crate::error::TrainingError;
use crate::generated_replies::{GeneratedReply, RenderedPrompt, generate_replies, hex};
use crate::shuffle::{numbered_permutation, permutation};
use cache::ReplyCache;
use clawhost_config::TrainingOptions;
pub(crate) use prompts::questions;
use prompts::{PromptSet, PromptUse};

/// One prompt in this many is held out from training.
const HELD_OUT_EVERY: usize = 8;
/// Separates the draws of the prompts that the policy replies to from others of the same seed.
const POLICY_DRAWS: u64 = 0x706f_6c69;

/// A reply to rehearse.
#[derive(Debug, Clone)]
pub(crate) struct RehearsedReply {
    pub(crate) reply: GeneratedReply,
    /// The policy's prompt where it has experience in it; none without any, or if that would be too long.
    pub(crate) with_experience: Option<Vec<u32>>,
}

/// The replies that a step uses.
#[derive(Debug, Default)]
pub(crate) struct RehearsalSet {
    /// Replies that updates draw from.
    pub(crate) train: Vec<RehearsedReply>,
    /// How many of them, at the start, are to explicit requests for the opposite of what the user's feedback asks for.
    pub(crate) contrary: usize,
    /// How many of these the policy gave.
    pub(crate) of_policy: usize,
    /// Replies to held-out prompts; empty if this version is not to be scored.
    pub(crate) held_out: Vec<RehearsedReply>,
    /// How many of them, at the start, are to such requests.
    pub(crate) held_out_contrary: usize,
    /// Digest of `train`.
    pub(crate) digest: String,
}

/// The step that rehearses.
#[derive(Debug)]
pub(crate) struct RehearsalStep<'a> {
    /// The version that it makes.
    pub(crate) version: u64,
    /// The recorded version that it starts from; none before the first step.
    pub(crate) policy: Option<&'a LoadedVersion>,
    /// What the user asks for.
    pub(crate) feedback: &'a [String],
    /// The first user messages of the conversations in the batch and its pairs.
    pub(crate) asked: &'a [String],
    /// Texts that take turns in the system messages of the prompts.
    pub(crate) experience: &'a [String],
}

/// The prompts in the order in which they get replies, and the replies so far.
pub(crate) struct Rehearsal {
    set: PromptSet,
    /// A permutation of the prompts.
    order: Vec<usize>,
    cache: ReplyCache,
}

/// Prompts of a step: first those that are contrary to the feedback.
struct Selected {
    prompts: Vec<RenderedPrompt>,
    contrary: usize,
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
        let set = PromptSet::load(&options.rehearsal)?;
        Ok(Some(Self {
            order: permutation(set.prompts.len(), options.seed),
            set,
            cache: ReplyCache::open(data, writable)?,
        }))
    }

    /// The replies for a step, with explicit requests for the opposite of what its feedback asks for. Lets the base model give the
    /// replies that are missing, and the policy its own.
    ///
    /// # Errors
    /// The engine gives no reply now, or the cache cannot be written; the step's samples stay queued.
    pub(crate) fn prepare(
        &mut self,
        engine: &Engine,
        options: &TrainingOptions,
        step: &RehearsalStep<'_>,
        stop: &AtomicBool,
    ) -> Result<RehearsalSet, TrainingError> {
        let version = step.version;
        let rehearsal = &options.rehearsal;
        let uses = self.set.uses(step.feedback, step.asked);
        let steps = usize::try_from(version.saturating_sub(1)).unwrap_or(usize::MAX);
        let count = steps
            .saturating_mul(rehearsal.new_replies)
            .saturating_add(rehearsal.first_replies);
        let train = self.select(engine, options, &uses, false, count);
        // A limit needs the divergence of each version.
        let scores = rehearsal.max_kl > 0.0 || version.is_multiple_of(rehearsal.report_every);
        let count = if scores { rehearsal.held_out } else { 0 };
        let held_out = self.select(engine, options, &uses, true, count);
        let missing: Vec<&RenderedPrompt> = train
            .prompts
            .iter()
            .chain(&held_out.prompts)
            .filter(|prompt| !self.cache.contains(&prompt.key))
            .collect();
        if !missing.is_empty() {
            tracing::info!(
                replies = missing.len(),
                "the base model replies to rehearsal prompts"
            );
            let base = LoadedVersion::base(engine.model());
            let replies = generate_replies(engine, options, &base, &missing, stop)?;
            self.cache.add(replies)?;
        }
        let experience = step.experience;
        let rehearse = |at: usize, prompt: &RenderedPrompt, reply: GeneratedReply| {
            let text = experience.get(at % experience.len().max(1));
            RehearsedReply {
                with_experience: text
                    .and_then(|text| prompt.with_experience(engine, text, reply.token_ids.len())),
                reply,
            }
        };
        let load = |selected: &Selected| -> Vec<RehearsedReply> {
            let reply = |(at, prompt): (usize, &RenderedPrompt)| {
                let reply = self.cache.get(&prompt.key).expect("its reply was added");
                rehearse(at, prompt, reply.clone())
            };
            selected.prompts.iter().enumerate().map(reply).collect()
        };
        let mut replies = load(&train);
        let of_policy = policy_replies(engine, options, step, &train, stop)?;
        let policy_count = of_policy.len();
        for (at, reply) in of_policy {
            replies[at] = rehearse(at, &train.prompts[at], reply);
        }
        let mut digest = Sha256::new();
        for RehearsedReply { reply, .. } in &replies {
            digest.update(&reply.key);
            for id in &reply.token_ids {
                digest.update(id.to_le_bytes());
            }
        }
        Ok(RehearsalSet {
            digest: hex(digest),
            contrary: train.contrary,
            of_policy: policy_count,
            held_out: load(&held_out),
            held_out_contrary: held_out.contrary,
            train: replies,
        })
    }

    /// The first `count` trained or held-out prompts that the model can read, with the configured share of contrary ones if
    /// there are so many.
    fn select(
        &self,
        engine: &Engine,
        options: &TrainingOptions,
        uses: &[PromptUse],
        held_out: bool,
        count: usize,
    ) -> Selected {
        let is_held_out = |index: usize| index % HELD_OUT_EVERY == HELD_OUT_EVERY - 1;
        let texts = |of: PromptUse| {
            let wanted =
                move |index: &&usize| uses[**index] == of && is_held_out(**index) == held_out;
            let order = self.order.iter().filter(wanted);
            order.map(|index| self.set.prompts[*index].text.as_str())
        };
        let wanted = share_of(count, options.rehearsal.contrary_share);
        let mut prompts = render_all(engine, options, texts(PromptUse::Contrary), wanted);
        let contrary = prompts.len();
        let unrelated = texts(PromptUse::Unrelated);
        prompts.extend(render_all(engine, options, unrelated, count - contrary));
        Selected { prompts, contrary }
    }
}

/// Replies of the step's policy to some of the explicit requests for the opposite, with their places among the selected prompts.
fn policy_replies(
    engine: &Engine,
    options: &TrainingOptions,
    step: &RehearsalStep<'_>,
    selected: &Selected,
    stop: &AtomicBool,
) -> Result<Vec<(usize, GeneratedReply)>, TrainingError> {
    let Some(policy) = step.policy else {
        return Ok(Vec::new());
    };
    let number = usize::try_from(step.version).unwrap_or(usize::MAX);
    let mut drawn = numbered_permutation(selected.contrary, options.seed ^ POLICY_DRAWS, number);
    drawn.truncate(options.rehearsal.policy_replies);
    let prompts: Vec<&RenderedPrompt> = drawn.iter().map(|at| &selected.prompts[*at]).collect();
    let replies = generate_replies(engine, options, policy, &prompts, stop)?;
    let keyed = replies.into_iter().map(|mut reply| {
        reply.key = format!("{}/{}", reply.key, policy.digest());
        reply
    });
    Ok(drawn.into_iter().zip(keyed).collect())
}

/// A share of a count, rounded up.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a count, at most the count"
)]
pub(crate) fn share_of(count: usize, share: f64) -> usize {
    (count as f64 * share).ceil() as usize
}

/// Most bytes of the replies in memory, and of the base model's scores of them. A prompt has at most as many tokens as bytes.
/// Prompts with experience are not counted: 4 bytes a token are little beside the scores.
///
/// # Errors
/// The prompts file cannot be read.
pub(crate) fn max_bytes(options: &TrainingOptions) -> Result<usize, TrainingError> {
    let rehearsal = &options.rehearsal;
    if !(options.enabled && rehearsal.enabled) {
        return Ok(0);
    }
    let prompts = PromptSet::load(rehearsal)?.prompts;
    let reply = rehearsal.max_tokens as usize;
    let ids: usize = prompts.iter().map(|prompt| prompt.text.len() + reply).sum();
    // Each id in the cache, in the step's copy and in what is scored; of each score the token and its log-prob.
    Ok((3 * ids + 2 * prompts.len() * reply * rehearsal.top_k) * size_of::<u32>())
}

/// The first `count` prompts that the model can read, rendered.
fn render_all<'a>(
    engine: &Engine,
    options: &TrainingOptions,
    prompts: impl Iterator<Item = &'a str>,
    count: usize,
) -> Vec<RenderedPrompt> {
    prompts
        .filter_map(
            |prompt| match RenderedPrompt::new(engine, options, &[Message::user(prompt)]) {
                Ok(rendered) => Some(rendered),
                Err(reason) => {
                    tracing::debug!(prompt, reason, "skipping a rehearsal prompt");
                    None
                }
            },
        )
        .take(count)
        .collect()
}
