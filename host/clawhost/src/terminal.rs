//! Terminal properties: width and character set.

use clawhost_evaluation::Glyphs;

/// Columns of the terminal from `COLUMNS`. Default: 80.
pub(crate) fn columns() -> usize {
    let variable = std::env::var("COLUMNS").ok();
    variable
        .and_then(|text| text.trim().parse().ok())
        .map_or(80, |columns: usize| columns.clamp(40, 160))
}

/// Braille if the locale is UTF-8 or unset, otherwise ASCII.
pub(crate) fn glyphs() -> Glyphs {
    let locales = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .filter_map(|name| std::env::var(name).ok());
    locale_glyphs(locales)
}

fn locale_glyphs(locales: impl IntoIterator<Item = String>) -> Glyphs {
    let Some(locale) = locales.into_iter().find(|value| !value.is_empty()) else {
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
