//! The keys of a configuration struct, read from its JSON schema.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

/// How a section appears in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SectionKind {
    /// A table that always exists.
    Table,
    /// A table that exists only if it is configured.
    Optional,
    /// A table per name.
    Named,
    /// An array of tables.
    Array,
    /// A table with keys of the user's choice.
    Free,
}

/// A table of the configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Section {
    /// Name of the table within its parent; empty for the whole configuration.
    pub name: String,
    /// What it configures.
    pub doc: String,
    /// How it appears in a file.
    pub kind: SectionKind,
    /// The keys, in order of declaration.
    pub keys: Vec<Key>,
    /// The tables within it, in order of declaration.
    pub sections: Vec<Section>,
}

/// A key of a section.
#[derive(Debug, Clone, PartialEq)]
pub struct Key {
    /// Name of the key.
    pub name: String,
    /// What it configures, with its unit.
    pub doc: String,
    /// JSON schema type of the value, such as `string`; empty if it has several.
    pub value_type: String,
    /// The possible values, if there are a few.
    pub choices: Vec<Choice>,
    /// The default; none if the key is required or unset by default.
    pub default: Option<toml::Value>,
}

/// A possible value of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The value as TOML.
    pub value: String,
    /// What it means; may be empty.
    pub doc: String,
}

impl Section {
    /// The keys and tables of `T`, with the documentation of its fields.
    pub fn of<T: JsonSchema>() -> Self {
        let settings = SchemaSettings::draft2020_12().with(|s| s.inline_subschemas = true);
        let schema = settings.into_generator().into_root_schema_for::<T>();
        Self::read("", schema.as_value(), SectionKind::Table)
    }

    fn read(name: &str, schema: &Value, kind: SectionKind) -> Self {
        let mut section = Self {
            name: name.to_owned(),
            doc: doc(schema),
            kind,
            keys: Vec::new(),
            sections: Vec::new(),
        };
        let properties = schema.get("properties").and_then(Value::as_object);
        for (name, field) in properties.into_iter().flatten() {
            let (inner, nullable) = without_null(field);
            let child = if has_fields(inner) {
                let kind = match nullable {
                    true => SectionKind::Optional,
                    false => SectionKind::Table,
                };
                Some(Self::read(name, inner, kind))
            } else if let Some(entry) = inner
                .get("additionalProperties")
                .filter(|e| !e.is_boolean())
            {
                let mut named = Self::read(name, entry, SectionKind::Named);
                if !has_fields(entry) {
                    let free = entry.get("additionalProperties").is_none();
                    named.keys.clear();
                    named.kind = match free {
                        true => SectionKind::Free,
                        false => SectionKind::Named,
                    };
                }
                Some(named)
            } else if inner.get("type") == Some(&Value::from("object")) {
                Some(Self::read(name, inner, SectionKind::Free))
            } else {
                inner
                    .get("items")
                    .filter(|items| has_fields(items))
                    .map(|items| Self::read(name, items, SectionKind::Array))
            };
            match child {
                Some(mut child) => {
                    child.doc = first_of(doc(field), child.doc);
                    section.sections.push(child);
                }
                None => section.keys.push(Key {
                    name: name.clone(),
                    doc: first_of(doc(field), doc(inner)),
                    value_type: value_type(inner),
                    choices: choices(inner),
                    default: default(field),
                }),
            }
        }
        section
    }

    /// Calls `visit` for every section and key, outermost first, with the dotted name; the key is none for the section
    /// itself.
    pub fn walk(&self, visit: &mut impl FnMut(&str, &Self, Option<&Key>)) {
        self.walk_below("", visit);
    }

    fn walk_below(&self, parent: &str, visit: &mut impl FnMut(&str, &Self, Option<&Key>)) {
        let path = self.path_below(parent);
        visit(&path, self, None);
        for key in &self.keys {
            visit(&dotted(&path, &key.name), self, Some(key));
        }
        for section in &self.sections {
            section.walk_below(&path, visit);
        }
    }

    /// The dotted name of this section in `parent`, with `NAME` for the name of an entry.
    pub(crate) fn path_below(&self, parent: &str) -> String {
        let path = dotted(parent, &self.name);
        match self.kind {
            SectionKind::Named => dotted(&path, "NAME"),
            _ => path,
        }
    }
}

/// Joins two parts of a dotted name, of which either may be empty.
pub(crate) fn dotted(parent: &str, name: &str) -> String {
    match (parent, name) {
        ("", name) => name.to_owned(),
        (parent, "") => parent.to_owned(),
        (parent, name) => format!("{parent}.{name}"),
    }
}

fn has_fields(schema: &Value) -> bool {
    schema.get("properties").is_some_and(Value::is_object)
}

fn first_of(first: String, second: String) -> String {
    if first.is_empty() { second } else { first }
}

