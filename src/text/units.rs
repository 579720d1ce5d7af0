//! Numbers with their units, for people: few digits, in the unit in which the number is short.
//!
//! A space stands before the unit, as in a sentence. Columns of a table leave it out.

use std::fmt;

const BYTE_UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/// A number of things: `1 worker`, `3 workers`.
pub fn counted(number: impl fmt::Display, thing: &str) -> String {
    let number = number.to_string();
    let plural = match thing {
        _ if number == "1" => "",
        _ if thing.ends_with('s') => "es",
        _ => "s",
    };
    format!("{number} {thing}{plural}")
}

/// Bytes, in binary units: `512 B`, `18.7 MiB`.
pub fn bytes(bytes: f64) -> String {
    let mut value = bytes.max(0.0);
    let mut unit = 0;
    // A value that rounds to 1024 belongs to the next unit.
    while value >= 1023.5 && unit + 1 < BYTE_UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let name = BYTE_UNITS.get(unit).copied().unwrap_or_default();
    if unit == 0 || value >= 99.95 {
        format!("{value:.0} {name}")
    } else {
        format!("{value:.1} {name}")
    }
}

/// A share, in percent: `5.1 %`.
pub fn percent(share: f64) -> String {
    let value = 100.0 * share.max(0.0);
    if value >= 99.95 {
        format!("{value:.0} %")
    } else {
        format!("{value:.1} %")
    }
}

/// A ratio as a change in percent: `+12 %`.
pub fn change(ratio: f64) -> String {
    // An interval of a few wild values has no digits worth reading.
    if ratio >= 100.0 {
        return "over +9900 %".to_owned();
    }
    let percent = (ratio - 1.0) * 100.0;
    // No change has no sign.
    if percent.abs() < 0.5 {
        return "0 %".to_owned();
    }
    format!("{percent:+.0} %")
}

/// Two ratios as an interval of changes: `-2 to +15 %`.
pub fn change_span(low: f64, high: f64) -> String {
    let low = change(low);
    format!("{} to {}", low.trim_end_matches(" %"), change(high))
}

/// A time: `4.2 ms`, `18.9 s`, `60 min`.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s <= 0.0 => "0 s".to_owned(),
        s if s < 0.000_999_5 => format!("{:.0} us", s * 1e6),
        s if s < 0.009_95 => format!("{:.1} ms", s * 1e3),
        s if s < 0.999_5 => format!("{:.0} ms", s * 1e3),
        s if s < 99.95 => format!("{s:.1} s"),
        s if s < 5970.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.0} h", s / 3600.0),
    }
}

/// A number of about three digits: `0.42`, `12.3`, `1234`.
pub fn figures(value: f64) -> String {
    match value.abs() {
        large if large >= 99.95 => format!("{value:.0}"),
        middle if middle >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_have_a_unit() {
        for (value, text) in [
            (0.0, "0 B"),
            (-1.0, "0 B"),
            (1023.4, "1023 B"),
            (1023.6, "1.0 KiB"),
            (19_620_954.0, "18.7 MiB"),
            (104_857_600.0, "100 MiB"),
            (1_073_741_823.0, "1.0 GiB"),
            (1e30, "888178419700125 PiB"),
        ] {
            assert_eq!(bytes(value), text, "{value}");
        }
        for (value, text) in [
            (0.0, "0 s"),
            (2e-5, "20 us"),
            (0.0042, "4.2 ms"),
            (0.012, "12 ms"),
            (0.9996, "1.0 s"),
            (18.91, "18.9 s"),
            (75.0, "75.0 s"),
            (600.0, "10 min"),
            (3600.0, "60 min"),
            (1e5, "28 h"),
        ] {
            assert_eq!(seconds(value), text, "{value}");
        }
        assert_eq!(
            [percent(0.003), percent(1.0), percent(-0.1)],
            ["0.3 %", "100 %", "0.0 %"]
        );
        assert_eq!(
            [0.0, 0.421, 9.996, 99.96, -1234.5].map(figures),
            ["0.00", "0.42", "10.0", "100", "-1234"]
        );
        assert_eq!(
            [0.5, 0.997, 1.0, 1.12, 99.0, 1e6].map(change),
            ["-50 %", "0 %", "0 %", "+12 %", "+9800 %", "over +9900 %"]
        );
        assert_eq!(change_span(0.98, 1.15), "-2 to +15 %");
    }

    #[test]
    fn numbers_and_nouns_agree() {
        let all = [
            (0, "worker"),
            (1, "worker"),
            (2, "worker"),
            (1, "process"),
            (3, "process"),
        ];
        let words = all.map(|(number, thing)| counted(number, thing));
        assert_eq!(
            words,
            [
                "0 workers",
                "1 worker",
                "2 workers",
                "1 process",
                "3 processes"
            ]
        );
    }
}
