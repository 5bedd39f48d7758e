//! `strftime_now` of chat templates: the `strftime` directives that templates use, in UTC.

/// Month names in English, as the C locale has them.
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Day names, from Sunday.
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// A date and time in the proleptic Gregorian calendar, UTC.
struct DateTime {
    year: i64,
    month: usize,
    day: i64,
    weekday: usize,
    of_year: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

impl DateTime {
    fn at(unix_seconds: i64) -> Self {
        let days = unix_seconds.div_euclid(86_400);
        let clock = unix_seconds.rem_euclid(86_400);
        // Years start in March, so that the leap day is the last day of its year.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let of_era = shifted.rem_euclid(146_097);
        let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_march_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * of_march_year + 2) / 153;
        let day = of_march_year - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 {
            march_month + 3
        } else {
            march_month - 9
        };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let before_march = if of_march_year >= 306 {
            -306
        } else {
            59 + i64::from(leap)
        };
        Self {
            year,
            month: usize::try_from(month - 1).unwrap_or(0),
            day,
            weekday: usize::try_from((days + 4).rem_euclid(7)).unwrap_or(0),
            of_year: of_march_year + before_march + 1,
            hour: clock / 3_600,
            minute: clock / 60 % 60,
            second: clock % 60,
        }
    }
}

/// Formats the time. Unknown directives are copied unchanged.
pub(super) fn strftime(format: &str, unix_seconds: i64) -> String {
    let now = DateTime::at(unix_seconds);
    let month = MONTHS.get(now.month).copied().unwrap_or_default();
    let weekday = DAYS.get(now.weekday).copied().unwrap_or_default();
    let short = |name: &str| name.get(..3).unwrap_or_default().to_owned();
    let number = now.month as i64 + 1;
    let hour12 = (now.hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        let bare = directive == Some('-');
        if bare {
            directive = chars.next();
        }
        let padded = |value: i64, width: usize| {
            if bare {
                value.to_string()
            } else {
                format!("{value:0width$}")
            }
        };
        out.push_str(&match directive {
            Some('Y') => now.year.to_string(),
            Some('y') => padded(now.year.rem_euclid(100), 2),
            Some('m') => padded(number, 2),
            Some('d') => padded(now.day, 2),
            Some('e') if bare => now.day.to_string(),
            Some('e') => format!("{:2}", now.day),
            Some('j') => padded(now.of_year, 3),
            Some('H') => padded(now.hour, 2),
            Some('I') => padded(hour12, 2),
            Some('M') => padded(now.minute, 2),
            Some('S') => padded(now.second, 2),
            Some('p') => if now.hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('B') => month.to_owned(),
            Some('b' | 'h') => short(month),
            Some('A') => weekday.to_owned(),
            Some('a') => short(weekday),
            Some('w') => now.weekday.to_string(),
            Some('F') => format!("{}-{number:02}-{:02}", now.year, now.day),
            Some('T') => format!("{:02}:{:02}:{:02}", now.hour, now.minute, now.second),
            Some('s') => unix_seconds.to_string(),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            Some(other) => format!("%{}{other}", if bare { "-" } else { "" }),
            None => "%".to_owned(),
        });
    }
    out
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
        assert_eq!(strftime("100%% %Q %-", 0), "100% %Q %");
    }
}
