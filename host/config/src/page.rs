//! The reference page of a configuration, in Markdown.

use crate::section::{Key, Section, SectionKind, dotted};

/// Writes a chapter per table with its keys, types and defaults.
pub fn markdown(section: &Section) -> String {
    let mut text = String::new();
    chapter(&mut text, section, "");
    text
}

fn chapter(text: &mut String, section: &Section, parent: &str) {
    let path = section.path_below(parent);
    let heading = match section.kind {
        SectionKind::Array => format!("`[[{path}]]`"),
        _ if path.is_empty() => "Top level".to_owned(),
        _ => format!("`[{path}]`"),
    };
    if !(path.is_empty() && section.keys.is_empty()) {
        text.push_str(&format!("\n## {heading}\n\n{}\n", section.doc));
    }
    for key in &section.keys {
        text.push_str(&format!(
            "\n### `{}`\n\n{}\n",
            dotted(&path, &key.name),
            kind_and_default(key)
        ));
        text.push_str(&format!("\n{}\n", key.doc.replace('\n', "\n\n")));
        if key.choices.iter().any(|choice| !choice.doc.is_empty()) {
            text.push('\n');
        }
        for choice in key.choices.iter().filter(|choice| !choice.doc.is_empty()) {
            text.push_str(&format!(
                "- `{}`: {}\n",
                choice.value,
                choice.doc.replace('\n', " ")
            ));
        }
    }
    for section in &section.sections {
        chapter(text, section, &path);
    }
}

fn kind_and_default(key: &Key) -> String {
    let kind = match key.value_type.as_str() {
        "" => "value",
        "array" => "list",
        kind => kind,
    };
    let documented = key.choices.iter().any(|choice| !choice.doc.is_empty());
    let kind = match key.choices.is_empty() || documented {
        true => kind.to_owned(),
        false => {
            let values: Vec<String> = key
                .choices
                .iter()
                .map(|c| format!("`{}`", c.value))
                .collect();
            format!("{kind}: {}", values.join(", "))
        }
    };
    match &key.default {
        Some(default) => format!("*{kind}, default* `{default}`"),
        None => format!("*{kind}*"),
    }
}

#[cfg(test)]
#[allow(dead_code, reason = "only the schema is read")]
mod tests {
    use super::*;

    /// The endpoint.
    #[derive(schemars::JsonSchema)]
    struct Server {
        /// Port to listen on.
        #[schemars(default = "port")]
        port: u16,
    }

    fn port() -> u16 {
        80
    }

    #[test]
    fn every_key_has_a_heading_a_type_and_a_default() {
        let page = markdown(&Section::of::<Server>());
        assert_eq!(
            page,
            "\n## Top level\n\nThe endpoint.\n\n### `port`\n\n*integer, default* `80`\n\nPort to listen on.\n"
        );
    }
}
