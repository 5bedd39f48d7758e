//! Reads the plugin's settings from the operator's configuration.
//!
//! The host passes a setting as JSON text. Only strings, numbers and booleans are supported: a plugin that needs a list
//! uses several settings. A setting of the wrong type or out of range is an error with its name; it is never silently
//! replaced by the default.

use std::ops::RangeInclusive;

use crate::PluginError;

/// The settings of one call.
pub struct Settings {
    given: Option<Vec<(String, String)>>,
}

impl Settings {
    /// The operator's settings. In native builds there are none, so every setting has its default.
    pub fn of_plugin() -> Settings {
        Settings { given: None }
    }

    /// Only these settings, each with its JSON text, for tests.
    pub fn given(pairs: &[(&str, &str)]) -> Settings {
        let own = |(key, json): &(&str, &str)| ((*key).to_owned(), (*json).to_owned());
        Settings {
            given: Some(pairs.iter().map(own).collect()),
        }
    }

    /// A JSON string.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] when the setting is present but not a string.
    pub fn text(&self, key: &str, default: &str) -> Result<String, PluginError> {
        let Some(json) = self.json(key) else {
            return Ok(default.to_owned());
        };
        string(json.trim()).ok_or_else(|| wrong(key, &json, "a text in quotes"))
    }

    /// A number within `range`.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] when the setting is present but not such a number.
    pub fn number(
        &self,
        key: &str,
        default: f64,
        range: RangeInclusive<f64>,
    ) -> Result<f64, PluginError> {
        let Some(json) = self.json(key) else {
            return Ok(default);
        };
        let number = json.trim().parse::<f64>().ok();
        number.filter(|value| range.contains(value)).ok_or_else(|| {
            let wanted = format!("a number from {} to {}", range.start(), range.end());
            wrong(key, &json, &wanted)
        })
    }

    /// A whole number within `range`.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] when the setting is present but not such a number.
    pub fn count(
        &self,
        key: &str,
        default: u32,
        range: RangeInclusive<u32>,
    ) -> Result<u32, PluginError> {
        let Some(json) = self.json(key) else {
            return Ok(default);
        };
        let number = json.trim().parse::<u32>().ok();
        number.filter(|value| range.contains(value)).ok_or_else(|| {
            let wanted = format!("a whole number from {} to {}", range.start(), range.end());
            wrong(key, &json, &wanted)
        })
    }

    /// A boolean.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] when the setting is present but not a boolean.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool, PluginError> {
        let Some(json) = self.json(key) else {
            return Ok(default);
        };
        match json.trim() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(wrong(key, &json, "true or false")),
        }
    }

    /// One of several words, or `default` when the setting is absent.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] when the setting is present but none of them.
    pub fn choice<T: Copy>(
        &self,
        key: &str,
        default: T,
        choices: &[(&str, T)],
    ) -> Result<T, PluginError> {
        let Some(json) = self.json(key) else {
            return Ok(default);
        };
        let word = string(json.trim());
        let chosen = choices
            .iter()
            .find(|(name, _)| word.as_deref() == Some(*name));
        chosen.map(|(_, value)| *value).ok_or_else(|| {
            let names: Vec<String> = choices
                .iter()
                .map(|(name, _)| format!("{name:?}"))
                .collect();
            wrong(key, &json, &format!("one of {}", names.join(", ")))
        })
    }

    fn json(&self, key: &str) -> Option<String> {
        match &self.given {
            Some(pairs) => pairs
                .iter()
                .find(|(name, _)| name == key)
                .map(|(_, json)| json.clone()),
            None => from_host(key),
        }
    }
}

#[cfg(target_arch = "wasm32")]
fn from_host(key: &str) -> Option<String> {
    crate::context::setting(key)
}

#[cfg(not(target_arch = "wasm32"))]
fn from_host(_key: &str) -> Option<String> {
    None
}

