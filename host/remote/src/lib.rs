//! The remote backend: a vLLM or SGLang server that generates in place of the engine's own scheduler.
//!
//! The model's weights are also loaded in this process: training computes gradients with them, its tokenizer and chat
//! template build the prompts, and the server's log-probs are checked against them. Only generation goes to the server.
//! [`HttpBackend::connect`] first requests a few tokens and rejects the server, with the reason and the flag that fixes
//! it, if it returns no token ids or log-probs, has other weights, or cannot load adapters.
//!
//! This is a separate crate so that the engine crate does not depend on HTTP: it implements
//! [`clawhost_engine::RemoteBackend`], and the program passes it to the engine. Nothing is invented: a log-prob that
//! the server does not return is computed by the local model, or recorded as unknown, which excludes the reply from
//! training.
//!
//! ```
//! use clawhost_remote::{RemoteConfig, ServerKind};
//!
//! // `HttpBackend::connect` takes them together with the engine that holds the same weights.
//! let options = RemoteConfig::new("http://127.0.0.1:8000", ServerKind::Vllm, "base");
//! assert_eq!(options.max_concurrent_requests, 256);
//! ```

mod adapters;
mod backend;
mod client;
mod error;
mod http;
mod logprobs_mode;
mod probe;
mod reply_stream;
mod rescoring;
mod state;
mod wire;

pub use backend::HttpBackend;
pub use clawhost_config::{RemoteConfig, ServerKind};
pub use error::RemoteError;
pub use logprobs_mode::LogprobsMode;
