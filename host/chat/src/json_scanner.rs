//! Incremental scanner of one JSON object in streamed text: finds where the object ends, or the first character that
//! makes it invalid.
//!
//! It validates structure, strings, literals and numbers character by character: accepted text is always a prefix of a
//! valid object, so it can be emitted before the object is complete. It also reports the members of the outermost
//! object.

/// Maximum nesting depth; the parser of complete objects has about the same limit.
const MAX_DEPTH: usize = 120;

/// Result of a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scan {
    /// The object is incomplete; more text is needed.
    More,
    /// The object ends before this byte.
    Complete(usize),
    /// The character at this byte is invalid.
    Invalid(usize),
    /// The value of a member of the outermost object is an object that starts at byte `at`. Scanning can continue.
    MemberStart {
        /// The key with its quotes, as a range of bytes.
        key: (usize, usize),
        /// Position of the opening brace.
        at: usize,
    },
    /// A member of the outermost object that is a string, an array or an object is complete. Scanning can continue.
    MemberEnd {
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
    /// The rest of a string; `key` if a colon follows it.
    String {
        key: bool,
        escape: Escape,
    },
    /// The rest of a number.
    Number(Number),
    /// These letters of a literal.
    Word(&'static str),
}

/// Position within an escape sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Escape {
    None,
    /// After a backslash.
    Begun,
    /// This many hexadecimal digits must follow.
    Digits(u8),
}

/// Position within a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Number {
    Minus,
    /// A leading zero: no digit may follow.
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

impl Number {
    /// The state after another character, or `None` if it is not part of the number.
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
    fn is_complete(self) -> bool {
        matches!(
            self,
            Self::Zero | Self::Integer | Self::Fraction | Self::ExponentDigits
        )
    }
}

/// Scanner state of an object, from its opening brace.
#[derive(Debug, Clone)]
pub(crate) struct JsonScanner {
    /// Byte position of the next character.
    position: usize,
    /// Open containers, outermost first; true for an array.
    open: Vec<bool>,
    expected: Expected,
    /// The last key of the outermost object, as a range of bytes.
    key: (usize, usize),
    /// Start of its value.
    value: usize,
}

impl JsonScanner {
    /// Creates a scanner of the object whose opening brace is at byte `position`.
    pub(crate) fn new(position: usize) -> Self {
        Self {
            position,
            open: Vec::new(),
            expected: Expected::Value { end: false },
            key: (position, position),
            value: position,
        }
    }

    /// Scans the unread part of `text`, which may only have grown since the last call.
    pub(crate) fn scan(&mut self, text: &str) -> Scan {
        let unread = &text[self.position..];
        let from = self.position;
        for (offset, character) in unread.char_indices() {
            self.position = from + offset;
            let before = (self.open.len(), self.expected);
            if !self.accept(character) {
                return Scan::Invalid(self.position);
            }
            let next = self.position + character.len_utf8();
            if self.open.is_empty() {
                return Scan::Complete(next);
            }
            if let Some(member) = self.track_member(before, next) {
                self.position = next;
                return member;
            }
        }
        self.position = text.len();
        Scan::More
    }

    /// Whether `text` is an object or a prefix of one.
    #[cfg(test)]
    pub(crate) fn accepts_prefix(mut self, text: &str) -> bool {
        loop {
            match self.scan(text) {
                Scan::MemberStart { .. } | Scan::MemberEnd { .. } => {}
                scan => return !matches!(scan, Scan::Invalid(_)),
            }
        }
    }

    /// Tracks the members of the outermost object over the character at `self.position`, which ends at `next`. `before`
    /// is the number of open containers and the expectation before that character.
    fn track_member(&mut self, before: (usize, Expected), next: usize) -> Option<Scan> {
        let (key, depth) = (self.key, self.open.len());
        match (before, self.expected) {
            ((1, Expected::Key { .. }), Expected::String { key: true, .. }) => {
                self.key.0 = self.position
            }
            ((1, Expected::String { key: true, .. }), Expected::Colon) => self.key.1 = next,
            ((1, Expected::Value { .. }), Expected::String { .. }) => self.value = self.position,
            ((1, Expected::Value { .. }), expected) if depth == 2 => {
                self.value = self.position;
                if matches!(expected, Expected::Key { .. }) {
                    return Some(Scan::MemberStart {
                        key,
                        at: self.position,
                    });
                }
            }
            ((1, Expected::String { key: false, .. }), Expected::Comma) => {
                let value = (self.value, next);
                return Some(Scan::MemberEnd { key, value });
            }
            ((2, _), _) if depth == 1 => {
                let value = (self.value, next);
                return Some(Scan::MemberEnd { key, value });
            }
            _ => {}
        }
        None
    }

