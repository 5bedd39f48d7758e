//! The fallback for systems without file owners and modes and without process limits: components are compiled in this
//! process and compiled code is not cached.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use wasmtime::Engine;
use wasmtime::component::Component;

use super::command::CompilerCommand;
use super::request::{CompileRequest, EXIT_FAILED};
use super::trusted::CompiledCode;
use crate::error::PluginError;
use clawhost_config::Profile;

const UNSUPPORTED: &str = "this system supports neither process limits nor file modes";

/// Cannot be opened.
pub(super) enum Cache {}

impl Cache {
    pub(super) fn open(_: &Path, _: u64) -> Result<Cache, &'static str> {
        Err(UNSUPPORTED)
    }

    pub(super) fn load(&self, _: &CacheKey, _: &Engine) -> Option<Component> {
        match *self {}
    }

    pub(super) fn store(&self, _: &CacheKey, _: &CompiledCode) {
        match *self {}
    }
}

/// A placeholder. All keys are equal, so components are compiled one at a time.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct CacheKey;

impl CacheKey {
    pub(super) fn new(_: &Engine, _: Profile, _: &str) -> CacheKey {
        CacheKey
    }
}

pub(super) fn compile(
    _: &CompilerCommand,
    _: &CompileRequest,
    _: &[u8],
) -> Result<CompiledCode, PluginError> {
    Err(PluginError::Compiler(UNSUPPORTED.to_owned()))
}

/// A compiler subprocess has no use without process limits.
pub fn compile_component() -> ExitCode {
    // A closed standard error is ignored.
    let _ = writeln!(std::io::stderr(), "{UNSUPPORTED}");
    ExitCode::from(EXIT_FAILED)
}
