//! Models behind an external OpenAI-compatible endpoint.

use std::sync::Arc;
use std::time::Duration;

use clawhost_chat::AssistantMessage;
use clawhost_plugins::{
    Message, ModelChoice, ModelError, ModelFinish, ModelRequest, ModelResponse,
};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::endpoint::{Endpoint, EndpointError};
use super::network::on_network;

/// An endpoint that speaks `/chat/completions`.
pub(crate) struct External {
    endpoint: Arc<Endpoint>,
    model: String,
    /// Whether it is asked for log-probs.
    logprobs: bool,
}

impl External {
    /// `url` is the base with `/v1`, `key` the value of the bearer key.
    pub(crate) fn new(
        url: &str,
        model: &str,
        key: Option<String>,
        timeout: Duration,
        logprobs: bool,
    ) -> External {
        External {
            endpoint: Arc::new(Endpoint::new(url, key, timeout)),
            model: model.to_owned(),
            logprobs,
        }
    }

    /// Requests completions. Dropping the future closes the connection.
    pub(crate) async fn complete(
        &self,
        request: &ModelRequest,
    ) -> Result<ModelResponse, ModelError> {
        let mut body = body(&self.model, request)?;
        if self.logprobs {
            body["logprobs"] = true.into();
        }
        let body = body.to_string();
        let (endpoint, request_bytes) = (Arc::clone(&self.endpoint), body.len());
        let response = on_network(async move { endpoint.post("chat/completions", &body).await });
        let bytes = response.await.map_err(|failure| match failure {
            EndpointError::Timeout => ModelError::Timeout,
            EndpointError::Status { status, .. }
                if (400..500).contains(&status) && status != 429 =>
            {
                ModelError::Rejected(failure.to_string())
            }
            other => ModelError::Unavailable(other.to_string()),
        })?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| {
            ModelError::Unavailable(format!("the endpoint sent no JSON: {error}"))
        })?;
        read(&value, request_bytes).ok_or_else(|| {
            ModelError::Unavailable("the endpoint's answer is no chat completion".to_owned())
        })
    }
}

fn body(model: &str, request: &ModelRequest) -> Result<Value, ModelError> {
    let messages: Vec<Value> = request.messages.iter().map(Message::to_openai).collect();
    let mut fields = serde_json::Map::new();
    let mut set = |key: &str, value: Value| fields.insert(key.to_owned(), value);
    set("model", model.into());
    set("messages", messages.into());
    set("n", request.n.into());
    set("temperature", json!(request.temperature));
    set("top_p", json!(request.top_p));
    set("max_tokens", request.max_tokens.into());
    if !request.stop.is_empty() {
        set("stop", json!(request.stop));
    }
    if let Some(seed) = request.seed {
        // The field is a signed number at most endpoints.
        set("seed", (seed >> 1).into());
    }
    if !request.tools.is_empty() {
        let tools = request
            .tools
            .iter()
            .map(clawhost_plugins::ToolSpec::to_openai);
        set("tools", tools.collect());
    }
    if let Some(schema) = &request.schema {
        let schema: Value = serde_json::from_str(schema)
            .map_err(|error| ModelError::Rejected(format!("the schema is no JSON: {error}")))?;
        set(
            "response_format",
            json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}),
        );
    }
    Ok(Value::Object(fields))
}

/// Bytes of a token, where the endpoint does not say how many there were.
const TOKEN_BYTES: usize = 4;

/// Reads the answer to a request of so many bytes. What an endpoint does not count is estimated: it is never free.
fn read(value: &Value, request_bytes: usize) -> Option<ModelResponse> {
    let choices = value.get("choices")?.as_array()?;
    let count = |key: &str, bytes: usize| {
        let counted = value.pointer(&format!("/usage/{key}"));
        let estimated = || bytes.div_ceil(TOKEN_BYTES) as u64;
        counted.and_then(Value::as_u64).unwrap_or_else(estimated)
    };
    let said_bytes = choices
        .iter()
        .filter_map(|choice| choice.get("message"))
        .map(|message| message.to_string().len())
        .sum();
    Some(ModelResponse {
        choices: choices
            .iter()
            .map(|choice| {
                Some(ModelChoice {
                    message: (&AssistantMessage::deserialize(choice.get("message")?).ok()?).into(),
                    finish: match choice.get("finish_reason").and_then(Value::as_str) {
                        Some("length") => ModelFinish::Length,
                        Some("tool_calls" | "function_call") => ModelFinish::ToolCalls,
                        Some("content_filter") => ModelFinish::Filtered,
                        _ => ModelFinish::Stop,
                    },
                    logprob: said_logprob(choice),
                })
            })
            .collect::<Option<_>>()?,
        prompt_tokens: count("prompt_tokens", request_bytes),
        completion_tokens: count("completion_tokens", said_bytes),
    })
}

