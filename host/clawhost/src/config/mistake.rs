//! What somebody is told whose configuration file does not parse, or holds a value that cannot work: where, what, and
//! the key that was meant, in one line where the parser would draw a picture.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The mistake in `text`.
pub(super) fn told(text: &str, error: &toml::de::Error) -> String {
    let place = error
        .span()
        .and_then(|span| place(text, span.start))
        .unwrap_or_default();
    format!("{place}{}", hinted(error.message()))
}

/// A mistake that was found in the values, with the place in `text` of the first of the keys it names that stands
/// there. A value that stands nowhere in it came from a default, or from a flag.
pub(super) fn placed(text: &str, mistake: &str) -> String {
    let place = DeTable::parse(text).ok().and_then(|table| {
        mistake
            .split(|c: char| !(c.is_alphanumeric() || "._-".contains(c)))
            .map(|word| word.trim_matches('.'))
            .filter(|word| word.contains('.'))
            .find_map(|word| at(table.get_ref(), word))
            .and_then(|start| place(text, start))
    });
    format!("{}{mistake}", place.unwrap_or_default())
}

/// Where a dotted key stands.
fn at(table: &DeTable<'_>, dotted: &str) -> Option<usize> {
    // A name may hold dots itself, as that of a plugin or a model may.
    table.iter().find_map(|(name, value)| {
        let rest = dotted.strip_prefix(name.get_ref().as_ref())?;
        if rest.is_empty() {
            return Some(name.span().start);
        }
        within(value, rest.strip_prefix('.')?)
    })
}

fn within(value: &Spanned<DeValue<'_>>, dotted: &str) -> Option<usize> {
    match value.get_ref() {
        DeValue::Table(table) => at(table, dotted),
        _ => None,
    }
}

fn place(text: &str, start: usize) -> Option<String> {
    let before = text.get(..start)?;
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    Some(format!("line {line}, column {column}: "))
}

/// The parser's message; when it is about an unknown key with a near one, that one instead of them all.
fn hinted(message: &str) -> String {
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
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[training]\n# a comment\nbatch = 2\n\n[training.loss]\nclip_low = 2.0\n\n[models.\"a.b\"]\nx = 1\n";

    #[test]
    fn the_key_that_cannot_work_is_found() {
        for (mistake, place) in [
            ("training.loss.clip_low = 2: too much", "line 6, column 1: "),
            ("training.batch = 2: too few", "line 3, column 1: "),
            ("models.a.b.x = 1: wrong", "line 9, column 1: "),
            ("`training.batch` (2) is wrong", "line 3, column 1: "),
        ] {
            assert_eq!(placed(TEXT, mistake), format!("{place}{mistake}"));
        }
    }

    #[test]
    fn where_the_key_was_left_out_the_one_it_goes_against_is_shown() {
        let mistake = "training.min_batch = 4: must not be more than training.batch";
        assert_eq!(
            placed(TEXT, mistake),
            format!("line 3, column 1: {mistake}")
        );
        let nowhere = "server.max_body = 0: must be at least 1";
        assert_eq!(placed(TEXT, nowhere), nowhere);
    }
}
