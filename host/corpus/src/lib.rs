//! The small worlds the embedded policy is pretrained on, and its tokenizer.
//!
//! A [`Recipe`] is one file. From it follow, bit for bit on any machine: every [`Conversation`] of
//! the corpus (homework talk, comments on answers, small talk, and noise around them), the
//! tokenizer, the chat template and the other text files of the checkpoint, and the [`Example`]s
//! that pretraining sees. [`probes`] are held-out prompts to measure the result with.
//!
//! It trains no model and runs none. Personas and scorers of the evaluation are not here: they must
//! not be the code that the policy was raised on.

mod conversation;
mod dice;
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
mod scenes;
mod small_talk;
mod vocabulary;
mod words;

pub use conversation::{Conversation, Message, Role, World};
pub use dice::Dice;
pub use encoding::{CHAT_TEMPLATE, EncodeError, Example, tokenize};
pub use grading::{Grading, Manner, Mistake, grading_reply};
pub use hint::{HINT_MARKER, HINT_MARKER_VARIANTS, hinted};
pub use homework::{Style, homework_reply};
pub use layout::{CheckpointFile, SERVED_TEMPERATURE};
pub use problem::Problem;
pub use recipe::{
    Decay, GradingShares, HomeworkShares, LossWeights, Mixture, ModelShape, NoiseShares,
    OptimizerRecipe, Recipe, RecipeError, TokenizerRecipe,
};
pub use scenes::Operation;
pub use vocabulary::{END_OF_TEXT, MESSAGE_END, MESSAGE_START, VocabularyError};
pub use words::Split;
