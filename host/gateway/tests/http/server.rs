//! Starts a gateway on its own port, with helpers to send requests.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use clawhost_engine::{Engine, EngineOptions, LoadedVersion};
use clawhost_gateway::{
    ControlPlane, Gateway, GatewayOptions, HealthError, MetricFamilies, ReleaseError, StatusSource,
};
use clawhost_journal::{
    AdapterOwner, Journal, ReleaseChange, ReleaseState, SessionId, TurnId, TurnRecord, TurnState,
};
use clawhost_sessions::{SessionOptions, Sessions};
use futures_util::{Stream, StreamExt};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::releases::ReleaseChain;

/// Timeout of the tests; longer than anything takes on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(180);

/// Interval at which [`until`] checks its condition.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Stands in for judging and training.
#[derive(Default)]
pub(crate) struct Loops {
    pub(crate) training_error: Mutex<Option<String>>,
    /// Status and costs of the plugins, instead of one plugin without costs.
    pub(crate) plugins: OnceLock<(Value, Value)>,
    pub(crate) releases: OnceLock<ReleaseChain>,
    /// Whether reading the status panics.
    pub(crate) panics: AtomicBool,
}

impl StatusSource for Loops {
    fn status(&self) -> Value {
        assert!(!self.panics.load(Ordering::Relaxed), "a bug");
        let training_error = self.training_error.lock().unwrap().clone();
        let mut status = json!({"judging": {"running": 1}, "plugins": ["judge-next-state"]});
        if let Some((plugins, _)) = self.plugins.get() {
            status["plugins"] = plugins.clone();
        }
        if let Some(training_error) = training_error {
            status["training"] = json!({"last_error": training_error});
        }
        status
    }

    fn health_errors(&self) -> Vec<HealthError> {
        let training_error = self.training_error.lock().unwrap().clone();
        let to_health_error = |detail| HealthError {
            summary: "training steps cannot be recorded",
            detail,
        };
        training_error.map(to_health_error).into_iter().collect()
    }

    fn add_metrics(&self, metrics: &mut MetricFamilies) {
        metrics.counter("clawhost_judge_calls_total", "Calls of judges.", 7);
    }

    fn plugin_costs(&self) -> Value {
        let plugins = self.plugins.get();
        plugins.map_or_else(|| json!([]), |(_, costs)| costs.clone())
    }
}

impl ControlPlane for Loops {
    fn change_release(
        &self,
        owner: Option<&AdapterOwner>,
        change: ReleaseChange,
        by: Option<&str>,
    ) -> Option<Result<ReleaseState, ReleaseError>> {
        Some(self.releases.get()?.change(owner, change, by))
    }

    fn version_of(&self, owner: &AdapterOwner) -> Option<Result<LoadedVersion, ReleaseError>> {
        Some(self.releases.get()?.version_of(owner))
    }
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Engine,
    pub(crate) journal: Journal,
    pub(crate) loops: Arc<Loops>,
    pub(crate) client: reqwest::Client,
    pub(crate) stop: watch::Sender<bool>,
    pub(crate) running: JoinHandle<std::io::Result<()>>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(set: impl FnOnce(&mut GatewayOptions)) -> Self {
        Self::on(Journal::in_memory().unwrap(), EngineOptions::default(), set).await
    }

