//! Reads what a reaction says about the reply of an assistant: of a person, or of a tool.
//!
//! Rules and a small linear model, for the first-party judge and hint extractor. [`of_user`] decides in this order and abstains in
//! doubt: mockery; nothing decided yet; acceptance with a wish for later replies; cues against and for the reply, where a
//! later one and one after "but" counts more; and a statement that contradicts the reply (`compare`). Quotations, questions,
//! new tasks and answers to a question of the assistant are no reaction. [`of_tools`] reads exit codes, errors and summaries
//! of tests.
//!
//! In English, `doubt` drops or turns what the words around a cue speak against, and `facts` reads short statements without
//! cues; `model` then weighs all words and confirms, drops or replaces the reading: a verdict should be rare rather than wrong.
//!
//! The phrases of each language are tables in `languages`, matched by the small matchers of `pattern` (words) and `scan`
//! (text without spaces); English has rules of its own in `english`. All tables are parsed at compile time. The rules do not
//! assess the reply itself, and text about scores has no effect.

mod by_cues;
mod cleaning;
mod compare;
mod compiled;
mod cue;
mod doubt;
mod english;
mod facts;
mod languages;
mod model;
mod pattern;
mod quotations;
mod reading;
mod scan;
mod seen;
mod speech;
mod spoken;
mod tools;
mod words;

#[cfg(test)]
mod development;

pub use cleaning::spoken;
pub use reading::{Kind, Reading};

/// Reads the words of a person, as [`spoken`] returns them, after `reply` to `request`. None means that nothing can be told.
pub fn of_user(text: &str, request: &str, reply: &str) -> Option<Reading> {
    spoken::see(text, request, reply)?.reading
}

/// Reads the results of tools; `call` is the text of the calls. None means that nothing can be told.
pub fn of_tools(results: &[String], call: &str) -> Option<Reading> {
    tools::read_all(results, call)
}
