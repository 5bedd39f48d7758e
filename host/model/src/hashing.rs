//! The digest of a model, computed while its weights are loaded.

use std::sync::OnceLock;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::error::LoadError;

type Hashed = Result<String, LoadError>;

/// A digest that is being computed. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Hashing(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    thread: Mutex<Option<JoinHandle<Hashed>>>,
    /// The digest, or why there is none.
    result: OnceLock<Result<String, String>>,
}

impl Hashing {
    /// Starts to compute a digest. The thread ends by itself.
    pub(crate) fn start(hash: impl FnOnce() -> Hashed + Send + 'static) -> Self {
        Self(Arc::new(Shared {
            thread: Mutex::new(Some(std::thread::spawn(hash))),
            result: OnceLock::new(),
        }))
    }

    /// Waits for the digest, or the reason why there is none.
    pub(crate) fn wait(&self) -> Result<&str, &str> {
        let result = self.0.result.get_or_init(|| {
            let thread = self.0.thread.lock();
            let thread = thread.unwrap_or_else(PoisonError::into_inner).take();
            let hashed = thread.expect("the result is made once").join();
            hashed
                .expect("hashing does not panic")
                .map_err(|error| error.to_string())
        });
        result.as_deref().map_err(String::as_str)
    }
}
