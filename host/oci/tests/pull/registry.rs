//! A registry in this process: the pull half of the distribution protocol, and its own token service.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Response, StatusCode};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::runtime::Runtime;

/// The repository that everything is pushed to.
pub(crate) const REPOSITORY: &str = "me/judge";
/// What the token service gives.
const TOKEN: &str = "of-the-test";

/// How the registry protects itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Open,
    /// Everybody gets a token.
    Token,
    /// Only `ada` with the password `secret` gets a token.
    Login,
    /// Only `ada` with the password `secret` is served, without a token.
    Basic,
}

/// A served path: its status, its header `location`, and its body.
#[derive(Clone)]
struct Served {
    status: u16,
    location: Option<String>,
    body: Vec<u8>,
}

struct Shared {
    address: SocketAddr,
    access: Access,
    served: Mutex<BTreeMap<String, Served>>,
    requests: Mutex<Vec<String>>,
}

/// A running registry; it ends when it is dropped.
pub(crate) struct Registry {
    shared: Arc<Shared>,
    runtime: Runtime,
}

impl Registry {
    pub(crate) fn start(access: Access) -> Self {
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
        let listener = listener.unwrap();
        let shared = Arc::new(Shared {
            address: listener.local_addr().unwrap(),
            access,
            served: Mutex::default(),
            requests: Mutex::default(),
        });
        let app = Router::new().fallback(respond).with_state(shared.clone());
        runtime.spawn(async move { axum::serve(listener, app).await });
        Self { shared, runtime }
    }

    /// Host and port.
    pub(crate) fn name(&self) -> String {
        self.shared.address.to_string()
    }

    pub(crate) fn stop(self) {
        self.runtime.shutdown_timeout(Duration::from_secs(10));
    }

    /// The requests since the last call: path and authorization.
    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.shared.requests.lock().unwrap())
    }

    /// Serves a component with its manifest; returns its reference.
    pub(crate) fn push(&self, component: &[u8], annotations: &Value) -> String {
        self.blob(component, component.to_vec());
        self.manifest(&manifest(component, component.len(), annotations))
    }

    /// Serves a manifest; returns its reference.
    pub(crate) fn manifest(&self, manifest: &Value) -> String {
        let bytes = manifest.to_string().into_bytes();
        let digest = digest(&bytes);
        self.serve(&format!("manifests/{digest}"), 200, None, bytes.clone());
        self.serve("manifests/1.0", 200, None, bytes);
        self.reference(&digest)
    }

    pub(crate) fn reference(&self, digest: &str) -> String {
        format!("oci://{}/{REPOSITORY}@{digest}", self.name())
    }

    /// Serves `body` as the blob of `component`.
    pub(crate) fn blob(&self, component: &[u8], body: Vec<u8>) {
        self.serve(&format!("blobs/{}", digest(component)), 200, None, body);
    }

    /// Redirects the blob of `component`.
    pub(crate) fn redirect(&self, component: &[u8], location: &str) {
        let path = format!("blobs/{}", digest(component));
        self.serve(&path, 307, Some(location), Vec::new());
    }

    /// Serves a path below the repository.
    pub(crate) fn serve(&self, path: &str, status: u16, location: Option<&str>, body: Vec<u8>) {
        let served = Served {
            status,
            location: location.map(str::to_owned),
            body,
        };
        let path = format!("/v2/{REPOSITORY}/{path}");
        self.shared.served.lock().unwrap().insert(path, served);
    }
}

/// The manifest that `wkg` and `oras` write for a component.
pub(crate) fn manifest(component: &[u8], size: usize, annotations: &Value) -> Value {
    json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.wasm.config.v0+json", "digest": digest(b"{}"), "size": 2},
        "layers": [{"mediaType": "application/wasm", "digest": digest(component), "size": size}],
        "annotations": annotations,
    })
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

async fn respond(State(shared): State<Arc<Shared>>, request: Request) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    let authorization = request.headers().get("authorization");
    let authorization = authorization.map_or("", |value| value.to_str().unwrap());
    let line = format!("{path} {authorization}");
    shared
        .requests
        .lock()
        .unwrap()
        .push(line.trim_end().to_owned());
    // `ada:secret` in base64.
    let logged_in = authorization == "Basic YWRhOnNlY3JldA==";
    let respond = |status: u16, body: Vec<u8>| {
        let response = Response::builder().status(status);
        response.body(Body::from(body)).unwrap()
    };
    if path == "/token" {
        if shared.access == Access::Login && !logged_in {
            return respond(
                401,
                br#"{"errors": [{"message": "unknown user"}]}"#.to_vec(),
            );
        }
        assert_eq!(
            query,
            "service=the+registry&scope=repository%3Ame%2Fjudge%3Apull"
        );
        // Some registries send both names.
        let body = json!({"token": TOKEN, "access_token": TOKEN});
        return respond(200, body.to_string().into_bytes());
    }
    let challenge = match shared.access {
        Access::Open => None,
        Access::Basic => (!logged_in).then(|| "Basic realm=\"the registry\"".to_owned()),
        Access::Token | Access::Login => (authorization != format!("Bearer {TOKEN}")).then(|| {
            format!(
                "Bearer realm=\"http://{}/token\",service=\"the registry\",scope=\"repository:all:pull,push\"",
                shared.address
            )
        }),
    };
    if let Some(challenge) = challenge {
        let response = Response::builder().status(StatusCode::UNAUTHORIZED);
        let response = response.header("www-authenticate", challenge);
        return response.body(Body::empty()).unwrap();
    }
    let served = shared.served.lock().unwrap().get(&path).cloned();
    let Some(served) = served else {
        return respond(
            404,
            br#"{"errors": [{"code": "MANIFEST_UNKNOWN"}]}"#.to_vec(),
        );
    };
    let mut response = Response::builder().status(served.status);
    if let Some(location) = served.location {
        response = response.header("location", location);
    }
    response.body(Body::from(served.body)).unwrap()
}
