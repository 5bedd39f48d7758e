//! sha256 digests in the notation of OCI: `sha256:` and 64 lowercase hexadecimal digits.

use std::fmt;

use sha2::{Digest as _, Sha256};

/// A sha256 digest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Digest {
    hex: String,
}

impl Digest {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let hash = Sha256::digest(bytes);
        Self {
            hex: hash.iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }

    /// None unless it is `sha256:` and 64 lowercase hexadecimal digits.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let hex = text.strip_prefix("sha256:")?;
        let digits = hex
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        (digits && hex.len() == 64).then(|| Self {
            hex: hex.to_owned(),
        })
    }

    /// The digits, which are a safe file name.
    pub(crate) fn hex(&self) -> &str {
        &self.hex
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lowercase_sha256_is_a_digest() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), empty);
        assert_eq!(Digest::parse(empty), Some(Digest::of(b"")));
        let short = &empty[..empty.len() - 1];
        for text in [
            short,
            &empty.to_uppercase(),
            &empty.replace("sha256", "sha512"),
            &short.replace("e3b0", "../../"),
        ] {
            assert_eq!(Digest::parse(text), None, "{text}");
        }
    }
}
