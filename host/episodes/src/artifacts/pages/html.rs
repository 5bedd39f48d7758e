//! The frame of a page.
//!
//! The policy of a page forbids everything but images of its own origin and the one style sheet, whose hash it names. So a
//! mistake in escaping shows wrong text, and runs and fetches nothing.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clawhost_evaluation::escape;
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

/// The style sheet of all pages.
const STYLE: &str = include_str!("style.css");

/// The content security policy.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = STANDARD.encode(Sha256::digest(STYLE.as_bytes()));
    format!(
        "default-src 'none'; img-src 'self'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'"
    )
});

/// What makes a page load itself again. Every page that follows something has it in its first kibibyte.
pub(super) const REFRESH: &str = "http-equiv=\"refresh\"";

/// A whole page. `refresh`: seconds after which it loads itself again. `body`: HTML.
pub(super) fn document(title: &str, refresh: Option<u32>, body: &str) -> String {
    let refresh = refresh.map_or(String::new(), |seconds| {
        format!("<meta {REFRESH} content=\"{seconds}\">\n")
    });
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
        <meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n{refresh}\
        <meta name=\"referrer\" content=\"no-referrer\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
        <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
        <title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        *POLICY,
        escape(title),
    )
}

/// A time in UTC.
pub(super) fn time(ms: i64) -> String {
    let time = Timestamp::from_millisecond(ms).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{} UTC", time.strftime("%F %T"))
}

/// Seconds as a duration.
pub(super) fn duration(seconds: f64) -> String {
    let seconds = seconds.clamp(0.0, 1e9);
    if seconds < 60.0 {
        return format!("{seconds:.1} s");
    }
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped above"
    )]
    let whole = seconds as u64;
    match whole / 3600 {
        0 => format!("{} min {:02} s", whole / 60, whole % 60),
        hours => format!("{hours} h {:02} min", whole % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_allows_the_style_sheet_and_no_script() {
        let page = document("<b>", Some(5), "");
        let hash = STANDARD.encode(Sha256::digest(STYLE.as_bytes()));
        let policy = page.split("content=\"").nth(1).unwrap();
        let policy = policy.split('"').next().unwrap();
        assert!(policy.starts_with("default-src 'none'; img-src 'self'; style-src 'sha256-"));
        assert!(policy.contains(&hash) && !policy.contains("unsafe"));
        assert!(page[..1024].contains(REFRESH) && page.contains("<title>&lt;b&gt;</title>"));
        assert!(!document("a", None, "").contains(REFRESH));
        assert!(!STYLE.contains('<') && !STYLE.contains("url("));
    }

    #[test]
    fn times_and_durations_are_readable() {
        assert_eq!(time(1_000_000_000_000), "2001-09-09 01:46:40 UTC");
        assert_eq!(time(i64::MAX), "1970-01-01 00:00:00 UTC");
        assert_eq!(duration(1.25), "1.2 s");
        assert_eq!(duration(61.9), "1 min 01 s");
        assert_eq!(duration(7260.0), "2 h 01 min");
        assert_eq!(duration(f64::INFINITY), "277777 h 46 min");
    }
}
