//! A configuration as TOML, with the documentation of every key as a comment.

use schemars::JsonSchema;
use serde::Serialize;

use crate::section::{Key, Section, SectionKind};

/// Columns of a comment line.
const WIDTH: usize = 100;

/// Writes every key of `config` with its documentation. A key without a value is commented out, and so is an example of
/// each table that is not configured. The text parses to the same configuration.
///
/// # Errors
/// The configuration cannot be written as TOML.
pub fn toml_text<T: JsonSchema + Serialize>(config: &T) -> Result<String, toml::ser::Error> {
    let values = toml::Table::try_from(config)?;
    let mut text = String::new();
    body(&mut text, &Section::of::<T>(), &[], Some(&values));
    Ok(text.trim_start().to_owned())
}

/// Writes the keys of a section and the sections within it. Without values everything is commented out.
fn body(text: &mut String, section: &Section, path: &[String], values: Option<&toml::Table>) {
    for key in &section.keys {
        let value = values.and_then(|values| values.get(&key.name));
        key_lines(text, key, value, values.is_none());
    }
    for section in &section.sections {
        let path = [path, std::slice::from_ref(&section.name)].concat();
        let value = values.and_then(|values| values.get(&section.name));
        tables(text, section, &path, value, values.is_none());
    }
}

/// Writes the table or tables of a section.
fn tables(
    text: &mut String,
    section: &Section,
    path: &[String],
    value: Option<&toml::Value>,
    off: bool,
) {
    let table = value.and_then(toml::Value::as_table);
    text.push('\n');
    comment(text, &section.doc);
    match section.kind {
        SectionKind::Table => {
            // Overrides hold only some of the tables.
            header(text, path, off || table.is_none(), "[", "]");
            body(text, section, path, table);
        }
        SectionKind::Optional => {
            header(text, path, table.is_none(), "[", "]");
            body(text, section, path, table);
        }
        SectionKind::Free => {
            header(
                text,
                path,
                table.is_none_or(toml::Table::is_empty),
                "[",
                "]",
            );
            free(text, table);
        }
        SectionKind::Named => {
            let with = |name: &str| [path, &[name.to_owned()]].concat();
            for (name, entry) in table.into_iter().flatten() {
                header(text, &with(name), false, "[", "]");
                match section.keys.is_empty() && section.sections.is_empty() {
                    true => free(text, entry.as_table()),
                    false => body(text, section, &with(name), entry.as_table()),
                }
                text.push('\n');
            }
            header(text, &with("NAME"), true, "[", "]");
            body(text, section, &with("NAME"), None);
        }
        SectionKind::Array => {
            let entries = value.and_then(toml::Value::as_array);
            for entry in entries.into_iter().flatten() {
                header(text, path, false, "[[", "]]");
                body(text, section, path, entry.as_table());
                text.push('\n');
            }
            header(text, path, true, "[[", "]]");
            body(text, section, path, None);
        }
    }
}

fn free(text: &mut String, table: Option<&toml::Table>) {
    for (name, value) in table.into_iter().flatten() {
        text.push_str(&format!("{} = {value}\n", bare_or_quoted(name)));
    }
}

fn header(text: &mut String, path: &[String], off: bool, open: &str, close: &str) {
    let path: Vec<String> = path.iter().map(|part| bare_or_quoted(part)).collect();
    let off = if off { "#" } else { "" };
    text.push_str(&format!("{off}{open}{}{close}\n", path.join(".")));
}

fn key_lines(text: &mut String, key: &Key, value: Option<&toml::Value>, off: bool) {
    text.push('\n');
    comment(text, &key.doc);
    for choice in key.choices.iter().filter(|choice| !choice.doc.is_empty()) {
        comment(
            text,
            &format!("- {}: {}", choice.value, choice.doc.replace('\n', " ")),
        );
    }
    let name = bare_or_quoted(&key.name);
    match value {
        Some(value) if !off => text.push_str(&format!("{name} = {value}\n")),
        _ => text.push_str(&format!("#{name} = {}\n", example(key))),
    }
}

/// The default, or a value of the right type to start from.
fn example(key: &Key) -> String {
    match (&key.default, key.choices.first(), key.value_type.as_str()) {
        (Some(default), ..) => default.to_string(),
        (None, _, "array") => "[]".to_owned(),
        (None, Some(choice), _) => choice.value.clone(),
        (None, None, "integer") => "0".to_owned(),
        (None, None, "number") => "0.0".to_owned(),
        (None, None, "boolean") => "false".to_owned(),
        _ => "\"\"".to_owned(),
    }
}

fn bare_or_quoted(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    match !name.is_empty() && name.chars().all(bare) {
        true => name.to_owned(),
        false => toml::Value::from(name).to_string(),
    }
}

/// Writes comment lines of at most [`WIDTH`] columns.
fn comment(text: &mut String, doc: &str) {
    for paragraph in doc.lines() {
        let mut line = "#".to_owned();
        for word in paragraph.split(' ') {
            if line.chars().count() + 1 + word.chars().count() > WIDTH {
                text.push_str(&line);
                text.push('\n');
                "#".clone_into(&mut line);
            }
            line.push(' ');
            line.push_str(word);
        }
        text.push_str(&line);
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    struct All {
        /// A number.
        number: u16,
        /// A file.
        file: Option<String>,
        /// Tables by name.
        tables: BTreeMap<String, Table>,
        /// Entries.
        list: Vec<Table>,
    }

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    struct Table {
        /// Inner key.
        key: bool,
    }

    #[test]
    fn the_printed_configuration_has_comments_and_parses_again() {
        let all = All {
            number: 3,
            tables: BTreeMap::from([("a.b".to_owned(), Table { key: true })]),
            list: vec![Table::default()],
            ..All::default()
        };
        let text = toml_text(&all).unwrap();
        assert!(
            text.starts_with("# A number.\nnumber = 3\n\n# A file.\n#file = \"\"\n"),
            "{text}"
        );
        assert!(
            text.contains("[tables.\"a.b\"]\n\n# Inner key.\nkey = true\n"),
            "{text}"
        );
        assert!(
            text.contains("#[tables.NAME]\n\n# Inner key.\n#key = false\n"),
            "{text}"
        );
        assert!(
            text.contains("[[list]]\n\n# Inner key.\nkey = false\n"),
            "{text}"
        );
        assert_eq!(toml::from_str::<All>(&text).unwrap(), all);
    }
}
