//! Text completions: prompt formats, logprobs, streams, and that nothing is recorded.

use clawhost_cpu::CpuModel;
use clawhost_engine::{Candidates, Sequence};
use serde_json::{Value, json};

use crate::server::{ApiResponse, Server};
use crate::streaming::read;

const PATH: &str = "/v1/completions";

async fn complete(server: &Server, body: Value) -> ApiResponse {
    server.post(PATH, &body).await
}

#[tokio::test]
async fn prompt_is_continued_without_chat_template() {
    let server = Server::start().await;
    let answer = complete(
        &server,
        json!({"model": "tiny", "prompt": "say H", "temperature": 0}),
    )
    .await;
    let body = answer.ok();
    assert_eq!(body["object"], "text_completion");
    assert!(body["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(
        body["choices"],
        json!([{
            "index": 0, "text": "Hello, wörld!", "logprobs": null, "finish_reason": "stop", "stop_reason": null,
        }])
    );
    assert_eq!(body["usage"]["prompt_tokens"], 5);
    assert_eq!(body["usage"]["completion_tokens"], 7);
}

#[tokio::test]
async fn completions_are_not_recorded_and_the_header_says_so() {
    let server = Server::start().await;
    let answer = complete(&server, json!({"prompt": "H", "temperature": 0})).await;
    answer.ok();
    assert_eq!(answer.header("x-clawhost-collected"), "false");
    assert!(answer.headers.get("x-clawhost-session").is_none());
    let label = answer.header("x-clawhost-adapter").to_owned();
    assert_eq!(
        label,
        format!("0:{}", &server.engine.model().digest()[..12])
    );
    assert!(server.journal.sessions(10).unwrap().is_empty());
    let metrics = server.get("/metrics").await.text;
    assert!(
        metrics.contains("clawhost_request_success_total{finished_reason=\"stop\"} 1"),
        "{metrics}"
    );
    assert!(metrics.contains("clawhost_generation_tokens_total 7"));
}

#[tokio::test]
async fn prompts_may_be_text_or_tokens_one_or_several() {
    let server = Server::start().await;
    let say = |prompt: Value| {
        let server = &server;
        async move {
            let body = json!({"prompt": prompt, "temperature": 0, "return_token_ids": true});
            complete(server, body).await.ok()
        }
    };
    let texts = |body: &Value| -> Vec<String> {
        let choices = body["choices"].as_array().unwrap();
        choices
            .iter()
            .map(|c| c["text"].as_str().unwrap().to_owned())
            .collect()
    };
    for one in [json!("A"), json!(["A"]), json!([65]), json!([[65]])] {
        let body = say(one).await;
        assert_eq!(texts(&body), ["yes"]);
        assert_eq!(body["choices"][0]["prompt_token_ids"], json!([65]));
        assert_eq!(body["choices"][0]["token_ids"].as_array().unwrap().len(), 2);
    }
    assert_eq!(texts(&say(json!(["A", "B"])).await), ["yes", "no"]);
    assert_eq!(texts(&say(json!([[65], [66]])).await), ["yes", "no"]);
}

#[tokio::test]
async fn choices_of_a_prompt_are_ordered_and_have_own_seeds() {
    let server = Server::start().await;
    let body = json!({"prompt": ["?", "A"], "n": 2, "seed": 4, "temperature": 1, "max_tokens": 6, "best_of": 2});
    let first = complete(&server, body.clone()).await.ok();
    let texts = |body: &Value| -> Vec<Value> {
        let choices = body["choices"].as_array().unwrap();
        choices.iter().map(|c| c["text"].clone()).collect()
    };
    let indices: Vec<&Value> = first["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| &c["index"])
        .collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    assert_ne!(texts(&first)[0], texts(&first)[1]);
    assert_eq!(texts(&complete(&server, body).await.ok()), texts(&first));
}

#[tokio::test]
async fn echo_with_logprobs_scores_the_prompt_without_generating() {
    let server = Server::start().await;
    let ids = [63u32, 72, 256, 65, 33];
    let body = json!({"prompt": ids, "echo": true, "logprobs": 2, "max_tokens": 0});
    let body = complete(&server, body).await.ok();
    let choice = &body["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(body["usage"]["completion_tokens"], 0);
    let text = server.engine.tokenizer().decode_with_special(&ids);
    assert_eq!(choice["text"], json!(text));
    let lists = &choice["logprobs"];
    assert_eq!(lists["tokens"].as_array().unwrap().concat_text(), text);
    assert!(lists["token_logprobs"][0].is_null() && lists["top_logprobs"][0].is_null());
    let scored = server
        .engine
        .model()
        .score(
            None,
            &[Sequence {
                tokens: &ids,
                start: 1,
                temperature: 1.0,
                candidates: Candidates::None,
            }],
        )
        .unwrap();
    for (got, right) in lists["token_logprobs"].as_array().unwrap()[1..]
        .iter()
        .zip(&scored[0].logprobs)
    {
        assert!((got.as_f64().unwrap() - f64::from(*right)).abs() < 1e-6);
    }
    for top in &lists["top_logprobs"].as_array().unwrap()[1..] {
        assert!((2..=3).contains(&top.as_object().unwrap().len()));
    }
    let offsets: Vec<u64> = lists["text_offset"]
        .as_array()
        .unwrap()
        .iter()
        .map(|o| o.as_u64().unwrap())
        .collect();
    assert!(offsets.is_sorted() && offsets[0] == 0);
}

trait ConcatText {
    fn concat_text(&self) -> String;
}

impl ConcatText for Vec<Value> {
    fn concat_text(&self) -> String {
        self.iter().map(|piece| piece.as_str().unwrap()).collect()
    }
}

#[tokio::test]
async fn echoed_prompt_and_text_share_one_logprobs_list() {
    let server = Server::start().await;
    let body = json!({"prompt": "öH", "echo": true, "logprobs": 1, "temperature": 0});
    let body = complete(&server, body).await.ok();
    let choice = &body["choices"][0];
    assert_eq!(choice["text"], "öHHello, wörld!");
    let lists = &choice["logprobs"];
    let count = lists["tokens"].as_array().unwrap().len();
    assert_eq!(count, 3 + 7);
    for list in ["token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(lists[list].as_array().unwrap().len(), count, "{list}");
    }
    assert_eq!(lists["tokens"][0], "bytes:\\xc3");
    assert_eq!(lists["tokens"][3], "Hello");
    // Offsets are in characters, not bytes, and include the prompt.
    assert_eq!(
        lists["text_offset"].as_array().unwrap()[..5],
        json!([0, 0, 1, 2, 7]).as_array().unwrap()[..]
    );
}

#[tokio::test]
async fn prompt_logprobs_have_vllm_format() {
    let server = Server::start().await;
    let body = json!({"prompt": "AH", "prompt_logprobs": 2, "max_tokens": 1, "temperature": 0});
    let body = complete(&server, body).await.ok();
    let lists = body["choices"][0]["prompt_logprobs"].as_array().unwrap();
    assert_eq!(lists.len(), 2);
    assert!(lists[0].is_null());
    let own = &lists[1]["72"];
    assert_eq!(own["decoded_token"], "H");
    assert!(own["logprob"].as_f64().unwrap() < 0.0);
    let ranks: Vec<&Value> = lists[1]
        .as_object()
        .unwrap()
        .values()
        .map(|e| &e["rank"])
        .collect();
    assert!(
        ranks.contains(&&json!(1)) && ranks.contains(&&json!(2)),
        "{lists:?}"
    );
}

#[tokio::test]
async fn stream_equals_the_non_streaming_response() {
    let server = Server::start().await;
    let request = json!({
        "prompt": ["H", "S"], "temperature": 0, "echo": true, "logprobs": 1, "return_token_ids": true,
        "stop": "ST", "stream_options": {"include_usage": true},
    });
    let full = complete(&server, request.clone()).await.ok();
    let mut streaming = request;
    streaming["stream"] = true.into();
    let response = server
        .request(reqwest::Method::POST, PATH)
        .json(&streaming)
        .send()
        .await
        .unwrap();
    assert_eq!(response.headers()["x-clawhost-collected"], "false");
    let events = read(response).await;
    assert_eq!(events.last().unwrap(), "[DONE]");
    let chunks: Vec<Value> = events[..events.len() - 1]
        .iter()
        .map(|e| serde_json::from_str(e).unwrap())
        .collect();
    let (last, chunks) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(
        last["usage"]["completion_tokens"],
        full["usage"]["completion_tokens"]
    );
    assert_eq!(last["usage"]["prompt_tokens"], 2);
    for index in 0..2 {
        let mine: Vec<&Value> = chunks
            .iter()
            .flat_map(|chunk| chunk["choices"].as_array().unwrap())
            .filter(|choice| choice["index"] == index)
            .collect();
        let right = &full["choices"][index];
        let text: String = mine
            .iter()
            .map(|choice| choice["text"].as_str().unwrap())
            .collect();
        assert_eq!(text, right["text"].as_str().unwrap());
        assert_eq!(
            mine.last().unwrap()["finish_reason"],
            right["finish_reason"]
        );
        let gather = |pick: &dyn Fn(&Value) -> Value| -> Vec<Value> {
            mine.iter()
                .flat_map(|choice| pick(choice).as_array().cloned().unwrap_or_default())
                .collect()
        };
        assert_eq!(
            json!(gather(&|c| c["token_ids"].clone())),
            right["token_ids"]
        );
        for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            assert_eq!(
                json!(gather(&|c| c["logprobs"][list].clone())),
                right["logprobs"][list],
                "{list}"
            );
        }
    }
    assert_eq!(full["choices"][1]["text"], "Sone ");
    assert_eq!(full["choices"][1]["stop_reason"], "ST");
}

#[tokio::test]
async fn logit_bias_and_stop_token_ids_are_applied() {
    let server = Server::start().await;
    let say = |extra: Value| {
        let server = &server;
        async move {
            let mut body = json!({"prompt": "A", "temperature": 0, "max_tokens": 8});
            for (name, value) in extra.as_object().unwrap() {
                body[name] = value.clone();
            }
            complete(server, body).await.ok()["choices"][0].clone()
        }
    };
    let yes = server.engine.tokenizer().encode("A").unwrap();
    assert_eq!(yes, [65]);
    assert_eq!(say(json!({})).await["text"], "yes");
    let biased = say(json!({"logit_bias": {"66": 100}, "max_tokens": 3})).await;
    assert_eq!(biased["text"], "BBB");
    let long = say(json!({"ignore_eos": true})).await;
    assert_eq!(long["finish_reason"], "length");
    let shown = say(json!({"ignore_eos": true, "skip_special_tokens": false})).await;
    assert!(shown["text"].as_str().unwrap().starts_with("yes<|end|>"));
    let least = say(json!({"min_tokens": 5})).await;
    assert!(least["text"].as_str().unwrap().len() >= 5);
    let stopped = say(json!({"prompt": "H", "stop_token_ids": [0xc3]})).await;
    assert_eq!(
        (&stopped["text"], &stopped["finish_reason"]),
        (&json!("Hello, w"), &json!("stop"))
    );
    let formed = say(json!({"temperature": 1, "guided_regex": "[0-9]{3}"})).await;
    assert!(formed["text"].as_str().unwrap().parse::<u32>().is_ok());
}

#[tokio::test]
async fn invalid_requests_are_rejected_and_the_next_one_is_served() {
    let server = Server::start().await;
    let rows = [
        (json!({}), "prompt"),
        (json!({"prompt": ""}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": ["a", ""]}), "prompt[1]"),
        (json!({"prompt": [65, 99999]}), "prompt[1]"),
        (json!({"prompt": [65, -1]}), "prompt[1]"),
        (json!({"prompt": [["x"]]}), "prompt[0][0]"),
        (json!({"prompt": {"a": 1}}), "prompt"),
        (json!({"prompt": vec!["a"; 65]}), "prompt"),
        (json!({"prompt": "a", "suffix": "b"}), "suffix"),
        (json!({"prompt": "a", "best_of": 3}), "best_of"),
        (json!({"prompt": "a", "logprobs": 21}), "logprobs"),
        (json!({"prompt": "a", "max_tokens": 0}), "max_tokens"),
        (json!({"prompt": "a", "n": 99}), "n"),
        (json!({"prompt": "a".repeat(70_000)}), "prompt"),
        (
            json!({"prompt": "a", "response_format": {"type": "json_object"}}),
            "response_format",
        ),
    ];
    for (body, param) in rows {
        let answer = complete(&server, body.clone()).await;
        answer.error(400);
        assert_eq!(answer.json()["error"]["param"], param, "{}", answer.text);
    }
    let named = json!({"prompt": "A", "model": "tiny:0", "temperature": 0});
    let body = complete(&server, named).await.ok();
    assert_eq!(body["model"], "tiny:0");
    assert_eq!(body["choices"][0]["text"], "yes");
}

#[tokio::test]
async fn disconnect_cancels_the_completion() {
    let server = Server::start().await;
    let body = json!({"prompt": "L", "temperature": 0, "max_tokens": 60_000, "stream": true});
    let response = server
        .request(reqwest::Method::POST, PATH)
        .json(&body)
        .send()
        .await
        .unwrap();
    crate::server::until("it runs", || {
        (server.engine.stats().running == 1).then_some(())
    })
    .await;
    drop(response);
    crate::server::until("it is cancelled", || {
        (server.engine.stats().cancelled == 1).then_some(())
    })
    .await;
    crate::server::until("it is counted", || {
        (server.engine.stats().running == 0).then_some(())
    })
    .await;
}
