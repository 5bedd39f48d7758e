//! HTTP tests over a real socket, with a real engine and a model with predictable replies.
//!
//! One file per topic; `model` builds the model, `server` starts a gateway, `releases` manages adapter versions.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may fail by panicking"
)]

mod adapters;
mod chat;
mod chromium;
mod completions;
mod continuing;
mod cors;
mod dialects;
mod disconnect;
mod document;
mod encoding;
mod events;
mod experience;
mod feedback;
mod fields;
mod health;
mod https;
mod keys;
mod load;
mod messages;
mod model;
mod operator;
mod owners;
mod ownership;
mod page;
mod page_in_browser;
mod recording;
mod refusals;
mod releases;
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
