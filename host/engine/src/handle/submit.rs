//! Submitting requests: what rejects one, and how it reaches a scheduler or a remote backend.

use std::sync::Arc;

use clawhost_chat::Tokenizer;

use super::Engine;
use crate::options::Priority;
use crate::remote_backend::TokenSink;
use crate::request::{GenerateRequest, Generation, SubmitError};
use crate::sampling::SamplingError;
use crate::sequence::Sequence;

impl Engine {
    /// Submits a request. Its reply ends at the maximum context length or at the end of the KV cache, whatever
    /// `max_tokens` is. A constraint that is not compiled yet is compiled first, on this thread: milliseconds, seconds
    /// at worst.
    ///
    /// # Errors
    /// Why the request is rejected. None of it has run.
    pub fn generate(&self, request: GenerateRequest) -> Result<Generation, SubmitError> {
        self.enqueue(request, Arc::clone(&self.inner.eos_token_ids), true, None)
    }

    /// Submits requests that start in the same step, without the KV cache of earlier requests. Where rounding depends on the
    /// shape of a step, such requests get the same replies each time that they run with no others beside them. A remote
    /// backend gets them one after the other.
    ///
    /// # Errors
    /// As [`Engine::generate`]; none of them runs then, except with a remote backend those before the rejected one, which are
    /// cancelled.
    pub fn generate_together(
        &self,
        requests: Vec<GenerateRequest>,
    ) -> Result<Vec<Generation>, SubmitError> {
        if !self.generates_locally() {
            return requests
                .into_iter()
                .map(|request| self.generate(request))
                .collect();
        }
        let sequences = requests.into_iter().map(|request| {
            self.validate(&request)?;
            self.sequence(request, Arc::clone(&self.inner.eos_token_ids), false, None)
        });
        let sequences: Vec<_> = sequences.collect::<Result<_, SubmitError>>()?;
        let (sequences, generations) = sequences.into_iter().unzip();
        self.push(sequences)?;
        Ok(generations)
    }

    /// [`Engine::generate`] of a reply that only `max_tokens` ends, without prefix sharing, for benchmarks.
    pub(crate) fn generate_unshared(
        &self,
        request: GenerateRequest,
    ) -> Result<Generation, SubmitError> {
        self.enqueue(request, Arc::new([]), false, None)
    }

    /// [`Engine::generate`] with the local scheduler, even if a remote backend is set, of a reply that takes its tokens
    /// from a record.
    pub(crate) fn generate_recorded(
        &self,
        request: GenerateRequest,
        reply: Arc<[u32]>,
    ) -> Result<Generation, SubmitError> {
        self.enqueue(request, Arc::new([]), true, Some(reply))
    }

    fn enqueue(
        &self,
        request: GenerateRequest,
        eos_token_ids: Arc<[u32]>,
        shares_prefix: bool,
        recorded: Option<Arc<[u32]>>,
    ) -> Result<Generation, SubmitError> {
        self.validate(&request)?;
        let backend = self.inner.remote_backend.get();
        if let Some(backend) = backend.filter(|_| shares_prefix && recorded.is_none()) {
            // The remote server enforces the constraint as well.
            let mut request = request;
            let eos_token_ids = request.sampling.stop_tokens(eos_token_ids);
            let tokenizer = Arc::clone(&self.inner.tokenizer);
            let (sink, generation) =
                TokenSink::new(&mut request, eos_token_ids, self.context(), tokenizer);
            backend.submit(request, sink)?;
            return Ok(generation);
        }
        let (sequence, generation) =
            self.sequence(request, eos_token_ids, shares_prefix, recorded)?;
        self.push(vec![sequence])?;
        Ok(generation)
    }

    /// Rejects a request that no backend can run.
    fn validate(&self, request: &GenerateRequest) -> Result<(), SubmitError> {
        let GenerateRequest {
            prompt, sampling, ..
        } = request;
        let max = self.context();
        if prompt.len() >= max {
            return Err(SubmitError::ContextTooLong {
                prompt: prompt.len(),
                max,
            });
        }
        if prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        let vocab = self.config().vocab_size;
        if let Some(id) = prompt.iter().find(|id| **id as usize >= vocab) {
            return Err(SubmitError::UnknownToken { id: *id, vocab });
        }
        sampling.validate()?;
        sampling.validate_tokens(vocab)?;
        Ok(())
    }

    /// Prepares a request for the local scheduler.
    fn sequence(
        &self,
        mut request: GenerateRequest,
        eos_token_ids: Arc<[u32]>,
        shares_prefix: bool,
        recorded: Option<Arc<[u32]>>,
    ) -> Result<(Sequence, Generation), SubmitError> {
        let tokenizer = Arc::clone(&self.inner.tokenizer);
        let capacity = self.kv_cache_tokens();
        if request.prompt.len() >= capacity {
            return Err(SubmitError::KvCacheTooSmall {
                prompt: request.prompt.len(),
                max: capacity,
            });
        }
        let banned = banned_sequences(&tokenizer, &request.sampling.bad_words)?;
        let constraint = request.sampling.constraint.as_ref();
        let grammar = constraint.map(|constraint| self.inner.compiler.matcher(constraint));
        request
            .version
            .load(self.backend())
            .map_err(|error| SubmitError::Unavailable(error.to_string()))?;
        let (mut sequence, generation) = Sequence::new(
            request,
            eos_token_ids,
            grammar.transpose()?,
            self.context().min(capacity),
            tokenizer,
        );
        sequence.shares_prefix = shares_prefix;
        let sampler = sequence.sampler.as_mut();
        let sampler = sampler.expect("the request is not admitted yet");
        (sampler.banned, sampler.recorded) = (banned, recorded);
        Ok((sequence, generation))
    }

    /// Gives requests to one replica, that of the first.
    fn push(&self, mut sequences: Vec<Sequence>) -> Result<(), SubmitError> {
        let dispatcher = &self.inner.dispatcher;
        let Some((first, rest)) = sequences.split_first_mut() else {
            return Ok(());
        };
        let (version, prompt) = (first.version.version, &first.tokens);
        let (replica, dispatched) = dispatcher.dispatch(version, prompt, first.shares_prefix);
        first.dispatched = Some(dispatched);
        for sequence in rest {
            sequence.dispatched = Some(dispatcher.count(replica));
        }
        let queues = self.inner.replicas.iter().map(|one| &one.waiting_queue);
        let others = queues.enumerate().filter(|(index, _)| *index != replica);
        // Counted before the queue is locked: no thread holds the locks of two queues.
        let waiting_in_others = Priority::ALL.map(|priority| {
            let waiting = others
                .clone()
                .map(|(_, queue)| queue.lock().waiting_with(priority));
            waiting.sum()
        });
        let limit = self.inner.options.max_waiting_requests;
        let queue = &self.inner.replicas[replica].waiting_queue;
        queue.push(sequences, limit, waiting_in_others)
    }
}

/// Token sequences of banned words, at the start of a text and after a space.
fn banned_sequences(
    tokenizer: &Tokenizer,
    words: &[String],
) -> Result<Vec<Vec<u32>>, SamplingError> {
    let mut sequences = Vec::new();
    for word in words {
        for text in [
            word.trim_start().to_owned(),
            format!(" {}", word.trim_start()),
        ] {
            let tokens = tokenizer.encode(&text).map_err(|_| SamplingError {
                field: "bad_words",
                value: word.clone(),
                allowed: "words that the tokenizer can encode",
            })?;
            sequences.push(tokens);
        }
    }
    sequences.sort_unstable();
    sequences.dedup();
    Ok(sequences)
}
