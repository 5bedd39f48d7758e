//! The error of reading a configuration, and its messages for a file that does not parse or holds an invalid value: one
//! line with the position, the problem and the nearest known key.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A configuration could not be read. The message has the file and line, the key, and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub(crate) String);

/// Formats a parse error of `text`.
pub(crate) fn parse_error(text: &str, error: &toml::de::Error) -> String {
    let position = error
        .span()
        .and_then(|span| position(text, span.start))
        .unwrap_or_default();
    format!("{position}{}", with_suggestion(error.message()))
}

/// Prefixes a validation error with the position in `text` of the first key it names. A value that is not in `text`
/// came from a default or a flag; then no position is added.
pub(crate) fn validation_error(text: &str, error: &str) -> String {
    let position = DeTable::parse(text).ok().and_then(|table| {
        error
            .split(|c: char| !(c.is_alphanumeric() || "._-".contains(c)))
            .map(|word| word.trim_matches('.'))
            .filter(|word| word.contains('.'))
            .find_map(|word| key_offset(table.get_ref(), word))
            .and_then(|start| position(text, start))
    });
    format!("{}{error}", position.unwrap_or_default())
}

/// Byte offset of a dotted key.
fn key_offset(table: &DeTable<'_>, dotted: &str) -> Option<usize> {
    // A name may contain dots itself, such as that of a plugin or a model.
    table.iter().find_map(|(name, value)| {
        let rest = dotted.strip_prefix(name.get_ref().as_ref())?;
        if rest.is_empty() {
            return Some(name.span().start);
        }
        nested_key_offset(value, rest.strip_prefix('.')?)
    })
}

fn nested_key_offset(value: &Spanned<DeValue<'_>>, dotted: &str) -> Option<usize> {
    match value.get_ref() {
        DeValue::Table(table) => key_offset(table, dotted),
        _ => None,
    }
}

pub(crate) fn position(text: &str, start: usize) -> Option<String> {
    let before = text.get(..start)?;
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    Some(format!("line {line}, column {column}: "))
}

/// The parser's message. For an unknown key, the nearest known key in place of the list of all keys.
pub(crate) fn with_suggestion(message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2);
    let nearest = message.contains("unknown field").then(|| {
        let wrong = quoted.next()?;
        let near = quoted.map(|known| (distance(wrong, known), known)).min()?;
        (near.0 <= wrong.len().div_ceil(2)).then_some((wrong, near.1))
    });
    match nearest.flatten() {
        Some((wrong, known)) => format!("unknown key `{wrong}`; did you mean `{known}`?"),
        None => message.trim_end().to_owned(),
    }
}

/// Edit distance (Levenshtein 1966).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, y) in row.iter_mut().skip(1).zip(&b) {
            let here = (*cell + 1)
                .min(left + 1)
                .min(diagonal + usize::from(x != *y));
            diagonal = *cell;
            *cell = here;
            left = here;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    *row.last().expect("a row has a first column")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[training]\n# a comment\nbatch_size = 2\n\n[training.loss]\nclip_ratio_low = 2.0\n\n[models.\"a.b\"]\nx = 1\n";

    #[test]
    fn validation_errors_show_the_position_of_the_key() {
        for (error, position) in [
            (
                "training.loss.clip_ratio_low = 2: too much",
                "line 6, column 1: ",
            ),
            ("training.batch_size = 2: too few", "line 3, column 1: "),
            ("models.a.b.x = 1: wrong", "line 9, column 1: "),
            ("`training.batch_size` (2) is wrong", "line 3, column 1: "),
        ] {
            assert_eq!(validation_error(TEXT, error), format!("{position}{error}"));
        }
    }

    #[test]
    fn a_missing_key_falls_back_to_the_other_key_of_the_message() {
        let error = "training.min_batch_size = 4: must not be more than training.batch_size";
        assert_eq!(
            validation_error(TEXT, error),
            format!("line 3, column 1: {error}")
        );
        let nowhere = "server.max_body_size = 0: must be at least 1";
        assert_eq!(validation_error(TEXT, nowhere), nowhere);
    }
}
