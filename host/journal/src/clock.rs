//! The journal's clock: unix milliseconds, UTC.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

/// Current time in unix milliseconds; 0 if the clock is set before 1970.
pub fn now_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| i64::try_from(since.as_millis()).ok())
        .unwrap_or(0)
}

/// `YYYY-mm-dd HH:MM:SS` in UTC, the form of OpenClaw-RL's `timestamp` field.
pub(crate) fn timestamp(ms: i64) -> String {
    let time = Timestamp::from_millisecond(ms).expect("recorded times are of this era");
    time.strftime("%F %T").to_string()
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
