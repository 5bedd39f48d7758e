//! HTTP server: OpenAI- and Anthropic-compatible APIs, feedback, sessions and operator endpoints.
//!
//! A request is validated and submitted to the engine first, and then recorded in the journal (through the sessions
//! crate): the engine may already sample, but the client gets nothing before the request is recorded, and the last event
//! of a reply only after the reply is. A request that the engine rejects leaves no record. The gateway does not know
//! judging and training; their state is injected as a [`StatusSource`], their controls as a [`ControlPlane`]. What the
//! endpoints show of the journal is computed by the inspect crate.
//!
//! The gateway rejects requests that it cannot record, does not listen on public addresses without a key
//! ([`check_bind`]), and rejects unsupported fields that would change the reply.
//!
//! ```
//! use clawhost_gateway::{ApiKey, Scope, check_bind};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let public = "0.0.0.0".parse()?;
//! assert!(check_bind(public, &[]).is_err(), "a public address needs a key");
//! let key = ApiKey::new("app", "a-long-random-secret", [Scope::Chat, Scope::Feedback])?;
//! check_bind(public, &[key])?;
//! # Ok(())
//! # }
//! ```
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use clawhost_gateway::{ControlPlane, Gateway, GatewayOptions, StatusSource};
//! # async fn serve(
//! #     engine: clawhost_engine::Engine,
//! #     status: Arc<dyn StatusSource>,
//! #     control: Arc<dyn ControlPlane>,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let journal = clawhost_journal::Journal::in_memory()?;
//! let sessions = clawhost_sessions::Sessions::new(journal.clone(), Default::default());
//! let options = GatewayOptions::new("my-model");
//! let gateway = Gateway::new(engine, sessions, journal, status, control, options);
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:30000").await?;
//! let (_stop, stopped) = tokio::sync::watch::channel(false);
//! gateway.serve(listener, stopped).await?;
//! # Ok(())
//! # }
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `gateway`, `routes`, `serve`, `connection`, `tls` | router, routes with their descriptions, accept loop and graceful shutdown, TLS |
//! | `shared`, `control`, `options` | state that all handlers share, controls of judging and training, settings |
//! | `openapi` | the OpenAPI document, built from the routes and the types of requests and responses |
//! | `admission`, `keys`, `auth`, `guard`, `origins`, `limits` | middleware: API keys, DNS rebinding protection, CORS, rate limits, size limits |
//! | `body`, `parse`, `error` | reads JSON bodies, deserializes them with field paths in errors; error objects |
//! | `reply` | the pipeline from a parsed request to a recorded reply, streamed or not, shared by all dialects |
//! | `chat` | OpenAI chat completions |
//! | `completions` | OpenAI text completions (not recorded) |
//! | `messages` | Anthropic messages |
//! | `responses` | OpenAI Responses |
//! | `tokenize` | `/tokenize` and `/detokenize` |
//! | `models`, `versions` | served model names and adapter versions |
//! | `feedback`, `sessions`, `adapters` | feedback on replies, recorded sessions, adapter releases |
//! | `experience` | what is kept of the corrections of a key |
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
mod control;
mod error;
mod events;
mod experience;
mod feedback;
mod gateway;
mod guard;
mod health;
mod ids;
mod journal_error;
mod keys;
mod limits;
mod messages;
mod metrics;
mod models;
mod openapi;
mod options;
mod origins;
mod page;
mod parse;
mod plugins;
mod readiness;
mod reply;
mod responses;
mod routes;
mod serve;
mod sessions;
mod shared;
mod steps;
mod tls;
mod tokenize;
mod versions;

pub use clawhost_config::Scope;
pub use control::{ControlPlane, HealthError, ReleaseError, StatusSource};
pub use error::ApiError;
pub use gateway::Gateway;
pub use keys::{ApiKey, KeyError, check_bind, check_key_names, check_origins};
pub use limits::RateLimit;
pub use metrics::{MetricFamilies, MetricType, Samples};
pub use options::GatewayOptions;
pub use origins::{AllowedOrigins, OriginError};
pub use tls::{Tls, TlsError};