fn wrong(key: &str, json: &str, wanted: &str) -> PluginError {
    let shown: String = json.chars().take(80).collect();
    PluginError::InvalidInput(format!("the setting `{key}` is {shown}, expected {wanted}"))
}

/// Parses a JSON string.
fn string(json: &str) -> Option<String> {
    let inner = json.strip_prefix('"')?.strip_suffix('"')?;
    let mut out = String::with_capacity(inner.len());
    let mut rest = inner.chars();
    while let Some(c) = rest.next() {
        match c {
            '"' => return None,
            '\\' => out.push(match rest.next()? {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                'b' => '\u{8}',
                'f' => '\u{c}',
                'u' => unicode(&mut rest)?,
                same @ ('"' | '\\' | '/') => same,
                _ => return None,
            }),
            c => out.push(c),
        }
    }
    Some(out)
}

/// Parses the digits after `\u`, including the second half of a surrogate pair.
fn unicode(rest: &mut std::str::Chars<'_>) -> Option<char> {
    let high = unit(rest)?;
    if !(0xd800..0xdc00).contains(&high) {
        return char::from_u32(high);
    }
    if rest.next() != Some('\\') || rest.next() != Some('u') {
        return None;
    }
    let low = unit(rest)?;
    if !(0xdc00..0xe000).contains(&low) {
        return None;
    }
    char::from_u32(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00))
}

fn unit(rest: &mut std::str::Chars<'_>) -> Option<u32> {
    (0..4).try_fold(0, |sum, _| Some(sum * 16 + rest.next()?.to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_settings_have_their_defaults() {
        for settings in [Settings::of_plugin(), Settings::given(&[("other", "1")])] {
            assert_eq!(settings.text("a", "x").unwrap(), "x");
            assert_eq!(settings.number("a", 0.5, 0.0..=1.0).unwrap(), 0.5);
            assert_eq!(settings.count("a", 3, 1..=9).unwrap(), 3);
            assert!(settings.flag("a", true).unwrap());
            assert_eq!(settings.choice("a", 7, &[("seven", 7)]).unwrap(), 7);
        }
    }

    #[test]
    fn json_values_are_parsed() {
        let settings = Settings::given(&[
            ("text", r#""one\ntwo \"three\" \u00e4 \ud83d\ude00""#),
            ("number", " 0.25 "),
            ("count", "5"),
            ("flag", "false"),
            ("word", "\"b\""),
        ]);
        assert_eq!(
            settings.text("text", "").unwrap(),
            "one\ntwo \"three\" ä 😀"
        );
        assert_eq!(settings.number("number", 0.0, 0.0..=1.0).unwrap(), 0.25);
        assert_eq!(settings.count("count", 3, 1..=9).unwrap(), 5);
        assert!(!settings.flag("flag", true).unwrap());
        assert_eq!(
            settings.choice("word", 0, &[("a", 1), ("b", 2)]).unwrap(),
            2
        );
    }

    #[test]
    fn an_invalid_setting_is_an_error_with_its_name() {
        let settings = Settings::given(&[
            ("bare", "judge"),
            ("cut", r#""\ud83d""#),
            ("inner", r#""a"b""#),
            ("nan", "NaN"),
            ("high", "1.5"),
            ("negative", "-1"),
            ("fraction", "2.5"),
            ("yes", "\"true\""),
        ]);
        let named = |error: PluginError, key: &str| {
            assert!(matches!(error, PluginError::InvalidInput(text) if text.contains(key)));
        };
        for key in ["bare", "cut", "inner"] {
            named(settings.text(key, "").unwrap_err(), key);
            named(settings.choice(key, 1, &[("a", 1)]).unwrap_err(), key);
        }
        for key in ["nan", "high", "negative"] {
            named(settings.number(key, 0.0, 0.0..=1.0).unwrap_err(), key);
        }
        for key in ["negative", "fraction", "high"] {
            named(settings.count(key, 1, 0..=9).unwrap_err(), key);
        }
        named(settings.flag("yes", false).unwrap_err(), "yes");
    }
}
