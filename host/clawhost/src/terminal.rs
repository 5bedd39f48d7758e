//! What the terminal can show: how wide it is, and which signs it has.

use clawhost_evaluation::Glyphs;

/// Columns of the terminal as the shell tells them. Default: 80.
pub(crate) fn columns() -> usize {
    let told = std::env::var("COLUMNS").ok();
    told.and_then(|text| text.trim().parse().ok())
        .map_or(80, |columns: usize| columns.clamp(40, 160))
}

/// Braille where the locale says that the terminal shows UTF-8, or says nothing; else ASCII.
pub(crate) fn glyphs() -> Glyphs {
    let told = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .filter_map(|name| std::env::var(name).ok());
    locale_glyphs(told)
}

fn locale_glyphs(told: impl IntoIterator<Item = String>) -> Glyphs {
    let Some(locale) = told.into_iter().find(|value| !value.is_empty()) else {
        return Glyphs::Braille;
    };
    let locale = locale.to_lowercase();
    if locale.contains("utf-8") || locale.contains("utf8") {
        Glyphs::Braille
    } else {
        Glyphs::Ascii
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locale_without_utf_8_gets_ascii() {
        let of = |text: &str| locale_glyphs([String::new(), text.to_owned()]);
        assert_eq!(of("de_DE.UTF-8"), Glyphs::Braille);
        assert_eq!(of("C.utf8"), Glyphs::Braille);
        assert_eq!(of("C"), Glyphs::Ascii);
        assert_eq!(locale_glyphs([]), Glyphs::Braille);
    }
}
