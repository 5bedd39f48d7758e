//! The inference engine: checkpoint loading, tokenizer, chat template, scheduler, paged KV cache, sampler, LoRA
//! adapters and gradients.
//!
//! One frozen base model in memory serves every request, scores recorded tokens and is what the trainer
//! differentiates through; an adapter adds a few megabytes. Serving and training run the same forward pass, so the
//! logprobs recorded while serving and those computed in training agree by construction.
//!
//! This crate does not depend on sessions, judges or losses.

mod background;
mod cache;
mod config;
mod derived;
mod engine;
mod error;
mod files;
mod grad;
mod lora;
mod model;
mod ops;
mod sampling;
mod tensors;
mod text;
mod trained_weights;
mod weights;

pub use background::BackgroundWork;
pub use cache::KvCache;
pub use config::{ModelConfig, RopeScaling};
pub use engine::{
    ActivateVersion, CompletionOutput, Engine, EngineOptions, EngineStats, Event, FinishReason,
    GenerateRequest, Generation, LoadedVersion, Priority, PublishError, RemoteBackend, Replay,
    ReplayError, ReplayOutput, ReplyLogprobs, SampledToken, SubmitError, TokenSink, measure,
};
pub use error::{ForwardError, LoadError};
pub use files::ModelFiles;
pub use grad::{
    Candidates, GradientTarget, Gradients, LossGradients, Sequence, SequenceScores, TrainPass,
};
pub use lora::{Adapter, LoraSpec, Target};
pub use model::{BatchRow, Model};
pub use sampling::{
    CallableTool, Constraint, ConstraintError, ResponseFormat, SamplingError, SamplingParams,
    SchemaError, ToolCallConstraint, check_schema,
};
pub use text::{
    ArgumentFormat, ChatInput, ChatTemplate, Detokenizer, ParsedReply, ReasoningFormat, ReplyDelta,
    ReplyFormat, ReplyParser, ReplyParserOptions, TemplateError, Tokenizer, TokenizerError,
    ToolCall, ToolCallFormat, ToolCallSyntax, ToolSchemas, opens_reasoning, parse_reply,
};
pub use trained_weights::TrainedWeights;
