//! The types of machines on systems that have none. No value of them exists.

use std::time::Duration;

use crate::error::SandboxError;
use crate::frame::{Frame, Input, Page};
use crate::output::{Command, Output, Screen};

/// Who started a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The run.
    pub run: String,
    /// The episode or call.
    pub episode: String,
}

/// What a new machine is to be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spec {
    /// Its profile.
    pub profile: String,
    /// Environment variables of every command.
    pub env: Vec<(String, String)>,
    /// Working directory of every command.
    pub workdir: Option<String>,
}

/// Starts machines.
#[derive(Debug, Clone)]
pub enum Sandboxes {}

/// A machine.
#[derive(Debug, Clone)]
pub enum Machine {}

/// A terminal.
#[derive(Debug, Clone)]
pub enum Terminal {}

/// A display.
#[derive(Debug, Clone)]
pub enum Display {}

type Done<T> = Result<T, SandboxError>;

#[allow(missing_docs, clippy::unused_async, reason = "they cannot be called")]
impl Sandboxes {
    pub async fn create(&self, _: Owner, _: Spec) -> Done<Machine> {
        match *self {}
    }
    pub async fn restore(&self, _: Owner, _: &str) -> Done<Machine> {
        match *self {}
    }
    pub async fn open_display(&self, _: Owner, _: &str, _: Vec<Page>) -> Done<Display> {
        match *self {}
    }
    pub fn remove_snapshot(&self, _: &str) {
        match *self {}
    }
}

#[allow(missing_docs, clippy::unused_async, reason = "they cannot be called")]
impl Machine {
    pub async fn exec(&self, _: Command) -> Done<Output> {
        match *self {}
    }
    pub async fn open_terminal(&self, _: Vec<String>, _: u16, _: u16) -> Done<Terminal> {
        match *self {}
    }
    pub async fn read_file(&self, _: &str, _: usize) -> Done<Vec<u8>> {
        match *self {}
    }
    pub async fn write_file(&self, _: &str, _: &[u8]) -> Done<()> {
        match *self {}
    }
    pub async fn snapshot(&self) -> Done<String> {
        match *self {}
    }
}

#[allow(missing_docs, clippy::unused_async, reason = "they cannot be called")]
impl Terminal {
    pub async fn send(&self, _: &[u8]) -> Done<()> {
        match *self {}
    }
    pub async fn wait(&self, _: Duration, _: Duration) -> Done<Screen> {
        match *self {}
    }
    pub async fn resize(&self, _: u16, _: u16) -> Done<()> {
        match *self {}
    }
    pub async fn close(self) -> Done<()> {
        match self {}
    }
}

#[allow(missing_docs, clippy::unused_async, reason = "they cannot be called")]
impl Display {
    pub async fn observe(&self, _: bool) -> Done<Frame> {
        match *self {}
    }
    pub async fn tree(&self) -> Done<String> {
        match *self {}
    }
    pub async fn act(&self, _: Input) -> Done<()> {
        match *self {}
    }
    pub async fn navigate(&self, _: &str) -> Done<()> {
        match *self {}
    }
    pub async fn query(&self, _: &str, _: &str) -> Done<String> {
        match *self {}
    }
}
