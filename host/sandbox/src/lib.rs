//! Throw-away Linux machines for environments.
//!
//! A [`Machine`] is a set of namespaces that bubblewrap makes: it has users, processes, mounts, network, host name and
//! System V IPC of its own, sees the system directories of the host read-only, and writes only to memory that is limited.
//! It keeps its files and background processes between commands and ends when it is dropped, when it is not used for
//! its TTL, at its deadline, and when the host process ends, however that ends.
//!
//! A [`Display`] is a machine with a headless Chromium in it, whose pages are those of a task.
//!
//! [`Sandboxes`] starts machines from profiles of the configuration, records a lease for each and stores snapshots. A
//! machine is run by a process of its own, its supervisor, which [`supervise_machines`] forks. The module of supervisors
//! describes the security design.
//!
//! This crate knows neither plugins nor episodes. It provides machines on Linux only.

#[cfg(target_os = "linux")]
mod display;
mod error;
mod frame;
mod output;

#[cfg(target_os = "linux")]
mod descriptors;
#[cfg(target_os = "linux")]
mod head_tail;
#[cfg(target_os = "linux")]
mod lease;
#[cfg(target_os = "linux")]
mod machine;
#[cfg(target_os = "linux")]
mod process;
#[cfg(target_os = "linux")]
mod protocol;
#[cfg(target_os = "linux")]
mod sandboxes;
#[cfg(target_os = "linux")]
mod shared;
#[cfg(target_os = "linux")]
mod supervisor;
#[cfg(not(target_os = "linux"))]
mod unsupported;

pub use error::SandboxError;
pub use frame::{Frame, HEIGHT, Input, MouseButton, Page, WIDTH};
pub use output::{Command, Exit, Output, Screen};

#[cfg(target_os = "linux")]
pub use display::Display;
#[cfg(target_os = "linux")]
pub use lease::{LeaseRecord, Owner};
#[cfg(target_os = "linux")]
pub use machine::{Machine, Terminal};
#[cfg(target_os = "linux")]
pub use process::SupervisorCommand;
#[cfg(target_os = "linux")]
pub use sandboxes::Sandboxes;
#[cfg(target_os = "linux")]
pub use shared::Spec;
#[cfg(target_os = "linux")]
pub use supervisor::supervise_machines;
#[cfg(not(target_os = "linux"))]
pub use unsupported::{Display, Machine, Owner, Sandboxes, Spec, Terminal};
