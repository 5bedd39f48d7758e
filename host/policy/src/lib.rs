//! The engine: checkpoints, tokenizer, chat template, batching, sampling, adapters, gradients.
//!
//! One frozen base in memory serves every request, scores recorded tokens and is what the trainer
//! differentiates through; an adapter is a few megabytes beside it. Serving and training run the same
//! forward pass, so the log-probabilities that were served and those that train agree by construction.
//!
//! It refuses to know what a session, a judge or a loss is.

mod background;
mod cache;
mod config;
mod engine;
mod error;
mod files;
mod grad;
mod learned;
mod lora;
mod model;
mod ops;
mod remade;
mod sampling;
mod tensors;
mod text;
mod weights;

pub use background::Background;
pub use cache::KvCache;
pub use config::{ModelConfig, RopeScaling};
pub use engine::{
    Activate, Elsewhere, Engine, EngineOptions, EngineStats, Event, FinishReason, Finished,
    GenerateRequest, Generation, NotReleased, NotReplayed, Priority, Recorded, Refused, Replay,
    Replayed, Reply, SampledToken, Served, measure,
};
pub use error::{ForwardError, LoadError};
pub use files::ModelFiles;
pub use grad::{Candidates, Gradients, Partials, Scored, Sequence, TrainPass, Trained};
pub use learned::Learned;
pub use lora::{Adapter, LoraSpec, Target};
pub use model::{Model, Row};
pub use sampling::{
    Answer, Callable, Calls, Constraint, ConstraintError, Sampling, SamplingError, SchemaError,
    check_schema,
};
pub use text::{
    ArgumentForm, CallForm, CallParts, ChatInput, ChatTemplate, ParsedReply, ReasoningForm,
    ReplyForm, ReplyParser, ReplyPiece, ReplyStyle, TemplateError, TokenStream, Tokenizer,
    TokenizerError, ToolCall, ToolTypes, opens_reasoning, parse_reply,
};
