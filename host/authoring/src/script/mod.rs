//! A plugin's capabilities in a test: models and HTTP return the answers of a transcript, state is in memory.
//!
//! A [`Script`] replaces the models, the network and the journal of a server, and accesses nothing real. Each call must be
//! the next exchange of the transcript. Any other call is an error for the plugin and fails the test; so does an exchange
//! that is not used.

mod exchange;
mod record;
mod request;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawhost_plugins::{
    Answer, HttpRequest, InboundResponse, Message, ModelClient, ModelError, ModelRequest,
    ModelResponse, Network, NetworkError, OutboundRequest, StateEntry, StateError, StatePage,
    StateScope, StateStore,
};
use serde_json::Value;

pub use exchange::{Choice, Completion, Exchange, FullChoice, Response, Scores, ScriptedCall};
pub use record::Recorder;

use crate::golden::compare::compare;

/// Error that a plugin gets for a call that is not in the transcript.
const UNEXPECTED: &str = "the transcript does not have this call";
/// Maximum bytes of a request in an error.
const MAX_REQUEST_BYTES: usize = 2 << 10;

/// Creates an empty state store.
type FreshState = Box<dyn Fn() -> Result<Arc<dyn StateStore>, String> + Send + Sync>;

/// Models, network and state of a plugin in a test.
pub struct Script {
    fresh_state: FreshState,
    transcript: Mutex<Transcript>,
}

/// The exchanges of one transcript, and the number that were used.
struct Transcript {
    exchanges: Vec<Exchange>,
    used: usize,
    /// The first call that was not as expected.
    failure: Option<String>,
    state: Arc<dyn StateStore>,
}

impl Transcript {
    fn new(exchanges: &[Exchange], state: Arc<dyn StateStore>) -> Transcript {
        Transcript {
            exchanges: exchanges.to_vec(),
            used: 0,
            failure: None,
            state,
        }
    }
}

impl Script {
    /// A script without exchanges; `fresh_state` makes the empty store that each transcript begins with.
    ///
    /// # Errors
    /// When there is no store.
    pub fn new(
        fresh_state: impl Fn() -> Result<Arc<dyn StateStore>, String> + Send + Sync + 'static,
    ) -> Result<Script, String> {
        let state = fresh_state()?;
        Ok(Script {
            fresh_state: Box::new(fresh_state),
            transcript: Mutex::new(Transcript::new(&[], state)),
        })
    }

    /// Begins a transcript with these exchanges, and with these entries as the only state of the plugin and run.
    ///
    /// # Errors
    /// When there is no store, or it does not take the entries.
    pub async fn begin(
        &self,
        exchanges: &[Exchange],
        scope: &StateScope,
        entries: &BTreeMap<String, String>,
    ) -> Result<(), String> {
        let state = (self.fresh_state)()?;
        for (key, value) in entries {
            let put = state.put(scope.clone(), key.clone(), value.clone().into_bytes(), None);
            put.await
                .map_err(|error| format!("the state {key:?} cannot be written: {error}"))?;
        }
        *self.transcript() = Transcript::new(exchanges, state);
        Ok(())
    }

    /// What was wrong with the calls of the transcript so far.
    ///
    /// # Errors
    /// The first call that was not as expected.
    pub fn failure(&self) -> Result<(), String> {
        match &self.transcript().failure {
            Some(failure) => Err(failure.clone()),
            None => Ok(()),
        }
    }

    /// Ends the transcript.
    ///
    /// # Errors
    /// The first call that was not as expected, or the calls that were not made.
    pub fn end(&self) -> Result<(), String> {
        self.failure()?;
        let transcript = self.transcript();
        let left = &transcript.exchanges[transcript.used..];
        let Some(next) = left.first() else {
            return Ok(());
        };
        Err(format!(
            "{} of {} exchanges of the transcript did not take place; the next would have been {} {}",
            left.len(),
            transcript.exchanges.len(),
            next.call(),
            truncate(next.request())
        ))
    }

