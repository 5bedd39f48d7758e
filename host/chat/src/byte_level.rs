//! The byte-to-unicode alphabet of byte-level BPE vocabularies: printable ASCII and Latin-1 bytes map to themselves,
//! all other bytes to characters from U+0100.

use std::collections::HashMap;

/// The inverse of GPT-2's `bytes_to_unicode`, which every byte-level BPE uses.
pub(crate) fn byte_of_char() -> HashMap<char, u8> {
    let mut map = HashMap::with_capacity(256);
    let mut next_code = 0x100u32;
    for byte in 0..=255u8 {
        let printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let code = if printable {
            u32::from(byte)
        } else {
            next_code += 1;
            next_code - 1
        };
        if let Some(character) = char::from_u32(code) {
            map.insert(character, byte);
        }
    }
    map
}

/// Bytes of a token of a byte-level vocabulary. A token with a character outside the alphabet (an added token such as
/// `<|tool▁call|>` or one with a space) is its own text.
pub(crate) fn bytes_of_token(token: &str, alphabet: &HashMap<char, u8>) -> Vec<u8> {
    token
        .chars()
        .map(|c| alphabet.get(&c).copied())
        .collect::<Option<Vec<u8>>>()
        .unwrap_or_else(|| token.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alphabet_covers_all_bytes() {
        let alphabet = byte_of_char();
        assert_eq!(alphabet.len(), 256);
        assert_eq!(alphabet[&'a'], b'a');
        assert_eq!(alphabet[&'Ġ'], b' ');
        assert_eq!(alphabet[&'Ċ'], b'\n');
    }

    #[test]
    fn token_outside_the_alphabet_is_its_own_text() {
        let alphabet = byte_of_char();
        assert_eq!(bytes_of_token("ĠÃ©", &alphabet), " é".as_bytes());
        assert_eq!(
            bytes_of_token("<|tool▁call|>", &alphabet),
            "<|tool▁call|>".as_bytes()
        );
    }
}
