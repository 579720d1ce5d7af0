//! Numbers and times for people.

use k8s_openapi::jiff::Timestamp;

/// How many names a sentence has.
const NAMED: usize = 5;

/// The text for an unknown value.
pub(super) const NONE: &str = "–";

/// The median: the value in the middle, or the mean of the two values in the middle, as with Prometheus's `quantile`. `None`
/// without values.
pub(super) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let upper = sorted.get(sorted.len() / 2)?;
    let lower = sorted.get((sorted.len() - 1) / 2)?;
    Some(f64::midpoint(*lower, *upper))
}

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

/// Three figures that count, with a letter for thousands.
pub(super) fn number(value: f64) -> String {
    for (step, letter) in [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if value.abs() >= step * 0.9995 {
            return format!("{} {letter}", figures(value / step));
        }
    }
    figures(value)
}

fn figures(value: f64) -> String {
    match value.abs() {
        large if large >= 99.95 => format!("{value:.0}"),
        middle if middle >= 9.995 => format!("{value:.1}"),
        small if small >= 0.0005 || small == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.1e}"),
    }
}

pub(super) fn bytes(value: f64) -> String {
    let text = number(value);
    if text.ends_with(|letter: char| letter.is_ascii_alphabetic()) {
        format!("{text}B")
    } else {
        format!("{text} B")
    }
}

pub(super) fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent > 0.0 && percent < 9.95 {
        format!("{percent:.1} %")
    } else {
        format!("{percent:.0} %")
    }
}

pub(super) fn seconds(value: f64) -> String {
    match value {
        short if short < 119.5 => format!("{} s", figures(short)),
        middle if middle < 7170.0 => format!("{} min", figures(middle / 60.0)),
        long => format!("{} h", figures(long / 3600.0)),
    }
}

/// A value that may be unknown.
pub(super) fn shown(value: Option<f64>, show: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| NONE.to_owned(), show)
}

/// The first names, and the number of further names.
pub(super) fn first_names(names: &[&str]) -> String {
    let shown = names
        .get(..NAMED.min(names.len()))
        .unwrap_or_default()
        .join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_of_values_lies_between_two() {
        let of = |values: &[f64]| median(values.iter().copied());
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[3.0]), Some(3.0));
        assert_eq!(of(&[9.0, 1.0]), Some(5.0));
        assert_eq!(of(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(of(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }

    #[test]
    fn three_figures_and_a_unit() {
        for (value, text) in [
            (0.0, "0.00"),
            (0.5, "0.50"),
            (12.34, "12.3"),
            (123.4, "123"),
            (999.4, "999"),
            (999.9, "1.00 k"),
            (1.5e6, "1.50 M"),
            (2e-5, "2.0e-5"),
            (-2500.0, "-2.50 k"),
        ] {
            assert_eq!(number(value), text, "{value}");
        }
        assert_eq!([bytes(12.0), bytes(3.5e9)], ["12.0 B", "3.50 GB"]);
        assert_eq!(
            [percent(0.0), percent(0.051), percent(0.62), percent(1.0)],
            ["0 %", "5.1 %", "62 %", "100 %"]
        );
        assert_eq!(
            [seconds(30.0), seconds(600.0), seconds(1e4)],
            ["30.0 s", "10.0 min", "2.78 h"]
        );
        assert_eq!(
            [shown(None, bytes), shown(Some(1.0), bytes)],
            ["–", "1.00 B"]
        );
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
