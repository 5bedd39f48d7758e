//! Compiles constraints to grammars, off the engine thread, and caches them.
//!
//! A schema is untrusted client input, so its cost is bounded: its size, the states of its grammar, the work per token,
//! and the compile time. A compilation that times out continues on its own thread, and few of them may run at once;
//! requests without a constraint are not affected.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use sha2::{Digest, Sha256};

use super::constraint_error::{COMPILE_TIMEOUT, ConstraintError, MAX_CONCURRENT};
use super::grammar;
use super::matcher::{GrammarMatcher, truncate_reason};
use clawhost_chat::{Constraint, Tokenizer, ToolCallFormat, is_structural};

/// Number of cached grammars.
const CACHE_SIZE: usize = 64;

/// Stack size of a compile thread: schemas are traversed recursively.
const COMPILE_STACK_BYTES: usize = 64 << 20;

/// Maximum length in bytes of a token that may appear in a constrained reply.
const MAX_TOKEN_BYTES: usize = 512;

type Key = [u8; 32];

/// A compiled grammar: its initial state, and whether it failed in use.
struct CachedGrammar {
    initial: Matcher,
    failed: Arc<AtomicBool>,
}

impl CachedGrammar {
    fn matcher(&self) -> GrammarMatcher {
        GrammarMatcher::new(self.initial.clone(), Arc::clone(&self.failed))
    }
}

/// Compiles and caches grammars over one vocabulary.
pub struct GrammarCompiler {
    tokenizer: Arc<Tokenizer>,
    /// Rows of the LM head; at least the tokenizer's vocabulary size.
    vocab: usize,
    eos_token_ids: Arc<[u32]>,
    /// Tool-call format of the model.
    calls: ToolCallFormat,
    factory: OnceLock<Result<ParserFactory, String>>,
    /// In LRU order, most recently used last.
    cache: Mutex<VecDeque<(Key, CachedGrammar)>>,
    compiling: AtomicUsize,
}

impl std::fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarCompiler")
            .field("vocab", &self.vocab)
            .field("compiling", &self.compiling)
            .finish_non_exhaustive()
    }
}

