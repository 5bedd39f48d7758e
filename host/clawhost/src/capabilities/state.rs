//! `state` over the journal: what plugins keep for themselves, under a quota for each plugin and run.

use anyhow::Result;
use clawhost_config::StateConfig;
use clawhost_journal::{Journal, JournalError, PluginPutOutcome, PluginQuota, PluginScope};
use clawhost_plugins::{Answer, StateEntry, StateError, StatePage, StateScope, StateStore};
use tokio::runtime::Handle;

/// The state of all plugins of one journal.
pub(crate) struct PluginState {
    journal: Journal,
    quota: PluginQuota,
    /// The runtime on whose threads the journal is asked; none = the caller's. The threads of plugins have a low priority, at
    /// which a commit would hold up the writes of the gateway.
    runtime: Option<Handle>,
}

impl PluginState {
    /// Kept in `journal`, which is asked on the threads of the current runtime.
    ///
    /// # Panics
    /// Outside a runtime.
    pub(crate) fn new(journal: Journal, config: StateConfig) -> Self {
        Self {
            journal,
            quota: quota(config),
            runtime: Some(Handle::current()),
        }
    }

    /// Kept in memory, empty, and gone at the end.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub(crate) fn in_memory(config: StateConfig) -> Result<Self> {
        Ok(Self {
            journal: Journal::in_memory()?,
            quota: quota(config),
            runtime: None,
        })
    }

    /// Asks the journal off the threads that run guests: a full disk or a long commit holds up nobody else.
    fn query<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Journal) -> Result<Result<T, StateError>, JournalError> + Send + 'static,
    ) -> Answer<Result<T, StateError>> {
        let journal = self.journal.clone();
        let runtime = self.runtime.clone();
        Box::pin(async move {
            let unavailable = |reason: String| Err(StateError::Unavailable(reason));
            let runtime = runtime.unwrap_or_else(Handle::current);
            match runtime.spawn_blocking(move || question(&journal)).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) => {
                    // The reason may name files; that is for the operator, not for the guest.
                    tracing::warn!(%error, "the state of a plugin could not be reached");
                    unavailable("the journal did not take it".to_owned())
                }
                Err(error) => unavailable(error.to_string()),
            }
        })
    }
}

fn quota(config: StateConfig) -> PluginQuota {
    PluginQuota {
        bytes: config.max_size,
        keys: config.max_keys,
    }
}

fn scope(of: StateScope) -> PluginScope {
    PluginScope {
        plugin: of.plugin,
        run: of.run_id,
    }
}

impl StateStore for PluginState {
    fn get(&self, of: StateScope, key: String) -> Answer<Result<Option<StateEntry>, StateError>> {
        self.query(move |journal| {
            let entry = journal.plugin_entry(&scope(of), &key)?;
            Ok(Ok(entry.map(|entry| StateEntry {
                value: entry.value,
                version: entry.version,
            })))
        })
    }

    fn put(
        &self,
        of: StateScope,
        key: String,
        value: Vec<u8>,
        expected: Option<u64>,
    ) -> Answer<Result<u64, StateError>> {
        let quota = self.quota;
        self.query(move |journal| {
            let put = journal.put_plugin_entry(&scope(of), &key, &value, expected, quota)?;
            Ok(match put {
                PluginPutOutcome::Written { version } => Ok(version),
                PluginPutOutcome::Conflict => Err(StateError::Conflict),
                PluginPutOutcome::Full => Err(StateError::QuotaExceeded),
            })
        })
    }

    fn delete(&self, of: StateScope, key: String) -> Answer<Result<(), StateError>> {
        self.query(move |journal| {
            journal.remove_plugin_entry(&scope(of), &key)?;
            Ok(Ok(()))
        })
    }

    fn keys(
        &self,
        of: StateScope,
        prefix: String,
        cursor: Option<String>,
        limit: usize,
    ) -> Answer<Result<StatePage, StateError>> {
        self.query(move |journal| {
            let page = journal.plugin_keys(&scope(of), &prefix, cursor.as_deref(), limit)?;
            Ok(Ok(StatePage {
                keys: page.keys,
                next: page.next,
            }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(plugin: &str) -> StateScope {
        StateScope {
            plugin: plugin.to_owned(),
            run_id: "r".to_owned(),
        }
    }

    #[tokio::test]
    async fn conflicts_and_quota_are_told_and_pages_follow_each_other() {
        let config: StateConfig = toml::from_str("max_size = \"30B\"\nmax_keys = 3").unwrap();
        let state = PluginState::in_memory(config).unwrap();
        let put = |key: &str, value: &[u8], expected| {
            state.put(scope("p"), key.to_owned(), value.to_vec(), expected)
        };
        let version = put("a", b"1", None).await.unwrap();
        assert_eq!(put("a", b"2", None).await, Err(StateError::Conflict));
        let later = put("a", b"2", Some(version)).await.unwrap();
        let entry = state.get(scope("p"), "a".to_owned()).await.unwrap();
        assert_eq!(
            entry,
            Some(StateEntry {
                value: b"2".to_vec(),
                version: later
            })
        );
        assert_eq!(state.get(scope("q"), "a".to_owned()).await, Ok(None));
        assert_eq!(
            put("b", &[0; 40], None).await,
            Err(StateError::QuotaExceeded)
        );
        put("b", b"", None).await.unwrap();
        put("c", b"", None).await.unwrap();
        assert_eq!(put("d", b"", None).await, Err(StateError::QuotaExceeded));
        let keys = |cursor| state.keys(scope("p"), String::new(), cursor, 2);
        let first = keys(None).await.unwrap();
        assert_eq!(first.keys, ["a", "b"]);
        let rest = keys(first.next).await.unwrap();
        assert_eq!((rest.keys, rest.next), (vec!["c".to_owned()], None));
        state.delete(scope("p"), "c".to_owned()).await.unwrap();
        state.delete(scope("p"), "c".to_owned()).await.unwrap();
        put("d", b"", None).await.unwrap();
    }

    #[test]
    fn the_journal_is_asked_on_the_threads_of_the_server() {
        let runtime = |name: &str| {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            runtime.thread_name(name).worker_threads(1).build().unwrap()
        };
        let (server, plugins) = (runtime("server"), runtime("plugins"));
        let state = server.block_on(async {
            PluginState::new(Journal::in_memory().unwrap(), StateConfig::default())
        });
        let thread = |_: &Journal| Ok(Ok(std::thread::current().name().unwrap().to_owned()));
        assert_eq!(
            plugins.block_on(state.query(thread)),
            Ok("server".to_owned())
        );
        // What is kept in memory has no other writers.
        let state = PluginState::in_memory(StateConfig::default()).unwrap();
        assert_eq!(
            plugins.block_on(state.query(thread)),
            Ok("plugins".to_owned())
        );
    }

    #[tokio::test]
    async fn of_two_that_read_the_same_one_is_told_that_it_came_late() {
        let state = PluginState::in_memory(StateConfig::default()).unwrap();
        let version = state
            .put(scope("p"), "n".to_owned(), vec![0], None)
            .await
            .unwrap();
        let add = || state.put(scope("p"), "n".to_owned(), vec![1], Some(version));
        let (one, other) = tokio::join!(add(), add());
        assert_eq!([&one, &other].iter().filter(|end| end.is_ok()).count(), 1);
        let late = if one.is_ok() { other } else { one };
        assert_eq!(late, Err(StateError::Conflict));
    }
}
