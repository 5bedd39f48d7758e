//! Systems without owners and modes of files and without limits on processes: components are compiled
//! in this process, and the code is not kept.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use wasmtime::Engine;
use wasmtime::component::Component;

use super::command::CompilerCommand;
use super::order::{BROKEN, Order};
use super::trusted::CompiledCode;
use crate::error::PluginError;
use crate::profile::Profile;

const NOT_HERE: &str = "this system has neither limits for processes nor modes of files";

/// Never opened.
pub(super) enum Cache {}

impl Cache {
    pub(super) fn open(_: &Path, _: u64) -> Result<Cache, &'static str> {
        Err(NOT_HERE)
    }

    pub(super) fn load(&self, _: &Key, _: &Engine) -> Option<Component> {
        match *self {}
    }

    pub(super) fn store(&self, _: &Key, _: &CompiledCode) {
        match *self {}
    }
}

/// Nothing is kept under it. All are equal, so that one thing is compiled at a time.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Key;

impl Key {
    pub(super) fn of(_: &Engine, _: Profile, _: &str) -> Key {
        Key
    }
}

pub(super) fn compile(
    _: &CompilerCommand,
    _: &Order,
    _: &[u8],
) -> Result<CompiledCode, PluginError> {
    Err(PluginError::Compiler(NOT_HERE.to_owned()))
}

/// Compiling in a process of its own has no use without limits on it.
pub fn compile_component() -> ExitCode {
    // Nobody is left to tell when that is closed.
    let _ = writeln!(std::io::stderr(), "{NOT_HERE}");
    ExitCode::from(BROKEN)
}