    /// Accepts the next character. Returns false if it is invalid here.
    fn accept(&mut self, character: char) -> bool {
        match self.expected {
            Expected::String { key, escape } => {
                return self.accept_in_string(key, escape, character);
            }
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
                if !number.is_complete() {
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
            (Expected::Value { .. }, '"') => self.expect(Expected::String {
                key: false,
                escape: Escape::None,
            }),
            (Expected::Value { .. }, '-') => self.expect(Expected::Number(Number::Minus)),
            (Expected::Value { .. }, '0') => self.expect(Expected::Number(Number::Zero)),
            (Expected::Value { .. }, '1'..='9') => self.expect(Expected::Number(Number::Integer)),
            (Expected::Value { .. }, 't') => self.expect(Expected::Word("rue")),
            (Expected::Value { .. }, 'f') => self.expect(Expected::Word("alse")),
            (Expected::Value { .. }, 'n') => self.expect(Expected::Word("ull")),
            (Expected::Key { .. }, '"') => self.expect(Expected::String {
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

    fn accept_in_string(&mut self, key: bool, escape: Escape, character: char) -> bool {
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
            // Control characters must be escaped.
            (Escape::None, ..' ') => return false,
            (Escape::None, _) => return true,
        };
        self.expected = Expected::String { key, escape };
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
        self.open.len() <= MAX_DEPTH
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

    /// The final result of a scan, ignoring member reports.
    fn scan(object: &mut JsonScanner, text: &str) -> Scan {
        loop {
            match object.scan(text) {
                Scan::MemberStart { .. } | Scan::MemberEnd { .. } => {}
                scan => return scan,
            }
        }
    }

    fn scan_all(text: &str) -> Scan {
        scan(&mut JsonScanner::new(0), text)
    }

    #[test]
    fn members_of_the_outermost_object_are_reported() {
        let text = r#"{"a": "x", "n": 1, "o" : {"in": {}}, "l": [{}]}"#;
        let mut object = JsonScanner::new(0);
        let shown = |(from, to): (usize, usize)| &text[from..to];
        let mut seen = Vec::new();
        loop {
            match object.scan(text) {
                Scan::MemberStart { key, at } => seen.push((shown(key), &text[at..=at])),
                Scan::MemberEnd { key, value } => seen.push((shown(key), shown(value))),
                Scan::Complete(end) => break assert_eq!(end, text.len()),
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
    fn end_and_first_invalid_character_are_found() {
        for (text, expected) in [
            ("{} x", Scan::Complete(2)),
            (
                r#"{"a": "}\"", "b": [1, -2.5e3, {}]}, "#,
                Scan::Complete(34),
            ),
            (r#"{"a": [true, false, null]}"#, Scan::Complete(26)),
            (r#"{"a": "un"#, Scan::More),
            (r#"{"a": 1"#, Scan::More),
            ("{'a': 1}", Scan::Invalid(1)),
            (r#"{"a": 1,}"#, Scan::Invalid(8)),
            (r#"{"a": nil}"#, Scan::Invalid(7)),
            (r#"{"a": [1}"#, Scan::Invalid(8)),
            ("{\"a\": \"two\nlines\"}", Scan::Invalid(10)),
            (r#"{"a": "\x"}"#, Scan::Invalid(8)),
            (r#"{"a" 1}"#, Scan::Invalid(5)),
            (r#"{"a": 01}"#, Scan::Invalid(7)),
            (r#"{"a": -}"#, Scan::Invalid(7)),
            (r#"{"a": 1.}"#, Scan::Invalid(8)),
            (r#"{"a": 1e5e}"#, Scan::Invalid(9)),
            (r#"{"a": [-0.5E+1, 0]}"#, Scan::Complete(19)),
            (r#"{"a": "\u00e"}"#, Scan::Invalid(12)),
            (r#"{"a": "\u00e9"}"#, Scan::Complete(15)),
            ("[1]{", Scan::Complete(3)),
        ] {
            assert_eq!(scan_all(text), expected, "{text}");
        }
        assert_eq!(scan_all(&"{\"a\":".repeat(500)), Scan::Invalid(600));
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
        fn end_of_any_object_is_found(value in value(), size in 1usize..7, pretty in any::<bool>()) {
            let object = serde_json::json!({ "v": value });
            let text = if pretty { format!("{object:#}") } else { object.to_string() };
            let after = format!("{text} }}]\" rest");
            let mut read = JsonScanner::new(0);
            let mut so_far = String::new();
            let mut last = Scan::More;
            for piece in after.chars().collect::<Vec<_>>().chunks(size) {
                so_far.extend(piece);
                last = scan(&mut read, &so_far);
                if last != Scan::More {
                    break;
                }
            }
            prop_assert_eq!(last, Scan::Complete(text.len()));
        }

        #[test]
        fn objects_that_serde_accepts_are_complete(text in r#"[{}\[\]",:a1 \\tru.\-e]{0,24}"#) {
            let text = format!("{{{text}");
            let mut stream = serde_json::Deserializer::from_str(&text).into_iter::<serde_json::Value>();
            if let Some(Ok(_)) = stream.next() {
                prop_assert_eq!(scan_all(&text), Scan::Complete(stream.byte_offset()));
            }
        }
    }
}
