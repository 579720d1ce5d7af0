//! Kubernetes quantities: `500m`, `2`, `1.5Gi`, `1e3`, as whole thousandths of a CPU or whole bytes.
//!
//! The grammar and the rounding are the API server's: fractions of a thousandth or of a byte round
//! up, and amounts above 2⁶³−1 become 2⁶³−1. Pinfold is stricter in two points: a quantity needs at
//! least one digit (the API server reads `m` as zero), and negative quantities are errors. Digits
//! after the 20th significant one only affect rounding: the number counts as a little more.

/// The largest amount of either unit.
const MAX: u64 = i64::MAX.unsigned_abs();

/// The number of significant digits used in calculations: 10²⁰ times 2⁶⁰ still fits 128 bits.
const DIGITS: usize = 20;

/// Why a text is not a quantity of CPU or memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// No digits where the number should be.
    #[error("{text:?} does not start with a number: write something like 500m, 2 or 1.5Gi")]
    NotANumber {
        /// The whole text.
        text: String,
    },
    /// A suffix that Kubernetes does not have.
    #[error(
        "{text:?} ends in {suffix:?}, which is no suffix: use one of m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei, or e3"
    )]
    Suffix {
        /// The whole text.
        text: String,
        /// The text after the number.
        suffix: String,
    },
    /// A quantity below zero.
    #[error("{text:?} is negative: write zero or more")]
    Negative {
        /// The whole text.
        text: String,
    },
}

/// CPUs in thousandths, rounded up: `2` is 2000, `0.5` and `500m` are 500, `1n` is 1.
///
/// Fails on invalid and on negative quantities.
pub fn cpu_millis(text: &str) -> Result<u64, QuantityError> {
    Ok(Decimal::parse(text)?.scaled_up(3))
}

/// Memory in bytes, rounded up: `1Ki` is 1024, `1k` is 1000, `1m` is 1.
///
/// Fails on invalid and on negative quantities.
pub fn bytes(text: &str) -> Result<u64, QuantityError> {
    Ok(Decimal::parse(text)?.scaled_up(0))
}

/// CPUs as Kubernetes writes them: `2` for 2000 thousandths, `1500m` for 1500.
pub fn format_cpu(millis: u64) -> String {
    if millis.is_multiple_of(1000) {
        (millis / 1000).to_string()
    } else {
        format!("{millis}m")
    }
}

/// Bytes as Kubernetes writes memory: with the largest binary suffix that leaves a whole number.
pub fn format_bytes(bytes: u64) -> String {
    let suffixes = [
        (60, "Ei"),
        (50, "Pi"),
        (40, "Ti"),
        (30, "Gi"),
        (20, "Mi"),
        (10, "Ki"),
    ];
    let whole = suffixes
        .iter()
        .find(|(shift, _)| bytes != 0 && bytes.trailing_zeros() >= *shift);
    whole.map_or_else(
        || bytes.to_string(),
        |(shift, suffix)| format!("{}{suffix}", bytes >> shift),
    )
}

/// `mantissa · 2^shift · 10^exponent`, plus a little more if `more` is set.
struct Decimal {
    mantissa: u128,
    shift: u32,
    exponent: i64,
    /// Whether non-zero digits were dropped from the mantissa's end.
    more: bool,
}

impl Decimal {
    fn parse(text: &str) -> Result<Self, QuantityError> {
        let owned = || text.to_owned();
        let (negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let (whole, rest) = split_digits(unsigned);
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => split_digits(rest),
            None => ("", rest),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(QuantityError::NotANumber { text: owned() });
        }
        let (shift, suffix_exponent) = scale(suffix).ok_or_else(|| QuantityError::Suffix {
            text: owned(),
            suffix: suffix.to_owned(),
        })?;

        let mut number = Self {
            mantissa: 0,
            shift,
            exponent: suffix_exponent,
            more: false,
        };
        let digits = whole
            .bytes()
            .map(|digit| (digit, false))
            .chain(fraction.bytes().map(|digit| (digit, true)));
        let mut kept = 0;
        for (digit, fractional) in digits {
            let digit = u128::from(digit - b'0');
            if kept < DIGITS {
                number.mantissa = number.mantissa * 10 + digit;
                kept += usize::from(number.mantissa != 0);
                number.exponent -= i64::from(fractional);
            } else {
                number.more |= digit != 0;
                number.exponent += i64::from(!fractional);
            }
        }
        if negative && number.mantissa != 0 {
            return Err(QuantityError::Negative { text: owned() });
        }
        Ok(number)
    }

    /// The number times 10^`places`, rounded up to a whole number, at most [`MAX`].
    fn scaled_up(&self, places: i64) -> u64 {
        let exponent = self.exponent.saturating_add(places);
        let power = u32::try_from(exponent.unsigned_abs())
            .ok()
            .and_then(|power| 10u128.checked_pow(power));
        let base = self.mantissa << self.shift;
        let amount = match (exponent >= 0, power) {
            _ if base == 0 => 0,
            (true, Some(power)) => base.saturating_mul(power),
            (true, None) => u128::MAX,
            (false, Some(power)) => {
                let up = !base.is_multiple_of(power) || self.more;
                base / power + u128::from(up)
            }
            // More than zero and less than one.
            (false, None) => 1,
        };
        u64::try_from(amount).map_or(MAX, |amount| amount.min(MAX))
    }
}

