//! Command lines of `/bin/sh`.

/// A word of `/bin/sh`.
pub(super) fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
