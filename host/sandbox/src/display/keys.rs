//! Keys of a US keyboard: chords such as `ctrl+shift+t`, and the keys that type a text.

use serde_json::{Value, json};

use crate::error::SandboxError;

/// Modifiers as the protocol numbers them, with their other names.
const MODIFIERS: [(&str, &[&str], u8, u8); 4] = [
    ("Alt", &["alt", "option"], 1, 18),
    ("Control", &["ctrl", "control"], 2, 17),
    ("Meta", &["meta", "cmd", "command", "super", "win"], 4, 91),
    ("Shift", &["shift"], 8, 16),
];

/// Named keys: the name in the protocol, its other names, its virtual key code and the text that it types.
const NAMED: [(&str, &[&str], u32, &str); 15] = [
    ("Enter", &["enter", "return"], 13, "\r"),
    ("Tab", &["tab"], 9, ""),
    ("Escape", &["escape", "esc"], 27, ""),
    ("Backspace", &["backspace"], 8, ""),
    ("Delete", &["delete", "del"], 46, ""),
    ("Insert", &["insert"], 45, ""),
    ("Home", &["home"], 36, ""),
    ("End", &["end"], 35, ""),
    ("PageUp", &["pageup", "page_up"], 33, ""),
    ("PageDown", &["pagedown", "page_down"], 34, ""),
    ("ArrowLeft", &["arrowleft", "left"], 37, ""),
    ("ArrowUp", &["arrowup", "up"], 38, ""),
    ("ArrowRight", &["arrowright", "right"], 39, ""),
    ("ArrowDown", &["arrowdown", "down"], 40, ""),
    ("Space", &["space"], 32, " "),
];

/// Keys with a sign, and the sign with Shift; then code and virtual key code.
const SIGNS: [(char, char, &str, u32); 21] = [
    ('`', '~', "Backquote", 192),
    ('1', '!', "Digit1", 49),
    ('2', '@', "Digit2", 50),
    ('3', '#', "Digit3", 51),
    ('4', '$', "Digit4", 52),
    ('5', '%', "Digit5", 53),
    ('6', '^', "Digit6", 54),
    ('7', '&', "Digit7", 55),
    ('8', '*', "Digit8", 56),
    ('9', '(', "Digit9", 57),
    ('0', ')', "Digit0", 48),
    ('-', '_', "Minus", 189),
    ('=', '+', "Equal", 187),
    ('[', '{', "BracketLeft", 219),
    (']', '}', "BracketRight", 221),
    ('\\', '|', "Backslash", 220),
    (';', ':', "Semicolon", 186),
    ('\'', '"', "Quote", 222),
    (',', '<', "Comma", 188),
    ('.', '>', "Period", 190),
    ('/', '?', "Slash", 191),
];

/// A key.
struct Key {
    key: String,
    code: String,
    virtual_key: u32,
    /// What it types without a modifier other than Shift.
    text: String,
    shift: bool,
}

impl Key {
    /// The key of a sign; none if a US keyboard has none.
    fn of(sign: char) -> Option<Key> {
        let key = |code: String, virtual_key: u32, shift: bool| Key {
            key: sign.to_string(),
            code,
            virtual_key,
            text: sign.to_string(),
            shift,
        };
        match sign {
            '\n' => Key::named("enter"),
            '\t' => Key::named("tab"),
            ' ' => Some(key("Space".to_owned(), 32, false)),
            'a'..='z' | 'A'..='Z' => {
                let upper = sign.to_ascii_uppercase();
                Some(key(
                    format!("Key{upper}"),
                    u32::from(upper),
                    sign.is_ascii_uppercase(),
                ))
            }
            _ => SIGNS
                .iter()
                .find(|(plain, shifted, ..)| sign == *plain || sign == *shifted)
                .map(|(plain, _, code, number)| key((*code).to_owned(), *number, sign != *plain)),
        }
    }

    fn named(name: &str) -> Option<Key> {
        if let Some(number) = name.strip_prefix('f').and_then(|n| n.parse::<u32>().ok()) {
            return (1..=12).contains(&number).then(|| Key {
                key: format!("F{number}"),
                code: format!("F{number}"),
                virtual_key: 111 + number,
                text: String::new(),
                shift: false,
            });
        }
        let found = NAMED.iter().find(|(_, names, ..)| names.contains(&name));
        found.map(|(code, _, virtual_key, text)| Key {
            key: if *code == "Space" { " " } else { code }.to_owned(),
            code: (*code).to_owned(),
            virtual_key: *virtual_key,
            text: (*text).to_owned(),
            shift: false,
        })
    }

