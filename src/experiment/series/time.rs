//! Times as Prometheus and people write them.

use k8s_openapi::jiff::Timestamp;

/// A time in seconds since 1970, by the second, as RFC 3339.
pub fn time(seconds: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "by the second is meant; what is too large is no time"
    )]
    let whole_seconds = seconds as i64;
    Timestamp::from_second(whole_seconds)
        .map_or_else(|_| format!("{seconds} s"), |time| time.to_string())
}

/// The seconds of a time as Prometheus writes it: `90s`, `30m`, `1h30m`; above 0, and less than a hundred years.
pub fn seconds_of(text: &str) -> Option<f64> {
    let (mut sum, mut rest) = (0_u64, text);
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit())?;
        let (number, unit) = rest.split_at(digits);
        let mut letters = unit.chars();
        let seconds = match letters.next()? {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            'w' => 7 * 86_400,
            _ => return None,
        };
        sum = sum.checked_add(number.parse::<u64>().ok()?.checked_mul(seconds)?)?;
        rest = letters.as_str();
    }
    (1..100 * 366 * 86_400).contains(&sum).then_some(sum as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_prometheus_writes_them() {
        for (text, seconds) in [
            ("90s", 90.0),
            ("1h30m", 5400.0),
            ("2d", 172_800.0),
            ("1w", 604_800.0),
        ] {
            assert_eq!(seconds_of(text), Some(seconds), "{text}");
        }
        for wrong in [
            "",
            "0s",
            "5",
            "s",
            "1.5h",
            "-1h",
            "1y",
            "99999999999w",
            "1h ",
            "18446744073709551615w",
        ] {
            assert_eq!(seconds_of(wrong), None, "{wrong}");
        }
        assert_eq!(
            [time(0.0), time(1.7e9), time(1e30)].map(|text| text.len()),
            [20, 20, 33]
        );
    }
}
