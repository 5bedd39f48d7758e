//! Which files are found, and what is said of those that are not.

use super::*;
use serde_json::json;

/// A file's path and text.
type File<'a> = (&'a str, &'a str);

/// A directory with these files.
fn directory(files: &[File<'_>]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    dir
}

const PLAIN: [(&str, &str); 2] = [("config.json", "{}"), ("model.safetensors", "")];

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn a_pickle_is_not_opened_and_how_to_convert_it_is_said() {
    for file in [
        "pytorch_model.bin",
        "pytorch_model-00001-of-00002.bin",
        "consolidated.00.pth",
    ] {
        let dir = directory(&[
            ("config.json", "{}"),
            (file, "pickle"),
            ("training_args.bin", ""),
        ]);
        let error = ModelFiles::dir(dir.path()).unwrap_err().to_string();
        assert!(
            error.contains(&format!("has its weights in {file}, a pickle")),
            "{error}"
        );
        assert!(
            error.contains("AutoModelForCausalLM.from_pretrained(")
                && error.contains(".save_pretrained("),
            "{error}"
        );
    }
    let dir = directory(&[
        ("config.json", "{}"),
        ("training_args.bin", ""),
        ("optimizer.safetensors", ""),
    ]);
    let error = ModelFiles::dir(dir.path()).unwrap_err().to_string();
    assert!(error.contains("has no *.safetensors"), "{error}");
    let error = ModelFiles::dir(directory(&[]).path())
        .unwrap_err()
        .to_string();
    assert!(error.contains("has no config.json"), "{error}");
}

#[test]
fn templates_are_found_wherever_transformers_writes_them() {
    let named = json!({"chat_template": [
        {"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"},
        {"name": "../escape", "template": "x"}
    ]})
    .to_string();
    let single = json!({"chat_template": "plain"}).to_string();
    let cases: [(&[File<'_>], Option<&str>); 4] = [
        (&[("tokenizer_config.json", &single)], None),
        (&[("tokenizer_config.json", &named)], Some("tools")),
        (
            &[
                ("chat_template.jinja", "plain"),
                ("tokenizer_config.json", &named),
            ],
            None,
        ),
        (
            &[
                ("chat_template.jinja", "plain"),
                ("additional_chat_templates/tool_use.jinja", "tools"),
                ("additional_chat_templates/notes.txt", "no template"),
            ],
            Some("tools"),
        ),
    ];
    for (files, tools) in cases {
        let dir = directory(&[&PLAIN, files].concat());
        let found = ModelFiles::dir(dir.path()).unwrap();
        assert_eq!(text(found.template().unwrap()), "plain");
        assert_eq!(found.tool_template().map(text), tools);
        // What is written for another model of the shape says the same.
        let copy = directory(&PLAIN);
        found.save_text(copy.path()).unwrap();
        let found = ModelFiles::dir(copy.path()).unwrap();
        assert_eq!(text(found.template().unwrap()), "plain");
        assert_eq!(found.tool_template().map(text), tools);
        assert!(!copy.path().join("escape.jinja").exists());
    }
    let none = ModelFiles::dir(directory(&PLAIN).path()).unwrap();
    let error = none.template().unwrap_err().to_string();
    assert!(
        error.contains("has no chat_template.jinja; a base model has none"),
        "{error}"
    );
    let error = none.tokenizer().unwrap_err().to_string();
    assert!(
        error.contains("has no tokenizer.json; write it with transformers"),
        "{error}"
    );
}
