//! The synthetic pretraining corpus of the embedded model, and its tokenizer.
//!
//! A [`Recipe`] is one file. It determines, bit for bit on any machine: every [`Conversation`] of the corpus (homework,
//! comments on answers, small talk, and noise around them), the tokenizer, the chat template and the other text files
//! of the checkpoint, and the [`Example`]s of pretraining. [`probes`] are held-out prompts that measure the result.
//!
//! This crate trains and runs no model. The personas and scorers of the evaluation are not here: they must not share
//! code with the training data.

mod conversation;
mod encoding;
mod generator;
mod grading;
mod hint;
mod homework;
mod layout;
mod noise;
mod phrase;
pub mod probes;
mod problem;
mod recipe;
mod rng;
mod scenes;
mod small_talk;
mod vocabulary;
mod words;

pub use conversation::{Conversation, Message, Role, World};
pub use encoding::{CHAT_TEMPLATE, EncodeError, Example, tokenize};
pub use grading::{Grading, Manner, Mistake, grading_reply};
pub use hint::{HINT_MARKER, HINT_MARKER_VARIANTS, append_hint};
pub use homework::{Style, homework_reply};
pub use layout::{CheckpointFile, SERVED_TEMPERATURE};
pub use problem::Problem;
pub use recipe::{
    Decay, GradingShares, HomeworkShares, LossWeights, Mixture, ModelShape, NoiseShares,
    OptimizerRecipe, Recipe, RecipeError, TokenizerRecipe,
};
pub use rng::CorpusRng;
pub use scenes::Operation;
pub use vocabulary::{END_OF_TEXT, MESSAGE_END, MESSAGE_START, VocabularyError};
pub use words::Split;
