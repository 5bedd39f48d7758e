//! Names of plugins.
//!
//! A name becomes a crate, a package, a file and a line in other files, so it is narrower than any
//! one of those would ask for.

use crate::error::AuthoringError;

const LONGEST: usize = 64;

/// Names that a crate cannot have: keywords, and crates that would be hidden by it.
const TAKEN: &str = "abstract as async await become box break clawhost-sdk const continue core crate do dyn else enum extern \
    final fn for gen if impl in let loop macro match mod move mut override priv proc-macro pub ref return \
    static std struct super test trait try type unsafe use";

/// Refuses what cannot be the name of a plugin.
pub(crate) fn check(name: &str) -> Result<(), AuthoringError> {
    let bad = |reason| {
        Err(AuthoringError::BadName {
            name: name.chars().take(LONGEST).collect(),
            reason,
        })
    };
    if name.is_empty() {
        return bad("it is empty");
    }
    if name.len() > LONGEST {
        return bad("it is longer than 64 characters");
    }
    let ok = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !name.chars().all(ok) {
        return bad("it has other characters");
    }
    if !name.starts_with(|c: char| c.is_ascii_lowercase()) {
        return bad("it does not start with a letter");
    }
    if name.ends_with('-') || name.contains("--") {
        return bad("a hyphen stands between letters or digits");
    }
    if TAKEN.split_whitespace().any(|taken| taken == name) {
        return bad("it means something else to a compiler");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words_joined_by_hyphens() {
        for good in ["j", "my-judge", "judge2", "a-1-b"] {
            assert!(check(good).is_ok(), "{good}");
        }
        let long = "a".repeat(65);
        for bad in [
            "", "My", "my_judge", "-j", "j-", "a--b", "2j", "../j", "j/k", "j k", "ж", "fn",
            "core", "j\n", "\"", &long,
        ] {
            let refused = check(bad).unwrap_err().to_string();
            assert!(refused.contains("such as my-judge"), "{refused}");
        }
    }
}
