//! The operations, row by row: what each path takes, answers and refuses.

use serde_json::{Value, json};

/// What a good answer is.
#[derive(Clone, Copy)]
pub(super) enum Answer {
    /// JSON of this schema.
    Json(&'static str),
    /// The same, or server-sent events when the request says `stream`.
    JsonOrEvents(&'static str),
    /// Text of this media type.
    Text(&'static str),
    /// Nothing but the status.
    Empty,
}

/// One path with one method.
pub(super) struct Operation {
    pub(super) id: &'static str,
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) summary: &'static str,
    pub(super) parameters: Vec<Value>,
    /// Schema of the body, and an example of it.
    pub(super) body: Option<(&'static str, Value)>,
    pub(super) answers: Vec<Answer>,
    /// Status and schema of each refusal.
    pub(super) errors: Vec<(u16, &'static str)>,
}

/// Refusals at the door, which every path but the open ones knows.
const DOOR: [u16; 5] = [401, 403, 429, 431, 500];
/// Refusals of a body.
const BODY: [u16; 4] = [400, 408, 413, 415];

fn get(id: &'static str, path: &'static str, answer: Answer, summary: &'static str) -> Operation {
    Operation {
        id,
        method: "get",
        path,
        summary,
        parameters: Vec::new(),
        body: None,
        answers: vec![answer],
        errors: DOOR.map(|status| (status, "Error")).to_vec(),
    }
}

fn post(id: &'static str, path: &'static str, answer: Answer, summary: &'static str) -> Operation {
    Operation {
        method: "post",
        ..get(id, path, answer, summary)
    }
}

impl Operation {
    fn body(mut self, schema: &'static str, example: Value) -> Self {
        self.body = Some((schema, example));
        self.refuses(&BODY)
    }

    fn parameter(mut self, name: &str, place: &str, schema: Value, description: &str) -> Self {
        self.parameters.push(json!({
            "name": name, "in": place, "required": place == "path", "schema": schema, "description": description,
        }));
        self
    }

    fn path_id(self, schema: Value, description: &str) -> Self {
        self.parameter("id", "path", schema, description)
            .refuses(&[400, 404])
    }

    fn refuses(mut self, statuses: &[u16]) -> Self {
        self.errors
            .extend(statuses.iter().map(|status| (*status, "Error")));
        self.errors.sort_unstable();
        self.errors.dedup();
        self
    }

    /// Open without a key and under overload.
    fn open(mut self) -> Self {
        self.errors
            .retain(|(status, _)| !matches!(status, 401 | 429 | 500));
        self
    }

    /// Errors are in Anthropic's shape.
    fn in_messages_shape(mut self) -> Self {
        for (_, schema) in &mut self.errors {
            *schema = "MessagesError";
        }
        self
    }

    /// The fields by which a client may name the session, which are headers too.
    fn in_a_session(self) -> Self {
        let text = || json!({"type": "string", "maxLength": 256});
        self.parameter(
            "X-Session-Id",
            "header",
            text(),
            "The session of this key that this belongs to, by a name of the client's choice or by id. Default: found by content.",
        )
        .parameter(
            "X-Turn-Type",
            "header",
            json!({"type": "string", "enum": ["main", "side"]}),
            "Default: inferred.",
        )
        .parameter(
            "X-Session-Done",
            "header",
            json!({"type": "string"}),
            "`true`: the session ends with this.",
        )
        .refuses(&[503])
    }
}

/// All operations.
pub(super) fn all() -> Vec<Operation> {
    use Answer::{Empty, Json, JsonOrEvents, Text};
    let says_hi = json!([{"role": "user", "content": "Say hi."}]);
    let text = || json!({"type": "string"});
    let number = || json!({"type": "integer", "minimum": 1});
    vec![
        get("page", "/", Text("text/html"), "The operator page.").refuses(&[503]),
        get(
            "openapi",
            "/openapi.json",
            Json("Document"),
            "This document.",
        )
        .open()
        .refuses(&[429]),
        Operation {
            errors: vec![(403, "Error"), (431, "Error"), (503, "Readiness")],
            ..get(
                "health",
                "/health",
                Empty,
                "The same as `/readyz`, as vLLM answers it.",
            )
        },
        Operation {
            errors: vec![(403, "Error"), (431, "Error"), (503, "Health")],
            ..get(
                "healthz",
                "/healthz",
                Json("Health"),
                "State of engine, journal and loops.",
            )
        },
        Operation {
            errors: vec![(403, "Error"), (431, "Error"), (503, "Readiness")],
            ..get(
                "readyz",
                "/readyz",
                Json("Readiness"),
                "Whether new requests should be sent here.",
            )
        },
        get(
            "version",
            "/version",
            Json("Version"),
            "Version of this program.",
        )
        .open()
        .refuses(&[429]),
        get(
            "metrics",
            "/metrics",
            Text("text/plain"),
            "Prometheus text.",
        ),
        post(
            "chat",
            "/v1/chat/completions",
            JsonOrEvents("ChatCompletion"),
            "A reply, in OpenAI's chat dialect.",
        )
        .body("ChatRequest", json!({"messages": says_hi, "max_tokens": 8}))
        .refuses(&[404])
        .in_a_session(),
        post(
            "complete",
            "/v1/completions",
            JsonOrEvents("Completion"),
            "A prompt continued as it stands, of text or tokens; nothing of it is collected.",
        )
        .body(
            "CompletionRequest",
            json!({"prompt": "Once upon a time", "max_tokens": 8}),
        )
        .refuses(&[404, 503]),
        post(
            "messages",
            "/v1/messages",
            JsonOrEvents("Message"),
            "A reply, in Anthropic's dialect.",
        )
        .body(
            "MessagesRequest",
            json!({"model": "", "messages": says_hi, "max_tokens": 8}),
        )
        .refuses(&[404])
        .in_a_session()
        .in_messages_shape(),
        post(
            "count_tokens",
            "/v1/messages/count_tokens",
            Json("TokenCount"),
            "Tokens of a prompt, in Anthropic's dialect.",
        )
        .body(
            "CountTokensRequest",
            json!({"model": "", "messages": says_hi}),
        )
        .refuses(&[404])
        .in_messages_shape(),
        post(
            "responses",
            "/v1/responses",
            JsonOrEvents("Response"),
            "A reply, in OpenAI's Responses dialect.",
        )
        .body(
            "ResponsesRequest",
            json!({"input": "Say hi.", "max_output_tokens": 8}),
        )
        .refuses(&[404])
        .in_a_session(),
        get(
            "response",
            "/v1/responses/{id}",
            Json("Response"),
            "A response as it was recorded.",
        )
        .path_id(text(), "Id of the response.")
        .refuses(&[503]),
        Operation {
            method: "delete",
            ..get(
                "delete_response",
                "/v1/responses/{id}",
                Json("ResponseDeleted"),
                "Forgets a response and what was made of it.",
            )
        }
        .path_id(text(), "Id of the response.")
        .refuses(&[409, 503]),
        post(
            "input_tokens",
            "/v1/responses/input_tokens",
            Json("InputTokens"),
            "Tokens of a prompt, in the Responses dialect.",
        )
        .body("ResponsesRequest", json!({"input": "Say hi."}))
        .refuses(&[404, 503]),
        post(
            "tokenize",
            "/tokenize",
            Json("Tokens"),
            "A text, or a conversation as the chat template renders it, as tokens.",
        )
        .body("TokenizeRequest", json!({"prompt": "Say hi."}))
        .refuses(&[404, 503]),
        post(
            "detokenize",
            "/detokenize",
            Json("Detokenized"),
            "The text of tokens.",
        )
        .body("DetokenizeRequest", json!({"tokens": [0, 1]}))
        .refuses(&[404, 503]),
        get(
            "models",
            "/v1/models",
            Json("ModelList"),
            "The served model, and each adapter as `model:version`.",
        ),
        get("model", "/v1/models/{id}", Json("Model"), "One of them.")
            .path_id(text(), "Id of the model."),
        post(
            "feedback",
            "/v1/feedback",
            Json("FeedbackAnswer"),
            "What a person thought of a reply.",
        )
        .body(
            "FeedbackRequest",
            json!({"response_id": "chatcmpl-0", "score": 1, "text": "just right"}),
        )
        .refuses(&[404, 409, 503]),
        get(
            "sessions",
            "/v1/sessions",
            Json("SessionList"),
            "All sessions, the last active first.",
        )
        .parameter(
            "limit",
            "query",
            json!({"type": "integer", "minimum": 1, "maximum": 1000}),
            "Default 100.",
        )
        .refuses(&[400, 503]),
        get(
            "session",
            "/v1/sessions/{id}",
            Json("Session"),
            "One session with its turns.",
        )
        .path_id(
            text(),
            "Id of the session, or the name that this key gave it.",
        )
        .parameter(
            "include",
            "query",
            text(),
            "`messages`, `tokens` or both, with a comma. Default: neither.",
        )
        .refuses(&[503]),
        Operation {
            method: "delete",
            ..get(
                "forget",
                "/v1/sessions/{id}",
                Json("Forgotten"),
                "Forgets a session and what was made of it.",
            )
        }
        .path_id(
            text(),
            "Id of the session, or the name that this key gave it.",
        )
        .refuses(&[503]),
        get(
            "explain_session",
            "/v1/sessions/{id}/explain",
            Json("Explained"),
            "What became of each turn, and why.",
        )
        .path_id(
            text(),
            "Id of the session, or the name that this key gave it.",
        )
        .refuses(&[503]),
        post(
            "session_done",
            "/v1/sessions/{id}/done",
            Json("Done"),
            "Ends a session.",
        )
        .path_id(
            text(),
            "Id of the session, or the name that this key gave it.",
        )
        .refuses(&[409, 503]),
        get(
            "explain_turn",
            "/v1/turns/{id}/explain",
            Json("Explained"),
            "What became of a turn, and why.",
        )
        .path_id(number(), "Number of the turn.")
        .refuses(&[503]),
        get(
            "step",
            "/v1/steps/{id}",
            Json("Explained"),
            "Which samples a training step was made of.",
        )
        .path_id(number(), "Number of the step.")
        .refuses(&[503]),
        get(
            "adapters",
            "/v1/adapters",
            Json("AdapterList"),
            "The adapters, which one is served, and the last changes of that.",
        )
        .refuses(&[503]),
        post(
            "promote",
            "/v1/adapters/promote",
            Json("Release"),
            "Serves a version from now on; 0 is the base model.",
        )
        .body("PromoteRequest", json!({"version": 0}))
        .refuses(&[404, 409, 503]),
        post(
            "rollback",
            "/v1/adapters/rollback",
            Json("Release"),
            "Serves what was served before the last change.",
        )
        .refuses(&[404, 409, 503]),
        post(
            "pin",
            "/v1/adapters/pin",
            Json("Release"),
            "Serves a version and holds it, whatever training publishes.",
        )
        .body("PinRequest", json!({}))
        .refuses(&[404, 409, 503]),
        Operation {
            method: "delete",
            ..get(
                "unpin",
                "/v1/adapters/pin",
                Json("Release"),
                "Lets go of what is held; it stays served until training publishes another.",
            )
        }
        .refuses(&[404, 409, 503]),
        get(
            "plugins",
            "/v1/plugins",
            Json("List"),
            "The plugins as they are.",
        ),
        post(
            "reload_plugins",
            "/v1/plugins/reload",
            Json("List"),
            "Looks at the plugins' files now.",
        )
        .refuses(&[404]),
    ]
}
