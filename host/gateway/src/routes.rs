//! The routes: each handler with the description of its operation, from which the OpenAPI document is built.

use serde_json::json;

use crate::chat::sampling::SamplingFields;
use crate::chat::{self, Chat, ChatCompletion, ChatFields, StructuredFields};
use crate::messages::{self, Messages};
use crate::openapi::{
    Operation, RequestSchema, ResponseBody, SchemaFn, delete, get, part, post, put, schema,
};
use crate::reply::{SessionBody, TemplateFields, TruncationFields, create_reply};
use crate::responses::{self, Responses};
use crate::{
    adapters, completions, events, experience, feedback, health, models, openapi, page, plugins,
    sessions, steps, tokenize,
};

const NOT_READY: SchemaFn = schema::<health::Readiness>;
const UNHEALTHY: SchemaFn = schema::<health::Health>;

const ADAPTER_OWNER: &str = "Owner of the versions: `key:NAME`, `user:KEY/USER` or `shared`. Required for changes if each key or user has an adapter.";
const EVENTS_OWNER: &str = "Owner of adapters whose turns, steps and versions an operator receives: `key:NAME`, `user:KEY/USER` or `shared`. Default: all.";
const SESSION_ID: &str = "Session id, or the name that this key gave the session.";
const RESPONSES_REQUEST: RequestSchema = (
    "ResponsesRequest",
    &[
        part::<responses::ResponseFields>,
        part::<responses::ToolFields>,
        part::<SamplingFields>,
        part::<StructuredFields>,
        part::<SessionBody>,
        part::<TemplateFields>,
    ],
);

/// Serves the OpenAPI document.
async fn show_openapi() -> axum::Json<serde_json::Value> {
    axum::Json(openapi::document(&routes()))
}

