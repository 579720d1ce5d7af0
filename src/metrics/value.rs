//! [`Value`]: the value of a series as text.
//!
//! A page has tens of thousands of values. Most are counters: whole numbers, and times in whole nanoseconds. Both are written
//! digit by digit, so a time is exact to its last digit.

use std::fmt::Write;
use std::time::Duration;

/// The value of a series.
pub trait Value {
    /// Appends the value as text.
    fn write(self, into: &mut String);
}

impl Value for u64 {
    fn write(self, into: &mut String) {
        digits(self, 1, into);
    }
}

impl Value for usize {
    fn write(self, into: &mut String) {
        digits(self as u64, 1, into);
    }
}

/// A condition is 1 or 0.
impl Value for bool {
    fn write(self, into: &mut String) {
        into.push(if self { '1' } else { '0' });
    }
}

/// A time in seconds.
impl Value for Duration {
    fn write(self, into: &mut String) {
        digits(self.as_secs(), 1, into);
        let nanoseconds = self.subsec_nanos();
        if nanoseconds > 0 {
            into.push('.');
            // Trailing zeros are left out.
            let (mut digits_left, mut part) = (9, nanoseconds);
            while part % 10 == 0 {
                part /= 10;
                digits_left -= 1;
            }
            digits(u64::from(part), digits_left, into);
        }
    }
}

impl Value for f64 {
    fn write(self, into: &mut String) {
        match self {
            value if value.is_nan() => into.push_str("NaN"),
            Self::INFINITY => into.push_str("+Inf"),
            Self::NEG_INFINITY => into.push_str("-Inf"),
            // A string accepts all writes.
            value => drop(write!(into, "{value}")),
        }
    }
}

/// Writes a number with at least `min_digits` digits.
fn digits(mut number: u64, min_digits: usize, into: &mut String) {
    // The longest number has twenty digits.
    let mut buffer = [b'0'; 20];
    let mut length = 0;
    for slot in buffer.iter_mut().rev() {
        if number == 0 && length >= min_digits {
            break;
        }
        // A digit fits into a byte.
        *slot = b'0' + u8::try_from(number % 10).unwrap_or_default();
        number /= 10;
        length += 1;
    }
    let written = buffer.get(buffer.len() - length..).unwrap_or_default();
    into.push_str(std::str::from_utf8(written).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(value: impl Value) -> String {
        let mut text = "x".to_owned();
        value.write(&mut text);
        text.split_off(1)
    }

    #[test]
    fn numbers_are_written_as_the_formats_want_them() {
        for (value, expected) in [
            (0.0, "0"),
            (-1.5, "-1.5"),
            (1e15, "1000000000000000"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
        ] {
            assert_eq!(text(value), expected);
        }
        assert_eq!((text(true), text(false)), ("1".to_owned(), "0".to_owned()));
        for number in [0, 9, 10, 99, 100, u64::MAX / 10, u64::MAX] {
            assert_eq!(text(number), number.to_string());
        }
    }

    #[test]
    fn times_are_seconds_and_exact() {
        for (nanoseconds, expected) in [
            (0, "0"),
            (1, "0.000000001"),
            (10, "0.00000001"),
            (100_000_000, "0.1"),
            (999_999_999, "0.999999999"),
            (1_000_000_000, "1"),
            (70_500_000_000, "70.5"),
            (1_000_000_000_000_000_001, "1000000000.000000001"),
        ] {
            assert_eq!(text(Duration::from_nanos(nanoseconds)), expected);
        }
        let most = Duration::new(u64::MAX, 999_999_999);
        assert_eq!(text(most), "18446744073709551615.999999999");
    }

    proptest! {
        #[test]
        fn whole_numbers_are_as_the_library_writes_them(number: u64) {
            prop_assert_eq!(text(number), number.to_string());
        }

        #[test]
        fn times_are_the_number_that_was_counted(nanoseconds: u64) {
            let written = text(Duration::from_nanos(nanoseconds));
            let (whole, part) = written.split_once('.').unwrap_or((&written, ""));
            prop_assert!(!part.ends_with('0') && part.len() <= 9);
            let counted = format!("{whole}{part:0<9}").parse::<u64>().unwrap();
            prop_assert_eq!(counted, nanoseconds);
        }
    }
}
