//! A vLLM or SGLang server that generates in the place of the engine's own batcher.
//!
//! The policy's weights are in this process as well: training differentiates through them, its tokenizer and
//! template make the prompts, and every claim of the server is checked against them. Only generation goes to
//! the server. [`Remote::connect`] asks it for a few tokens first and refuses it, with the reason and the flag
//! that mends it, when it returns no ids or log-probs, has other weights, or takes no adapters.
//!
//! A room of its own, so that the policy knows no HTTP: it implements [`clawhost_policy::Elsewhere`] and is handed
//! to the engine by the program, as other capabilities are. It refuses to invent: a log-prob that the server cannot
//! tell is computed by the model here, or is recorded as unknown, which keeps the reply out of training.

mod adapters;
mod calls;
mod error;
mod http;
mod keeping;
mod lines;
mod meaning;
mod options;
mod probe;
mod remote;
mod replying;
mod rescoring;
mod wire;

pub use error::RemoteError;
pub use meaning::Reports;
pub use options::{Kind, RemoteOptions};
pub use remote::Remote;