impl GrammarCompiler {
    /// Creates a compiler for a model with `vocab` tokens, these EOS tokens and this tool-call format.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        vocab: usize,
        eos_token_ids: Arc<[u32]>,
        calls: ToolCallFormat,
    ) -> Self {
        Self {
            tokenizer,
            vocab,
            eos_token_ids,
            calls,
            factory: OnceLock::new(),
            cache: Mutex::new(VecDeque::new()),
            compiling: AtomicUsize::new(0),
        }
    }

    /// Returns a matcher at the start of a reply. Blocks while the grammar is compiled, unless it is cached.
    ///
    /// # Errors
    /// What is wrong with the constraint, or that it cannot be compiled now.
    pub fn matcher(
        self: &Arc<Self>,
        constraint: &Constraint,
    ) -> Result<GrammarMatcher, ConstraintError> {
        let grammar = grammar::to_lark(constraint, self.calls)?;
        let key: Key = Sha256::digest(grammar.as_bytes()).into();
        if let Some(matcher) = self.lookup(&key) {
            return Ok(matcher);
        }
        let compiled = Arc::clone(self).compile(grammar)?;
        let matcher = compiled.matcher();
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= CACHE_SIZE {
            cache.pop_front();
        }
        cache.push_back((key, compiled));
        Ok(matcher)
    }

    /// Occupies all compile slots, as compilations that never end would.
    #[cfg(feature = "testing")]
    pub fn occupy_all_slots(&self) {
        self.compiling.store(MAX_CONCURRENT, Ordering::Relaxed);
    }

    fn lookup(&self, key: &Key) -> Option<GrammarMatcher> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.retain(|(_, compiled)| !compiled.failed.load(Ordering::Relaxed));
        let index = cache.iter().position(|(known, _)| known == key)?;
        let entry = cache.remove(index)?;
        let matcher = entry.1.matcher();
        cache.push_back(entry);
        Some(matcher)
    }

    /// Compiles a grammar on its own thread and waits for it, at most [`COMPILE_TIMEOUT`].
    fn compile(self: Arc<Self>, grammar: String) -> Result<CachedGrammar, ConstraintError> {
        let slot = CompileSlot::acquire(&self).ok_or(ConstraintError::Busy)?;
        let (send, receiver) = sync_channel(1);
        let work = move || {
            let result = catch_unwind(AssertUnwindSafe(|| slot.0.compile_grammar(grammar)));
            drop(slot);
            // The request may have timed out.
            let _gone = send
                .send(result.unwrap_or_else(|_| Err("the grammar compiler panicked".to_owned())));
        };
        let thread = std::thread::Builder::new()
            .name("clawhost-grammar".to_owned())
            .stack_size(COMPILE_STACK_BYTES);
        thread
            .spawn(work)
            .map_err(|error| ConstraintError::Invalid(error.to_string()))?;
        match receiver.recv_timeout(COMPILE_TIMEOUT) {
            Ok(Ok(initial)) => Ok(CachedGrammar {
                initial,
                failed: Arc::default(),
            }),
            Ok(Err(reason)) => Err(ConstraintError::Invalid(reason)),
            Err(RecvTimeoutError::Timeout) => Err(ConstraintError::TooSlow),
            Err(RecvTimeoutError::Disconnected) => Err(ConstraintError::Invalid(
                "the grammar compiler panicked".to_owned(),
            )),
        }
    }

    fn compile_grammar(&self, grammar: String) -> Result<Matcher, String> {
        let factory = self.factory.get_or_init(|| self.build_factory());
        let factory = factory.as_ref().map_err(Clone::clone)?;
        let parser = factory
            .create_parser(TopLevelGrammar::from_lark(grammar))
            .map_err(|error| truncate_reason(&format!("{error:#}")))?;
        let mut matcher = Matcher::new(Ok(parser));
        // The first mask is the most expensive, and fails if nothing is allowed at all.
        matcher
            .compute_mask()
            .map_err(|error| truncate_reason(&error.to_string()))?;
        Ok(matcher)
    }

    /// Builds the parser factory with the vocabulary as a byte trie.
    fn build_factory(&self) -> Result<ParserFactory, String> {
        // A model without EOS token gets an id outside its vocabulary, which is never sampled.
        let none = u32::try_from(self.vocab).map_err(|error| error.to_string())?;
        let tokens: Vec<Vec<u8>> = (0..=none).map(|id| self.token_bytes(id)).collect();
        let trie = TokTrie::from(&TokRxInfo::new(none + 1, none), &tokens);
        let eos_token_ids: Vec<u32> = self
            .eos_token_ids
            .iter()
            .copied()
            .filter(|id| *id < none)
            .collect();
        let trie = if eos_token_ids.is_empty() {
            trie
        } else {
            trie.with_eos_tokens(&eos_token_ids)
        };
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&env).map_err(|error| error.to_string())?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.verbose_errors = false;
        // Limits of the cost of one row per step (about 4 ms at worst) and of the grammar size.
        limits.step_lexer_fuel = 60_000;
        limits.step_max_items = 40_000;
        limits.max_lexer_states = 30_000;
        limits.max_grammar_size = 200_000;
        Ok(factory)
    }

    /// Bytes of a token in the trie. Special tokens are marked so that they never match text, except those whose text
    /// is part of a reply.
    fn token_bytes(&self, id: u32) -> Vec<u8> {
        let bytes = self.tokenizer.spelled_bytes(id);
        let special = self.tokenizer.special_text(id);
        let bytes = if special.is_some_and(|text| !is_structural(text)) {
            let mut marked = vec![TokTrie::SPECIAL_TOKEN_MARKER];
            marked.extend(bytes);
            marked
        } else {
            bytes
        };
        if bytes.len() > MAX_TOKEN_BYTES {
            Vec::new()
        } else {
            bytes
        }
    }
}

/// One of the compile slots; released on drop.
struct CompileSlot(Arc<GrammarCompiler>);

impl CompileSlot {
    fn acquire(compiler: &Arc<GrammarCompiler>) -> Option<Self> {
        let running =
            compiler
                .compiling
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |running| {
                    (running < MAX_CONCURRENT).then_some(running + 1)
                });
        running.ok().map(|_| Self(Arc::clone(compiler)))
    }
}

impl Drop for CompileSlot {
    fn drop(&mut self) {
        self.0.compiling.fetch_sub(1, Ordering::Relaxed);
    }
}