/// Log-prob of all that a choice says, where the endpoint tells of its tokens.
fn said_logprob(choice: &Value) -> Option<f64> {
    let tokens = choice.pointer("/logprobs/content")?.as_array()?;
    let values = tokens.iter().map(|token| token.get("logprob")?.as_f64());
    let sum = values.sum::<Option<f64>>()?;
    (!tokens.is_empty() && sum.is_finite()).then_some(sum)
}

#[cfg(test)]
mod tests {
    use clawhost_plugins::Role;

    use super::*;

    #[test]
    fn requests_and_answers_are_openais() {
        let request = ModelRequest {
            model: "judge".into(),
            messages: vec![Message::text(Role::User, "hi")],
            tools: Vec::new(),
            n: 3,
            temperature: 0.5,
            top_p: 1.0,
            max_tokens: 9,
            stop: vec!["\n".into()],
            seed: Some(u64::MAX),
            schema: None,
        };
        let body = body("m", &request).unwrap();
        assert_eq!(body["messages"], json!([{"role": "user", "content": "hi"}]));
        assert_eq!((&body["n"], &body["stop"]), (&json!(3), &json!(["\n"])));
        assert_eq!(body["seed"], json!(i64::MAX));
        let answer = read(&json!({
            "choices": [
                {"message": {"role": "assistant", "content": "1"}, "finish_reason": "stop",
                 "logprobs": {"content": [{"token": "1", "logprob": -0.5}, {"token": "", "logprob": -0.25}]}},
                {"message": {"role": "assistant", "content": "x"}, "finish_reason": "length"},
            ],
            "usage": {"prompt_tokens": 5, "completion_tokens": 2},
        }), 100)
        .unwrap();
        assert_eq!(answer.choices.len(), 2);
        assert_eq!(answer.choices[1].finish, ModelFinish::Length);
        let logprobs: Vec<_> = answer.choices.iter().map(|c| c.logprob).collect();
        assert_eq!(logprobs, [Some(-0.75), None]);
        assert_eq!((answer.prompt_tokens, answer.completion_tokens), (5, 2));
        assert_eq!(read(&json!({"error": {}}), 100), None);
        // An endpoint that does not count gives nothing away.
        let message = json!({"role": "assistant", "content": "1"});
        let bytes = message.to_string().len() as u64;
        let uncounted = read(&json!({"choices": [{"message": message}]}), 100).unwrap();
        assert_eq!(uncounted.prompt_tokens, 25);
        assert_eq!(uncounted.completion_tokens, bytes.div_ceil(4));
    }

    /// A plugin's wall limit, or its end, drops the request.
    #[tokio::test]
    async fn a_request_that_nobody_waits_for_is_closed() {
        use std::io::Read;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let (notify, received) = tokio::sync::oneshot::channel();
        let peer = tokio::task::spawn_blocking(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = [0; 4096];
            assert!(stream.read(&mut bytes).unwrap() > 0);
            notify.send(()).unwrap();
            // It never answers. The rest of the request may come first.
            while stream.read(&mut bytes).is_ok_and(|read| read > 0) {}
        });
        let timeout = Duration::from_secs(3_600);
        let external = External::new(&url, "m", None, timeout, false);
        let request = ModelRequest {
            model: "judge".into(),
            messages: vec![Message::text(Role::User, "hi")],
            tools: Vec::new(),
            n: 1,
            temperature: 0.0,
            top_p: 1.0,
            max_tokens: 9,
            stop: Vec::new(),
            seed: None,
            schema: None,
        };
        let waiting = tokio::spawn(async move { external.complete(&request).await });
        received.await.unwrap();
        waiting.abort();
        let closed = tokio::time::timeout(Duration::from_secs(60), peer).await;
        closed.expect("the connection is still open").unwrap();
    }
}
