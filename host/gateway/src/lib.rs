//! HTTP server: OpenAI- and Anthropic-compatible APIs, feedback, sessions and operator endpoints.
//!
//! The gateway validates a request, submits it to the engine, records the request in the journal (through the sessions
//! crate) before it returns the first token, and records the reply before it reports the reply as complete to the
//! client. It does not know judging and training; their state and controls are injected as a [`ControlPlane`].
//!
//! The gateway rejects requests that it cannot record, does not listen on public addresses without a key
//! ([`check_bind`]), and rejects unsupported fields that would change the reply.
//!
//! | module | contents |
//! |---|---|
//! | `gateway`, `routes`, `serve`, `connection`, `tls` | shared state, routing table, accept loop and graceful shutdown, TLS |
//! | `openapi` | the OpenAPI document |
//! | `admission`, `auth`, `guard`, `origins`, `limits` | middleware: API keys, DNS rebinding protection, CORS, rate limits, size limits |
//! | `body`, `fields`, `error` | JSON body parsing with field paths in errors; error objects |
//! | `reply` | the pipeline from a parsed request to a recorded reply, streamed or not, shared by all dialects |
//! | `chat` | OpenAI chat completions |
//! | `completions` | OpenAI text completions (not recorded) |
//! | `messages` | Anthropic messages |
//! | `responses` | OpenAI Responses |
//! | `tokenize` | `/tokenize` and `/detokenize` |
//! | `models`, `versions` | served model names and adapter versions |
//! | `feedback`, `sessions`, `adapters` | feedback on replies, recorded sessions, adapter releases |
//! | `steps` | the samples of a training step |
//! | `plugins` | list and reload plugins |
//! | `health`, `readiness`, `metrics` | health checks, Prometheus metrics |
//! | `page`, `events` | operator page, and the stream of snapshots that keeps it up to date |

mod adapters;
mod admission;
mod auth;
mod body;
mod chat;
mod completions;
mod connection;
mod error;
mod events;
mod feedback;
mod fields;
mod gateway;
mod guard;
mod health;
mod ids;
mod journal_error;
mod limits;
mod messages;
mod metrics;
mod models;
mod openapi;
mod options;
mod origins;
mod page;
mod plugins;
mod readiness;
mod reply;
mod responses;
mod routes;
mod serve;
mod sessions;
mod steps;
mod tls;
mod tokenize;
mod versions;

pub use auth::{ApiKey, KeyError, Scope, check_bind, check_key_names, check_origins};
pub use error::ApiError;
pub use gateway::{ControlPlane, Gateway, HealthError, ReleaseError};
pub use limits::RateLimit;
pub use options::GatewayOptions;
pub use origins::{AllowedOrigins, OriginError};
pub use tls::{Tls, TlsError};
