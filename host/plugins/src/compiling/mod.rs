//! Compiles components to machine code and caches the result.
//!
//! Compilation happens before any call limit applies, and its time and memory depend on the component. So components are
//! compiled in a subprocess under limits, if the options configure a compiler command. The code is cached, so each
//! component is compiled once per profile and engine version. Grants and capabilities are not considered here.

pub(crate) mod command;
pub(crate) mod limits;
mod request;
mod slots;
mod trusted;

#[cfg(unix)]
mod cache;
#[cfg(unix)]
mod child;
#[cfg(unix)]
mod key;
#[cfg(unix)]
mod process;

#[cfg(not(unix))]
mod unsupported;
#[cfg(not(unix))]
use unsupported as cache;
#[cfg(not(unix))]
use unsupported as child;
#[cfg(not(unix))]
use unsupported as key;
#[cfg(not(unix))]
use unsupported as process;

use std::time::Instant;

use wasmtime::component::Component;

use crate::engine::WasmRuntime;
use crate::error::PluginError;
use crate::options::HostOptions;
use crate::printable::one_line;
use clawhost_config::{CompileLimits, Profile};

use cache::Cache;
use key::CacheKey;
use request::CompileRequest;
use slots::CompileSlots;
use trusted::CompiledCode;

pub use child::compile_component;
pub use command::CompilerCommand;
pub use limits::{CompileResource, CompilerExit};

/// Engine errors are truncated to this many bytes.
const ENGINE_ERROR_BYTES: usize = 4 << 10;

/// Formats an engine error on one line. It is escaped because it may quote names from the component.
pub(crate) fn engine_error(error: &wasmtime::Error) -> String {
    one_line(&format!("{error:#}"), ENGINE_ERROR_BYTES)
}

/// Compiles and caches the components of one host.
pub(crate) struct ComponentCompiler {
    command: Option<CompilerCommand>,
    limits: CompileLimits,
    cache: Option<Cache>,
    slots: CompileSlots,
}

/// A component in compiled form.
pub(crate) struct CompiledComponent {
    pub(crate) component: Component,
    /// It came from the cache.
    pub(crate) cached: bool,
}

impl ComponentCompiler {
    /// Creates the compiler. A cache directory that cannot be used is logged and the cache disabled.
    pub(crate) fn new(options: &HostOptions) -> ComponentCompiler {
        let mut command = options.compiler.clone();
        if cfg!(not(unix)) && command.take().is_some() {
            tracing::warn!(
                "this system has no process limits; components are compiled in the server process"
            );
        }
        let cache = options
            .cache
            .as_deref()
            .filter(|_| options.config.cache_size > 0)
            .and_then(|dir| {
                Cache::open(dir, options.config.cache_size)
                    .inspect_err(|error| {
                        tracing::warn!(
                            "compiled components are not cached in {}: {error}",
                            dir.display()
                        );
                    })
                    .ok()
            });
        ComponentCompiler {
            command,
            limits: options.config.compiling,
            cache,
            slots: CompileSlots::default(),
        }
    }

    /// Returns the compiled form of the component with this digest, from the cache or freshly compiled.
    ///
    /// # Errors
    /// When the component is invalid or exceeds a compile limit, or the compiler cannot be run.
    pub(crate) fn component(
        &self,
        runtime: &WasmRuntime,
        profile: Profile,
        bytes: &[u8],
        digest: &str,
    ) -> Result<CompiledComponent, PluginError> {
        let engine = &runtime.engine;
        let invalid = |error: wasmtime::Error| PluginError::Invalid(engine_error(&error));
        let key = CacheKey::new(engine, profile, digest);
        let cached = || {
            let component = self.cache.as_ref()?.load(&key, engine)?;
            tracing::debug!("loaded {digest} for the {profile} engine from the cache");
            Some(CompiledComponent {
                component,
                cached: true,
            })
        };
        if let Some(cached) = cached() {
            return Ok(cached);
        }
        let _slot = self.slots.acquire(&key);
        // Another thread may have compiled it while this call waited for a slot.
        if let Some(cached) = cached() {
            return Ok(cached);
        }
        let started = Instant::now();
        let code = match &self.command {
            Some(command) => {
                let request = CompileRequest {
                    profile,
                    limits: self.limits,
                };
                process::compile(command, &request, bytes)?
            }
            None => {
                let code = engine.precompile_component(bytes).map_err(invalid)?;
                let (resource, limit) = limits::code_limit(&self.limits, bytes.len());
                if code.len() as u64 > limit {
                    return Err(PluginError::CompilerLimit { resource, limit });
                }
                CompiledCode::from_compiler(code).ok_or_else(|| {
                    PluginError::Compiler("the engine's output is not compiled code".to_owned())
                })?
            }
        };
        tracing::debug!(
            "compiled {digest} for the {profile} engine in {} ms",
            started.elapsed().as_millis()
        );
        let component = code.load(engine).map_err(invalid)?;
        if let Some(cache) = &self.cache {
            cache.store(&key, &code);
        }
        Ok(CompiledComponent {
            component,
            cached: false,
        })
    }
}
