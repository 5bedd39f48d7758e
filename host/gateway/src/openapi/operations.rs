//! The operations: parameters, bodies, responses and errors of each path.

use serde_json::{Value, json};

/// The body of a successful response.
#[derive(Clone, Copy)]
pub(super) enum ResponseBody {
    /// JSON of this schema.
    Json(&'static str),
    /// JSON of this schema, or server-sent events if the request sets `stream`.
    JsonOrEvents(&'static str),
    /// Server-sent events.
    Events,
    /// Text of this media type.
    Text(&'static str),
    /// No body.
    Empty,
}

/// One path with one method.
pub(super) struct Operation {
    pub(super) id: &'static str,
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) summary: &'static str,
    pub(super) parameters: Vec<Value>,
    /// Schema and example of the request body.
    pub(super) body: Option<(&'static str, Value)>,
    pub(super) responses: Vec<ResponseBody>,
    /// Status and schema of each error.
    pub(super) errors: Vec<(u16, &'static str)>,
}

/// Errors of the admission middleware, on every path that requires authentication.
const COMMON_ERRORS: [u16; 5] = [401, 403, 429, 431, 500];
/// Errors of reading a body.
const BODY_ERRORS: [u16; 4] = [400, 408, 413, 415];

fn get(
    id: &'static str,
    path: &'static str,
    response: ResponseBody,
    summary: &'static str,
) -> Operation {
    Operation {
        id,
        method: "get",
        path,
        summary,
        parameters: Vec::new(),
        body: None,
        responses: vec![response],
        errors: COMMON_ERRORS.map(|status| (status, "Error")).to_vec(),
    }
}

fn post(
    id: &'static str,
    path: &'static str,
    response: ResponseBody,
    summary: &'static str,
) -> Operation {
    Operation {
        method: "post",
        ..get(id, path, response, summary)
    }
}

impl Operation {
    fn body(mut self, schema: &'static str, example: Value) -> Self {
        self.body = Some((schema, example));
        self.errors(&BODY_ERRORS)
    }

    fn parameter(mut self, name: &str, place: &str, schema: Value, description: &str) -> Self {
        self.parameters.push(json!({
            "name": name, "in": place, "required": place == "path", "schema": schema, "description": description,
        }));
        self
    }

    fn path_id(self, schema: Value, description: &str) -> Self {
        self.parameter("id", "path", schema, description)
            .errors(&[400, 404])
    }

    fn errors(mut self, statuses: &[u16]) -> Self {
        self.errors
            .extend(statuses.iter().map(|status| (*status, "Error")));
        self.errors.sort_unstable();
        self.errors.dedup();
        self
    }

    /// Removes the errors of authentication and overload.
    fn without_auth(mut self) -> Self {
        self.errors
            .retain(|(status, _)| !matches!(status, 401 | 429 | 500));
        self
    }

    /// Errors are in Anthropic's format.
    fn with_anthropic_errors(mut self) -> Self {
        for (_, schema) in &mut self.errors {
            *schema = "MessagesError";
        }
        self
    }

    /// Adds the session headers.
    fn with_session_headers(self) -> Self {
        let text = || json!({"type": "string", "maxLength": 256});
        self.parameter(
            "X-Session-Id",
            "header",
            text(),
            "Session of the request: its id, or a name chosen by the client. Default: matched by content.",
        )
        .parameter(
            "X-Turn-Type",
            "header",
            json!({"type": "string", "enum": ["main", "side"]}),
            "Whether the turn belongs to the main conversation. Default: inferred.",
        )
        .parameter(
            "X-Session-Done",
            "header",
            json!({"type": "string"}),
            "`true` ends the session with this turn.",
        )
        .errors(&[503])
    }
}

/// All operations.
pub(super) fn operations() -> Vec<Operation> {
    use ResponseBody::{Empty, Events, Json, JsonOrEvents, Text};
    let messages_example = json!([{"role": "user", "content": "Say hi."}]);
    let text = || json!({"type": "string"});
    let number = || json!({"type": "integer", "minimum": 1});
    vec![
        get(
            "page",
            "/",
            Text("text/html"),
            "Operator page; without an operator's key it has no data and asks for a key.",
        )
        .without_auth()
        .errors(&[429, 500, 503]),
        get(
            "page_style",
            "/page.css",
            Text("text/css"),
            "Style sheet of the operator page.",
        )
        .without_auth()
        .errors(&[429]),
        get(
            "page_script",
            "/page.js",
            Text("text/javascript"),
            "Script of the operator page.",
        )
        .without_auth()
        .errors(&[429]),
        get(
            "events",
            "/v1/events",
            Events,
            "Stream snapshots of the server, at most one per second and only when something changed. An operator \
             receives everything, another key its own turns.",
        ),
        get(
            "openapi",
            "/openapi.json",
            Json("Document"),
            "OpenAPI document.",
        )
        .without_auth()
        .errors(&[429]),
        Operation {
            errors: vec![(403, "Error"), (431, "Error"), (503, "Readiness")],
            ..get(
                "health",
                "/health",
                Empty,
                "Readiness in vLLM's format: no body.",
            )
        },
        Operation {
            errors: vec![(403, "Error"), (431, "Error"), (503, "Health")],
            ..get(
                "healthz",
                "/healthz",
                Json("Health"),
                "State of the engine, journal, judging and training.",
            )
        },
        Operation {
            errors: vec![(403, "Error"), (431, "Error"), (503, "Readiness")],
            ..get(
                "readyz",
                "/readyz",
                Json("Readiness"),
                "Readiness: whether new requests are accepted.",
            )
        },
        get("version", "/version", Json("Version"), "Server version.")
            .without_auth()
            .errors(&[429]),
        get(
            "metrics",
            "/metrics",
            Text("text/plain"),
            "Metrics in the Prometheus text format.",
        ),
        post(
            "chat",
            "/v1/chat/completions",
            JsonOrEvents("ChatCompletion"),
            "Create a chat completion.",
        )
        .body(
            "ChatRequest",
            json!({"messages": messages_example, "max_tokens": 8}),
        )
        .errors(&[404])
        .with_session_headers(),
        post(
            "complete",
            "/v1/completions",
            JsonOrEvents("Completion"),
            "Create a text completion from text or tokens; it is not recorded.",
        )
        .body(
            "CompletionRequest",
            json!({"prompt": "Once upon a time", "max_tokens": 8}),
        )
        .errors(&[404, 503]),
        post(
            "messages",
            "/v1/messages",
            JsonOrEvents("Message"),
            "Create a message (Anthropic).",
        )
        .body(
            "MessagesRequest",
            json!({"model": "", "messages": messages_example, "max_tokens": 8}),
        )
        .errors(&[404])
        .with_session_headers()
        .with_anthropic_errors(),
        post(
            "count_tokens",
            "/v1/messages/count_tokens",
            Json("TokenCount"),
            "Count the prompt tokens of a message (Anthropic).",
        )
        .body(
            "CountTokensRequest",
            json!({"model": "", "messages": messages_example}),
        )
        .errors(&[404])
        .with_anthropic_errors(),
        post(
            "responses",
            "/v1/responses",
            JsonOrEvents("Response"),
            "Create a response (OpenAI Responses).",
        )
        .body(
            "ResponsesRequest",
            json!({"input": "Say hi.", "max_output_tokens": 8}),
        )
        .errors(&[404])
        .with_session_headers(),
        get(
            "response",
            "/v1/responses/{id}",
            Json("Response"),
            "Retrieve a response.",
        )
        .path_id(text(), "Response id.")
        .errors(&[503]),
        Operation {
            method: "delete",
            ..get(
                "delete_response",
                "/v1/responses/{id}",
                Json("ResponseDeleted"),
                "Delete a response and the records made from it.",
            )
        }
        .path_id(text(), "Response id.")
        .errors(&[409, 503]),
        post(
            "input_tokens",
            "/v1/responses/input_tokens",
            Json("InputTokens"),
            "Count the prompt tokens of a response.",
        )
        .body("ResponsesRequest", json!({"input": "Say hi."}))
        .errors(&[404, 503]),
        post(
            "tokenize",
            "/tokenize",
            Json("Tokens"),
            "Tokenize text, or a conversation rendered by the chat template.",
        )
        .body("TokenizeRequest", json!({"prompt": "Say hi."}))
        .errors(&[404, 503]),
        post(
            "detokenize",
            "/detokenize",
            Json("Detokenized"),
            "Decode tokens to text.",
        )
        .body("DetokenizeRequest", json!({"tokens": [0, 1]}))
        .errors(&[404, 503]),
        get(
            "models",
            "/v1/models",
            Json("ModelList"),
            "List the served model, and each loaded adapter as `model:version`.",
        ),
        get(
            "model",
            "/v1/models/{id}",
            Json("Model"),
            "Retrieve a model.",
        )
        .path_id(text(), "Model id."),
        post(
            "feedback",
            "/v1/feedback",
            Json("FeedbackAnswer"),
            "Send feedback on a reply.",
        )
        .body(
            "FeedbackRequest",
            json!({"response_id": "chatcmpl-0", "score": 1, "text": "just right"}),
        )
        .errors(&[404, 409, 503]),
        get(
            "sessions",
            "/v1/sessions",
            Json("SessionList"),
            "List the sessions, the last active first.",
        )
        .parameter(
            "limit",
            "query",
            json!({"type": "integer", "minimum": 1, "maximum": 1000}),
            "Default 100.",
        )
        .errors(&[400, 503]),
        get(
            "session",
            "/v1/sessions/{id}",
            Json("Session"),
            "Retrieve a session with its turns.",
        )
        .path_id(
            text(),
            "Session id, or the name that this key gave the session.",
        )
        .parameter(
            "include",
            "query",
            text(),
            "`messages`, `tokens` or both, separated by a comma. Default: neither.",
        )
        .errors(&[503]),
        Operation {
            method: "delete",
            ..get(
                "forget",
                "/v1/sessions/{id}",
                Json("Forgotten"),
                "Delete a session and the records made from it.",
            )
        }
        .path_id(
            text(),
            "Session id, or the name that this key gave the session.",
        )
        .errors(&[503]),
        get(
            "explain_session",
            "/v1/sessions/{id}/explain",
            Json("Explained"),
            "Explain how each turn of a session was judged and trained.",
        )
        .path_id(
            text(),
            "Session id, or the name that this key gave the session.",
        )
        .errors(&[503]),
        post(
            "session_done",
            "/v1/sessions/{id}/done",
            Json("Done"),
            "End a session.",
        )
        .path_id(
            text(),
            "Session id, or the name that this key gave the session.",
        )
        .errors(&[409, 503]),
        get(
            "explain_turn",
            "/v1/turns/{id}/explain",
            Json("Explained"),
            "Explain how a turn was judged and trained.",
        )
        .path_id(number(), "Turn id.")
        .errors(&[503]),
        get(
            "step",
            "/v1/steps/{id}",
            Json("Explained"),
            "Explain the samples of a training step.",
        )
        .path_id(number(), "Step id.")
        .errors(&[503]),
        get(
            "adapters",
            "/v1/adapters",
            Json("AdapterList"),
            "List the adapter versions, the active one and the last release changes.",
        )
        .errors(&[503]),
        post(
            "promote",
            "/v1/adapters/promote",
            Json("Release"),
            "Activate an adapter version; 0 is the base model.",
        )
        .body("PromoteRequest", json!({"version": 0}))
        .errors(&[404, 409, 503]),
        post(
            "rollback",
            "/v1/adapters/rollback",
            Json("Release"),
            "Activate the version before the last release change.",
        )
        .errors(&[404, 409, 503]),
        post(
            "pin",
            "/v1/adapters/pin",
            Json("Release"),
            "Activate a version and pin it, so that training does not activate another.",
        )
        .body("PinRequest", json!({}))
        .errors(&[404, 409, 503]),
        Operation {
            method: "delete",
            ..get(
                "unpin",
                "/v1/adapters/pin",
                Json("Release"),
                "Remove the pin; the version stays active until training publishes another.",
            )
        }
        .errors(&[404, 409, 503]),
        get("plugins", "/v1/plugins", Json("List"), "List the plugins."),
        post(
            "reload_plugins",
            "/v1/plugins/reload",
            Json("List"),
            "Reload changed plugins.",
        )
        .errors(&[404]),
    ]
}