/// The description in one line per paragraph, without the brackets of rustdoc links.
fn doc(schema: &Value) -> String {
    let text = schema.get("description").and_then(Value::as_str);
    let paragraphs = text.unwrap_or_default().split("\n\n");
    let lines: Vec<String> = paragraphs
        .map(|p| p.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    lines.join("\n").replace("[`", "`").replace("`]", "`")
}

/// The schema of an optional value, and whether null was removed from it.
fn without_null(schema: &Value) -> (&Value, bool) {
    let null = Value::from("null");
    let any_of = schema.get("anyOf").and_then(Value::as_array);
    if let Some([some, none]) = any_of.map(Vec::as_slice)
        && none.get("type") == Some(&null)
    {
        return (some, true);
    }
    let nullable = schema
        .get("type")
        .and_then(Value::as_array)
        .is_some_and(|types| types.contains(&null));
    (schema, nullable)
}

fn value_type(schema: &Value) -> String {
    match schema.get("type") {
        Some(Value::String(name)) => name.clone(),
        Some(Value::Array(names)) => names
            .iter()
            .filter_map(Value::as_str)
            .find(|name| *name != "null")
            .expect("a value has a type besides null")
            .to_owned(),
        _ if schema.get("oneOf").is_some() || schema.get("enum").is_some() => "string".to_owned(),
        _ => String::new(),
    }
}

/// The values of an enum, also those in a list.
fn choices(schema: &Value) -> Vec<Choice> {
    let schema = schema.get("items").unwrap_or(schema);
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return values
            .iter()
            .filter(|value| !value.is_null())
            .map(|value| Choice {
                value: value.to_string(),
                doc: String::new(),
            })
            .collect();
    }
    let variants = schema.get("oneOf").and_then(Value::as_array);
    let mut all = Vec::new();
    for variant in variants.into_iter().flatten() {
        let doc = doc(variant);
        if let Some(value) = variant.get("const") {
            let value = value.to_string();
            all.push(Choice { value, doc });
        } else if let Some(fields) = variant.get("properties").and_then(Value::as_object) {
            let fields: Vec<String> = fields.keys().map(|name| format!("{name} = N")).collect();
            let value = format!("{{ {} }}", fields.join(", "));
            all.push(Choice { value, doc });
        } else {
            all.extend(choices(variant));
        }
    }
    all
}

fn default(schema: &Value) -> Option<toml::Value> {
    let value = schema.get("default").filter(|value| !value.is_null())?;
    toml::Value::try_from(value).ok()
}

#[cfg(test)]
#[allow(dead_code, reason = "only the schemas are read")]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// All of it.
    #[derive(JsonSchema)]
    struct All {
        /// A
        /// number.
        number: u16,
        /// Maybe text.
        text: Option<String>,
        /// One of two.
        mode: Option<Mode>,
        /// Maybe a table.
        table: Option<Table>,
        /// Tables by name.
        tables: BTreeMap<String, Table>,
        /// Settings.
        settings: BTreeMap<String, Value>,
        /// A list of tables.
        list: Vec<Table>,
    }

    #[derive(JsonSchema)]
    struct Table {
        /// Inner key.
        key: bool,
    }

    #[derive(JsonSchema)]
    #[schemars(rename_all = "kebab-case")]
    enum Mode {
        /// Slow but sure.
        OldOne,
        /// Sum over N.
        Constant(u32),
    }

    #[test]
    fn keys_and_tables_carry_their_documentation() {
        let all = Section::of::<All>();
        let keys: Vec<&str> = all.keys.iter().map(|key| key.name.as_str()).collect();
        assert_eq!(keys, ["number", "text", "mode"]);
        assert_eq!(all.keys[0].doc, "A number.");
        assert_eq!(all.keys[1].value_type, "string");
        let modes: Vec<(&str, &str)> = all.keys[2]
            .choices
            .iter()
            .map(|choice| (choice.value.as_str(), choice.doc.as_str()))
            .collect();
        assert_eq!(
            modes,
            [
                ("\"old-one\"", "Slow but sure."),
                ("{ constant = N }", "Sum over N.")
            ]
        );
        let kinds: Vec<(&str, SectionKind)> = all
            .sections
            .iter()
            .map(|s| (s.name.as_str(), s.kind))
            .collect();
        assert_eq!(
            kinds,
            [
                ("table", SectionKind::Optional),
                ("tables", SectionKind::Named),
                ("settings", SectionKind::Free),
                ("list", SectionKind::Array),
            ]
        );
        let mut names = Vec::new();
        all.walk(&mut |name, _, key| names.extend(key.map(|_| name.to_owned())));
        assert!(names.contains(&"tables.NAME.key".to_owned()), "{names:?}");
    }
}
