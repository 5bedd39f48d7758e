//! Reads one JSON object out of text that is still being written: says where it ends, or at which
//! character it can no longer become one.
//!
//! It checks structure, strings, literals and numbers, character by character: whatever it has taken is the beginning of a
//! valid object, so text can be handed on before the object is whole. Members of the outermost object are reported where
//! they can be read early.

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
    /// A member of the outermost object begins to be an object: its opening brace stands at this byte. Scanning may go on.
    Begins {
        /// The key with its quotes, as a range of bytes.
        key: (usize, usize),
        /// Where the brace stands.
        at: usize,
    },
    /// A member of the outermost object that is a string, an array or an object is whole. Scanning may go on.
    Ends {
        /// The key with its quotes, as a range of bytes.
        key: (usize, usize),
        /// The value, as a range of bytes.
        value: (usize, usize),
    },
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
    /// More of a string; `key` when a colon follows it.
    Text {
        key: bool,
        escape: Escape,
    },
    /// More of a number.
    Number(Number),
    /// These letters.
    Word(&'static str),
}

/// Where in an escape sequence a string is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Escape {
    None,
    /// Behind a backslash.
    Begun,
    /// This many hexadecimal digits must follow.
    Digits(u8),
}

/// How far a number has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Number {
    Minus,
    /// A zero that begins the number: no digit follows it.
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

impl Number {
    /// The state behind another character of the number; none when it is no part of it.
    fn next(self, character: char) -> Option<Self> {
        Some(match (self, character) {
            (Self::Minus, '0') => Self::Zero,
            (Self::Minus, '1'..='9') | (Self::Integer, '0'..='9') => Self::Integer,
            (Self::Zero | Self::Integer, '.') => Self::Point,
            (Self::Point | Self::Fraction, '0'..='9') => Self::Fraction,
            (Self::Zero | Self::Integer | Self::Fraction, 'e' | 'E') => Self::Exponent,
            (Self::Exponent, '+' | '-') => Self::ExponentSign,
            (Self::Exponent | Self::ExponentSign | Self::ExponentDigits, '0'..='9') => {
                Self::ExponentDigits
            }
            _ => return None,
        })
    }

    /// Whether the number may end here.
    fn is_whole(self) -> bool {
        matches!(
            self,
            Self::Zero | Self::Integer | Self::Fraction | Self::ExponentDigits
        )
    }
}

/// An object that is being read, from its opening brace.
#[derive(Debug, Clone)]
pub(super) struct JsonObject {
    /// Byte of the text at which reading goes on.
    at: usize,
    /// Containers that are open, from the outside; whether each is an array.
    open: Vec<bool>,
    expected: Expected,
    /// The last key of the outermost object, as a range of bytes.
    key: (usize, usize),
    /// Where its value begins.
    value: usize,
}

impl JsonObject {
    /// Reads on at byte `at` of the text, where the opening brace stands.
    pub(super) fn at(at: usize) -> Self {
        Self {
            at,
            open: Vec::new(),
            expected: Expected::Value { end: false },
            key: (at, at),
            value: at,
        }
    }

    /// Reads what of `text` was not read yet. The text may have grown, but not changed.
    pub(super) fn scan(&mut self, text: &str) -> Scan {
        let unread = text.get(self.at..).unwrap_or_default();
        let from = self.at;
        for (offset, character) in unread.char_indices() {
            self.at = from + offset;
            let before = (self.open.len(), self.expected);
            if !self.take(character) {
                return Scan::Wrong(self.at);
            }
            let next = self.at + character.len_utf8();
            if self.open.is_empty() {
                return Scan::Whole(next);
            }
            if let Some(member) = self.member(before, next) {
                self.at = next;
                return member;
            }
        }
        self.at = text.len();
        Scan::More
    }

    /// Whether `text` is such an object or the beginning of one.
    #[cfg(test)]
    pub(super) fn begins(mut self, text: &str) -> bool {
        loop {
            match self.scan(text) {
                Scan::Begins { .. } | Scan::Ends { .. } => {}
                scan => return !matches!(scan, Scan::Wrong(_)),
            }
        }
    }

