//! What is asked of the engine and what comes back.

use std::convert::Infallible;
use std::task::{Context, Poll};

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;

use super::options::Priority;
use super::served::Served;
use crate::sampling::{ConstraintError, Sampling, SamplingError};

/// One reply to generate.
#[derive(Debug, Clone)]
pub struct GenerateRequest {
    /// Token ids of the rendered prompt.
    pub prompt: Vec<u32>,
    /// How to draw and when to end.
    pub sampling: Sampling,
    /// The version to answer with.
    pub served: Served,
    /// Who is waiting.
    pub priority: Priority,
    /// The user it is for, by any name that tells users apart: equals share the engine. None = those without a name,
    /// together.
    pub user: Option<String>,
}

/// Why a request was not taken on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The prompt leaves no room for a reply.
    #[error(
        "the prompt has {prompt} tokens, but the context holds {max} with at least one of reply; shorten the messages"
    )]
    ContextTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens that the context holds.
        max: usize,
    },
    /// The prompt would not fit if it had all attention memory to itself.
    #[error(
        "the prompt has {prompt} tokens, but the attention memory holds {max} with at least one of reply; shorten the messages, or raise engine.cache_megabytes"
    )]
    MemoryTooSmall {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens that the attention memory holds.
        max: usize,
    },
    /// Too many requests wait already.
    #[error("{waiting} requests are waiting and {limit} may; try again later")]
    Busy {
        /// Waiting requests of this priority.
        waiting: usize,
        /// Most that may wait.
        limit: usize,
    },
    /// A sampling option is out of range.
    #[error(transparent)]
    BadSampling(#[from] SamplingError),
    /// The form that is asked of the reply cannot be enforced.
    #[error(transparent)]
    BadConstraint(#[from] ConstraintError),
    /// The engine takes on nothing more.
    #[error("the engine is shutting down")]
    ShuttingDown,
    /// There is nothing to continue.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// The prompt was made for another vocabulary.
    #[error("token id {id} of the prompt is outside the vocabulary of {vocab}")]
    UnknownToken {
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The program that generates elsewhere cannot be reached or does not answer.
    #[error("{0}")]
    Unavailable(String),
    /// The program that generates elsewhere has too much to do.
    #[error("{reason}")]
    Overloaded {
        /// What it said.
        reason: String,
        /// Seconds after which it may be asked again.
        retry_after_s: u64,
    },
    /// The program that generates elsewhere cannot do this, or not say what it did; names what would mend it.
    #[error("{0}")]
    Unsupported(String),
}

/// A reply that is being generated. Dropping it cancels the request at the next token.
#[derive(Debug)]
pub struct Generation {
    pub(super) events: UnboundedReceiver<Event>,
    ended: watch::Receiver<Option<Infallible>>,
    seed: u64,
    served: Served,
}

impl Generation {
    /// A generation that nothing was sampled for yet, and the engine's end of it.
    pub(super) fn new(seed: u64, served: Served) -> (EventSender, Self) {
        let (events, receiver) = mpsc::unbounded_channel();
        let (ended, is_ended) = watch::channel(None);
        let sender = EventSender {
            events,
            _ended: ended,
        };
        let generation = Self {
            events: receiver,
            ended: is_ended,
            seed,
            served,
        };
        (sender, generation)
    }

    /// Resolves when the engine is done with the request, whether or not its events were read.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut ended = self.ended.clone();
        // The engine sends nothing here; the channel closes when it drops its end.
        async move { while ended.changed().await.is_ok() {} }
    }

    /// The next event; none after [`Event::Finished`] or [`Event::Failed`].
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// [`Generation::next`] for whoever reads many at once.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_recv(context)
    }

    /// [`Generation::next`] for a thread outside any async runtime.
    pub fn blocking_next(&mut self) -> Option<Event> {
        self.events.blocking_recv()
    }

    /// Seed of the random stream, given or drawn: with it the same request gives the same tokens.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The version that answers.
    pub fn served(&self) -> &Served {
        &self.served
    }
}

/// The engine's end of a generation. Dropping it resolves [`Generation::ended`].
#[derive(Debug)]
pub(super) struct EventSender {
    events: UnboundedSender<Event>,
    _ended: watch::Sender<Option<Infallible>>,
}

impl EventSender {
    /// Sends an event, unless the reader is gone.
    pub(super) fn send(&self, event: Event) {
        // Whoever generates notices by `is_closed` or `closed` that the reader is gone.
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

/// What happens to a reply.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A token was sampled.
    Token(SampledToken),
    /// The reply is complete. The last event.
    Finished(Finished),
    /// The reply ended early, with the reason. The last event; tokens already sent stay valid.
    Failed(String),
}

/// A token as it was drawn. Log-probs are in nats. Where another program generates, one that it cannot tell is
/// NaN until the reply is complete; see [`Finished::recorded`].
#[derive(Debug, Clone, PartialEq)]
pub struct SampledToken {
    /// The token.
    pub id: u32,
    /// Under the distribution really drawn from: after bias, penalties, constraint, temperature, min-p,
    /// top-k and top-p, renormalised. 0 when greedy, and where a constraint left no other token.
    pub logprob: f32,
    /// Under the full softmax at [`Sampling::full_temperature`], without bias, penalties and
    /// constraint: what scoring the same tokens gives.
    pub full_logprob: f32,
    /// Under the model's own distribution, at temperature 1 without penalties: what chat clients
    /// are shown, on one scale with `top`.
    pub model_logprob: f32,
    /// The likeliest tokens of the model's own distribution, as many as `top_logprobs` asked for.
    pub top: Vec<(u32, f32)>,
    /// A constraint left no other token, so that the policy had no choice. Where another program generates it cannot
    /// be known and is false.
    pub forced: bool,
    /// Text that became final with this token; may be empty.
    pub text: String,
}

/// How a reply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// The model ended it, or a stop string or stop token did, or its form was complete.
    Stop,
    /// `max_tokens` or the context ended it.
    Length,
}

/// Log-probs of a whole reply that were not known as it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    /// As [`SampledToken::logprob`], one per token; NaN where it cannot be known.
    pub logprobs: Vec<f32>,
    /// As [`SampledToken::full_logprob`], one per token.
    pub full_logprobs: Vec<f32>,
}

/// A complete reply.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// How it ended.
    pub reason: FinishReason,
    /// The stop string that ended it, if one did.
    pub stop: Option<String>,
    /// Text that was still held back and is final now.
    pub text: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens sampled, the one that ended the reply included.
    pub completion_tokens: usize,
    /// Tokens of the prompt that another request had already run.
    pub cached_tokens: usize,
    /// What stands in the place of the log-probs that its tokens came with; none where those stand.
    pub recorded: Option<Recorded>,
}
