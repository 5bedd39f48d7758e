//! From a component to code that can be run.
//!
//! Compiling is the one thing done with a component before its limits hold, and the time and memory
//! that it takes are the component's choice. So it happens in a process of its own, under limits, where
//! the program has given a command for that; and what came out is kept, so that it happens once for
//! each component, profile and version of the engine. Nothing here looks at what a component may reach.

mod command;
mod limits;
mod order;
mod trusted;
mod turns;

#[cfg(unix)]
mod cache;
#[cfg(unix)]
mod child;
#[cfg(unix)]
mod key;
#[cfg(unix)]
mod process;

#[cfg(not(unix))]
mod elsewhere;
#[cfg(not(unix))]
use elsewhere as cache;
#[cfg(not(unix))]
use elsewhere as child;
#[cfg(not(unix))]
use elsewhere as key;
#[cfg(not(unix))]
use elsewhere as process;

use std::time::Instant;

use wasmtime::component::Component;

use crate::engine::Machine;
use crate::error::PluginError;
use crate::options::HostOptions;
use crate::printable::one_line;
use crate::profile::Profile;

use cache::Cache;
use key::Key;
use order::Order;
use trusted::CompiledCode;
use turns::Turns;

pub use child::compile_component;
pub use command::CompilerCommand;
pub use limits::{CompileLimits, CompileResource, CompilerEnd};

/// Bytes that are kept of what the engine says about a component.
const ENGINE_WORDS: usize = 4 << 10;

/// What the engine says about a component, which may quote names that the component chose.
pub(crate) fn told(error: &wasmtime::Error) -> String {
    one_line(&format!("{error:#}"), ENGINE_WORDS)
}

/// Compiles for one host.
pub(crate) struct Compiling {
    command: Option<CompilerCommand>,
    limits: CompileLimits,
    cache: Option<Cache>,
    turns: Turns,
}

/// A component that can be run.
pub(crate) struct Compiled {
    pub(crate) component: Component,
    /// It was not compiled now.
    pub(crate) cached: bool,
}

impl Compiling {
    /// A cache that cannot be used is done without, and the log says why.
    pub(crate) fn new(options: &HostOptions) -> Compiling {
        let mut command = options.compiler.clone();
        if cfg!(not(unix)) && command.take().is_some() {
            tracing::warn!(
                "this system has no limits for processes; components are compiled in this one"
            );
        }
        let cache = options
            .cache
            .as_deref()
            .filter(|_| options.cache_bytes > 0)
            .and_then(|dir| {
                Cache::open(dir, options.cache_bytes)
                    .inspect_err(|error| {
                        tracing::warn!(
                            "compiled components are not kept in {}: {error}",
                            dir.display()
                        );
                    })
                    .ok()
            });
        Compiling {
            command,
            limits: options.compiling,
            cache,
            turns: Turns::default(),
        }
    }

    /// The compiled form of a component with this digest, from the cache or made now.
    ///
    /// # Errors
    /// When the component is not valid or too expensive to compile, or the compiler cannot be used.
    pub(crate) fn component(
        &self,
        machine: &Machine,
        profile: Profile,
        bytes: &[u8],
        digest: &str,
    ) -> Result<Compiled, PluginError> {
        let engine = &machine.engine;
        let invalid = |error: wasmtime::Error| PluginError::Invalid(told(&error));
        let key = Key::of(engine, profile, digest);
        let cached = || {
            let component = self.cache.as_ref()?.load(&key, engine)?;
            tracing::debug!("took {digest} for the {profile} engine from the cache");
            Some(Compiled {
                component,
                cached: true,
            })
        };
        if let Some(cached) = cached() {
            return Ok(cached);
        }
        let _turn = self.turns.take(&key);
        // It may have been compiled while this call waited for its turn.
        if let Some(cached) = cached() {
            return Ok(cached);
        }
        let started = Instant::now();
        let code = match &self.command {
            Some(command) => {
                let order = Order {
                    profile,
                    limits: self.limits,
                };
                process::compile(command, &order, bytes)?
            }
            None => {
                let code = engine.precompile_component(bytes).map_err(invalid)?;
                let (resource, limit) = self.limits.on_code(bytes.len());
                if code.len() as u64 > limit {
                    return Err(PluginError::CompilerLimit { resource, limit });
                }
                CompiledCode::from_compiler(code)
                    .ok_or_else(|| PluginError::Compiler("what it made is no code".to_owned()))?
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
        Ok(Compiled {
            component,
            cached: false,
        })
    }
}
