//! With a certificate the server accepts HTTPS only.

use std::sync::Arc;

use clawhost_gateway::Tls;
use rcgen::CertifiedKey;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::server::{Server, chat_body, head};

/// A server with a certificate for `localhost`, and the certificate.
async fn serve() -> (Server, CertifiedKey<rcgen::KeyPair>) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let tls = Tls::load(&cert, &key).unwrap();
    let server = Server::with(|options| options.tls = Some(tls)).await;
    (server, made)
}

async fn connect(
    server: &Server,
    trusted: Option<&CertifiedKey<rcgen::KeyPair>>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    if let Some(made) = trusted {
        roots.add(made.cert.der().clone()).unwrap();
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(server.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

#[tokio::test]
async fn chat_is_streamed_over_https() {
    let (server, made) = serve().await;
    let mut stream = connect(&server, Some(&made)).await.unwrap();
    let body = chat_body("H", json!({"stream": true})).to_string();
    let request = format!(
        "{}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        head("POST", "/v1/chat/completions"),
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(
        answer.contains("Hello") && answer.contains("data: [DONE]"),
        "{answer}"
    );
    // A client that does not trust the certificate fails.
    assert!(connect(&server, None).await.is_err());
    // The server keeps running after that, and after a client without TLS.
    assert!(
        server
            .client
            .get(format!("http://{}/health", server.address))
            .send()
            .await
            .is_err()
    );
    connect(&server, Some(&made)).await.unwrap();
}
