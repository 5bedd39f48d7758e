//! Text, numbers and durations in HTML.

use std::fmt::{self, Write as _};

/// Escapes text for HTML elements and quoted attributes.
pub(super) struct HtmlText<'a>(pub(super) &'a str);

impl fmt::Display for HtmlText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// A duration in milliseconds, formatted with its largest unit.
pub(super) struct Elapsed(pub(super) i64);

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.max(0) / 1000;
        match seconds {
            0..60 => write!(f, "{seconds} s"),
            60..3600 => write!(f, "{} min", seconds / 60),
            3600..86_400 => write!(f, "{} h", seconds / 3600),
            _ => write!(f, "{} d", seconds / 86_400),
        }
    }
}

/// A number with at most four significant digits, or in scientific notation if it is very small or large.
pub(super) fn format_number(number: f64) -> String {
    if number == number.trunc() && number.abs() < 1e6 {
        return format!("{number}");
    }
    match number.abs() {
        0.001..10.0 => format!("{number:.3}"),
        10.0..1e6 => format!("{number:.1}"),
        _ => format!("{number:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn html_text_is_escaped() {
        let text = HtmlText("<script>'\"&</script>").to_string();
        assert_eq!(text, "&lt;script&gt;&#39;&quot;&amp;&lt;/script&gt;");
    }

    #[test]
    fn durations_are_formatted_with_the_largest_unit() {
        for (ms, text) in [
            (-5, "0 s"),
            (59_999, "59 s"),
            (60_000, "1 min"),
            (7_200_000, "2 h"),
            (172_800_000, "2 d"),
        ] {
            assert_eq!(Elapsed(ms).to_string(), text);
        }
    }

    #[test]
    fn numbers_are_short() {
        for (number, text) in [
            (0.0, "0"),
            (512.0, "512"),
            (-1.25, "-1.250"),
            (2300.26, "2300.3"),
            (0.00012, "1.2e-4"),
            (3.0e9, "3.0e9"),
        ] {
            assert_eq!(format_number(number), text);
        }
    }
}
