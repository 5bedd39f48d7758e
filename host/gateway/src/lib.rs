//! HTTP: three dialects, feedback and operator pages.
//!
//! The gateway turns requests into turns: it checks them, has the engine answer, and sees to it that the
//! sessions room records what arrived before anything is sampled and what was replied before the client
//! learns that the reply is complete. It knows nothing of judging and training; their state is handed in
//! as a [`StatusSource`].
//!
//! It refuses to serve what it cannot record, to listen beyond this machine without a key
//! ([`check_bind`]), and to ignore silently a field that would have changed the reply.
//!
//! | module | idea |
//! |---|---|
//! | `gateway`, `routes`, `serve`, `connection`, `tls` | which path goes where; accepting, and ending well; encryption |
//! | `openapi` | the document that describes the surface |
//! | `admission`, `auth`, `guard`, `origins`, `limits` | the door: keys, foreign pages, CORS, rates, sizes |
//! | `body`, `fields`, `error` | reading JSON so that what is wrong is named; the shapes of errors |
//! | `reply` | from a request in any dialect to a recorded reply, whole or streamed |
//! | `chat` | OpenAI's chat completions |
//! | `completions` | OpenAI's text completions, which are served and not recorded |
//! | `messages` | Anthropic's messages |
//! | `responses` | OpenAI's Responses |
//! | `tokenize` | text as tokens, and back |
//! | `models`, `versions` | what is served, under which names |
//! | `feedback`, `sessions`, `adapters` | what people thought of it, what was collected, what was learned |
//! | `steps` | which samples a step was made of |
//! | `plugins` | looking at the plugins' files at once |
//! | `health`, `readiness`, `metrics`, `page` | for load balancers, Prometheus, and people |

mod adapters;
mod admission;
mod auth;
mod body;
mod chat;
mod completions;
mod connection;
mod error;
mod feedback;
mod fields;
mod gateway;
mod guard;
mod health;
mod ids;
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
mod recorded;
mod reply;
mod responses;
mod routes;
mod serve;
mod sessions;
mod steps;
mod tls;
mod tokenize;
mod versions;

pub use auth::{ApiKey, KeyError, Scope, check_bind, check_names, check_origins};
pub use error::ApiError;
pub use gateway::{Fault, Gateway, NotChanged, StatusSource};
pub use limits::RateLimit;
pub use options::GatewayOptions;
pub use origins::{AllowedOrigins, OriginError};
pub use tls::{Tls, TlsError};
