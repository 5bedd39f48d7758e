//! The synthetic conversations that the embedded model is trained on, and its tokenizer.
//!
//! A [`Recipe`] determines every [`Conversation`] (homework, comments on answers, small talk, and noise around them),
//! the tokenizer, the chat template and the other text files of the checkpoint.

mod conversation;
mod encoding;
mod generator;
pub(crate) mod grading;
mod hint;
pub(crate) mod homework;
mod layout;
mod noise;
mod recipe;
pub(crate) mod small_talk;
mod vocabulary;

pub use conversation::{Conversation, Message, Role, World};
pub use encoding::{CHAT_TEMPLATE, EncodeError, tokenize};
pub use grading::{Manner, grading_reply};
pub use hint::{HINT_MARKER, HINT_MARKER_VARIANTS, append_hint};
pub use homework::{Style, homework_reply};
pub use layout::{CheckpointFile, SERVED_TEMPERATURE};
pub use recipe::{
    GradingShares, HomeworkShares, LossWeights, Mixture, ModelShape, NoiseShares, OptimizerRecipe,
    Recipe, RecipeError, TokenizerRecipe,
};
pub use vocabulary::{END_OF_TEXT, MESSAGE_END, MESSAGE_START, VocabularyError};
