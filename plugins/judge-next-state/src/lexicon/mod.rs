//! The words and phrases that the rules know.
//!
//! General English, grouped by what it tells. A weight of 1 is enough to decide a rule. Phrases
//! use up their words, so that "thanks for nothing" never counts as thanks.

mod classes;
mod phrases;
mod table;
mod words;

pub(crate) use classes::{Class, Classes, class, classes};
pub(crate) use phrases::{BLAME, PRAISE};
pub(crate) use words::{blame, praise};
