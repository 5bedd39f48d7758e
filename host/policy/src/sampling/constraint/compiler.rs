//! Makes grammars of constraints, once each, off the engine's thread.
//!
//! A schema comes from whoever sends a request. So what it may cost is bounded: its size, the states of
//! its grammar, the work of one token, and the time that is waited for it. A grammar that takes longer
//! goes on in a thread of its own, of which there are few; replies without a constraint never notice.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use sha2::{Digest, Sha256};

use super::form::Constraint;
use super::grammar;
use super::guide::{Guide, shorten};
use super::schema::SchemaError;
use crate::text::{CallForm, Tokenizer, is_structural};

/// Grammars that are kept.
const KEPT: usize = 64;

/// Grammars that are made at once.
const AT_ONCE: usize = 2;

/// Longest wait for a grammar. The first one of a process makes the vocabulary's tree as well.
const PATIENCE: Duration = Duration::from_secs(5);

/// Stack of a thread that makes a grammar: schemas are walked by recursion.
const STACK: usize = 64 << 20;

/// Longest token in bytes that can be part of a constrained reply.
const LONGEST_TOKEN: usize = 512;

/// Why a constraint is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// A schema cannot be enforced.
    #[error("the schema{} is refused: {error}", tool.as_ref().map(|name| format!(" of the tool `{name}`")).unwrap_or_default())]
    Schema {
        /// The tool whose arguments it describes; none for the answer's.
        tool: Option<String>,
        /// Place and reason.
        error: SchemaError,
    },
    /// No grammar can be made of it.
    #[error("the form that is asked of the reply is refused: {0}")]
    Refused(String),
    /// Making the grammar takes too long.
    #[error("the schema takes more than {} s to compile; make it simpler", PATIENCE.as_secs())]
    TooSlow,
    /// Too many grammars are being made.
    #[error("{AT_ONCE} other schemas are being compiled; try again shortly")]
    Busy,
}

impl From<SchemaError> for ConstraintError {
    fn from(error: SchemaError) -> Self {
        Self::Schema { tool: None, error }
    }
}

impl ConstraintError {
    /// Names the tool whose schema it is.
    pub(super) fn of_tool(self, name: &str) -> Self {
        match self {
            Self::Schema { error, .. } => Self::Schema {
                tool: Some(name.to_owned()),
                error,
            },
            other => other,
        }
    }
}

type Key = [u8; 32];

/// A grammar and whether it went wrong in use.
struct Compiled {
    fresh: Matcher,
    spoiled: Arc<AtomicBool>,
}

impl Compiled {
    fn guide(&self) -> Guide {
        Guide::new(self.fresh.clone(), Arc::clone(&self.spoiled))
    }
}

/// Grammars over one vocabulary.
pub(crate) struct Compiler {
    tokenizer: Arc<Tokenizer>,
    /// Rows of the model's head; at least as many as the tokenizer has tokens.
    vocab: usize,
    ends: Arc<[u32]>,
    /// How the model writes calls.
    calls: CallForm,
    factory: OnceLock<Result<ParserFactory, String>>,
    /// The last used last.
    kept: Mutex<VecDeque<(Key, Compiled)>>,
    at_work: AtomicUsize,
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiler")
            .field("vocab", &self.vocab)
            .field("at_work", &self.at_work)
            .finish_non_exhaustive()
    }
}

impl Compiler {
    /// A compiler for a model of `vocab` tokens that ends its replies with one of `ends` and writes `calls` in
    /// its way.
    pub(crate) fn new(
        tokenizer: Arc<Tokenizer>,
        vocab: usize,
        ends: Arc<[u32]>,
        calls: CallForm,
    ) -> Self {
        Self {
            tokenizer,
            vocab,
            ends,
            calls,
            factory: OnceLock::new(),
            kept: Mutex::new(VecDeque::new()),
            at_work: AtomicUsize::new(0),
        }
    }

    /// A guide at the beginning of a reply. Takes as long as making the grammar does, unless it is known.
    ///
    /// # Errors
    /// What is wrong with the constraint, or that it cannot be made now.
    pub(crate) fn guide(
        self: &Arc<Self>,
        constraint: &Constraint,
    ) -> Result<Guide, ConstraintError> {
        let grammar = grammar::write(constraint, self.calls)?;
        let key: Key = Sha256::digest(grammar.as_bytes()).into();
        if let Some(guide) = self.known(&key) {
            return Ok(guide);
        }
        let compiled = Arc::clone(self).compile(grammar)?;
        let guide = compiled.guide();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= KEPT {
            kept.pop_front();
        }
        kept.push_back((key, compiled));
        Ok(guide)
    }

