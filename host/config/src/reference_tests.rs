//! Tests of the documentation of the configuration, and the generated reference page.

use crate::file::{
    EMBEDDED_DEFAULTS, EMBEDDED_EXPERIENCE_DEFAULTS, EMBEDDED_FULL_DEFAULTS, FULL_DEFAULTS,
    LARGE_DEFAULTS, MIDDLE_DEFAULTS,
};
use crate::{Config, Section, markdown};

#[test]
fn every_key_is_documented() {
    let mut undocumented = Vec::new();
    let mut keys = 0;
    Section::of::<Config>().walk(&mut |name, section, key| {
        keys += usize::from(key.is_some());
        let doc = key.map_or(&section.doc, |key| &key.doc);
        // A section that only says its own name explains nothing.
        if doc.is_empty() || doc.starts_with("`[") {
            undocumented.push(name.to_owned());
        }
    });
    assert!(
        undocumented.is_empty(),
        "no documentation: {undocumented:?}"
    );
    assert!(keys > 100, "only {keys} keys");
}

fn page() -> String {
    let intro = "\
# Configuration

<!-- Generated from the option structs; renew it with CLAWHOST_RENEW=1 cargo test -p clawhost-config reference_page -->

`clawhost config > clawhost.toml` writes this reference as a file with every key and its value; `clawhost run --config
clawhost.toml` uses it. An unknown key is an error with file, line and the nearest known key.

A value can also come from the environment (`CLAWHOST_SERVER__PORT=8080`) or the command line (`--set server.port=8080`).
Precedence, lowest first: defaults, defaults of the model, the file, the environment, `--set`, other flags. Durations are
text such as \"10s\", \"500ms\" or \"1h 30m\", sizes such as \"8MiB\" or \"1GiB\".

";
    let defaults =
        |title: &str, text: &str| format!("{title}:\n\n```toml\n{}\n```\n\n", text.trim());
    [
        intro,
        &defaults(
            "The embedded model has defaults of its own",
            EMBEDDED_DEFAULTS,
        ),
        &defaults(
            "It also has this, unless `training.enabled` is false, `training.method` is another, `training.adapters` is \"user\" or `training.teacher.distillation_weight` is 0",
            EMBEDDED_EXPERIENCE_DEFAULTS,
        ),
        &defaults(
            "Models of at least 50 million parameters, estimated from the size of the weight files, have these",
            MIDDLE_DEFAULTS,
        ),
        &defaults(
            "Models of at least a billion parameters differ in",
            LARGE_DEFAULTS,
        ),
        &defaults("Full fine-tuning has these", FULL_DEFAULTS),
        &defaults(
            "Full fine-tuning of the embedded model has these",
            EMBEDDED_FULL_DEFAULTS,
        ),
        markdown(&Section::of::<Config>()).trim_start(),
    ]
    .concat()
}

#[test]
fn reference_page_is_up_to_date() {
    let page = page();
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/src/configuration.md"
    );
    if std::env::var_os("CLAWHOST_RENEW").is_some() {
        std::fs::write(file, &page).unwrap();
    }
    assert!(
        std::fs::read_to_string(file).unwrap_or_default() == page,
        "docs/src/configuration.md is out of date; renew it with `CLAWHOST_RENEW=1 cargo test -p clawhost-config reference_page`"
    );
}
