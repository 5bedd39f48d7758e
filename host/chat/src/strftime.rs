//! `strftime_now` of chat templates: Python's `strftime` in UTC, with the names of the C locale.

use jiff::Timestamp;
use jiff::fmt::strtime::{BrokenDownTime, Config};
use jiff::tz::TimeZone;

/// Formats the time. Unknown directives are copied unchanged.
pub(crate) fn strftime(format: &str, unix_seconds: i64) -> String {
    let now = Timestamp::from_second(unix_seconds)
        .expect("the clock is between the years -9999 and 9999")
        .to_zoned(TimeZone::UTC);
    BrokenDownTime::from(&now)
        .to_string_with_config(&Config::new().lenient(true), format)
        .expect("lenient formatting copies what it cannot format")
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn known_dates() {
        for (seconds, expected) in [
            (0, "1970-01-01 Thu 001 00:00:00"),
            (951_782_400, "2000-02-29 Tue 060 00:00:00"),
            (1_709_251_199, "2024-02-29 Thu 060 23:59:59"),
            (1_735_689_599, "2024-12-31 Tue 366 23:59:59"),
            (4_107_542_400, "2100-03-01 Mon 060 00:00:00"),
            (-1, "1969-12-31 Wed 365 23:59:59"),
        ] {
            assert_eq!(strftime("%F %a %j %T", seconds), expected);
        }
    }

    #[test]
    fn directives_that_templates_use() {
        assert_eq!(strftime("%d %b %Y", 1_720_000_000), "03 Jul 2024");
        assert_eq!(
            strftime("%A, %B %-d, %Y, %-I:%M %p", 1_720_000_000),
            "Wednesday, July 3, 2024, 9:46 AM"
        );
        assert_eq!(strftime("100%% %J %-", 0), "100% %J %-");
    }
}
