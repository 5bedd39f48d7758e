//! The auxiliary losses that later steps can use again. What the base model says about a pair or a reply never changes, so it
//! is scored once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use clawhost_engine::SequenceScores;
use clawhost_journal::{PreferencePair, TurnId};

use crate::auxiliary::term::{AuxiliaryTerm, PairObjective};
use crate::few_shot::FewShotReply;
use crate::rehearsal::RehearsedReply;

/// What a loss is about. Recorded turns and cached replies do not change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum TermKey {
    Pair(Option<TurnId>, TurnId),
    Reply(String),
    FewShot(String),
}

/// The losses of earlier steps, with the base model's scores.
#[derive(Debug, Clone, Default)]
pub(crate) struct TermCache(Arc<Mutex<BTreeMap<TermKey, Arc<AuxiliaryTerm>>>>);

impl TermCache {
    /// The losses of the pairs; `score` scores a new one under the base model. Forgets those of other pairs.
    pub(super) fn pairs<E>(
        &self,
        pairs: &[PreferencePair],
        objective: PairObjective,
        score: impl Fn(&AuxiliaryTerm) -> Result<Vec<SequenceScores>, E>,
    ) -> Result<Vec<Arc<AuxiliaryTerm>>, E> {
        let key = |pair: &PreferencePair| TermKey::Pair(pair.turns.rejected, pair.turns.accepted);
        let build = |pair: &PreferencePair| AuxiliaryTerm::pair(pair, objective);
        let is_pair = |key: &TermKey| matches!(key, TermKey::Pair(..));
        self.terms(pairs, key, build, is_pair, score)
    }

    /// The divergences on replies without examples and experience; `score` as above. Forgets those of other replies.
    pub(super) fn replies<E>(
        &self,
        replies: &[RehearsedReply],
        top_k: usize,
        score: impl Fn(&AuxiliaryTerm) -> Result<Vec<SequenceScores>, E>,
    ) -> Result<Vec<Arc<AuxiliaryTerm>>, E> {
        let key = |rehearsed: &RehearsedReply| TermKey::Reply(rehearsed.reply.key.clone());
        let build = |rehearsed: &RehearsedReply| AuxiliaryTerm::divergence(&rehearsed.reply, top_k);
        let is_reply = |key: &TermKey| matches!(key, TermKey::Reply(_));
        self.terms(replies, key, build, is_reply, score)
    }

    /// The divergences on replies after examples, with the examples in the policy's prompt; `score` as above. Forgets those of
    /// other replies.
    pub(super) fn few_shot<E>(
        &self,
        replies: &[FewShotReply],
        top_k: usize,
        score: impl Fn(&AuxiliaryTerm) -> Result<Vec<SequenceScores>, E>,
    ) -> Result<Vec<Arc<AuxiliaryTerm>>, E> {
        let key = |few_shot: &FewShotReply| TermKey::FewShot(few_shot.reply.key.clone());
        let build = |few_shot: &FewShotReply| AuxiliaryTerm::divergence(&few_shot.reply, top_k);
        let is_few_shot = |key: &TermKey| matches!(key, TermKey::FewShot(_));
        self.terms(replies, key, build, is_few_shot, score)
    }

    fn terms<T, E>(
        &self,
        items: &[T],
        key: impl Fn(&T) -> TermKey,
        build: impl Fn(&T) -> AuxiliaryTerm,
        same_kind: impl Fn(&TermKey) -> bool,
        score: impl Fn(&AuxiliaryTerm) -> Result<Vec<SequenceScores>, E>,
    ) -> Result<Vec<Arc<AuxiliaryTerm>>, E> {
        // Scores are inserted whole, so a panic leaves nothing half done.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut terms = Vec::with_capacity(items.len());
        for item in items {
            let key = key(item);
            let term = match known.get(&key) {
                Some(term) => Arc::clone(term),
                None => {
                    let mut term = build(item);
                    let scored = score(&term)?;
                    term.set_reference(scored);
                    let term = Arc::new(term);
                    known.insert(key.clone(), Arc::clone(&term));
                    term
                }
            };
            terms.push((key, term));
        }
        let used: BTreeMap<TermKey, ()> = terms.iter().map(|(key, _)| (key.clone(), ())).collect();
        known.retain(|key, _| !same_kind(key) || used.contains_key(key));
        Ok(terms.into_iter().map(|(_, term)| term).collect())
    }
}
