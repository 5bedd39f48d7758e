//! Request decompression and response compression; streams are never compressed.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::server::{ApiResponse, Server, chat_body, read_words};

const CHAT: &str = "/v1/chat/completions";

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

async fn post(server: &Server, encoding: &str, body: Vec<u8>) -> ApiResponse {
    let request = server
        .request(Method::POST, CHAT)
        .header("content-type", "application/json")
        .header("content-encoding", encoding)
        .body(body);
    ApiResponse::read(request.send().await.unwrap()).await
}

#[tokio::test]
async fn body_limit_applies_to_the_decompressed_size() {
    let server = Server::with(|options| options.server.max_body_size = 4096).await;
    let body = chat_body("A", json!({})).to_string();
    let answer = post(&server, "gzip", gzip(body.as_bytes())).await.ok();
    assert_eq!(answer["choices"][0]["message"]["content"], "yes");
    post(&server, "identity", body.clone().into_bytes())
        .await
        .ok();

    let bomb = gzip(
        chat_body(&"x".repeat(1 << 20), json!({}))
            .to_string()
            .as_bytes(),
    );
    assert!(bomb.len() < 4096);
    assert_eq!(
        post(&server, "gzip", bomb).await.error(413),
        "request_too_large"
    );
    assert_eq!(
        post(&server, "gzip", body.clone().into_bytes())
            .await
            .error(400),
        "incomplete_body"
    );
    let answer = post(&server, "compress", body.into_bytes()).await;
    assert_eq!(answer.error(415), "unsupported_content_encoding");
    assert!(answer.text.contains("gzip"));
}

async fn get(server: &Server, accept: &str) -> Response {
    server
        .request(Method::GET, "/openapi.json")
        .header("accept-encoding", accept)
        .send()
        .await
        .unwrap()
}

#[tokio::test]
async fn response_is_compressed_as_the_client_accepts() {
    let server = Server::start().await;
    let plain = get(&server, "identity").await;
    assert!(!plain.headers().contains_key("content-encoding"));
    let plain = plain.bytes().await.unwrap();
    for (accept, encoding) in [("gzip", "gzip"), ("br", "br"), ("gzip, deflate, br", "br")] {
        let answer = get(&server, accept).await;
        assert_eq!(answer.headers()["content-encoding"], encoding, "{accept}");
        assert!(answer.headers().contains_key("x-request-id"));
        let packed = answer.bytes().await.unwrap();
        assert!(packed.len() < plain.len() / 2, "{accept}: {}", packed.len());
        if encoding == "gzip" {
            let mut text = Vec::new();
            GzDecoder::new(&packed[..]).read_to_end(&mut text).unwrap();
            assert_eq!(text, plain);
        }
    }
}

#[tokio::test]
async fn streams_are_not_compressed_or_buffered() {
    let server = Server::start().await;
    let body = chat_body("L", json!({"stream": true, "max_tokens": 60_000}));
    let response = server
        .request(Method::POST, CHAT)
        .header("accept-encoding", "gzip, br")
        .json(&body)
        .send()
        .await
        .unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    assert!(!response.headers().contains_key("content-encoding"));
    let mut body = response.bytes_stream();
    let seen = read_words(&mut body).await;
    let first: Value =
        serde_json::from_str(seen.lines().next().unwrap().strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(first["object"], "chat.completion.chunk");
    assert_eq!(
        server.engine.stats().running,
        1,
        "the reply is far from its end"
    );
}
