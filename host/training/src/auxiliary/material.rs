//! What the auxiliary losses of a step draw from: pairs from the journal, and the base model's replies.

use clawhost_engine::Engine;
use clawhost_journal::{AdapterOwner, Journal, PairQuery, PreferencePair};

use crate::auxiliary::term::PairObjective;
use crate::auxiliary::terms::TermCache;
use crate::error::TrainingError;
use crate::few_shot::FewShotReply;
use crate::rehearsal::RehearsalSet;
use clawhost_config::TrainingOptions;

/// What the auxiliary losses of a step draw from.
#[derive(Debug, Default)]
pub(crate) struct AuxiliaryMaterial {
    /// The loss of pairs; none if they are not trained on.
    pub(crate) objective: Option<PairObjective>,
    /// Newest pairs first. Only an objective trains on them.
    pub(crate) pairs: Vec<PreferencePair>,
    /// The base model's replies; none without rehearsal.
    pub(crate) rehearsal: Option<RehearsalSet>,
    /// The base model's replies after examples; empty without few-shot distillation.
    pub(crate) few_shot: Vec<FewShotReply>,
    /// Most likely tokens that the rehearsal compares.
    pub(crate) top_k: usize,
    /// The losses of earlier steps.
    pub(crate) terms: TermCache,
}

impl AuxiliaryMaterial {
    /// Reads the pairs of an owner. A pair that the model cannot read, or that is longer than a sample may be, is left out. The caller
    /// adds the rehearsal.
    pub(crate) fn load(
        journal: &Journal,
        engine: &Engine,
        options: &TrainingOptions,
        owner: Option<&AdapterOwner>,
        terms: TermCache,
        started_ms: i64,
    ) -> Result<Self, TrainingError> {
        let config = engine.model().config();
        let objective = PairObjective::from_options(&options.pairs);
        let mut pairs = Vec::new();
        // Without a loss of their own, pairs are examples.
        if objective.is_some() || options.few_shot.coef > 0.0 {
            let max_age = i64::try_from(options.pairs.max_age.as_millis()).unwrap_or(i64::MAX);
            pairs = journal.preference_pairs(&PairQuery {
                with_kept: objective.is_some_and(|objective| !objective.compares()),
                owner: owner.cloned(),
                since_ms: started_ms.saturating_sub(max_age),
                max_tokens: max_sample_tokens(options, config.max_position_embeddings),
                limit: options.pairs.window,
                newest_complaints: options.pairs.newest_complaints,
                change_complaints: options.pairs.change_complaints,
            })?;
            let known = |id: &u32| (*id as usize) < config.vocab_size;
            pairs.retain(|pair| {
                let rejected = pair.rejected.iter().flat_map(|reply| &reply.token_ids);
                let tokens = pair.prompt_ids.iter().chain(&pair.chosen.token_ids);
                tokens.chain(rejected).all(known)
            });
        }
        Ok(Self {
            objective,
            pairs,
            rehearsal: None,
            few_shot: Vec::new(),
            terms,
            top_k: options.rehearsal.top_k.min(config.vocab_size),
        })
    }
}

/// Tokens of a sample, prompt included, at most.
pub(crate) fn max_sample_tokens(options: &TrainingOptions, context: usize) -> usize {
    match options.max_sample_tokens {
        0 => context,
        limit => limit.min(context),
    }
}
