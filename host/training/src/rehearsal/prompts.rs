//! The rehearsal prompts: a built-in set, or a file of the operator.

use std::path::Path;

use crate::error::TrainingError;

/// The built-in set: requests for long and short texts, lists, code, other languages, formal and playful registers, and
/// plain questions.
const BUILT_IN: &str = include_str!("prompts.txt");

/// The prompts of a file, or the built-in ones, in order.
///
/// # Errors
/// The file cannot be read or has no prompt.
pub(super) fn load(file: Option<&Path>) -> Result<Vec<String>, TrainingError> {
    let Some(path) = file else {
        return Ok(parse(BUILT_IN));
    };
    let text = std::fs::read_to_string(path).map_err(|source| TrainingError::File {
        operation: "read",
        path: path.to_owned(),
        source,
    })?;
    let prompts = parse(&text);
    if prompts.is_empty() {
        return Err(TrainingError::Rehearsal(format!(
            "{} has no prompt; write one per line, or remove training.rehearsal.prompts_file to use the built-in set",
            path.display()
        )));
    }
    Ok(prompts)
}

/// One prompt per line, without empty lines, comments and repetitions.
fn parse(text: &str) -> Vec<String> {
    let mut prompts: Vec<String> = Vec::new();
    for line in text.lines().map(str::trim) {
        if !line.is_empty() && !line.starts_with('#') && prompts.iter().all(|known| known != line) {
            prompts.push(line.to_owned());
        }
    }
    prompts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_set_is_large_and_has_no_repetitions() {
        let prompts = load(None).unwrap();
        let lines = |line: &&str| !line.trim().is_empty() && !line.starts_with('#');
        assert!(prompts.len() >= 150, "{} prompts", prompts.len());
        assert_eq!(prompts.len(), BUILT_IN.lines().filter(lines).count());
    }

    #[test]
    fn comments_and_empty_lines_are_skipped() {
        assert_eq!(parse("# a\n\n one \ntwo\none\n"), ["one", "two"]);
        let error = load(Some(Path::new("no such file")))
            .unwrap_err()
            .to_string();
        assert!(error.contains("no such file"), "{error}");
        let dir = tempfile::tempdir().unwrap();
        let empty = dir.path().join("prompts.txt");
        std::fs::write(&empty, "# nothing\n").unwrap();
        let error = load(Some(&empty)).unwrap_err().to_string();
        assert!(error.contains("training.rehearsal.prompts_file"), "{error}");
    }
}
