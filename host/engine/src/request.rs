//! Requests to the engine and the events they produce.

use std::convert::Infallible;
use std::task::{Context, Poll};

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;

use super::loaded_version::LoadedVersion;
use super::options::Priority;
use crate::sampling::{ConstraintError, SamplingError, SamplingParams};

/// A request to generate one reply.
#[derive(Debug, Clone)]
pub struct GenerateRequest {
    /// Token ids of the rendered prompt.
    pub prompt: Vec<u32>,
    /// Sampling parameters and stop conditions.
    pub sampling: SamplingParams,
    /// The model version to run.
    pub version: LoadedVersion,
    /// Scheduling priority.
    pub priority: Priority,
    /// The user the request counts against for fair sharing, by any unique name. `None` groups all requests without a
    /// user.
    pub user: Option<String>,
}

/// Why the engine rejected a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The prompt leaves no room in the context for a reply.
    #[error(
        "the prompt has {prompt} tokens, but the maximum context length is {max} tokens including at least one token of reply; shorten the messages"
    )]
    ContextTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens that the context holds.
        max: usize,
    },
    /// The prompt does not fit even if it had the whole KV cache to itself.
    #[error(
        "the prompt has {prompt} tokens, but the KV cache holds {max} tokens including at least one token of reply; shorten the messages, or raise engine.kv_cache_memory"
    )]
    KvCacheTooSmall {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens that the KV cache holds.
        max: usize,
    },
    /// The waiting queue of this priority is full.
    #[error("the waiting queue is full ({waiting} of {limit} requests); try again later")]
    Busy {
        /// Waiting requests of this priority.
        waiting: usize,
        /// Maximum waiting requests.
        limit: usize,
    },
    /// A sampling parameter is out of range.
    #[error(transparent)]
    InvalidSampling(#[from] SamplingError),
    /// The structured-output constraint cannot be enforced.
    #[error(transparent)]
    InvalidConstraint(#[from] ConstraintError),
    /// The engine accepts no more requests.
    #[error("the engine is shutting down")]
    ShuttingDown,
    /// The prompt is empty.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// A token id of the prompt is not in the vocabulary.
    #[error("token id {id} of the prompt is outside the vocabulary of {vocab}")]
    UnknownToken {
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The backend cannot run the request now: a remote one does not respond, or the device has no memory for the
    /// request's weights.
    #[error("{0}")]
    Unavailable(String),
    /// The remote backend is overloaded.
    #[error("{reason}")]
    Overloaded {
        /// The backend's message.
        reason: String,
        /// Seconds to wait before a retry.
        retry_after_s: u64,
    },
    /// The remote backend does not support this request or cannot report what it did; the message names the fix.
    #[error("{0}")]
    Unsupported(String),
}

/// A reply being generated. Dropping it cancels the request at the next token.
#[derive(Debug)]
pub struct Generation {
    pub(super) events: UnboundedReceiver<Event>,
    ended: watch::Receiver<Option<Infallible>>,
    seed: u64,
    version: LoadedVersion,
}

impl Generation {
    /// Creates a generation and the engine's end of it.
    pub(super) fn new(seed: u64, version: LoadedVersion) -> (EventSender, Self) {
        let (events, receiver) = mpsc::unbounded_channel();
        let (ended, ended_receiver) = watch::channel(None);
        let sender = EventSender {
            events,
            _ended: ended,
        };
        let generation = Self {
            events: receiver,
            ended: ended_receiver,
            seed,
            version,
        };
        (sender, generation)
    }

    /// Resolves when the engine is done with the request, whether or not its events were read.
    pub fn wait_until_ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut ended = self.ended.clone();
        // The engine sends nothing on this channel; it closes when the engine drops its end.
        async move { while ended.changed().await.is_ok() {} }
    }

    /// The next event; `None` after [`Event::Finished`] or [`Event::Failed`].
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// [`Generation::next`] as a poll function, to read many generations at once.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_recv(context)
    }

    /// [`Generation::next`] for a thread outside any async runtime.
    pub fn blocking_next(&mut self) -> Option<Event> {
        self.events.blocking_recv()
    }

    /// Seed of the random stream, from the request or generated. The same request with it gives the same tokens.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The model version that generates the reply.
    pub fn version(&self) -> &LoadedVersion {
        &self.version
    }
}

/// The engine's end of a generation. Dropping it resolves [`Generation::wait_until_ended`].
#[derive(Debug)]
pub(super) struct EventSender {
    events: UnboundedSender<Event>,
    _ended: watch::Sender<Option<Infallible>>,
}

impl EventSender {
    /// Sends an event, unless the reader is gone.
    pub(super) fn send(&self, event: Event) {
        // The generating side detects a dropped reader with `is_closed` or `closed`.
        let _gone = self.events.send(event);
    }

    /// Whether the reader is gone.
    pub(super) fn is_closed(&self) -> bool {
        self.events.is_closed()
    }

    /// Resolves when the reader is gone.
    pub(super) async fn closed(&self) {
        self.events.closed().await;
    }
}

/// An event of a reply.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A token was sampled.
    Token(SampledToken),
    /// The reply is complete. The last event.
    Finished(CompletionOutput),
    /// The reply failed, with the reason. The last event; tokens already sent stay valid.
    Failed(String),
}

/// A sampled token. Logprobs are in nats. A logprob that a remote backend does not report is NaN until the reply is
/// complete; see [`CompletionOutput::reply_logprobs`].
#[derive(Debug, Clone, PartialEq)]
pub struct SampledToken {
    /// The token.
    pub id: u32,
    /// Under the distribution sampled from: after bias, penalties, constraint, temperature, min-p, top-k and top-p,
    /// renormalised. 0 when greedy, and where a constraint allowed only this token.
    pub logprob: f32,
    /// Under the full softmax at [`SamplingParams::full_temperature`], without bias, penalties and constraint: equal to
    /// the logprob from scoring the same tokens.
    pub full_logprob: f32,
    /// Under the model's own distribution, at temperature 1 without penalties: the logprob reported to chat clients,
    /// comparable with `top`.
    pub model_logprob: f32,
    /// The `top_logprobs` most likely tokens of the model's own distribution, with their logprobs.
    pub top: Vec<(u32, f32)>,
    /// A constraint allowed only this token, so the policy had no choice. Unknown, and false, with a remote backend.
    pub forced: bool,
    /// Text that became final with this token; may be empty.
    pub text: String,
}

/// Why a reply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// The model ended it, a stop string or stop token matched, or the structured output is complete.
    Stop,
    /// `max_tokens` or the maximum context length was reached.
    Length,
}

/// Logprobs of a whole reply that were not known while it was streamed.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplyLogprobs {
    /// As [`SampledToken::logprob`], one per token; NaN where unknown.
    pub logprobs: Vec<f32>,
    /// As [`SampledToken::full_logprob`], one per token.
    pub full_logprobs: Vec<f32>,
}

/// A complete reply.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletionOutput {
    /// Why it ended.
    pub reason: FinishReason,
    /// The stop string that ended it, if one did.
    pub stop: Option<String>,
    /// Text that was held back until the end.
    pub text: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens sampled, the one that ended the reply included.
    pub completion_tokens: usize,
    /// Prompt tokens taken from a cached or shared prefix instead of being prefilled.
    pub cached_tokens: usize,
    /// Logprobs that replace those of the token events; `None` if those are final.
    pub reply_logprobs: Option<ReplyLogprobs>,
}
