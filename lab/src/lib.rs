//! How the embedded model came to be: its corpus, its tokenizer, its pretraining and its model card.
//!
//! A [`Recipe`] is one file. It determines, bit for bit on any machine, every conversation of the [corpus](corpus) and
//! the tokenizer; [`train_checkpoint`] pretrains the recipe's model on them and measures it. The weights are the same
//! on the same kind of processor, for any number of threads.
//!
//! This is a workspace of its own: the product links none of it, and only loads the checkpoint that it wrote. The
//! problems of the conversations come from [`clawhost_evaluation::problems`], whose held-out split the evaluation keeps
//! for itself; the personas' words and the scorer are used in tests only.
//!
//! ```
//! use clawhost_lab::corpus::Recipe;
//!
//! let recipe = Recipe::embedded()?;
//! let conversation = recipe.conversation(7);
//! assert_eq!(conversation, recipe.conversation(7));
//! assert!(conversation.replies().count() >= 1);
//! # Ok::<(), clawhost_lab::corpus::RecipeError>(())
//! ```
//!
//! [`Recipe`]: corpus::Recipe

mod card;
mod checkpoint;
pub mod corpus;
pub mod pretrain;
pub mod probes;

pub use card::ModelCard;
pub use checkpoint::train_checkpoint;

#[cfg(test)]
mod calibration;
