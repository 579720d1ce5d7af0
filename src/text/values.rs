//! Numbers as people write them in options. The errors say what to write, while those of the standard library say what a parser
//! met.

use std::ops::RangeInclusive;

/// Reads a whole number of a range.
///
/// # Errors
/// The text is no whole number, or lies outside the range.
pub fn whole<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| {
            let (least, most) = range.clone().into_inner();
            if most == u64::MAX {
                format!("write a whole number, {least} or more")
            } else {
                format!("write a whole number from {least} to {most}")
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_to_write() {
        assert_eq!(whole::<u8>(0..=99)("99"), Ok(99));
        for wrong in ["100", "-1", "1.5", "x", "", "9999999999999999999999"] {
            assert_eq!(
                whole::<u8>(0..=99)(wrong),
                Err("write a whole number from 0 to 99".to_owned())
            );
        }
        assert_eq!(
            whole::<u32>(1..=u64::MAX)("0"),
            Err("write a whole number, 1 or more".to_owned())
        );
    }
}
