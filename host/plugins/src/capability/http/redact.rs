//! Takes secrets out of what an origin answers.
//!
//! Every secret of the component's grants is looked for in every answer, whether or not the exchange carried it,
//! and in the encodings that an echo or a stored copy comes back in: as it is in any case, reversed, base64 (both
//! alphabets, any alignment), hex, percent-encoding, JSON and HTML escapes, UTF-16. This is against accidents and
//! against a component that makes an honest origin repeat a secret. An origin that wants to hand its secret on can
//! always transform it: a secret is granted only for an origin that may know it.

use aho_corasick::{AhoCorasick, MatchKind};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use url::form_urlencoded;

use crate::capability::http::policy::{CLOSE, OPEN};

/// An encoded form shorter than this many bytes is not looked for: it would stand in ordinary text.
const MIN_ENCODED: usize = 6;

/// Finds the secrets of one component.
pub(crate) struct Redactor {
    automaton: AhoCorasick,
    /// What is put in place of each pattern.
    replacements: Vec<String>,
}

impl Redactor {
    /// Looks for these secrets, each a name and a value that is not empty.
    ///
    /// # Errors
    /// A sentence when the values are too long to be searched for.
    pub(crate) fn new(secrets: &[(String, String)]) -> Result<Redactor, String> {
        let mut patterns = Vec::new();
        let mut replacements = Vec::new();
        for (name, secret) in secrets {
            for pattern in forms(secret.as_bytes()) {
                patterns.push(pattern);
                replacements.push(format!("{OPEN}{name}{CLOSE}"));
            }
        }
        let automaton = AhoCorasick::builder()
            // The longest: a secret that begins another must not leave the other's end standing.
            .match_kind(MatchKind::LeftmostLongest)
            .ascii_case_insensitive(true)
            .build(&patterns)
            .map_err(|error| format!("the secrets cannot be searched for: {error}"))?;
        Ok(Redactor {
            automaton,
            replacements,
        })
    }

    /// Puts `{{secret:NAME}}` where a secret stands.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> Vec<u8> {
        self.automaton.replace_all_bytes(bytes, &self.replacements)
    }

    /// The same in text.
    pub(crate) fn text(&self, text: &str) -> String {
        String::from_utf8_lossy(&self.bytes(text.as_bytes())).into_owned()
    }
}

/// The secret and its encodings; case is ignored when they are looked for.
fn forms(secret: &[u8]) -> Vec<Vec<u8>> {
    let each = |separator: &str, write: &dyn Fn(u8) -> String| {
        let parts: Vec<String> = secret.iter().map(|byte| write(*byte)).collect();
        parts.join(separator).into_bytes()
    };
    let percent = |plain: &'static [u8]| {
        move |byte: u8| {
            if byte.is_ascii_alphanumeric() || plain.contains(&byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02x}")
            }
        }
    };
    let mut encoded: Vec<Vec<u8>> = vec![
        secret.iter().rev().copied().collect(),
        each("", &|byte| format!("{byte:02x}")),
        each("", &|byte| format!("%{byte:02x}")),
        each("", &|byte| format!("\\x{byte:02x}")),
        each("", &|byte| format!("\\u{byte:04x}")),
        each(";", &|byte| format!("&#{byte}")),
        each(";", &|byte| format!("&#x{byte:x}")),
        // RFC 3986, JavaScript's encodeURIComponent, and forms.
        each("", &percent(b"-._~")),
        each("", &percent(b"-._~!*'()")),
        form_urlencoded::byte_serialize(secret)
            .collect::<String>()
            .into_bytes(),
        // JSON, with and without escaped slashes and angle brackets; HTML.
        each("", &|byte| match byte {
            b'"' | b'\\' => format!("\\{}", char::from(byte)),
            other => char::from(other).to_string(),
        }),
        each("", &|byte| match byte {
            b'"' | b'\\' | b'/' => format!("\\{}", char::from(byte)),
            other => char::from(other).to_string(),
        }),
        each("", &|byte| match byte {
            b'"' | b'\\' => format!("\\{}", char::from(byte)),
            b'<' | b'>' | b'&' | b'\'' => format!("\\u{byte:04x}"),
            other => char::from(other).to_string(),
        }),
        each("", &|byte| match byte {
            b'&' => "&amp;".to_owned(),
            b'<' => "&lt;".to_owned(),
            b'>' => "&gt;".to_owned(),
            b'"' => "&quot;".to_owned(),
            b'\'' => "&#39;".to_owned(),
            other => char::from(other).to_string(),
        }),
        // UTF-16 without the zero that one byte order begins and the other ends with.
        secret.iter().flat_map(|byte| [0, *byte]).skip(1).collect(),
    ];
    for offset in 0..3 {
        encoded.extend(base64_at(secret, offset));
    }
    encoded.retain(|form| form.len() >= MIN_ENCODED && form != secret);
    encoded.push(secret.to_vec());
    encoded
}

