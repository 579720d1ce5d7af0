//! [`series`]: the series of a page in Prometheus's text format.

use std::borrow::Cow;

/// The most labels of a series; an agent's series have fewer.
const MAX_LABELS: usize = 64;

/// A line of the page.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Series<'a> {
    pub(crate) name: &'a str,
    labels: Vec<(&'a str, Cow<'a, str>)>,
    /// Always finite.
    pub(crate) value: f64,
}

/// The series whose name is wanted. Most lines belong to other families, so they are skipped before their labels are read. A line
/// that does not parse is skipped, too.
pub(crate) fn series<'a>(
    page: &'a str,
    is_wanted: impl Fn(&str) -> bool,
) -> impl Iterator<Item = Series<'a>> {
    page.lines().filter_map(move |line| {
        let end = line.find(['{', ' '])?;
        let (name, rest) = line.split_at_checked(end)?;
        is_wanted(name).then(|| Series::parse(name, rest))?
    })
}

// === impl Series ===

impl<'a> Series<'a> {
    /// Reads the labels and the value after the name.
    fn parse(name: &'a str, mut rest: &'a str) -> Option<Self> {
        let mut labels = Vec::new();
        if let Some(inner) = rest.strip_prefix('{') {
            rest = inner.trim_start();
            while !rest.starts_with('}') {
                if labels.len() == MAX_LABELS {
                    return None;
                }
                let (label, after) = rest.split_once("=\"")?;
                let (value, after) = quoted(after)?;
                labels.push((label.trim(), value));
                rest = after.trim_start();
                rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
            }
            rest = rest.strip_prefix('}')?;
        }
        // A timestamp or an exemplar may follow the value.
        let value: f64 = rest.split_whitespace().next()?.parse().ok()?;
        value.is_finite().then_some(Self {
            name,
            labels,
            value,
        })
    }

    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        let mut labels = self.labels.iter();
        let (_, value) = labels.find(|(label, _)| *label == name)?;
        Some(value)
    }
}

/// Parses a label's value up to the closing quote, and returns the text after the quote.
fn quoted(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let end = text.find(['"', '\\'])?;
    if text[end..].starts_with('"') {
        return Some((Cow::Borrowed(&text[..end]), &text[end + 1..]));
    }
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((Cow::Owned(value), &text[at + 1..])),
            '\\' => match letters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(
            text in "(process_start_time_seconds|pinfold_pod_network_receive_bytes_total|x)[{}a-z=\",\\\\ 0-9.e漢\n-]{0,60}",
            cut in 0usize..80,
        ) {
            series(&String::from_utf8_lossy(text.as_bytes().get(..cut).unwrap_or(text.as_bytes())), |_| true).count();
        }
    }

    #[test]
    fn a_line_with_too_many_labels_is_skipped() {
        let read = |count: usize| {
            let labels: Vec<String> = (0..count)
                .map(|number| format!("l{number}=\"x\""))
                .collect();
            series(&format!("x{{{}}} 1\n", labels.join(",")), |_| true).count()
        };
        assert_eq!((read(MAX_LABELS), read(MAX_LABELS + 1)), (1, 0));
    }

    #[test]
    fn labels_and_values_are_read_and_other_lines_are_skipped() {
        let page = "# HELP a a{} 7\n\
            a{x=\"1\",y=\"p\\\"}\\\\\\n\"} 1e3\n\
            a{ x=\"2\", } 7 17000\n\
            a{x=\"3\"} NaN\n\
            a{x=\"4\n\
            a{x=\"5\"} y\n\
            other{x=\"6\"} 1\n\
            b 2.5";
        let read: Vec<_> = series(page, |name| name != "other")
            .map(|series| {
                (
                    series.name,
                    series.label("x").map(str::to_owned),
                    series.value,
                )
            })
            .collect();
        let x = |text: &str| Some(text.to_owned());
        assert_eq!(
            read,
            [("a", x("1"), 1000.0), ("a", x("2"), 7.0), ("b", None, 2.5)]
        );
        let first = series(page, |_| true).next().unwrap();
        assert_eq!(first.label("y"), Some("p\"}\\\n"));
    }
}
