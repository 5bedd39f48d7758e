//! The journal's clock: unix milliseconds, UTC.

use std::time::{SystemTime, UNIX_EPOCH};

/// Current time in unix milliseconds; 0 if the clock is set before 1970.
pub fn now_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| i64::try_from(since.as_millis()).ok())
        .unwrap_or(0)
}

/// `YYYY-mm-dd HH:MM:SS` in UTC, the form of OpenClaw-RL's `timestamp` field.
///
/// Days to dates in the proleptic Gregorian calendar: years are counted from March, so that the
/// leap day is the last of its year, and 400 years are one period of 146,097 days.
pub(crate) fn timestamp(ms: i64) -> String {
    let seconds = ms.div_euclid(1000);
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let from_march_0000 = days + 719_468;
    let (period, day) = (
        from_march_0000.div_euclid(146_097),
        from_march_0000.rem_euclid(146_097),
    );
    let year_of_period = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_period + year_of_period / 4 - year_of_period / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = period * 400 + year_of_period + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day_of_month:02} {:02}:{:02}:{:02}",
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_match_known_dates() {
        assert_eq!(timestamp(0), "1970-01-01 00:00:00");
        assert_eq!(timestamp(951_782_399_999), "2000-02-28 23:59:59");
        assert_eq!(timestamp(951_782_400_000), "2000-02-29 00:00:00");
        assert_eq!(timestamp(1_000_000_000_000), "2001-09-09 01:46:40");
        assert_eq!(timestamp(1_709_251_199_000), "2024-02-29 23:59:59");
        assert_eq!(timestamp(1_735_689_600_000), "2025-01-01 00:00:00");
        assert_eq!(timestamp(-1), "1969-12-31 23:59:59");
    }
}
