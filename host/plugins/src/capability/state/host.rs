//! The host functions of `state`.

use std::sync::Arc;
use std::time::Duration;

use super::{StateError, StateScope, StateStore};
use crate::bindings::state;
use crate::capability::Answer;
use crate::store::CallState;
use crate::thread_pool::spawn_abort_on_drop;

/// Longest key, in bytes.
const MAX_KEY: usize = 256;
/// Largest value, in bytes.
const MAX_VALUE: usize = 256 << 10;
/// Keys in one page.
const MAX_PAGE: usize = 1_000;

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

    async fn run_state_work<T: Send + 'static>(
        &mut self,
        work: Answer<Result<T, StateError>>,
    ) -> Result<T, state::Error> {
        let left = Duration::from_millis(self.wall_left_ms());
        let task = spawn_abort_on_drop(tokio::time::timeout(left, work));
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
        let entry = self.run_state_work(work).await;
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
        Ok(self.run_state_work(work).await)
    }

    async fn delete(&mut self, key: String) -> wasmtime::Result<Result<(), state::Error>> {
        self.meter.host_call()?;
        let work = match check_key(&key).and_then(|()| self.open_state()) {
            Ok((store, scope)) => store.delete(scope, key),
            Err(error) => return Ok(Err(error)),
        };
        Ok(self.run_state_work(work).await)
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
        let page = self.run_state_work(work).await;
        Ok(page.map(|page| state::Page {
            keys: page.keys,
            next: page.next,
        }))
    }
}