    /// Follows the members of the outermost object through the character at `self.at`, which ended at `next`. `before` are
    /// the open containers and the expectation before it.
    fn member(&mut self, before: (usize, Expected), next: usize) -> Option<Scan> {
        let (key, depth) = (self.key, self.open.len());
        match (before, self.expected) {
            ((1, Expected::Key { .. }), Expected::Text { key: true, .. }) => self.key.0 = self.at,
            ((1, Expected::Text { key: true, .. }), Expected::Colon) => self.key.1 = next,
            ((1, Expected::Value { .. }), Expected::Text { .. }) => self.value = self.at,
            ((1, Expected::Value { .. }), expected) if depth == 2 => {
                self.value = self.at;
                if matches!(expected, Expected::Key { .. }) {
                    return Some(Scan::Begins { key, at: self.at });
                }
            }
            ((1, Expected::Text { key: false, .. }), Expected::Comma) => {
                let value = (self.value, next);
                return Some(Scan::Ends { key, value });
            }
            ((2, _), _) if depth == 1 => {
                let value = (self.value, next);
                return Some(Scan::Ends { key, value });
            }
            _ => {}
        }
        None
    }

    /// Takes the next character; false when it cannot stand here.
    fn take(&mut self, character: char) -> bool {
        match self.expected {
            Expected::Text { key, escape } => return self.text(key, escape, character),
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
            Expected::Number(number) => {
                if let Some(number) = number.next(character) {
                    self.expected = Expected::Number(number);
                    return true;
                }
                if !number.is_whole() {
                    return false;
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
                escape: Escape::None,
            }),
            (Expected::Value { .. }, '-') => self.expect(Expected::Number(Number::Minus)),
            (Expected::Value { .. }, '0') => self.expect(Expected::Number(Number::Zero)),
            (Expected::Value { .. }, '1'..='9') => self.expect(Expected::Number(Number::Integer)),
            (Expected::Value { .. }, 't') => self.expect(Expected::Word("rue")),
            (Expected::Value { .. }, 'f') => self.expect(Expected::Word("alse")),
            (Expected::Value { .. }, 'n') => self.expect(Expected::Word("ull")),
            (Expected::Key { .. }, '"') => self.expect(Expected::Text {
                key: true,
                escape: Escape::None,
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

    fn text(&mut self, key: bool, escape: Escape, character: char) -> bool {
        let escape = match (escape, character) {
            (Escape::Begun, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => Escape::None,
            (Escape::Begun, 'u') => Escape::Digits(4),
            (Escape::Digits(1), '0'..='9' | 'a'..='f' | 'A'..='F') => Escape::None,
            (Escape::Digits(left), '0'..='9' | 'a'..='f' | 'A'..='F') => Escape::Digits(left - 1),
            (Escape::Begun | Escape::Digits(_), _) => return false,
            (Escape::None, '\\') => Escape::Begun,
            (Escape::None, '"') => {
                self.expected = if key {
                    Expected::Colon
                } else {
                    Expected::Comma
                };
                return true;
            }
            // Line breaks and other control characters are written with an escape.
            (Escape::None, ..' ') => return false,
            (Escape::None, _) => return true,
        };
        self.expected = Expected::Text { key, escape };
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

    /// What a scan comes to, members passed over.
    fn scan(object: &mut JsonObject, text: &str) -> Scan {
        loop {
            match object.scan(text) {
                Scan::Begins { .. } | Scan::Ends { .. } => {}
                scan => return scan,
            }
        }
    }

    fn whole(text: &str) -> Scan {
        scan(&mut JsonObject::at(0), text)
    }

    #[test]
    fn members_of_the_outermost_object_are_reported() {
        let text = r#"{"a": "x", "n": 1, "o" : {"in": {}}, "l": [{}]}"#;
        let mut object = JsonObject::at(0);
        let shown = |(from, to): (usize, usize)| &text[from..to];
        let mut seen = Vec::new();
        loop {
            match object.scan(text) {
                Scan::Begins { key, at } => seen.push((shown(key), &text[at..=at])),
                Scan::Ends { key, value } => seen.push((shown(key), shown(value))),
                Scan::Whole(end) => break assert_eq!(end, text.len()),
                other => panic!("{other:?}"),
            }
        }
        let expected = [
            ("\"a\"", "\"x\""),
            ("\"o\"", "{"),
            ("\"o\"", "{\"in\": {}}"),
            ("\"l\"", "[{}]"),
        ];
        assert_eq!(seen, expected);
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
            (r#"{"a": 01}"#, Scan::Wrong(7)),
            (r#"{"a": -}"#, Scan::Wrong(7)),
            (r#"{"a": 1.}"#, Scan::Wrong(8)),
            (r#"{"a": 1e5e}"#, Scan::Wrong(9)),
            (r#"{"a": [-0.5E+1, 0]}"#, Scan::Whole(19)),
            (r#"{"a": "\u00e"}"#, Scan::Wrong(12)),
            (r#"{"a": "\u00e9"}"#, Scan::Whole(15)),
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
                last = scan(&mut read, &so_far);
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
