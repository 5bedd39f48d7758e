//! The HTTP surface over a real socket, with a real engine on a model whose replies are known.
//!
//! One file per promise; `model` builds the model, `server` starts a gateway on it, `chain` keeps its versions.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail by panicking"
)]

mod adapters;
mod chain;
mod chat;
mod completions;
mod continuing;
mod cors;
mod dialects;
mod disconnect;
mod document;
mod encoding;
mod feedback;
mod fields;
mod health;
mod https;
mod keys;
mod load;
mod messages;
mod model;
mod operator;
mod ownership;
mod recording;
mod refusals;
mod responses;
mod server;
mod sessions;
mod shutdown;
mod stalled;
mod streaming;
mod structured;
mod tokenize;
mod tool_arguments;
mod tools;
