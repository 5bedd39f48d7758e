//! The words and phrases of the rules.
//!
//! General English, grouped by meaning. A weight of 1 is enough to decide a rule. Phrases consume their words, so that
//! "thanks for nothing" never counts as thanks.

mod classes;
mod lookup;
mod phrases;
mod table;
mod words;

pub(crate) use classes::Class;
pub(crate) use lookup::{blame, class, classes, praise};
pub(crate) use phrases::{BLAME, PRAISE};