    /// Takes all places, as schemas that never end would.
    #[cfg(test)]
    pub(super) fn occupy(&self) {
        self.at_work.store(AT_ONCE, Ordering::Relaxed);
    }

    fn known(&self, key: &Key) -> Option<Guide> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(_, compiled)| !compiled.spoiled.load(Ordering::Relaxed));
        let at = kept.iter().position(|(known, _)| known == key)?;
        let entry = kept.remove(at)?;
        let guide = entry.1.guide();
        kept.push_back(entry);
        Some(guide)
    }

    /// Makes a grammar in a thread of its own and waits for it, but not for ever.
    fn compile(self: Arc<Self>, grammar: String) -> Result<Compiled, ConstraintError> {
        let place = Place::take(&self).ok_or(ConstraintError::Busy)?;
        let (send, made) = sync_channel(1);
        let work = move || {
            let made = catch_unwind(AssertUnwindSafe(|| place.0.make(grammar)));
            drop(place);
            // Nobody may be waiting any more.
            let _gone = send.send(made.unwrap_or_else(|_| Err("it broke the compiler".to_owned())));
        };
        let thread = std::thread::Builder::new()
            .name("clawhost-grammar".to_owned())
            .stack_size(STACK);
        thread
            .spawn(work)
            .map_err(|error| ConstraintError::Refused(error.to_string()))?;
        match made.recv_timeout(PATIENCE) {
            Ok(Ok(fresh)) => Ok(Compiled {
                fresh,
                spoiled: Arc::default(),
            }),
            Ok(Err(reason)) => Err(ConstraintError::Refused(reason)),
            Err(RecvTimeoutError::Timeout) => Err(ConstraintError::TooSlow),
            Err(RecvTimeoutError::Disconnected) => {
                Err(ConstraintError::Refused("it broke the compiler".to_owned()))
            }
        }
    }

    fn make(&self, grammar: String) -> Result<Matcher, String> {
        let factory = self.factory.get_or_init(|| self.factory());
        let factory = factory.as_ref().map_err(Clone::clone)?;
        let parser = factory
            .create_parser(TopLevelGrammar::from_lark(grammar))
            .map_err(|error| shorten(&format!("{error:#}")))?;
        let mut matcher = Matcher::new(Ok(parser));
        // The first mask is the dearest and tells whether anything is allowed at all.
        matcher
            .compute_mask()
            .map_err(|error| shorten(&error.to_string()))?;
        Ok(matcher)
    }

    /// The vocabulary as a tree of bytes.
    fn factory(&self) -> Result<ParserFactory, String> {
        // A model without a token of its own for the end gets one that it can never draw.
        let none = u32::try_from(self.vocab).map_err(|error| error.to_string())?;
        let words: Vec<Vec<u8>> = (0..=none).map(|id| self.word(id)).collect();
        let trie = TokTrie::from(&TokRxInfo::new(none + 1, none), &words);
        let ends: Vec<u32> = self.ends.iter().copied().filter(|id| *id < none).collect();
        let trie = if ends.is_empty() {
            trie
        } else {
            trie.with_eos_tokens(&ends)
        };
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&env).map_err(|error| error.to_string())?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.verbose_errors = false;
        // What a row may cost in one step, some four milliseconds at worst, and what a grammar may hold.
        limits.step_lexer_fuel = 60_000;
        limits.step_max_items = 40_000;
        limits.max_lexer_states = 30_000;
        limits.max_grammar_size = 200_000;
        Ok(factory)
    }

    /// Bytes by which a token is found. Special tokens are marked, so that no text is ever spelled with one, save
    /// those whose text is part of a reply.
    fn word(&self, id: u32) -> Vec<u8> {
        let bytes = self.tokenizer.spelled_bytes(id);
        let special = self.tokenizer.special_text(id);
        let word = if special.is_some_and(|text| !is_structural(text)) {
            let mut marked = vec![TokTrie::SPECIAL_TOKEN_MARKER];
            marked.extend(bytes);
            marked
        } else {
            bytes
        };
        if word.len() > LONGEST_TOKEN {
            Vec::new()
        } else {
            word
        }
    }
}

/// One of the few places for making a grammar; free again when it is dropped.
struct Place(Arc<Compiler>);

impl Place {
    fn take(compiler: &Arc<Compiler>) -> Option<Self> {
        let taken = compiler
            .at_work
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                (taken < AT_ONCE).then_some(taken + 1)
            });
        taken.ok().map(|_| Self(Arc::clone(compiler)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.at_work.fetch_sub(1, Ordering::Relaxed);
    }
}
