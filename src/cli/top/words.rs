//! Numbers and texts in columns of a known width.

use std::fmt::{self, Write};

use console::{measure_text_width, truncate_str};

use crate::cpu::CpuSet;
use crate::text::units;

/// Bytes, in at most seven columns: `18.7Mi`.
pub(super) fn bytes(bytes: f64) -> String {
    units::bytes(bytes).replace([' ', 'B'], "")
}

pub(super) fn percent(share: f64) -> String {
    units::percent(share).replace(' ', "")
}

/// Seconds, in at most six columns.
pub(super) fn seconds(seconds: f64) -> String {
    units::seconds(seconds).replace(' ', "")
}

/// A number, with a digit after the point if it is small.
pub(super) fn number(value: f64) -> String {
    match value.max(0.0) {
        v if v < 99.95 => format!("{v:.1}"),
        v if v < 99_999.5 => format!("{v:.0}"),
        v => format!("{:.0}k", v / 1000.0),
    }
}

/// A list of CPUs, shortened after 64 bytes: no column is that wide, and `cut` marks the missing end.
pub(super) fn cpus(set: &CpuSet) -> String {
    struct Short(String);

    impl Write for Short {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.push_str(text);
            if self.0.len() < 64 {
                Ok(())
            } else {
                Err(fmt::Error)
            }
        }
    }

    let mut short = Short(String::new());
    // The error only ends a list that is long enough.
    let _ = write!(short, "{set}");
    short.0
}

/// A text, cut at the end to a number of columns.
pub(super) fn cut(text: &str, width: usize) -> String {
    if width == 0 {
        return String::new();
    }
    truncate_str(text, width, "…").into_owned()
}

/// A text, cut at the beginning, because names of pods differ at the end.
pub(super) fn cut_front(text: &str, width: usize) -> String {
    let mut over = measure_text_width(text).saturating_sub(width);
    if over == 0 {
        return text.to_owned();
    }
    if width == 0 {
        return String::new();
    }
    // The ellipsis takes a column.
    over += 1;
    let mut letters = text.char_indices();
    let mut removed = 0;
    let mut buffer = [0; 4];
    let start = letters.find_map(|(at, letter)| {
        if removed >= over {
            return Some(at);
        }
        removed += measure_text_width(letter.encode_utf8(&mut buffer));
        None
    });
    format!("…{}", start.map_or("", |at| &text[at..]))
}

/// A text at the left edge of a column, cut or filled with spaces.
pub(super) fn left(text: &str, width: usize) -> String {
    let text = cut(text, width);
    let missing = width.saturating_sub(measure_text_width(&text));
    format!("{text}{:missing$}", "")
}

/// A text at the right edge of a column, cut or filled with spaces.
pub(super) fn right(text: &str, width: usize) -> String {
    let text = cut(text, width);
    let missing = width.saturating_sub(measure_text_width(&text));
    format!("{:missing$}{text}", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [0.0, 1023.6, 19_620_954.0].map(bytes),
            ["0", "1.0Ki", "18.7Mi"]
        );
        assert_eq!([0.0, 0.012, 600.0].map(seconds), ["0s", "12ms", "10min"]);
        assert_eq!([0.003, 1.0].map(percent), ["0.3%", "100%"]);
        assert_eq!(
            (number(1.26), number(1234.5), number(5e6)),
            ("1.3".into(), "1234".into(), "5000k".into())
        );
    }

    #[test]
    fn a_long_list_of_cpus_is_shortened() {
        assert_eq!(cpus(&"0-3,8".parse().unwrap()), "0-3,8");
        let odd: CpuSet = (0..8191).filter(|cpu| cpu % 2 == 1).collect();
        assert!(
            (64..80).contains(&cpus(&odd).len()) && cpus(&odd).starts_with("1,3,5,"),
            "{}",
            cpus(&odd)
        );
    }

    #[test]
    fn texts_are_cut_at_either_end() {
        assert_eq!(
            (cut("worker-0", 5), cut_front("worker-0", 5)),
            ("work…".into(), "…er-0".into())
        );
        assert_eq!(
            (
                cut_front("worker-0", 8),
                cut_front("worker-0", 1),
                cut_front("w", 0)
            ),
            ("worker-0".into(), "…".into(), String::new())
        );
        assert_eq!(cut_front("漢字漢字-0", 5), "…字-0");
        assert_eq!(
            (left("ab", 4), right("ab", 4), right("abcdef", 4)),
            ("ab  ".into(), "  ab".into(), "abc…".into())
        );
        for width in 0..12 {
            for text in ["漢字漢字-0", "worker-0"] {
                assert_eq!(measure_text_width(&left(text, width)), width);
                assert!(measure_text_width(&cut_front(text, width)) <= width);
            }
        }
    }
}
