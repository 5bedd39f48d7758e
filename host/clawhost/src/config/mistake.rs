//! What somebody is told whose configuration file does not parse: where, what, and the key that was meant,
//! in one line where the parser would draw a picture.

/// The mistake in `text`.
pub(super) fn told(text: &str, error: &toml::de::Error) -> String {
    let place = error
        .span()
        .and_then(|span| text.get(..span.start))
        .map(|before| {
            let line = before.matches('\n').count() + 1;
            let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
            format!("line {line}, column {column}: ")
        })
        .unwrap_or_default();
    format!("{place}{}", hinted(error.message()))
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
