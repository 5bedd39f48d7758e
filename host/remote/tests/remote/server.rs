//! A fake vLLM or SGLang server with injectable faults.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use crate::events::EventWriter;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use clawhost_engine::{
    Engine, EngineOptions, Event, GenerateRequest, Generation, LoadedVersion, Priority,
    SampledToken, SamplingParams,
};
use clawhost_model::{Adapter, LoraSpec, Model, ModelFiles};
use clawhost_remote::{HttpBackend, RemoteConfig, RemoteError, ServerKind};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

/// How the server computes log-probs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReturnedLogprobs {
    Raw,
    TemperatureScaled,
    Processed,
}

/// Injected fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    NoIds,
    NoLogprobs,
    NoAdapters,
    /// Serves every adapter with the base model.
    IgnoresAdapters,
    /// Stops sending after this many tokens.
    SilentAfter(usize),
    Busy,
    Garbage,
}

pub(crate) struct ServerState {
    form: ServerKind,
    returns: ReturnedLogprobs,
    engine: Engine,
    adapters: Mutex<BTreeMap<String, LoadedVersion>>,
    fault: Mutex<Fault>,
    /// Names that were unloaded, in order.
    pub(crate) unloaded: Mutex<Vec<String>>,
    /// Names that were loaded, in order.
    pub(crate) loaded: Mutex<Vec<String>>,
}

/// A fake server on its own runtime.
pub(crate) struct FakeServer {
    pub(crate) state: Arc<ServerState>,
    address: SocketAddr,
    runtime: Option<Runtime>,
    _files: tempfile::TempDir,
    adapters: PathBuf,
}

/// The embedded policy, loaded once.
pub(crate) static POLICY: LazyLock<Engine> = LazyLock::new(|| {
    clawhost_cpu::load_engine(&ModelFiles::embedded(), EngineOptions::default()).unwrap()
});

/// A separate engine with the same weights and configured stop tokens.
pub(crate) fn engine() -> Engine {
    engine_with(POLICY.model().clone())
}

fn engine_with(model: Arc<Model>) -> Engine {
    let files = ModelFiles::embedded();
    let source = std::str::from_utf8(files.template().unwrap()).unwrap();
    let template = clawhost_chat::ChatTemplate::new(source, Vec::new()).unwrap();
    let options = EngineOptions::default();
    clawhost_cpu::start_engine(
        model,
        POLICY.tokenizer().clone(),
        Arc::new(template),
        options,
    )
    .unwrap()
}

impl FakeServer {
    pub(crate) fn vllm(returns: ReturnedLogprobs) -> Self {
        Self::start(ServerKind::Vllm, returns, engine())
    }

    pub(crate) fn sglang(returns: ReturnedLogprobs) -> Self {
        Self::start(ServerKind::Sglang, returns, engine())
    }

    /// A server with other weights of the same shape.
    pub(crate) fn with_other_weights() -> Self {
        let model = Model::random(POLICY.model().config().clone(), 3);
        Self::start(
            ServerKind::Vllm,
            ReturnedLogprobs::Raw,
            engine_with(Arc::new(model)),
        )
    }

    fn start(form: ServerKind, returns: ReturnedLogprobs, engine: Engine) -> Self {
        let files = tempfile::tempdir().unwrap();
        let state = Arc::new(ServerState {
            form,
            returns,
            engine,
            adapters: Mutex::default(),
            fault: Mutex::new(Fault::None),
            unloaded: Mutex::default(),
            loaded: Mutex::default(),
        });
        let mut fake = Self {
            state,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            runtime: None,
            adapters: files.path().join("adapters"),
            _files: files,
        };
        fake.start_listening();
        fake
    }

    /// Starts listening at its previous address.
    pub(crate) fn start_listening(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime
            .block_on(tokio::net::TcpListener::bind(self.address))
            .unwrap();
        self.address = listener.local_addr().unwrap();
        let router = Router::new()
            .route("/health", get(|| async { "" }))
            .route("/v1/completions", post(generate))
            .route("/generate", post(generate))
            .route("/v1/load_lora_adapter", post(load))
            .route("/load_lora_adapter", post(load))
            .route("/v1/unload_lora_adapter", post(unload))
            .route("/unload_lora_adapter", post(unload))
            .with_state(self.state.clone());
        runtime.spawn(async move { axum::serve(listener, router).await });
        self.runtime = Some(runtime);
    }

