//! Increments of a message.

/// An increment of the assistant's message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Delta {
    Content(String),
    Reasoning(String),
    Call {
        index: usize,
        id: String,
        name: String,
    },
    Arguments {
        index: usize,
        json: String,
    },
}
