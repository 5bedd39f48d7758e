//! A small JSON parser for environments: the payload of a task and the arguments of tool calls.

/// Depth of nesting that is parsed.
const MAX_DEPTH: u32 = 32;

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A finite number.
    Number(f64),
    /// A string.
    Text(String),
    /// The items of an array.
    Array(Vec<Json>),
    /// The members of an object, in order.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// The member of an object.
    pub fn get(&self, name: &str) -> Option<&Json> {
        let found = self.members().iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value)
    }

    /// The members of an object; none for other values.
    pub fn members(&self) -> &[(String, Json)] {
        match self {
            Json::Object(members) => members,
            _ => &[],
        }
    }

    /// The items of an array; none for other values.
    pub fn items(&self) -> &[Json] {
        match self {
            Json::Array(items) => items,
            _ => &[],
        }
    }

    /// The text of a string.
    pub fn text(&self) -> Option<&str> {
        match self {
            Json::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The value of a number.
    pub fn number(&self) -> Option<f64> {
        match self {
            Json::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// A text, or a number as text.
    pub fn scalar(&self) -> Option<String> {
        match self {
            Json::Text(text) => Some(text.clone()),
            Json::Number(number) => Some(format!("{number}")),
            _ => None,
        }
    }
}

/// Parses a whole text; none if it is no JSON.
pub fn parse(text: &str) -> Option<Json> {
    let mut parser = Parser { rest: text };
    let value = parser.value(0)?;
    parser.rest.trim_start().is_empty().then_some(value)
}

/// A text as a JSON string.
pub fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            c if c.is_control() => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    quoted.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

struct Parser<'a> {
    rest: &'a str,
}

impl Parser<'_> {
    fn take(&mut self, wanted: &str) -> Option<()> {
        self.rest = self.rest.trim_start().strip_prefix(wanted)?;
        Some(())
    }

    fn value(&mut self, depth: u32) -> Option<Json> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.rest = self.rest.trim_start();
        match self.rest.chars().next()? {
            '{' => self.object(depth),
            '[' => self.array(depth),
            '"' => self.string().map(Json::Text),
            'n' => self.take("null").map(|()| Json::Null),
            't' => self.take("true").map(|()| Json::Bool(true)),
            'f' => self.take("false").map(|()| Json::Bool(false)),
            _ => self.number(),
        }
    }

    fn object(&mut self, depth: u32) -> Option<Json> {
        self.take("{")?;
        let mut members = Vec::new();
        if self.take("}").is_some() {
            return Some(Json::Object(members));
        }
        loop {
            self.rest = self.rest.trim_start();
            let name = self.string()?;
            self.take(":")?;
            members.push((name, self.value(depth + 1)?));
            if self.take(",").is_none() {
                self.take("}")?;
                return Some(Json::Object(members));
            }
        }
    }

    fn array(&mut self, depth: u32) -> Option<Json> {
        self.take("[")?;
        let mut items = Vec::new();
        if self.take("]").is_some() {
            return Some(Json::Array(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            if self.take(",").is_none() {
                self.take("]")?;
                return Some(Json::Array(items));
            }
        }
    }

    fn number(&mut self) -> Option<Json> {
        let belongs = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
        let end = self.rest.find(|c| !belongs(c)).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        let number: f64 = digits.parse().ok()?;
        self.rest = rest;
        number.is_finite().then_some(Json::Number(number))
    }

    fn string(&mut self) -> Option<String> {
        self.rest = self.rest.strip_prefix('"')?;
        let mut text = String::new();
        loop {
            let c = self.next()?;
            match c {
                '"' => return Some(text),
                '\\' => text.push(self.escape()?),
                c if c.is_control() => return None,
                c => text.push(c),
            }
        }
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = self.rest.get(c.len_utf8()..)?;
        Some(c)
    }

    fn escape(&mut self) -> Option<char> {
        Some(match self.next()? {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'u' => {
                let unit = self.unit()?;
                if !(0xd800..0xdc00).contains(&unit) {
                    return char::from_u32(unit);
                }
                self.rest = self.rest.strip_prefix("\\u")?;
                let low = self
                    .unit()?
                    .checked_sub(0xdc00)
                    .filter(|low| *low < 0x400)?;
                return char::from_u32(0x10000 + ((unit - 0xd800) << 10) + low);
            }
            c @ ('"' | '\\' | '/') => c,
            _ => return None,
        })
    }

    fn unit(&mut self) -> Option<u32> {
        let (digits, rest) = self.rest.split_at_checked(4)?;
        self.rest = rest;
        u32::from_str_radix(digits, 16).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quoted_is_parsed_back() {
        let text = "a \"b\"\\ \n\t\0\u{7f}\u{85} 😀 ä";
        assert_eq!(parse(&quote(text)), Some(Json::Text(text.to_owned())));
    }

    #[test]
    fn values_are_parsed() {
        let value =
            parse(r#" {"a": [1, -2.5e1, true, null], "b\n": "x\u00e4\ud83d\ude00\"", "c": {}} "#);
        let value = value.unwrap();
        assert_eq!(value.get("a").unwrap().items()[1], Json::Number(-25.0));
        assert_eq!(value.get("b\n").unwrap().text(), Some("xä😀\""));
        assert_eq!(value.get("c").unwrap().members(), &[]);
        for bad in [
            "",
            "{",
            "[1,]",
            "{\"a\"}",
            "\"a",
            "1 2",
            "nul",
            "\"\\u12\"",
            "\"\\x\"",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert_eq!(parse(&"[".repeat(100_000)), None);
    }
}
