//! The known name that somebody probably meant.

/// The longest text that is compared, in characters. Known names are shorter, and a limit bounds the time.
const MAX_CHARS: usize = 64;

/// The known name that differs from a mistyped one in at most two letters.
pub fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let start: String = name.chars().take(MAX_CHARS).collect();
    let distances = known.iter();
    let distances = distances.map(|known| (strsim::levenshtein(&start, known), *known));
    let (distance, near) = distances.min()?;
    (distance <= 2 && distance < near.len()).then_some(near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_near_if_two_letters_differ() {
        let known = ["reserved", "listen", "log"];
        assert_eq!(nearest("reservd", &known), Some("reserved"));
        assert_eq!(nearest("Listen", &known), Some("listen"));
        assert_eq!(nearest("lo", &known), Some("log"));
        for far in ["", "r", "reservation", &"l".repeat(10_000)] {
            assert_eq!(nearest(far, &known), None, "{far}");
        }
    }
}
