//! Loading an engine from checkpoint files.

use super::*;
use clawhost_chat::ChatInput;
use std::path::Path;

/// Writes a checkpoint and loads it with one file replaced.
fn load(suite: Suite, replaced: &str, with: &str) -> Result<Engine, String> {
    match replaced {
        "" => load_with(suite, &[]),
        file => load_with(suite, &[(file, with.to_owned())]),
    }
}

/// As [`load`], with any number of files replaced, or omitted if the text is empty.
fn load_with(suite: Suite, replaced: &[(&str, String)]) -> Result<Engine, String> {
    let dir = tempfile::tempdir().unwrap();
    model().save(dir.path()).unwrap();
    let write =
        |file: &str, text: &str| std::fs::write(Path::new(dir.path()).join(file), text).unwrap();
    write("tokenizer.json", &byte_level_json());
    write(
        "chat_template.jinja",
        "{{ messages[0].content }}{{ eos_token }}",
    );
    write(
        "generation_config.json",
        r#"{"temperature": 0.6, "top_k": 20, "eos_token_id": [262, 261]}"#,
    );
    for (file, text) in replaced {
        match text.as_str() {
            "" => std::fs::remove_file(dir.path().join(file)).unwrap(),
            text => write(file, text),
        }
    }
    let files = ModelFiles::from_dir(dir.path()).map_err(|error| error.to_string())?;
    suite.load(&files).map_err(|error| error.to_string())
}

pub fn checkpoint_provides_tokenizer_template_and_defaults(suite: Suite) {
    let engine = load(suite, "", "").unwrap();
    assert_eq!(engine.eos_token_ids(), [261, 262]);
    assert_eq!(
        (engine.defaults().temperature, engine.defaults().top_k),
        (0.6, 20)
    );
    assert_eq!(engine.active().version, 0);
    assert_eq!(engine.active().digest(), model().digest());
    assert_eq!(engine.context(), 512);
    let text = render(&engine);
    assert_eq!(text, "hello<|im_start|>");
    let prompt = engine.tokenizer().encode(&text).unwrap();
    let reply = Reply::collect(engine.generate(request(prompt, 1, 3)).unwrap());
    assert!(reply.finished.is_some());
}

fn render(engine: &Engine) -> String {
    let messages = [clawhost_chat::Message::user("hello")];
    let input = ChatInput {
        messages: &messages,
        tools: &[],
        add_generation_prompt: true,
        extra: None,
    };
    engine.template().render(&input).unwrap()
}

pub fn template_receives_the_special_tokens_of_the_checkpoint(suite: Suite) {
    let template =
        "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{% if pad_token %}?{% endif %}";
    let tokens = serde_json::json!({
        "bos_token": {"content": "<|im_end|>"}, "eos_token": "<|im_end|>", "pad_token": null,
    });
    let files = [
        ("chat_template.jinja", template.to_owned()),
        ("tokenizer_config.json", tokens.to_string()),
    ];
    let engine = load_with(suite, &files).unwrap();
    assert_eq!(render(&engine), "<|im_end|>hello<|im_end|>");

    // The template may be in the same file, alone or as one of several.
    let other = serde_json::json!({"name": "rag", "template": "other"});
    let default = serde_json::json!({"name": "default", "template": template});
    for chat_template in [template.into(), serde_json::json!([other, default])] {
        let mut config = tokens.clone();
        config["chat_template"] = chat_template;
        let files = [
            ("chat_template.jinja", String::new()),
            ("tokenizer_config.json", config.to_string()),
        ];
        let engine = load_with(suite, &files).unwrap();
        assert_eq!(render(&engine), "<|im_end|>hello<|im_end|>");
    }
}

pub fn load_errors_name_the_damaged_file(suite: Suite) {
    let bigger = byte_level_json().replace("\"Ġw\":260", "\"Ġw\":300");
    for (file, text, expected) in [
        ("tokenizer.json", "{}", "tokenizer.json"),
        (
            "tokenizer.json",
            bigger.as_str(),
            "tokenizer of this checkpoint",
        ),
        ("chat_template.jinja", "{% if %}", "line 1"),
        ("generation_config.json", "{", "generation_config.json"),
        ("tokenizer_config.json", "{", "tokenizer_config.json"),
    ] {
        let error = load(suite, file, text).map(|_| ()).unwrap_err();
        assert!(error.contains(expected), "{file}: {error}");
    }
}

pub fn backend_reports_its_device(suite: Suite) {
    let backend = suite.backend();
    let device = backend.device();
    assert!(!device.name.is_empty());
    if let Some(memory) = device.memory {
        assert!(memory.used <= memory.total && memory.total > 0);
    }
    // At least four bits a weight.
    let values: usize = model().parameters().iter().map(|(_, v)| v.len()).sum();
    assert!(backend.weight_bytes() >= values / 2);
    assert!(backend.block_bytes() > 0);
    let limit = config().max_position_embeddings;
    assert!((1..=limit).contains(&backend.max_model_len()));
}
