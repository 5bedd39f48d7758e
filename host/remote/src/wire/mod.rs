//! The two wire formats: requests and streamed events.

mod completion;
mod sglang;
mod vllm;

use clawhost_engine::SamplingParams;
use serde_json::{Value, json};

pub(crate) use self::completion::{CompletionRequest, Delta, RemoteToken, StreamFinish};
use crate::http::CallError;
use clawhost_config::ServerKind;

/// Sampling parameters that are passed to the server or handled here.
const SUPPORTED_PARAMS: &[&str] = &[
    "frequency_penalty",
    "max_tokens",
    "min_p",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "temperature",
    "top_k",
    "top_logprobs",
    "top_p",
    // Passed among the tokens that end a reply.
    "stop_token_ids",
];

/// Rejects sampling parameters that are not passed to the server, because they would be ignored without notice.
pub(crate) fn check_supported(sampling: &SamplingParams) -> Result<(), String> {
    let Ok(Value::Object(params)) = serde_json::to_value(sampling) else {
        return Err("cannot serialize the sampling parameters".to_owned());
    };
    match params
        .keys()
        .find(|key| !SUPPORTED_PARAMS.contains(&key.as_str()))
    {
        None => Ok(()),
        Some(key) => Err(format!(
            "{key} is not supported by the remote backend; remove it, or run without [engine.remote]"
        )),
    }
}

/// Parses the events of one response.
#[derive(Debug)]
pub(crate) enum EventReader {
    Vllm,
    Sglang(sglang::EventReader),
}

impl EventReader {
    /// Parses an event; `None` for the final `[DONE]`.
    pub(crate) fn parse(&mut self, payload: &str) -> Result<Option<Delta>, CallError> {
        if payload == "[DONE]" {
            return Ok(None);
        }
        let value: Value = serde_json::from_str(payload)
            .map_err(|error| CallError::Malformed(format!("an event is not JSON ({error})")))?;
        if let Some(error) = value.get("error").filter(|error| !error.is_null()) {
            return Ok(Some(Delta {
                finish: Some(StreamFinish::Error(clawhost_http::error_message(
                    &json!({"error": error}).to_string(),
                ))),
                ..Delta::default()
            }));
        }
        match self {
            Self::Vllm => vllm::parse(&value),
            Self::Sglang(reader) => reader.parse(&value),
        }
        .map(Some)
    }
}

/// What differs between the APIs of the servers.
pub(crate) trait WireFormat {
    /// The path of the completion endpoint.
    fn path(self) -> &'static str;
    /// The body of a completion request.
    fn body(self, request: &CompletionRequest<'_>) -> Value;
    /// The reader of the response's events.
    fn reader(self) -> EventReader;
    /// The path for loading (`true`) or unloading adapters.
    fn adapter_path(self, loads: bool) -> &'static str;
}

impl WireFormat for ServerKind {
    fn path(self) -> &'static str {
        match self {
            Self::Vllm => "v1/completions",
            Self::Sglang => "generate",
        }
    }

    fn body(self, request: &CompletionRequest<'_>) -> Value {
        match self {
            Self::Vllm => vllm::body(request),
            Self::Sglang => sglang::body(request),
        }
    }

    fn reader(self) -> EventReader {
        match self {
            Self::Vllm => EventReader::Vllm,
            Self::Sglang => EventReader::Sglang(sglang::EventReader::default()),
        }
    }

    fn adapter_path(self, loads: bool) -> &'static str {
        match (self, loads) {
            (Self::Vllm, true) => "v1/load_lora_adapter",
            (Self::Vllm, false) => "v1/unload_lora_adapter",
            (Self::Sglang, true) => "load_lora_adapter",
            (Self::Sglang, false) => "unload_lora_adapter",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_contain_all_sampling_parameters() {
        let sampling = SamplingParams {
            seed: Some(u64::MAX),
            top_k: 3,
            stop: vec!["x".to_owned()],
            presence_penalty: 0.5,
            ..SamplingParams::default()
        };
        check_supported(&sampling).unwrap();
        let request = CompletionRequest {
            model: "m",
            is_adapter: true,
            prompt: &[1, 2],
            sampling: &sampling,
            stop_token_ids: &[9],
            max_tokens: 7,
        };
        let vllm = ServerKind::Vllm.body(&request);
        assert_eq!(
            (&vllm["prompt"], &vllm["model"]),
            (&json!([1, 2]), &json!("m"))
        );
        assert_eq!(
            (&vllm["stop_token_ids"], &vllm["max_tokens"]),
            (&json!([9]), &json!(7))
        );
        assert_eq!(
            (&vllm["seed"], &vllm["top_k"]),
            (&json!(i64::MAX), &json!(3))
        );
        assert_eq!(vllm["presence_penalty"], json!(0.5));
        let sglang = ServerKind::Sglang.body(&request);
        assert_eq!(
            (&sglang["input_ids"], &sglang["lora_path"]),
            (&json!([1, 2]), &json!("m"))
        );
        let params = &sglang["sampling_params"];
        assert_eq!(
            (&params["max_new_tokens"], &params["top_k"]),
            (&json!(7), &json!(3))
        );
        // -1 disables top-k in both.
        let all = SamplingParams::default();
        let request = CompletionRequest {
            sampling: &all,
            ..request
        };
        assert_eq!(ServerKind::Vllm.body(&request)["top_k"], json!(-1));
    }
}