/// The characters of a base64 text that the secret alone decides when it begins `offset` bytes into a group.
fn base64_at(secret: &[u8], offset: usize) -> [Vec<u8>; 2] {
    let mut bytes = vec![0; offset];
    bytes.extend_from_slice(secret);
    let start = (offset * 8).div_ceil(6);
    let end = bytes.len() * 8 / 6;
    [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD].map(|alphabet| {
        let text = alphabet.encode(&bytes).into_bytes();
        text[start..end].to_vec()
    })
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::{STANDARD, URL_SAFE};

    use super::*;

    const SECRET: &str = "s3cr+t/K\"ey>?~";

    fn redactor(secrets: &[(&str, &str)]) -> Redactor {
        let secrets: Vec<_> = secrets
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        Redactor::new(&secrets).unwrap()
    }

    #[test]
    fn every_cheap_encoding_is_found() {
        let redactor = redactor(&[("KEY", SECRET)]);
        let hex: String = SECRET.bytes().map(|byte| format!("{byte:02x}")).collect();
        let percent: String = SECRET.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let html: String = SECRET.bytes().map(|byte| format!("&#{byte};")).collect();
        let html_hex: String = SECRET.bytes().map(|byte| format!("&#x{byte:x};")).collect();
        let unicode: String = SECRET
            .bytes()
            .map(|byte| format!("\\u{byte:04X}"))
            .collect();
        let wide: Vec<u8> = SECRET.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let query: String = form_urlencoded::byte_serialize(SECRET.as_bytes()).collect();
        let mut texts = vec![
            SECRET.to_owned(),
            SECRET.to_uppercase(),
            SECRET.chars().rev().collect(),
            hex.to_uppercase(),
            hex,
            percent,
            html,
            html_hex,
            unicode,
            query,
            serde_json::to_string(SECRET).unwrap(),
        ];
        for before in ["", "x", "xy"] {
            for alphabet in [&STANDARD, &URL_SAFE] {
                texts.push(alphabet.encode(format!("{before}{SECRET}yz")));
            }
        }
        for text in &texts {
            let answer = redactor.text(&format!("you sent {text}, once"));
            assert!(answer.contains("{{secret:KEY}}"), "{text}: {answer}");
            assert!(answer.starts_with("you sent ") && answer.ends_with(", once"));
        }
        let answer = redactor.bytes(&wide);
        assert!(answer.len() < wide.len() && answer.starts_with(b"{{secret:KEY}}"));
    }

    #[test]
    fn other_text_stays_and_the_longest_secret_counts() {
        let redactor = redactor(&[("A", "s3"), ("KEY", "s3cret")]);
        assert_eq!(redactor.text("s3cret"), "{{secret:KEY}}");
        assert_eq!(redactor.text("s3crate"), "{{secret:A}}crate");
        let other = "An answer with 733333 in it, and c2Nz.";
        assert_eq!(redactor.text(other), other);
        assert_eq!(self::redactor(&[]).text(other), other);
    }
}
