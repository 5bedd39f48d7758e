//! `state`: durable key-value state of a plugin, kept by a store that the binary hands in.
//!
//! Keys and values are bounded here; the quota over all keys is the store's.

use std::sync::Arc;
use std::time::Duration;

use crate::bindings::state;
use crate::capability::Answer;
use crate::store::CallState;

/// Longest key, in bytes.
const MAX_KEY: usize = 256;
/// Largest value, in bytes.
const MAX_VALUE: usize = 256 << 10;
/// Keys in one page.
const MAX_PAGE: usize = 1_000;

/// Whose state it is. Two plugins, or two runs, never see each other's keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateScope {
    /// Name of the plugin.
    pub plugin: String,
    /// The run.
    pub run_id: String,
}

/// A value and the version that a conditional write names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateEntry {
    /// The bytes.
    pub value: Vec<u8>,
    /// Grows with every write of the key.
    pub version: u64,
}

/// Some keys and where to go on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StatePage {
    /// Keys in order.
    pub keys: Vec<String>,
    /// Cursor of the next page; none at the end.
    pub next: Option<String>,
}

/// Why the state could not be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The quota is spent.
    #[error("the plugin's state is full")]
    QuotaExceeded,
    /// The entry changed since it was read.
    #[error("the entry has changed since it was read")]
    Conflict,
    /// The store failed.
    #[error("the plugin's state is not available: {0}")]
    Unavailable(String),
}

/// Durable state for plugins. Handed in by the binary; without one, a component that imports
/// `state` is refused at load.
pub trait StateStore: Send + Sync {
    /// Reads a key.
    fn get(&self, scope: StateScope, key: String)
    -> Answer<Result<Option<StateEntry>, StateError>>;
    /// Writes a key: `expected` is the version read before, or none to create it. Answers the new
    /// version.
    fn put(
        &self,
        scope: StateScope,
        key: String,
        value: Vec<u8>,
        expected: Option<u64>,
    ) -> Answer<Result<u64, StateError>>;
    /// Removes a key; a missing key is no error.
    fn delete(&self, scope: StateScope, key: String) -> Answer<Result<(), StateError>>;
    /// Keys with a prefix, in order, from a cursor on.
    fn keys(
        &self,
        scope: StateScope,
        prefix: String,
        cursor: Option<String>,
        limit: usize,
    ) -> Answer<Result<StatePage, StateError>>;
}

/// The store that one plugin may use.
#[derive(Clone)]
pub(crate) struct StateGrant {
    pub(crate) store: Arc<dyn StateStore>,
}

impl CallState {
    fn open_state(&self) -> Result<(Arc<dyn StateStore>, StateScope), state::Error> {
        let Some(grant) = &self.state else {
            return Err(state::Error::Unavailable("state is not granted".to_owned()));
        };
        let scope = StateScope {
            plugin: self.loaded.name.clone(),
            run_id: self.identity.run_id.clone(),
        };
        Ok((Arc::clone(&grant.store), scope))
    }

    async fn ask_state<T: Send + 'static>(
        &mut self,
        work: Answer<Result<T, StateError>>,
    ) -> Result<T, state::Error> {
        let left = Duration::from_millis(self.wall_left_ms());
        let task = crate::thread_pool::spawn_abort_on_drop(tokio::time::timeout(left, work));
        let failed = |what: &str| state::Error::Unavailable(what.to_owned());
        match task.await {
            Ok(Ok(answer)) => answer.map_err(|error| match error {
                StateError::QuotaExceeded => state::Error::QuotaExceeded,
                StateError::Conflict => state::Error::Conflict,
                StateError::Unavailable(reason) => state::Error::Unavailable(reason),
            }),
            Ok(Err(_)) => Err(failed("the store did not answer in time")),
            Err(_) => Err(failed("the store failed")),
        }
    }
}

fn check_key(key: &str) -> Result<(), state::Error> {
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(state::Error::Rejected(format!(
            "a key of {} bytes, 1 to {MAX_KEY} are allowed",
            key.len()
        )));
    }
    Ok(())
}

impl state::Host for CallState {
    async fn get(
        &mut self,
        key: String,
    ) -> wasmtime::Result<Result<Option<state::Entry>, state::Error>> {
        self.meter.host_call()?;
        let work = match check_key(&key).and_then(|()| self.open_state()) {
            Ok((store, scope)) => store.get(scope, key),
            Err(error) => return Ok(Err(error)),
        };
        let entry = self.ask_state(work).await;
        Ok(entry.map(|entry| {
            entry.map(|entry| state::Entry {
                value: entry.value,
                version: entry.version,
            })
        }))
    }

    async fn put(
        &mut self,
        key: String,
        value: Vec<u8>,
        expected: Option<u64>,
    ) -> wasmtime::Result<Result<u64, state::Error>> {
        self.meter.host_call()?;
        if value.len() > MAX_VALUE {
            return Ok(Err(state::Error::QuotaExceeded));
        }
        let work = match check_key(&key).and_then(|()| self.open_state()) {
            Ok((store, scope)) => store.put(scope, key, value, expected),
            Err(error) => return Ok(Err(error)),
        };
        Ok(self.ask_state(work).await)
    }

    async fn delete(&mut self, key: String) -> wasmtime::Result<Result<(), state::Error>> {
        self.meter.host_call()?;
        let work = match check_key(&key).and_then(|()| self.open_state()) {
            Ok((store, scope)) => store.delete(scope, key),
            Err(error) => return Ok(Err(error)),
        };
        Ok(self.ask_state(work).await)
    }

    async fn keys(
        &mut self,
        prefix: String,
        cursor: Option<String>,
    ) -> wasmtime::Result<Result<state::Page, state::Error>> {
        self.meter.host_call()?;
        let work = match self.open_state() {
            Ok((store, scope)) => store.keys(scope, prefix, cursor, MAX_PAGE),
            Err(error) => return Ok(Err(error)),
        };
        let page = self.ask_state(work).await;
        Ok(page.map(|page| state::Page {
            keys: page.keys,
            next: page.next,
        }))
    }
}
