//! [`SharedMinimum`]: how many CPUs exclusive assignments leave to everybody else.

use std::fmt;
use std::str::FromStr;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// How many CPUs exclusive assignments leave to everybody else, the reserved ones included.
///
/// ```
/// use pinfold::cpu::SharedMinimum;
///
/// let share: SharedMinimum = "10%".parse().unwrap();
/// assert_eq!([share.of(64), share.of(8)], [6, 0]);
/// assert_eq!("4".parse::<SharedMinimum>().unwrap().of(64), 4);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedMinimum {
    /// A share of the CPUs that pods can use, 0 to 100 percent, rounded down: on a small node, the reserved core is enough.
    Percent(u8),
    /// A number of CPUs.
    Cpus(u32),
}

/// A text that is no share and no number of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no number of CPUs and no share of them: write a whole number, like 4, or 0% to 100%, like 10%"
)]
pub struct ParseSharedMinimumError(String);

// === impl SharedMinimum ===

impl SharedMinimum {
    /// The number of CPUs to leave, where pods can use this many.
    pub fn of(self, cpus: usize) -> usize {
        match self {
            Self::Percent(percent) => cpus.saturating_mul(percent.into()) / 100,
            Self::Cpus(cpus) => cpus as usize,
        }
    }
}

impl Default for SharedMinimum {
    /// One core is enough for the system on a small node, but not on one with dozens of CPUs.
    fn default() -> Self {
        Self::Percent(5)
    }
}

impl fmt::Display for SharedMinimum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Cpus(cpus) => write!(f, "{cpus}"),
        }
    }
}

impl FromStr for SharedMinimum {
    type Err = ParseSharedMinimumError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.strip_suffix('%').unwrap_or(text);
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let read = if !is_number {
            None
        } else if number == text {
            number.parse().ok().map(Self::Cpus)
        } else {
            let percent = number.parse().ok();
            percent.filter(|percent| *percent <= 100).map(Self::Percent)
        };
        read.ok_or_else(|| ParseSharedMinimumError(text.to_owned()))
    }
}

impl Serialize for SharedMinimum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Percent(_) => serializer.collect_str(self),
            Self::Cpus(cpus) => serializer.serialize_u32(*cpus),
        }
    }
}

impl<'de> Deserialize<'de> for SharedMinimum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;

        impl Visitor<'_> for Written {
            type Value = SharedMinimum;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of CPUs, like 4, or a share of them, like 10%")
            }

            fn visit_u64<E: Error>(self, cpus: u64) -> Result<SharedMinimum, E> {
                self.visit_str(&cpus.to_string())
            }

            fn visit_i64<E: Error>(self, cpus: i64) -> Result<SharedMinimum, E> {
                self.visit_str(&cpus.to_string())
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<SharedMinimum, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_or_a_number_is_read_and_written_back() {
        for (text, cpus) in [
            ("0", 0),
            ("4", 4),
            ("0%", 0),
            ("5%", 3),
            ("10%", 6),
            ("100%", 64),
        ] {
            let minimum: SharedMinimum = text.parse().unwrap();
            assert_eq!(
                (minimum.to_string(), minimum.of(64)),
                (text.to_owned(), cpus)
            );
            let json = serde_json::to_string(&minimum).unwrap();
            assert_eq!(
                serde_json::from_str::<SharedMinimum>(&json).unwrap(),
                minimum
            );
        }
        for wrong in [
            "",
            "%",
            "101%",
            "-1",
            "+1",
            "1.5",
            "5 %",
            "ten",
            "4294967296",
            "300%",
        ] {
            let error = wrong.parse::<SharedMinimum>().unwrap_err().to_string();
            assert!(error.contains("like 10%"), "{error}");
        }
        assert_eq!(SharedMinimum::Percent(100).of(usize::MAX), usize::MAX / 100);
    }
}
