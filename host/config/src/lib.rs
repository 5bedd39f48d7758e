//! Configuration: how keys are documented, printed and checked.
//!
//! The option structs declare each key with its documentation and default. [`Section::of`] reads both from the struct,
//! [`toml_text`] prints a configuration with the documentation as comments, and [`markdown`] writes the reference page.
//! This crate does not know any of the keys.
//!
//! ```
//! /// The HTTP endpoint.
//! #[derive(serde::Serialize, schemars::JsonSchema)]
//! struct Server {
//!     /// Port to listen on.
//!     port: u16,
//! }
//! let text = clawhost_config::toml_text(&Server { port: 80 })?;
//! assert_eq!(text, "# Port to listen on.\nport = 80\n");
//! # Ok::<_, toml::ser::Error>(())
//! ```

mod duration;
mod page;
mod print;
mod secret;
mod section;
mod size;

pub use duration::{Millis, Minutes, Seconds, Ticks, duration_text, parse_duration};
pub use page::markdown;
pub use print::toml_text;
pub use secret::{Secret, SecretError};
pub use section::{Choice, Key, Section, SectionKind};
pub use size::{Size, parse_size, size_text};