    /// Returns the next exchange if the call matches it. `actual` converts the request, given the expected one.
    fn next(&self, call: &str, actual: impl Fn(&Value) -> Value) -> Option<Exchange> {
        let mut transcript = self.transcript();
        let number = transcript.used + 1;
        transcript.used = number;
        let total = transcript.exchanges.len();
        let due = transcript.exchanges.get(number - 1).cloned();
        let outcome = match due {
            None => Err(format!(
                "the plugin calls {call} {}, and the transcript has {total} exchanges",
                truncate(&actual(&Value::Null))
            )),
            Some(due) if due.call() != call => Err(format!(
                "exchange {number} of the transcript is {}, and the plugin calls {call} {}",
                due.call(),
                truncate(&actual(&Value::Null))
            )),
            Some(due) => {
                let place = format!("the request of exchange {number}, {call},");
                let expected = due.request();
                let agreed = match expected {
                    Value::Null => Ok(()),
                    expected => compare(&place, expected, &actual(expected)),
                };
                agreed.map(|()| due)
            }
        };
        match outcome {
            Ok(due) => Some(due),
            Err(failure) => {
                transcript.failure.get_or_insert(failure);
                None
            }
        }
    }

    fn state(&self) -> Arc<dyn StateStore> {
        Arc::clone(&self.transcript().state)
    }

    fn transcript(&self) -> MutexGuard<'_, Transcript> {
        self.transcript
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn truncate(value: &Value) -> String {
    let mut text = value.to_string();
    if text.len() > MAX_REQUEST_BYTES {
        text.truncate(text.floor_char_boundary(MAX_REQUEST_BYTES));
        text.push('…');
    }
    text
}

/// The answer or the error of an exchange; [`Exchange::check`] ensures that there is one.
fn outcome<A, E>(answered: ScriptedCall<A, E>) -> Result<A, E> {
    answered.answer.ok_or_else(|| {
        answered
            .error
            .expect("a checked exchange has an answer or an error")
    })
}

impl ModelClient for Script {
    fn complete(&self, request: ModelRequest) -> Answer<Result<ModelResponse, ModelError>> {
        let due = self.next("model.complete", |_| request::completion_to_json(&request));
        let answer = match due {
            Some(Exchange::Complete(one)) => outcome(one).map(|one| one.response()),
            _ => Err(ModelError::Unavailable(UNEXPECTED.to_owned())),
        };
        Box::pin(std::future::ready(answer))
    }

    fn score(
        &self,
        model: String,
        messages: Vec<Message>,
        completion: String,
    ) -> Answer<Result<Vec<f32>, ModelError>> {
        let due = self.next("model.score", |_| {
            request::score_to_json(&model, &messages, &completion)
        });
        let answer = match due {
            Some(Exchange::Score(one)) => outcome(one).map(|one| one.logprobs),
            _ => Err(ModelError::Unavailable(UNEXPECTED.to_owned())),
        };
        Box::pin(std::future::ready(answer))
    }
}

impl Network for Script {
    fn resolve(&self, _name: String) -> Answer<Result<Vec<IpAddr>, String>> {
        Box::pin(std::future::ready(
            Err("a script has no network".to_owned()),
        ))
    }

    fn exchange(&self, _request: OutboundRequest) -> Answer<Result<InboundResponse, NetworkError>> {
        let reason = "a script has no network".to_owned();
        Box::pin(std::future::ready(Err(NetworkError::Transport(reason))))
    }

    fn scripted_answer(
        &self,
        request: &HttpRequest,
    ) -> Option<Result<InboundResponse, NetworkError>> {
        let due = self.next("http.send", |expected| {
            request::http_to_json(request, expected)
        });
        Some(match due {
            Some(Exchange::Send(one)) => outcome(one).map(InboundResponse::from),
            _ => Err(NetworkError::Transport(UNEXPECTED.to_owned())),
        })
    }
}

impl StateStore for Script {
    fn get(
        &self,
        scope: StateScope,
        key: String,
    ) -> Answer<Result<Option<StateEntry>, StateError>> {
        self.state().get(scope, key)
    }

    fn put(
        &self,
        scope: StateScope,
        key: String,
        value: Vec<u8>,
        expected: Option<u64>,
    ) -> Answer<Result<u64, StateError>> {
        self.state().put(scope, key, value, expected)
    }

    fn delete(&self, scope: StateScope, key: String) -> Answer<Result<(), StateError>> {
        self.state().delete(scope, key)
    }

    fn keys(
        &self,
        scope: StateScope,
        prefix: String,
        cursor: Option<String>,
        limit: usize,
    ) -> Answer<Result<StatePage, StateError>> {
        self.state().keys(scope, prefix, cursor, limit)
    }
}
