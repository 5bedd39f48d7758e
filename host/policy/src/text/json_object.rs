//! Reads one JSON object out of text that is still being written: says where it ends, or at which
//! character it can no longer become one.
//!
//! It checks structure, strings and literals; the spelling of numbers is left to the parser that reads the whole.

/// Nesting at which the object is given up; the parser that reads it whole gives up there, too.
const DEEPEST: usize = 120;

/// How far an object has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Scan {
    /// More text may complete it.
    More,
    /// It ends before this byte.
    Whole(usize),
    /// The character at this byte cannot stand there.
    Wrong(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// A value, or the end of the array if `end`.
    Value {
        end: bool,
    },
    /// A key, or the end of the object if `end`.
    Key {
        end: bool,
    },
    Colon,
    /// A comma or the end of the innermost container.
    Comma,
    /// More of a string; `key` when a colon follows it, `escaped` behind a backslash.
    Text {
        key: bool,
        escaped: bool,
    },
    /// More of a number.
    Number,
    /// These letters.
    Word(&'static str),
}

/// An object that is being read, from its opening brace.
#[derive(Debug, Clone)]
pub(super) struct JsonObject {
    /// Byte of the text at which reading goes on.
    at: usize,
    /// Containers that are open, from the outside; whether each is an array.
    open: Vec<bool>,
    expected: Expected,
}

impl JsonObject {
    /// Reads on at byte `at` of the text, where the opening brace stands.
    pub(super) fn at(at: usize) -> Self {
        Self {
            at,
            open: Vec::new(),
            expected: Expected::Value { end: false },
        }
    }

    /// Reads what of `text` was not read yet. The text may have grown, but not changed.
    pub(super) fn scan(&mut self, text: &str) -> Scan {
        let unread = text.get(self.at..).unwrap_or_default();
        let from = self.at;
        for (offset, character) in unread.char_indices() {
            self.at = from + offset;
            if !self.take(character) {
                return Scan::Wrong(self.at);
            }
            if self.open.is_empty() {
                return Scan::Whole(self.at + character.len_utf8());
            }
        }
        self.at = text.len();
        Scan::More
    }

    /// Takes the next character; false when it cannot stand here.
    fn take(&mut self, character: char) -> bool {
        match self.expected {
            Expected::Text { key, escaped } => return self.text(key, escaped, character),
            Expected::Word(rest) => {
                let Some(rest) = rest.strip_prefix(character) else {
                    return false;
                };
                self.expected = match rest {
                    "" => Expected::Comma,
                    rest => Expected::Word(rest),
                };
                return true;
            }
            Expected::Number => {
                if matches!(character, '0'..='9' | '.' | 'e' | 'E' | '+' | '-') {
                    return true;
                }
                self.expected = Expected::Comma;
            }
            _ => {}
        }
        if matches!(character, ' ' | '\t' | '\n' | '\r') {
            return true;
        }
        match (self.expected, character) {
            (Expected::Value { .. }, '{') => self.enter(false),
            (Expected::Value { .. }, '[') => self.enter(true),
            (Expected::Value { end: true }, ']') => self.leave(true),
            (Expected::Value { .. }, '"') => self.expect(Expected::Text {
                key: false,
                escaped: false,
            }),
            (Expected::Value { .. }, '-' | '0'..='9') => self.expect(Expected::Number),
            (Expected::Value { .. }, 't') => self.expect(Expected::Word("rue")),
            (Expected::Value { .. }, 'f') => self.expect(Expected::Word("alse")),
            (Expected::Value { .. }, 'n') => self.expect(Expected::Word("ull")),
            (Expected::Key { .. }, '"') => self.expect(Expected::Text {
                key: true,
                escaped: false,
            }),
            (Expected::Key { end: true }, '}') => self.leave(false),
            (Expected::Colon, ':') => self.expect(Expected::Value { end: false }),
            (Expected::Comma, ',') => match self.open.last() {
                Some(true) => self.expect(Expected::Value { end: false }),
                _ => self.expect(Expected::Key { end: false }),
            },
            (Expected::Comma, ']') => self.leave(true),
            (Expected::Comma, '}') => self.leave(false),
            _ => false,
        }
    }

    fn text(&mut self, key: bool, escaped: bool, character: char) -> bool {
        self.expected = match (escaped, character) {
            (true, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' | 'u') => Expected::Text {
                key,
                escaped: false,
            },
            (true, _) => return false,
            (false, '\\') => Expected::Text { key, escaped: true },
            (false, '"') if key => Expected::Colon,
            (false, '"') => Expected::Comma,
            // Line breaks and other control characters are written with an escape.
            (false, ..' ') => return false,
            (false, _) => return true,
        };
        true
    }

    fn expect(&mut self, expected: Expected) -> bool {
        self.expected = expected;
        true
    }

    fn enter(&mut self, array: bool) -> bool {
        self.open.push(array);
        self.expected = if array {
            Expected::Value { end: true }
        } else {
            Expected::Key { end: true }
        };
        self.open.len() <= DEEPEST
    }

    fn leave(&mut self, array: bool) -> bool {
        self.expected = Expected::Comma;
        self.open.pop() == Some(array)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole(text: &str) -> Scan {
        JsonObject::at(0).scan(text)
    }

    #[test]
    fn the_end_and_the_first_wrong_character_are_found() {
        for (text, expected) in [
            ("{} x", Scan::Whole(2)),
            (r#"{"a": "}\"", "b": [1, -2.5e3, {}]}, "#, Scan::Whole(34)),
            (r#"{"a": [true, false, null]}"#, Scan::Whole(26)),
            (r#"{"a": "un"#, Scan::More),
            (r#"{"a": 1"#, Scan::More),
            ("{'a': 1}", Scan::Wrong(1)),
            (r#"{"a": 1,}"#, Scan::Wrong(8)),
            (r#"{"a": nil}"#, Scan::Wrong(7)),
            (r#"{"a": [1}"#, Scan::Wrong(8)),
            ("{\"a\": \"two\nlines\"}", Scan::Wrong(10)),
            (r#"{"a": "\x"}"#, Scan::Wrong(8)),
            (r#"{"a" 1}"#, Scan::Wrong(5)),
            ("[1]{", Scan::Whole(3)),
        ] {
            assert_eq!(whole(text), expected, "{text}");
        }
        assert_eq!(whole(&"{\"a\":".repeat(500)), Scan::Wrong(600));
    }

    fn value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            (-1e9..1e9f64).prop_map(Into::into),
            ".{0,12}".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
                prop::collection::vec((".{0,6}", inner), 0..4)
                    .prop_map(|pairs| serde_json::Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_object_ends_where_it_ends(value in value(), size in 1usize..7, pretty in any::<bool>()) {
            let object = serde_json::json!({ "v": value });
            let text = if pretty { format!("{object:#}") } else { object.to_string() };
            let after = format!("{text} }}]\" rest");
            let mut read = JsonObject::at(0);
            let mut so_far = String::new();
            let mut last = Scan::More;
            for piece in after.chars().collect::<Vec<_>>().chunks(size) {
                so_far.extend(piece);
                last = read.scan(&so_far);
                if last != Scan::More {
                    break;
                }
            }
            prop_assert_eq!(last, Scan::Whole(text.len()));
        }

        #[test]
        fn what_a_parser_accepts_is_never_called_wrong(text in r#"[{}\[\]",:a1 \\tru.\-e]{0,24}"#) {
            let text = format!("{{{text}");
            let mut stream = serde_json::Deserializer::from_str(&text).into_iter::<serde_json::Value>();
            if let Some(Ok(_)) = stream.next() {
                prop_assert_eq!(whole(&text), Scan::Whole(stream.byte_offset()));
            }
        }
    }
}