    /// The events that press and release it.
    fn events(&self, modifiers: u8) -> [Value; 2] {
        let types = !self.text.is_empty() && modifiers & !8 == 0;
        let mut down = json!({
            "type": if types { "keyDown" } else { "rawKeyDown" },
            "key": self.key, "code": self.code, "windowsVirtualKeyCode": self.virtual_key, "modifiers": modifiers,
        });
        let mut up = down.clone();
        up["type"] = "keyUp".into();
        if types {
            down["text"] = self.text.as_str().into();
        }
        [down, up]
    }
}

/// The events of `Input.dispatchKeyEvent` that type a sign; none if the keyboard does not have it.
pub(super) fn typed(sign: char) -> Option<[Value; 2]> {
    let key = Key::of(sign)?;
    Some(key.events(if key.shift { 8 } else { 0 }))
}

/// The events of a chord, such as `ctrl+shift+t` or `Enter`.
///
/// # Errors
/// A key is not known.
pub(super) fn chord(text: &str) -> Result<Vec<Value>, SandboxError> {
    let unknown = |name: &str| {
        SandboxError::Denied(format!(
            "there is no key {name:?}; write a chord such as `ctrl+shift+t`, `Enter` or `page_down`"
        ))
    };
    // A plus sign at the end is the key.
    let (before, last) = match text
        .strip_suffix("+")
        .filter(|_| text.ends_with("++") || text == "+")
    {
        Some(before) => (before.trim_end_matches('+'), "+"),
        None => text.rsplit_once('+').unwrap_or(("", text)),
    };
    let mut modifiers = 0;
    let mut held = Vec::new();
    for name in before.split('+').filter(|name| !name.is_empty()) {
        let lower = name.trim().to_lowercase();
        let found = MODIFIERS
            .iter()
            .find(|(_, names, ..)| names.contains(&&*lower));
        let (key, _, bit, virtual_key) = found.ok_or_else(|| unknown(name))?;
        modifiers |= bit;
        held.push((*key, *virtual_key, modifiers));
    }
    let last = last.trim();
    let mut signs = last.chars();
    let single = signs.next().filter(|_| signs.next().is_none());
    let lower = last.to_lowercase();
    let alone = MODIFIERS
        .iter()
        .find(|(_, names, ..)| names.contains(&&*lower));
    let key = match (single, alone) {
        (Some(sign), _) => Key::of(sign),
        (None, Some((name, _, _, virtual_key))) => Some(Key {
            key: (*name).to_owned(),
            code: format!("{name}Left"),
            virtual_key: u32::from(*virtual_key),
            text: String::new(),
            shift: false,
        }),
        (None, None) => Key::named(&lower),
    };
    let mut key = key.ok_or_else(|| unknown(last))?;
    if key.shift {
        modifiers |= 8;
    } else if modifiers & 8 != 0 && key.code.starts_with("Key") {
        key.text = key.text.to_uppercase();
        key.key.clone_from(&key.text);
    }
    let modifier = |kind: &str, (name, virtual_key, modifiers): &(&str, u8, u8)| {
        json!({
            "type": kind, "key": name, "code": format!("{name}Left"),
            "windowsVirtualKeyCode": virtual_key, "modifiers": modifiers,
        })
    };
    let mut events: Vec<Value> = held.iter().map(|one| modifier("rawKeyDown", one)).collect();
    events.extend(key.events(modifiers));
    events.extend(held.iter().rev().map(|one| modifier("keyUp", one)));
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chords_hold_their_modifiers() {
        let events = chord("ctrl+shift+t").unwrap();
        let brief: Vec<String> = events
            .iter()
            .map(|event| format!("{} {}", event["type"], event["key"]).replace('"', ""))
            .collect();
        assert_eq!(
            brief,
            [
                "rawKeyDown Control",
                "rawKeyDown Shift",
                "rawKeyDown T",
                "keyUp T",
                "keyUp Shift",
                "keyUp Control"
            ]
        );
        assert_eq!(events[2]["modifiers"], 10);
        assert_eq!(chord("Return").unwrap()[0]["text"], "\r");
        assert_eq!(chord("shift+a").unwrap()[1]["text"], "A");
        assert_eq!(chord("ctrl++").unwrap()[1]["code"], "Equal");
        assert_eq!(chord("+").unwrap()[0]["text"], "+");
        assert_eq!(chord("F5").unwrap()[0]["windowsVirtualKeyCode"], 116);
        for bad in ["", "hyper+a", "ctrl+", "nokey", "f13"] {
            let error = chord(bad).unwrap_err();
            assert!(
                error.to_string().contains("there is no key"),
                "{bad}: {error}"
            );
        }
    }

    #[test]
    fn signs_are_typed_with_their_keys() {
        let [down, up] = typed('A').unwrap();
        assert_eq!(
            (&down["text"], &down["modifiers"]),
            (&json!("A"), &json!(8))
        );
        assert_eq!(up["type"], "keyUp");
        assert_eq!(typed('?').unwrap()[0]["code"], "Slash");
        assert!(typed('ä').is_none());
    }
}
