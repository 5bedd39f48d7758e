//! Bad input and misbehaving clients: clear errors in OpenAI's format, and the server keeps serving.

use std::path::Path;

use clawhost::config::{Config, KeyConfig};
use clawhost::serve::{Server, Settings};
use clawhost_journal::{Finish, TurnState};
use clawhost_model::{Model, ModelFiles};
use clawhost_tests::{Script, TestServer, configuration, user};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use tempfile::TempDir;

const CHAT: &str = "/v1/chat/completions";

/// A server with a scripted model: a prompt that ends with `L` gets an endless reply, one with `A` gets "yes".
async fn scripted(change: impl FnOnce(&mut Config)) -> (TestServer, TempDir) {
    let model = TempDir::new().unwrap();
    let scripts = [Script::endless('L', "la "), Script::reply('A', &["yes"])];
    Script::save(&scripts, model.path());
    let running = TestServer::with(|config| {
        config.model.path = Some(model.path().to_owned());
        config.training.enabled = false;
        change(config);
    })
    .await;
    (running, model)
}

#[tokio::test]
async fn bad_requests_get_a_clear_error_and_leave_no_trace() {
    let (running, _model) = scripted(|config| {
        config.engine.max_model_len = Some(200);
        config.server.max_body_size = 4000;
    })
    .await;
    let long = "x".repeat(300);
    let huge = "x".repeat(5000);
    let rows = [
        (r#"{"messages": ["#.to_owned(), 400, "line 1"),
        ("hello".to_owned(), 400, "line 1"),
        (String::new(), 400, ""),
        ("[]".to_owned(), 400, "object"),
        ("{}".to_owned(), 400, "messages"),
        (json!({"messages": []}).to_string(), 400, "messages"),
        (json!({"messages": "hi"}).to_string(), 400, "messages"),
        (
            json!({"messages": [{"role": "wizard", "content": "A"}]}).to_string(),
            400,
            "wizard",
        ),
        (
            json!({"messages": [{"content": "A"}]}).to_string(),
            400,
            "role",
        ),
        (
            json!({"messages": [{"role": "user"}]}).to_string(),
            400,
            "content",
        ),
        (
            json!({"messages": [user("A")], "temperature": 9}).to_string(),
            400,
            "temperature",
        ),
        (
            json!({"messages": [user("A")], "max_tokens": -3}).to_string(),
            400,
            "max_tokens",
        ),
        (
            json!({"messages": [user("A")], "model": "gpt-9"}).to_string(),
            404,
            "gpt-9",
        ),
        (
            json!({"messages": [user("A")], "tools": [{"type": "function"}]}).to_string(),
            400,
            "tools",
        ),
        (json!({"messages": [user(&long)]}).to_string(), 400, "200"),
        (json!({"messages": [user(&huge)]}).to_string(), 413, "4000"),
    ];
    for (body, status, named) in rows {
        let shown: String = body.chars().take(80).collect();
        let answer = running.client.post_bytes(CHAT, body.into_bytes()).await;
        let (message, _) = answer.error(status);
        assert!(
            message.contains(named),
            "{shown}: {message} does not say {named}"
        );
        let good = running.client.chat(&[user("A")]).send().await;
        assert_eq!(good.text(), "yes", "after {shown}");
    }
    let counts = running.journal().counts().unwrap();
    assert_eq!(
        counts.turns.keys().collect::<Vec<_>>(),
        [&TurnState::Complete],
        "rejected requests are not recorded"
    );
}

#[tokio::test]
async fn full_context_has_openai_error_code() {
    let (running, _model) = scripted(|config| config.engine.max_model_len = Some(64)).await;
    let answer = running.client.chat(&[user(&"x".repeat(100))]).send().await;
    assert_eq!(answer.error(400).1, "context_length_exceeded");
    // A prompt that fits gets a reply until the context is full, with finish reason "length".
    let cut = running.client.chat(&[user("L")]);
    let cut = cut.with(json!({"max_tokens": null})).send().await;
    assert_eq!(cut.ok()["choices"][0]["finish_reason"], "length");
    assert_eq!(cut.body["usage"]["total_tokens"], 64);
}

#[tokio::test]
async fn wrong_api_key_is_rejected() {
    let (running, _model) = scripted(|config| {
        let key = json!({"name": "mine", "secret": "a-long-secret", "scopes": ["chat"]});
        config.api_keys = vec![serde_json::from_value::<KeyConfig>(key).unwrap()];
    })
    .await;
    let ask = |key: Option<&str>| {
        let chat = running.client.chat(&[user("A")]);
        match key {
            Some(key) => chat.header("authorization", &format!("Bearer {key}")),
            None => chat,
        }
    };
    for key in [None, Some(""), Some("a-long-secre"), Some("a-long-secret-")] {
        let answer = ask(key).send().await;
        assert_eq!(answer.error(401).1, "invalid_api_key", "{key:?}");
        assert!(!answer.body.to_string().contains("a-long-secret"));
    }
    let good = ask(Some("a-long-secret")).send().await;
    assert_eq!(good.text(), "yes");
    assert_eq!(running.turn(good.turn()).key.as_deref(), Some("mine"));
}

#[tokio::test]
async fn disconnect_cancels_generation_and_records_an_aborted_turn() {
    let (running, _model) = scripted(|_| {}).await;
    let endless = json!({"max_tokens": 100_000});
    let mut stream = running
        .client
        .chat(&[user("L")])
        .with(endless)
        .stream()
        .await;
    let turn = stream.turn();
    for _ in 0..3 {
        assert_eq!(stream.next_text().await.unwrap().as_deref(), Some("la "));
    }
    assert_eq!(running.engine().stats().running, 1);
    drop(stream);
    running
        .until("the engine has cancelled it", || {
            let stats = running.engine().stats();
            (stats.cancelled == 1 && stats.running == 0).then_some(())
        })
        .await;
    let record = running.wait_until_ended(turn).await;
    assert_eq!(record.state, TurnState::Aborted);
    let partial = record.completion.unwrap();
    assert_eq!(partial.finish, Finish::Aborted);
    assert!(partial.token_ids.len() >= 3 && partial.token_ids.len() < 100_000);
    assert!(partial.reply.text().starts_with("la la la "));
    let health = running.client.get("/healthz").await;
    assert_eq!(health.ok()["engine"]["cancelled"], 1);
    let explanation = running.explain(turn).await;
    assert!(
        explanation["why"]
            .as_str()
            .unwrap()
            .contains("never trains"),
        "{explanation}"
    );
    let good = running.client.chat(&[user("A")]).send().await;
    assert_eq!(good.text(), "yes");
}

#[tokio::test]
async fn first_token_is_sent_before_generation_ends() {
    let (running, _model) = scripted(|_| {}).await;
    let most = 120_000;
    let fields = json!({"max_tokens": most});
    let mut stream = running
        .client
        .chat(&[user("L")])
        .with(fields)
        .stream()
        .await;
    let turn = stream.turn();
    assert_eq!(stream.next_text().await.unwrap().as_deref(), Some("la "));
    // The client has text while the engine still generates the rest.
    let stats = running.engine().stats();
    assert_eq!((stats.running, stats.finished), (1, 0));
    assert!(stats.tokens_generated < most / 2, "{stats:?}");
    let record = running.turn(turn);
    assert_eq!(record.state, TurnState::Generating);
    assert_eq!(record.completion, None);
}

#[tokio::test]
async fn concurrent_requests_of_one_session_are_two_turns() {
    let (running, _model) = scripted(|_| {}).await;
    let ask = |text: &str, length: u32| {
        let chat = running.client.chat(&[user(text)]);
        chat.with(json!({"session_id": "both", "max_tokens": length}))
    };
    let mut first = ask("one L", 100_000).stream().await;
    first.next_text().await.unwrap().unwrap();
    let mut second = ask("two L", 100_000).stream().await;
    second.next_text().await.unwrap().unwrap();
    assert_eq!(running.engine().stats().running, 2);
    let third = ask("three A", 9).send().await;
    assert_eq!(third.text(), "yes");
    let turns = [first.turn(), second.turn(), third.turn()];
    assert!(
        [first.session(), second.session(), third.session()]
            .iter()
            .all(|session| session == "both")
    );
    drop((first, second));
    let mut positions = Vec::new();
    for turn in turns {
        let record = running.wait_until_ended(turn).await;
        assert_eq!(record.next_state, None, "neither is the other's next state");
        positions.push(record.seq);
    }
    positions.sort_unstable();
    assert_eq!(positions, [0, 1, 2]);
    assert_eq!(running.turn(turns[2]).state, TurnState::Complete);
}

/// Writes the embedded checkpoint to a directory; `change` may modify tensor names and shapes.
fn checkpoint(dir: &Path, change: impl FnOnce(&mut Vec<(String, Vec<usize>)>)) {
    let files = ModelFiles::embedded();
    Model::load(&files).unwrap().save(dir).unwrap();
    std::fs::write(dir.join("tokenizer.json"), files.tokenizer().unwrap()).unwrap();
    std::fs::write(dir.join("chat_template.jinja"), files.template().unwrap()).unwrap();
    let path = dir.join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut kept: Vec<(String, Vec<usize>)> = tensors
        .iter()
        .map(|(name, view)| (name.to_owned(), view.shape().to_vec()))
        .collect();
    change(&mut kept);
    let views = kept.iter().map(|(name, shape)| {
        let view = tensors.tensor(name).unwrap();
        let length = shape.iter().product::<usize>() * 4;
        let data = view.data()[..length].to_vec();
        (name.clone(), view.dtype(), shape.clone(), data)
    });
    let views: Vec<_> = views.collect();
    let views = views.iter().map(|(name, dtype, shape, data)| {
        (name, TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    let written = safetensors::serialize(views, None).unwrap();
    std::fs::write(path, written).unwrap();
}

/// Starts a server with a model directory; returns the error if it does not start.
async fn start(dir: &Path) -> Result<Server, String> {
    let mut config = configuration();
    config.server.data_dir = dir.join("data");
    config.model.path = Some(dir.to_owned());
    Server::start(Settings::from(config))
        .await
        .map_err(|error| format!("{error:#}"))
}

#[tokio::test]
async fn checkpoint_with_missing_or_misshapen_tensor_is_rejected_by_name() {
    const NAME: &str = "model.layers.2.self_attn.k_proj.weight";
    let whole = TempDir::new().unwrap();
    checkpoint(whole.path(), |_| {});
    start(whole.path()).await.unwrap().stop().await;

    let missing = TempDir::new().unwrap();
    checkpoint(missing.path(), |tensors| {
        tensors.retain(|(name, _)| name != NAME)
    });
    let error = start(missing.path()).await.err().unwrap();
    assert!(
        error.contains(NAME) && error.contains("no tensor"),
        "{error}"
    );

    let misshapen = TempDir::new().unwrap();
    checkpoint(misshapen.path(), |tensors| {
        let (_, shape) = tensors.iter_mut().find(|(name, _)| name == NAME).unwrap();
        shape[0] -= 1;
    });
    let error = start(misshapen.path()).await.err().unwrap();
    for part in [NAME, "[95, 192]", "[96, 192]"] {
        assert!(error.contains(part), "{error} does not say {part}");
    }

    let cut = TempDir::new().unwrap();
    checkpoint(cut.path(), |_| {});
    let path = cut.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let error = start(cut.path()).await.err().unwrap();
    assert!(error.contains("model.safetensors"), "{error}");

    let config = whole.path().join("config.json");
    let mut changed: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    let mut refused = |architecture: &str| {
        changed["architectures"] = json!([architecture]);
        std::fs::write(&config, changed.to_string()).unwrap();
        let dir = whole.path().to_owned();
        async move { start(&dir).await.err().unwrap() }
    };
    // A supported family with unsupported tensors: ignoring them would change the output.
    let error = refused("LlamaForCausalLM").await;
    for part in [
        "LlamaForCausalLM",
        "model.layers.0.self_attn.k_norm.weight",
        "is not part of the model",
    ] {
        assert!(error.contains(part), "{error} does not say {part}");
    }
    let error = refused("MambaForCausalLM").await;
    assert!(
        error.contains("MambaForCausalLM") && error.contains("Qwen3"),
        "{error}"
    );
}
