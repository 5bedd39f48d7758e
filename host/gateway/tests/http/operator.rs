//! Health and metrics.

use serde_json::json;

use crate::server::Server;

#[tokio::test]
async fn healthz_reports_engine_loops_and_journal() {
    let server = Server::start().await;
    server.chat("A").await.ok();
    let body = server.get("/healthz").await.ok();
    assert_eq!(body["status"], "ok");
    assert_eq!(body["model"], "tiny");
    assert_eq!(body["adapter"]["version"], 0);
    assert_eq!(body["judging"], json!({"ready": 0, "running": 1}));
    assert_eq!(
        body["training"],
        json!({"queued": 0, "running": false, "steps": 0})
    );
    assert_eq!(body["journal"]["turns"]["complete"], 1);
    assert_eq!(body["engine"]["finished"], 1);
    assert_eq!(body["plugins"], json!(["judge-next-state"]));
    assert_eq!(server.get("/readyz").await.ok()["status"], "ready");
}

#[tokio::test]
async fn metrics_count_requests_tokens_and_turns() {
    let server = Server::start().await;
    server.chat("A").await.ok();
    server.get("/v1/nothing").await.error(404);
    let text = server.get("/metrics").await.text;
    for line in [
        "clawhost_http_requests_total{method=\"POST\",path=\"/v1/chat/completions\",status=\"200\"} 1",
        "clawhost_http_requests_total{method=\"GET\",path=\"other\",status=\"404\"} 1",
        "clawhost_request_success_total{finished_reason=\"stop\"} 1",
        "clawhost_generation_tokens_total 2",
        "clawhost_time_to_first_token_seconds_count 1",
        "clawhost_journal_turns{state=\"complete\"} 1",
        "clawhost_engine_requests_finished_total 1",
        "clawhost_judge_calls_total 7",
    ] {
        assert!(
            text.lines().any(|have| have == line),
            "{line} is missing in\n{text}"
        );
    }
}