    /// Closes all connections and drops the adapters.
    pub(crate) fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
        self.forget_adapters();
    }

    pub(crate) fn forget_adapters(&self) {
        self.state.adapters.lock().unwrap().clear();
    }

    pub(crate) fn options(&self) -> RemoteConfig {
        let url = format!("http://{}", self.address);
        RemoteConfig {
            adapter_dir: Some(self.adapters.clone()),
            health_check_interval: Duration::from_millis(50),
            ..RemoteConfig::new(url, self.state.form, "the-base")
        }
    }

    pub(crate) fn set_fault(&self, fault: Fault) {
        *self.state.fault.lock().unwrap() = fault;
    }

    /// An engine that uses this server as its remote backend.
    pub(crate) fn connect(&self, options: RemoteConfig) -> (Engine, Arc<HttpBackend>) {
        let engine = engine();
        let remote = HttpBackend::connect(options, None, &engine).unwrap();
        engine.set_remote_backend(remote.clone());
        (engine, remote)
    }

    pub(crate) fn connect_error(&self, options: RemoteConfig) -> RemoteError {
        self.try_connect(options, None).unwrap_err()
    }

    pub(crate) fn try_connect(
        &self,
        options: RemoteConfig,
        lora: Option<LoraSpec>,
    ) -> Result<Arc<HttpBackend>, RemoteError> {
        HttpBackend::connect(options, lora, &engine())
    }

    /// The statistics of the server's own engine.
    pub(crate) fn stats(&self) -> clawhost_engine::EngineStats {
        self.state.engine.stats()
    }

    /// Where adapters are written.
    pub(crate) fn adapter_dir(&self) -> &Path {
        &self.adapters
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// An adapter whose effect grows with `size`.
pub(crate) fn random_adapter(seed: u64, size: f32) -> Arc<Adapter> {
    let mut adapter = Adapter::init(POLICY.model().config(), LoraSpec::default(), seed);
    let mut state = seed;
    for (name, values) in adapter.tensors_mut() {
        if name.contains("lora_B") {
            for value in values {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                *value = ((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * size;
            }
        }
    }
    Arc::new(adapter)
}

pub(crate) fn prompt() -> Vec<u32> {
    let messages = [clawhost_chat::Message::user(
        "What is 13 plus 24? Show your work.",
    )];
    let input = clawhost_chat::ChatInput {
        messages: &messages,
        tools: &[],
        add_generation_prompt: true,
        extra: None,
    };
    let text = POLICY.template().render(&input).unwrap();
    POLICY.tokenizer().encode(&text).unwrap()
}

pub(crate) fn request(engine: &Engine, sampling: SamplingParams) -> GenerateRequest {
    GenerateRequest {
        prompt: prompt(),
        sampling,
        version: engine.active(),
        priority: Priority::Interactive,
        user: None,
    }
}

/// Collects all tokens and the final event.
pub(crate) fn collect(generation: &mut Generation) -> (Vec<SampledToken>, Option<Event>) {
    let mut tokens = Vec::new();
    loop {
        match generation.blocking_next() {
            Some(Event::Token(token)) => tokens.push(token),
            other => return (tokens, other),
        }
    }
}

/// Waits for a condition.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "timed out waiting for {what}");
        std::thread::yield_now();
    }
}

fn number(value: &Value, key: &str) -> f32 {
    value[key].as_f64().unwrap() as f32
}

fn sampling(body: &Value, max: &str, seed: &str, top: &Value) -> SamplingParams {
    SamplingParams {
        temperature: number(body, "temperature"),
        top_p: number(body, "top_p"),
        top_k: u32::try_from(body["top_k"].as_i64().unwrap()).unwrap_or(0),
        min_p: number(body, "min_p"),
        seed: body[seed].as_u64(),
        max_tokens: u32::try_from(body[max].as_u64().unwrap()).unwrap(),
        presence_penalty: number(body, "presence_penalty"),
        frequency_penalty: number(body, "frequency_penalty"),
        repetition_penalty: number(body, "repetition_penalty"),
        top_logprobs: u8::try_from(top.as_u64().unwrap()).unwrap(),
        ..SamplingParams::default()
    }
}

async fn generate(State(state): State<Arc<ServerState>>, Json(body): Json<Value>) -> Response {
    let fault = *state.fault.lock().unwrap();
    match fault {
        Fault::Busy => {
            let error = json!({"error": {"message": "queue is full", "code": 429}});
            let mut answer = (StatusCode::TOO_MANY_REQUESTS, Json(error)).into_response();
            let headers = answer.headers_mut();
            headers.insert("retry-after", HeaderValue::from_static("7"));
            return answer;
        }
        Fault::Garbage => return "data: {\"choices\": 3}\n\n".into_response(),
        _ => {}
    }
    let (adapter, ids, sampling) = match state.form {
        ServerKind::Vllm => (
            body["model"].as_str().filter(|name| *name != "the-base"),
            &body["prompt"],
            sampling(&body, "max_tokens", "seed", &body["logprobs"]),
        ),
        ServerKind::Sglang => (
            body["lora_path"].as_str(),
            &body["input_ids"],
            sampling(
                &body["sampling_params"],
                "max_new_tokens",
                "sampling_seed",
                &body["top_logprobs_num"],
            ),
        ),
    };
    let base = LoadedVersion::base(state.engine.model());
    let served = match adapter {
        None => base,
        Some(name) => match state.adapters.lock().unwrap().get(name) {
            Some(_) if fault == Fault::IgnoresAdapters => base,
            Some(served) => served.clone(),
            None => {
                let message = format!("The model `{name}` does not exist.");
                let error = json!({"error": {"message": message, "code": 404}});
                return (StatusCode::NOT_FOUND, Json(error)).into_response();
            }
        },
    };
    let ids = ids.as_array().unwrap().iter();
    let mut generation = state
        .engine
        .generate(GenerateRequest {
            prompt: ids.map(|id| id.as_u64().unwrap() as u32).collect(),
            sampling,
            version: served,
            priority: Priority::Interactive,
            user: None,
        })
        .unwrap();
    let (sender, events) = mpsc::unbounded_channel::<Result<Bytes, std::io::Error>>();
    tokio::spawn(async move {
        let mut writer = EventWriter::new(state.form, state.returns, fault);
        let mut held: Option<SampledToken> = None;
        loop {
            // The client has disconnected.
            let event = tokio::select! {
                () = sender.closed() => return,
                event = generation.next() => event,
            };
            let (token, finish) = match event {
                Some(Event::Token(token)) => (held.replace(token), None),
                Some(Event::Finished(finished)) => (held.take(), Some(finished.reason)),
                other => panic!("{other:?}"),
            };
            if let Some(token) = token {
                if fault == Fault::SilentAfter(writer.count()) {
                    sender.closed().await;
                    return;
                }
                let _ = sender.send(Ok(writer.event(token, finish)));
            }
            if finish.is_some() {
                let _ = sender.send(Ok(Bytes::from_static(b"data: [DONE]\n\n")));
                return;
            }
        }
    });
    Body::from_stream(futures_util::stream::unfold(events, |mut events| async {
        let event = events.recv().await?;
        Some((event, events))
    }))
    .into_response()
}

async fn load(State(state): State<Arc<ServerState>>, Json(body): Json<Value>) -> Response {
    let name = body["lora_name"].as_str().unwrap().to_owned();
    if *state.fault.lock().unwrap() == Fault::NoAdapters {
        let vllm = (StatusCode::NOT_FOUND, Json(json!({"detail": "Not Found"})));
        let said = json!({"success": false, "error_message": "LoRA is not enabled."});
        return match state.form {
            ServerKind::Vllm => vllm,
            ServerKind::Sglang => (StatusCode::BAD_REQUEST, Json(said)),
        }
        .into_response();
    }
    if state.adapters.lock().unwrap().contains_key(&name) {
        let message = format!("The lora adapter '{name}' has already been loaded.");
        let error = json!({"error": {"message": message, "code": 400}});
        return (StatusCode::BAD_REQUEST, Json(error)).into_response();
    }
    let path = Path::new(body["lora_path"].as_str().unwrap());
    let adapter = Adapter::load_peft(path, state.engine.model().config()).unwrap();
    let served = LoadedVersion::new(1, Arc::new(adapter));
    let mut adapters = state.adapters.lock().unwrap();
    adapters.insert(name.clone(), served);
    state.loaded.lock().unwrap().push(name.clone());
    match state.form {
        ServerKind::Vllm => {
            format!("Success: LoRA adapter '{name}' added successfully.").into_response()
        }
        ServerKind::Sglang => Json(json!({"success": true, "loaded_adapters": {}})).into_response(),
    }
}

async fn unload(State(state): State<Arc<ServerState>>, Json(body): Json<Value>) -> Response {
    let name = body["lora_name"].as_str().unwrap().to_owned();
    let found = state.adapters.lock().unwrap().remove(&name);
    state.unloaded.lock().unwrap().push(name);
    match found {
        Some(_) => Json(json!({"success": true})).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}
