//! Which files are found, and the errors for missing ones.

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
fn pickle_files_are_rejected_with_a_conversion_command() {
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
        let error = ModelFiles::from_dir(dir.path()).unwrap_err().to_string();
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
    let error = ModelFiles::from_dir(dir.path()).unwrap_err().to_string();
    assert!(error.contains("has no *.safetensors"), "{error}");
    let error = ModelFiles::from_dir(directory(&[]).path())
        .unwrap_err()
        .to_string();
    assert!(error.contains("has no config.json"), "{error}");
}

#[test]
fn chat_templates_are_found_in_all_locations_of_transformers() {
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
        let found = ModelFiles::from_dir(dir.path()).unwrap();
        assert_eq!(text(found.template().unwrap()), "plain");
        assert_eq!(found.tool_template().map(text), tools);
        // The files written for another model of the same shape are equal.
        let copy = directory(&PLAIN);
        found.save_tokenizer_and_templates(copy.path()).unwrap();
        let found = ModelFiles::from_dir(copy.path()).unwrap();
        assert_eq!(text(found.template().unwrap()), "plain");
        assert_eq!(found.tool_template().map(text), tools);
        assert!(!copy.path().join("escape.jinja").exists());
    }
    let none = ModelFiles::from_dir(directory(&PLAIN).path()).unwrap();
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