/// All operations.
pub(crate) fn routes() -> Vec<Operation> {
    use ResponseBody::{Empty, Events, Json, JsonOrEvents, Text};
    let messages_example = json!([{"role": "user", "content": "Say hi."}]);
    vec![
        get(
            page::show,
            "page",
            "/",
            Text("text/html"),
            "Operator page; without an operator's key it has no data and asks for a key.",
        )
        .without_auth()
        .errors(&[429, 500, 503]),
        get(
            page::style,
            "page_style",
            "/page.css",
            Text("text/css"),
            "Style sheet of the operator page.",
        )
        .without_auth()
        .errors(&[429]),
        get(
            page::script,
            "page_script",
            "/page.js",
            Text("text/javascript"),
            "Script of the operator page.",
        )
        .without_auth()
        .errors(&[429]),
        get(
            events::stream,
            "events",
            "/v1/events",
            Events,
            "Stream snapshots of the server, at most one per second and only when something changed. An operator \
             receives everything, or what belongs to one owner of adapters; another key receives its own turns.",
        )
        .parameter("owner", "query", json!({"type": "string"}), EVENTS_OWNER)
        .errors(&[400]),
        get(
            show_openapi,
            "openapi",
            "/openapi.json",
            Json(schema::<openapi::Document>),
            "OpenAPI document.",
        )
        .without_auth()
        .errors(&[429]),
        get(
            health::health,
            "health",
            "/health",
            Empty,
            "Readiness in vLLM's format: no body.",
        )
        .probe(NOT_READY),
        get(
            health::healthz,
            "healthz",
            "/healthz",
            Json(schema::<health::Health>),
            "State of the engine, journal, judging and training.",
        )
        .probe(UNHEALTHY),
        get(
            health::readyz,
            "readyz",
            "/readyz",
            Json(schema::<health::Readiness>),
            "Readiness: whether new requests are accepted.",
        )
        .probe(NOT_READY),
        get(
            health::version,
            "version",
            "/version",
            Json(schema::<health::Version>),
            "Server version.",
        )
        .without_auth()
        .errors(&[429]),
        get(
            health::metrics,
            "metrics",
            "/metrics",
            Text("text/plain"),
            "Metrics in the Prometheus text format.",
        ),
        post(
            create_reply::<Chat>,
            "chat",
            "/v1/chat/completions",
            JsonOrEvents(schema::<ChatCompletion>),
            "Create a chat completion.",
        )
        .body(
            (
                "ChatRequest",
                &[
                    part::<ChatFields>,
                    part::<chat::ToolFields>,
                    part::<SamplingFields>,
                    part::<StructuredFields>,
                    part::<TruncationFields>,
                    part::<SessionBody>,
                    part::<TemplateFields>,
                ],
            ),
            json!({"messages": messages_example, "max_tokens": 8}),
        )
        .errors(&[404])
        .with_session_headers(),
        post(
            completions::create,
            "complete",
            "/v1/completions",
            JsonOrEvents(schema::<completions::Completion>),
            "Create a text completion from text or tokens; it is not recorded.",
        )
        .body(
            (
                "CompletionRequest",
                &[
                    part::<completions::PromptFields>,
                    part::<completions::CompletionFields>,
                    part::<SamplingFields>,
                    part::<StructuredFields>,
                    part::<TruncationFields>,
                ],
            ),
            json!({"prompt": "Once upon a time", "max_tokens": 8}),
        )
        .errors(&[404, 503]),
        post(
            create_reply::<Messages>,
            "messages",
            "/v1/messages",
            JsonOrEvents(schema::<messages::Message<'_>>),
            "Create a message (Anthropic).",
        )
        .body(
            (
                "MessagesRequest",
                &[
                    part::<messages::GenerationFields>,
                    part::<messages::ConversationFields>,
                    part::<messages::ToolFields>,
                    part::<SamplingFields>,
                    part::<StructuredFields>,
                    part::<SessionBody>,
                    part::<TemplateFields>,
                ],
            ),
            json!({"model": "", "messages": messages_example, "max_tokens": 8}),
        )
        .errors(&[404])
        .with_session_headers()
        .with_anthropic_errors(),
        post(
            messages::count_tokens,
            "count_tokens",
            "/v1/messages/count_tokens",
            Json(schema::<messages::TokenCount>),
            "Count the prompt tokens of a message (Anthropic).",
        )
        .body(
            (
                "CountTokensRequest",
                &[
                    part::<messages::ConversationFields>,
                    part::<messages::ToolFields>,
                    part::<SessionBody>,
                    part::<TemplateFields>,
                ],
            ),
            json!({"model": "", "messages": messages_example}),
        )
        .errors(&[404])
        .with_anthropic_errors(),
        post(
            create_reply::<Responses>,
            "responses",
            "/v1/responses",
            JsonOrEvents(schema::<responses::Response>),
            "Create a response (OpenAI Responses).",
        )
        .body(
            RESPONSES_REQUEST,
            json!({"input": "Say hi.", "max_output_tokens": 8}),
        )
        .errors(&[404])
        .with_session_headers(),
        get(
            responses::retrieve,
            "response",
            "/v1/responses/{id}",
            Json(schema::<responses::Response>),
            "Retrieve a response.",
        )
        .path_id("string", "Response id.")
        .errors(&[503]),
        delete(
            responses::delete,
            "delete_response",
            "/v1/responses/{id}",
            Json(schema::<responses::ResponseDeleted>),
            "Delete a response and the records made from it.",
        )
        .path_id("string", "Response id.")
        .errors(&[409, 503]),
        post(
            responses::input_tokens,
            "input_tokens",
            "/v1/responses/input_tokens",
            Json(schema::<responses::InputTokens>),
            "Count the prompt tokens of a response.",
        )
        .body(RESPONSES_REQUEST, json!({"input": "Say hi."}))
        .errors(&[404, 503]),
        post(
            tokenize::tokenize,
            "tokenize",
            "/tokenize",
            Json(schema::<tokenize::Tokens>),
            "Tokenize text, or a conversation rendered by the chat template.",
        )
        .body(
            (
                "TokenizeRequest",
                &[
                    part::<tokenize::TokenizeFields>,
                    part::<chat::ToolFields>,
                    part::<TemplateFields>,
                ],
            ),
            json!({"prompt": "Say hi."}),
        )
        .errors(&[404, 503]),
        post(
            tokenize::detokenize,
            "detokenize",
            "/detokenize",
            Json(schema::<tokenize::Detokenized>),
            "Decode tokens to text.",
        )
        .body(
            ("DetokenizeRequest", &[part::<tokenize::DetokenizeFields>]),
            json!({"tokens": [0, 1]}),
        )
        .errors(&[404, 503]),
        get(
            models::list,
            "models",
            "/v1/models",
            Json(schema::<models::ModelList>),
            "List the served model, and each loaded adapter as `model:version`.",
        ),
        get(
            models::retrieve,
            "model",
            "/v1/models/{*id}",
            Json(schema::<models::Model>),
            "Retrieve a model.",
        )
        .path_id("string", "Model id."),
        post(
            feedback::create,
            "feedback",
            "/v1/feedback",
            Json(schema::<feedback::FeedbackAnswer>),
            "Send feedback on a reply.",
        )
        .body(
            ("FeedbackRequest", &[part::<feedback::FeedbackFields>]),
            json!({"response_id": "chatcmpl-0", "score": 1, "text": "just right"}),
        )
        .errors(&[404, 409, 503]),
        get(
            sessions::list,
            "sessions",
            "/v1/sessions",
            Json(schema::<sessions::SessionList>),
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
            sessions::retrieve,
            "session",
            "/v1/sessions/{id}",
            Json(schema::<sessions::Session>),
            "Retrieve a session with its turns.",
        )
        .path_id("string", SESSION_ID)
        .parameter(
            "include",
            "query",
            json!({"type": "string"}),
            "`messages`, `tokens` or both, separated by a comma. Default: neither.",
        )
        .errors(&[503]),
        delete(
            sessions::delete,
            "forget",
            "/v1/sessions/{id}",
            Json(schema::<sessions::Forgotten>),
            "Delete a session and the records made from it.",
        )
        .path_id("string", SESSION_ID)
        .errors(&[503]),
        get(
            sessions::explain,
            "explain_session",
            "/v1/sessions/{id}/explain",
            Json(schema::<openapi::Explained>),
            "Explain how each turn of a session was judged and trained.",
        )
        .path_id("string", SESSION_ID)
        .errors(&[503]),
        post(
            sessions::done,
            "session_done",
            "/v1/sessions/{id}/done",
            Json(schema::<sessions::Done>),
            "End a session.",
        )
        .path_id("string", SESSION_ID)
        .errors(&[409, 503]),
        get(
            sessions::explain_turn,
            "explain_turn",
            "/v1/turns/{id}/explain",
            Json(schema::<openapi::Explained>),
            "Explain how a turn was judged and trained.",
        )
        .path_id("integer", "Turn id.")
        .errors(&[503]),
        get(
            experience::list,
            "experience",
            "/v1/experience",
            Json(schema::<experience::ExperienceList>),
            "List what is kept of the corrections of this key; for an operator, of all keys.",
        )
        .parameter(
            "key",
            "query",
            json!({"type": "string"}),
            "Only the entries of the key with this name.",
        )
        .errors(&[400, 503]),
        put(
            experience::edit,
            "edit_experience",
            "/v1/experience/{id}",
            Json(schema::<experience::Entry>),
            "Change the text or the state of an entry.",
        )
        .path_id("integer", "Entry id.")
        .body(
            ("ExperienceRequest", &[part::<experience::ExperienceFields>]),
            json!({"text": "Answer in one short sentence."}),
        )
        .errors(&[503]),
        delete(
            experience::delete,
            "delete_experience",
            "/v1/experience/{id}",
            Json(schema::<experience::Deleted>),
            "Delete an entry.",
        )
        .path_id("integer", "Entry id.")
        .errors(&[503]),
        get(
            steps::explain,
            "step",
            "/v1/steps/{id}",
            Json(schema::<openapi::Explained>),
            "Explain the samples of a training step.",
        )
        .path_id("integer", "Step id.")
        .errors(&[503]),
        get(
            adapters::list,
            "adapters",
            "/v1/adapters",
            Json(schema::<adapters::AdapterList>),
            "List the adapter versions, the active one and the last release changes.",
        )
        .parameter("owner", "query", json!({"type": "string"}), ADAPTER_OWNER)
        .errors(&[400, 503]),
        post(
            adapters::promote,
            "promote",
            "/v1/adapters/promote",
            Json(schema::<adapters::Release>),
            "Activate an adapter version; 0 is the base model.",
        )
        .body(
            ("PromoteRequest", &[part::<adapters::PromoteFields>]),
            json!({"version": 0}),
        )
        .parameter("owner", "query", json!({"type": "string"}), ADAPTER_OWNER)
        .errors(&[400, 404, 409, 503]),
        post(
            adapters::rollback,
            "rollback",
            "/v1/adapters/rollback",
            Json(schema::<adapters::Release>),
            "Activate the version before the last release change.",
        )
        .parameter("owner", "query", json!({"type": "string"}), ADAPTER_OWNER)
        .errors(&[400, 404, 409, 503]),
        post(
            adapters::pin,
            "pin",
            "/v1/adapters/pin",
            Json(schema::<adapters::Release>),
            "Activate a version and pin it, so that training does not activate another.",
        )
        .body(("PinRequest", &[part::<adapters::PinFields>]), json!({}))
        .parameter("owner", "query", json!({"type": "string"}), ADAPTER_OWNER)
        .errors(&[400, 404, 409, 503]),
        delete(
            adapters::unpin,
            "unpin",
            "/v1/adapters/pin",
            Json(schema::<adapters::Release>),
            "Remove the pin; the version stays active until training publishes another.",
        )
        .parameter("owner", "query", json!({"type": "string"}), ADAPTER_OWNER)
        .errors(&[400, 404, 409, 503]),
        get(
            plugins::list,
            "plugins",
            "/v1/plugins",
            Json(schema::<plugins::PluginList>),
            "List the plugins.",
        ),
        post(
            plugins::reload,
            "reload_plugins",
            "/v1/plugins/reload",
            Json(schema::<plugins::PluginList>),
            "Reload changed plugins.",
        )
        .errors(&[404]),
    ]
}
