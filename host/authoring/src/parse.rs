//! Languages and kinds by their names.

use std::str::FromStr;

use clawhost_plugins::Kind;

use crate::error::AuthoringError;
use crate::language::Language;

impl FromStr for Language {
    type Err = AuthoringError;

    fn from_str(name: &str) -> Result<Language, AuthoringError> {
        let found = Language::ALL.into_iter().find(|one| one.name() == name);
        match name {
            "javascript" => Ok(Language::Js),
            _ => found.ok_or_else(|| AuthoringError::UnknownLanguage {
                name: name.to_owned(),
            }),
        }
    }
}

/// A kind by the name of its interface, such as `group-judge`; `hint` is short for `hint-extractor`.
///
/// # Errors
/// [`AuthoringError::UnknownKind`] lists the kinds.
pub fn kind_from_name(name: &str) -> Result<Kind, AuthoringError> {
    let interface = if name == "hint" {
        "hint-extractor"
    } else {
        name
    };
    Kind::ALL
        .into_iter()
        .find(|kind| kind.interface() == interface)
        .ok_or_else(|| AuthoringError::UnknownKind {
            name: name.to_owned(),
        })
}