/// The decimal digits at the start of a text, and the rest.
fn split_digits(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

/// The factor of a suffix, as an exponent of 2 and an exponent of 10.
fn scale(suffix: &str) -> Option<(u32, i64)> {
    Some(match suffix {
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "" => (0, 0),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        _ => (
            0,
            suffix.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?.into(),
        ),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn cpu() {
        let cases = [
            ("0", 0),
            ("2", 2000),
            ("2.0", 2000),
            ("2000m", 2000),
            ("2e0", 2000),
            ("0.002k", 2000),
            ("500m", 500),
            ("0.5", 500),
            (".5", 500),
            ("5.", 5000),
            ("+1", 1000),
            ("-0", 0),
            ("1n", 1),
            ("1u", 1),
            ("1000001u", 1001),
            ("1.0001", 1001),
            ("0.0001", 1),
            ("1e-9", 1),
            ("1e-400", 1),
            ("1e3", 1_000_000),
            ("1E3", 1_000_000),
            ("1e+1", 10_000),
            ("0.00000000000000000000000000000000000000000000000001", 1),
            ("2.0000000000000000000000000000", 2000),
            ("2.0000000000000000000000000001", 2001),
            ("1Ki", 1_024_000),
            ("0e99999", 0),
        ];
        for (text, millis) in cases {
            assert_eq!(cpu_millis(text), Ok(millis), "{text}");
        }
    }

    #[test]
    fn memory() {
        let cases = [
            ("1k", 1000),
            ("1Ki", 1024),
            ("1M", 1_000_000),
            ("4Mi", 4 << 20),
            ("1.5Gi", 3 << 29),
            ("1Ti", 1 << 40),
            ("1Pi", 1 << 50),
            ("1Ei", 1 << 60),
            ("1E", 1_000_000_000_000_000_000),
            ("128974848", 128_974_848),
            ("129e6", 129_000_000),
            ("129M", 129_000_000),
            ("123Mi", 123 << 20),
            ("128974848000m", 128_974_848),
            ("1m", 1),
            ("1.1", 2),
            ("0.1Ki", 103),
            ("100Ei", MAX),
            ("1e30", MAX),
            ("1e400", MAX),
            ("99999999999999999999999999999999999999999999", MAX),
            ("9223372036854775807", MAX),
            ("9223372036854775808", MAX),
        ];
        for (text, expected) in cases {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn invalid_quantities_are_refused() {
        for text in [
            "", "+", "-", ".", "m", "Ki", "e3", " 1", "abc", "½", "NaN", "inf", "--1", "+-1",
        ] {
            assert_eq!(
                cpu_millis(text),
                Err(QuantityError::NotANumber { text: text.into() })
            );
        }
        for (text, suffix) in [
            ("1 ", " "),
            ("1e", "e"),
            ("1K", "K"),
            ("1ki", "ki"),
            ("1mi", "mi"),
            ("1.1.1", ".1"),
            ("1e1.5", "e1.5"),
            ("1e3Mi", "e3Mi"),
            ("2 CPUs", " CPUs"),
            ("1i", "i"),
            ("1e99999999999", "e99999999999"),
            ("0x10", "x10"),
            ("1_000", "_000"),
        ] {
            assert_eq!(
                bytes(text),
                Err(QuantityError::Suffix {
                    text: text.into(),
                    suffix: suffix.into()
                })
            );
        }
        for text in ["-1", "-0.5", "-1Gi", "-1n"] {
            assert_eq!(
                cpu_millis(text),
                Err(QuantityError::Negative { text: text.into() })
            );
        }
    }

    #[test]
    fn formatting() {
        assert_eq!(format_cpu(2000), "2");
        assert_eq!(format_cpu(1500), "1500m");
        assert_eq!(format_cpu(0), "0");
        assert_eq!(format_bytes(3 << 29), "1536Mi");
        assert_eq!(format_bytes(1 << 40), "1Ti");
        assert_eq!(format_bytes(1000), "1000");
        assert_eq!(format_bytes(0), "0");
    }

    proptest! {
        #[test]
        fn cpu_survives_being_written(millis in 0..=MAX / 1000) {
            prop_assert_eq!(cpu_millis(&format_cpu(millis)), Ok(millis));
        }

        #[test]
        fn memory_survives_being_written(amount in 0..=MAX) {
            prop_assert_eq!(bytes(&format_bytes(amount)), Ok(amount));
        }

        #[test]
        fn a_decimal_is_its_thousandths(whole in 0u64..100_000, thousandths in 0u64..1000) {
            prop_assert_eq!(cpu_millis(&format!("{whole}.{thousandths:03}")), Ok(whole * 1000 + thousandths));
        }

        #[test]
        fn no_text_makes_it_panic(text in "[-+.0-9eEinumkKMGTP]{0,60}|\\PC{0,20}") {
            let _ = cpu_millis(&text);
            let _ = bytes(&text);
        }

        #[test]
        fn more_never_counts_as_less(a in 0u64..10_000_000, b in 0u64..10_000_000) {
            let micros = |amount: u64| cpu_millis(&format!("{amount}u")).unwrap();
            prop_assert!(micros(a.min(b)) <= micros(a.max(b)));
        }
    }
}
