//! `clawhost run --tls-cert --tls-key` serves https to a client that trusts the certificate.

use std::process::Command;
use std::sync::Arc;

use reqwest::ClientBuilder;
use tempfile::TempDir;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::server::Program;

#[tokio::test]
async fn chat_completions_are_served_over_https() {
    let dir = TempDir::new().unwrap();
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let certificate = rcgen::generate_simple_self_signed(names).unwrap();
    std::fs::write(dir.path().join("cert.pem"), certificate.cert.pem()).unwrap();
    std::fs::write(
        dir.path().join("key.pem"),
        certificate.signing_key.serialize_pem(),
    )
    .unwrap();
    let (_program, url) = Program::serve(
        Command::new(env!("CARGO_BIN_EXE_clawhost"))
            .args(["run", "--no-train", "--port", "0", "--data", "data"])
            .args(["--tls-cert", "cert.pem", "--tls-key", "key.pem"])
            .env_remove("CLAWHOST_API_KEY")
            .current_dir(dir.path()),
    );
    assert!(url.starts_with("https://"), "{url}");
    let url = format!("{url}/chat/completions");

    let mut roots = RootCertStore::empty();
    roots.add(certificate.cert.der().clone()).unwrap();
    let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let trusting = clawhost_http::client().tls_backend_preconfigured(tls);
    let body = r#"{"messages": [{"role": "user", "content": "What is 2 + 3?"}], "stream": true}"#;
    let post = async |client: ClientBuilder| {
        let request = client.build().unwrap().post(&url);
        let request = request.header("content-type", "application/json");
        request.body(body).send().await
    };
    let answer = post(trusting).await.unwrap();
    assert_eq!(answer.status(), 200);
    let text = answer.text().await.unwrap();
    assert!(text.contains("data: [DONE]"), "{text}");
    // A client with the default root certificates rejects it.
    assert!(post(clawhost_http::client()).await.is_err());
}