    pub(crate) async fn on(
        journal: Journal,
        engine: EngineOptions,
        set: impl FnOnce(&mut GatewayOptions),
    ) -> Self {
        let engine = crate::model::engine(engine);
        let loops = Arc::new(Loops {
            releases: ReleaseChain::new(journal.clone(), engine.clone()).into(),
            ..Loops::default()
        });
        let mut options = GatewayOptions::new("tiny");
        set(&mut options);
        let gateway = Gateway::new(
            engine.clone(),
            Sessions::new(journal.clone(), SessionOptions::default()),
            journal.clone(),
            loops.clone(),
            loops.clone(),
            options,
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        Self {
            address,
            engine,
            journal,
            loops,
            client: clawhost_http::client().build().unwrap(),
            stop,
            running: tokio::spawn(gateway.serve(listener, stopped)),
        }
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client
            .request(method, format!("http://{}{path}", self.address))
    }

    pub(crate) async fn get(&self, path: &str) -> ApiResponse {
        ApiResponse::read(self.request(Method::GET, path).send().await.unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> ApiResponse {
        ApiResponse::read(
            self.request(Method::POST, path)
                .json(body)
                .send()
                .await
                .unwrap(),
        )
        .await
    }

    /// Sends a chat request whose only message is `text`.
    pub(crate) async fn chat(&self, text: &str) -> ApiResponse {
        self.chat_with(text, json!({})).await
    }

    pub(crate) async fn chat_with(&self, text: &str, extra: Value) -> ApiResponse {
        self.post("/v1/chat/completions", &chat_body(text, extra))
            .await
    }

    /// Starts a streaming chat request.
    pub(crate) async fn stream(&self, text: &str, mut extra: Value) -> Response {
        extra["stream"] = true.into();
        self.request(Method::POST, "/v1/chat/completions")
            .json(&chat_body(text, extra))
            .send()
            .await
            .unwrap()
    }

    pub(crate) fn turn(&self, id: i64) -> TurnRecord {
        self.journal.turn(TurnId(id)).unwrap().unwrap()
    }

    pub(crate) fn turns(&self, session: &str) -> Vec<TurnRecord> {
        self.journal
            .session_turns(&SessionId::from(session))
            .unwrap()
    }

    /// Waits until a turn has left the state `generating`.
    pub(crate) async fn ended(&self, id: i64) -> TurnRecord {
        until("the turn ends", || {
            Some(self.turn(id)).filter(|turn| turn.state != TurnState::Generating)
        })
        .await
    }

    /// Sends a streaming request for an endless reply in session `gone`, disconnects during the reply and returns its
    /// turn.
    pub(crate) async fn disconnect(&self, path: &str, request: &Value) -> TurnRecord {
        let request = self.request(Method::POST, path).json(request);
        let response = request.send().await.unwrap();
        let mut stream = response.bytes_stream();
        read_words(&mut stream).await;
        drop(stream);
        until("the engine cancels", || {
            let stats = self.engine.stats();
            (stats.cancelled == 1 && stats.running == 0).then_some(())
        })
        .await;
        self.ended(self.turns("gone")[0].id.0).await
    }
}

/// Reads a stream of the reply to `L` until it has some words.
pub(crate) async fn read_words<B: AsRef<[u8]>>(
    stream: &mut (impl Stream<Item = reqwest::Result<B>> + Unpin),
) -> String {
    let mut seen = String::new();
    while seen.matches("la ").count() < 3 {
        seen.push_str(std::str::from_utf8(stream.next().await.unwrap().unwrap().as_ref()).unwrap());
    }
    seen
}

pub(crate) fn chat_body(text: &str, extra: Value) -> Value {
    let mut body =
        json!({"model": "tiny", "messages": [{"role": "user", "content": text}], "temperature": 0});
    for (name, value) in extra.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// Polls until `ready` returns a value.
pub(crate) async fn until<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(began.elapsed() < TIMEOUT, "waited in vain until {what}");
        // Leaves the processor to the engine.
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// A complete HTTP response.
#[derive(Debug)]
pub(crate) struct ApiResponse {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) text: String,
}

impl ApiResponse {
    pub(crate) async fn read(response: Response) -> Self {
        Self {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            text: response.text().await.unwrap(),
        }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {}", self.text))
    }

    /// The body of a response that must be successful.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, StatusCode::OK.as_u16(), "{}", self.text);
        self.json()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .unwrap_or_else(|| panic!("no header {name}"))
            .to_str()
            .unwrap()
    }

    pub(crate) fn turn(&self) -> i64 {
        self.header("x-clawhost-turn").parse().unwrap()
    }

    /// Asserts that this is an error in OpenAI's format and returns its code.
    pub(crate) fn error(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", self.text);
        let body = self.json();
        let error = body["error"].as_object().expect("an error object");
        assert!(!error["message"].as_str().unwrap().is_empty());
        assert!(error["type"].is_string());
        assert!(error.contains_key("param") && error.contains_key("code"));
        assert!(!self.header("x-request-id").is_empty());
        error["code"].as_str().unwrap_or("").to_owned()
    }
}

/// A connection that sends requests one after the other.
pub(crate) struct Connection(TcpStream);

impl Connection {
    pub(crate) async fn open(server: &Server) -> Self {
        Self(TcpStream::connect(server.address).await.unwrap())
    }

    /// Sends a raw request and returns status and body. Panics if the server closed the connection.
    pub(crate) async fn send(&mut self, head: &str, body: &[u8]) -> (u16, String) {
        let head = format!("{head}\r\nContent-Length: {}\r\n\r\n", body.len());
        self.0.write_all(head.as_bytes()).await.unwrap();
        self.0.write_all(body).await.unwrap();
        self.answer().await
    }

    /// Sends raw bytes and returns the response.
    pub(crate) async fn raw(&mut self, bytes: &str) -> (u16, String) {
        self.0.write_all(bytes.as_bytes()).await.unwrap();
        self.answer().await
    }

    async fn answer(&mut self) -> (u16, String) {
        let mut seen = Vec::new();
        let head = loop {
            if let Some(end) = find(&seen, b"\r\n\r\n") {
                break String::from_utf8(seen.drain(..end + 4).collect()).unwrap();
            }
            self.more(&mut seen).await;
        };
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let length = head
            .lines()
            .find_map(|line| {
                line.to_ascii_lowercase()
                    .strip_prefix("content-length: ")
                    .map(str::to_owned)
            })
            .map_or(0, |length| length.parse().unwrap());
        while seen.len() < length {
            self.more(&mut seen).await;
        }
        (status, String::from_utf8(seen).unwrap())
    }

    async fn more(&mut self, seen: &mut Vec<u8>) {
        let mut chunk = [0; 4096];
        let read = self.0.read(&mut chunk).await.unwrap();
        assert!(read > 0, "the server closed the connection");
        seen.extend_from_slice(&chunk[..read]);
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}

/// The head of a request for [`Connection::send`].
pub(crate) fn head(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json")
}
