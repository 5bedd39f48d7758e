//! Records the calls of a plugin and their answers, for a transcript.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use clawhost_plugins::{
    Answer, HttpRequest, InboundResponse, Message, ModelClient, ModelError, ModelRequest,
    ModelResponse, Network, NetworkError, OutboundRequest, ToolSpec,
};
use serde_json::{Value, json};

use super::exchange::{Completion, Exchange, Response, Scores, ScriptedCall};
use super::request;

/// The exchanges so far, or why they cannot be recorded.
type Exchanges = Arc<Mutex<Result<Vec<Exchange>, String>>>;

/// Wraps real models and a real network, and records each exchange in order. HTTP is recorded as the guest sees it, without
/// secrets: the host inserts them after the request is recorded, and removes them before the response is.
#[derive(Clone)]
pub struct Recorder {
    model: Option<Arc<dyn ModelClient>>,
    network: Arc<dyn Network>,
    exchanges: Exchanges,
}

impl Recorder {
    /// Records the calls of these models and this network.
    pub fn new(model: Option<Arc<dyn ModelClient>>, network: Arc<dyn Network>) -> Recorder {
        Recorder {
            model,
            network,
            exchanges: Arc::new(Mutex::new(Ok(Vec::new()))),
        }
    }

    /// The exchanges that took place.
    ///
    /// # Errors
    /// The first answer that a transcript cannot hold.
    pub fn exchanges(&self) -> Result<Vec<Exchange>, String> {
        self.exchanges
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

fn push(exchanges: &Exchanges, exchange: Result<Exchange, String>) {
    let mut all = exchanges.lock().unwrap_or_else(PoisonError::into_inner);
    match (all.as_mut(), exchange) {
        (Ok(all), Ok(exchange)) => all.push(exchange),
        (Ok(_), Err(reason)) => *all = Err(reason),
        (Err(_), _) => {}
    }
}

fn scripted_call<A, E>(request: Value, answer: Result<A, E>) -> ScriptedCall<A, E> {
    let (answer, error) = match answer {
        Ok(answer) => (Some(answer), None),
        Err(error) => (None, Some(error)),
    };
    ScriptedCall {
        request,
        answer,
        error,
    }
}

fn no_model<T: Send + 'static>() -> Answer<Result<T, ModelError>> {
    let reason = "no model is offered".to_owned();
    Box::pin(std::future::ready(Err(ModelError::Unavailable(reason))))
}

impl ModelClient for Recorder {
    fn complete(&self, request: ModelRequest) -> Answer<Result<ModelResponse, ModelError>> {
        let Some(model) = &self.model else {
            return no_model();
        };
        let asked = request::completion_to_json(&request);
        let (answer, exchanges) = (model.complete(request), Arc::clone(&self.exchanges));
        Box::pin(async move {
            let answer = answer.await;
            let shown = answer
                .as_ref()
                .map(Completion::from_response)
                .map_err(Clone::clone);
            push(
                &exchanges,
                Ok(Exchange::Complete(scripted_call(asked, shown))),
            );
            answer
        })
    }

    fn score(
        &self,
        name: String,
        messages: Vec<Message>,
        completion: String,
    ) -> Answer<Result<Vec<f32>, ModelError>> {
        let Some(model) = &self.model else {
            return no_model();
        };
        let asked = request::score_to_json(&name, &messages, &completion);
        let answer = model.score(name, messages, completion);
        let exchanges = Arc::clone(&self.exchanges);
        Box::pin(async move {
            let answer = answer.await;
            let shown = answer.clone().map(|logprobs| Scores { logprobs });
            push(&exchanges, Ok(Exchange::Score(scripted_call(asked, shown))));
            answer
        })
    }

    fn count(
        &self,
        name: String,
        messages: Vec<Message>,
        tools: Vec<ToolSpec>,
        completion: String,
    ) -> Answer<Result<Option<u64>, ModelError>> {
        match &self.model {
            Some(model) => model.count(name, messages, tools, completion),
            None => no_model(),
        }
    }
}

impl Network for Recorder {
    fn resolve(&self, name: String) -> Answer<Result<Vec<IpAddr>, String>> {
        self.network.resolve(name)
    }

    fn exchange(&self, request: OutboundRequest) -> Answer<Result<InboundResponse, NetworkError>> {
        self.network.exchange(request)
    }

    fn observe(&self, request: &HttpRequest, answer: &Result<InboundResponse, NetworkError>) {
        let mut asked = json!({"method": request.method, "url": request.url});
        // A body that is not text is left out, so it is not compared.
        if let (Some(asked), Ok(text)) = (asked.as_object_mut(), std::str::from_utf8(&request.body))
        {
            let json = serde_json::from_str(text).ok().filter(Value::is_object);
            asked.insert("body".to_owned(), json.unwrap_or_else(|| text.into()));
        }
        let shown = match answer {
            Err(error) => Ok(Err(error.clone())),
            Ok(answer) => match String::from_utf8(answer.body.clone()) {
                Ok(body) => Ok(Ok(Response {
                    status: answer.status,
                    headers: answer.headers.iter().cloned().collect(),
                    body: body.into(),
                })),
                Err(_) => Err(format!(
                    "the body of the answer from {} is not text, which a transcript cannot hold",
                    request.url
                )),
            },
        };
        let exchange = shown.map(|shown| Exchange::Send(scripted_call(asked, shown)));
        push(&self.exchanges, exchange);
    }
}
