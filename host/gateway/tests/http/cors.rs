//! CORS: pages of allowed origins can use the server, others cannot.

use clawhost_gateway::{AllowedOrigins, ApiKey, GatewayOptions, Scope};
use reqwest::{Method, RequestBuilder};
use serde_json::json;

use crate::server::{ApiResponse, Server, chat_body};

const PAGE: &str = "https://app.example";
const CHAT: &str = "/v1/chat/completions";

fn page(options: &mut GatewayOptions) {
    options.allowed_origins = AllowedOrigins::parse(&[PAGE]).unwrap();
}

fn keyed(options: &mut GatewayOptions) {
    options.keys = vec![ApiKey::new("ann", "key-of-ann", [Scope::Chat]).unwrap()];
}

async fn send(request: RequestBuilder) -> ApiResponse {
    ApiResponse::read(request.send().await.unwrap()).await
}

/// The preflight request of a browser before a chat request with a key.
fn preflight(server: &Server, origin: &str) -> RequestBuilder {
    server
        .request(Method::OPTIONS, CHAT)
        .header("origin", origin)
        .header("access-control-request-method", "POST")
        .header(
            "access-control-request-headers",
            "authorization,content-type,x-stainless-lang",
        )
        .header("access-control-request-private-network", "true")
}

#[tokio::test]
async fn allowed_origin_can_send_requests_with_and_without_a_key() {
    for with_key in [true, false] {
        let server = Server::with(|options| {
            page(options);
            if with_key {
                keyed(options);
            }
        })
        .await;
        let answer = send(preflight(&server, PAGE)).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(answer.header("access-control-allow-origin"), PAGE);
        assert!(
            answer
                .header("access-control-allow-methods")
                .contains("POST")
        );
        assert_eq!(
            answer.header("access-control-allow-headers"),
            "authorization,content-type,x-stainless-lang"
        );
        assert_eq!(
            answer.header("access-control-allow-private-network"),
            "true"
        );
        let chat_request = || {
            server
                .request(Method::POST, CHAT)
                .header("origin", PAGE)
                .json(&chat_body("A", json!({})))
        };
        let answer = match with_key {
            true => send(chat_request().bearer_auth("key-of-ann")).await,
            false => send(chat_request()).await,
        };
        answer.ok();
        assert_eq!(answer.header("access-control-allow-origin"), PAGE);
        assert!(
            answer
                .header("access-control-expose-headers")
                .contains("x-clawhost-turn")
        );
        if with_key {
            // The page can read the error.
            let refused = send(chat_request()).await;
            refused.error(401);
            assert_eq!(refused.header("access-control-allow-origin"), PAGE);
        }
    }
}

#[tokio::test]
async fn other_origins_get_no_cors_headers() {
    for with_key in [true, false] {
        let server = Server::with(|options| {
            page(options);
            if with_key {
                keyed(options);
            }
        })
        .await;
        for origin in ["https://evil.example", "http://app.example", "null"] {
            let answer = send(preflight(&server, origin)).await;
            assert!(
                !answer.headers.contains_key("access-control-allow-origin"),
                "{origin}"
            );
            let request = server
                .request(Method::POST, CHAT)
                .header("origin", origin)
                .json(&chat_body("A", json!({})));
            let answer = send(request).await;
            assert_ne!(answer.status, 200);
            assert!(!answer.headers.contains_key("access-control-allow-origin"));
        }
    }
}

#[tokio::test]
async fn advice_in_the_origin_error_works() {
    let server = Server::start().await;
    let request = server
        .request(Method::POST, CHAT)
        .header("origin", PAGE)
        .json(&chat_body("A", json!({})));
    let answer = send(request).await;
    assert_eq!(answer.error(403), "origin_not_allowed");
    let message = answer.json()["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    let advice = format!("server.allowed_origins = [\"{PAGE}\"]");
    assert!(message.contains(&advice), "{message}");
}
