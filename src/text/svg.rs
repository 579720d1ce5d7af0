//! [`Svg`]: shapes and words as an SVG, a text for files and pages.

use std::fmt::Write;

/// A position: from the left, and from above.
pub(crate) type Position = (f64, f64);

/// Which part of a text stands at its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anchor {
    /// It begins there.
    Start,
    /// The text's middle.
    Middle,
    /// It ends there.
    End,
}

/// Shapes so far.
#[derive(Debug, Default)]
pub(crate) struct Svg {
    body: String,
}

// === impl Anchor ===

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        }
    }
}

// === impl Svg ===

impl Svg {
    /// Words, which may hold anything.
    pub(crate) fn text(&mut self, at: Position, size: f64, anchor: Anchor, ink: &str, words: &str) {
        let (x, y, anchor, words) = (drawn(at.0), drawn(at.1), anchor.name(), escaped(words));
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" fill="{ink}" text-anchor="{anchor}">{words}</text>"#
        );
    }

    /// A straight line.
    pub(crate) fn line(&mut self, from: Position, to: Position, ink: &str, width: f64) {
        let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(drawn);
        let _ = writeln!(
            self.body,
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{ink}" stroke-width="{width}"/>"#
        );
    }

    /// A filled circle.
    pub(crate) fn dot(&mut self, at: Position, radius: f64, ink: &str) {
        let (x, y) = (drawn(at.0), drawn(at.1));
        let _ = writeln!(
            self.body,
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius}" fill="{ink}" fill-opacity="0.8"/>"#
        );
    }

    /// The complete picture, on white.
    pub(crate) fn finish(self, wide: f64, high: f64) -> String {
        let (wide, high) = (wide.round(), high.round());
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {wide} {high}\" width=\"{wide}\" height=\"{high}\" \
             font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{}</svg>\n",
            self.body
        )
    }
}

/// A number for SVG; NaN and infinities become the edge.
fn drawn(number: f64) -> f64 {
    if number.is_finite() { number } else { 0.0 }
}

/// A text escaped for XML, with a blank for each letter that XML forbids.
fn escaped(words: &str) -> String {
    let mut text = String::with_capacity(words.len());
    for letter in words.chars() {
        match letter {
            '&' => text.push_str("&amp;"),
            '<' => text.push_str("&lt;"),
            '>' => text.push_str("&gt;"),
            '\u{fffe}' | '\u{ffff}' => text.push(' '),
            letter if letter.is_control() => text.push(' '),
            letter => text.push(letter),
        }
    }
    text
}

/// A text of at most the given number of letters, with an ellipsis for the rest.
pub(crate) fn shortened(words: &str, most: usize) -> String {
    if words.chars().count() <= most {
        return words.to_owned();
    }
    words
        .chars()
        .take(most.saturating_sub(1))
        .chain(['…'])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_input_gives_valid_xml_and_numbers() {
        let mut svg = Svg::default();
        svg.text(
            (f64::NAN, 1.0),
            9.0,
            Anchor::End,
            "#000",
            "a <b> & \u{7}\u{85}\u{ffff}c",
        );
        svg.line((0.0, f64::INFINITY), (1.0, 2.0), "#000", 1.0);
        svg.dot((0.0, 0.0), 2.0, "#000");
        let text = svg.finish(10.0, 20.4);
        assert!(
            text.contains(r#"text-anchor="end">a &lt;b&gt; &amp;    c</text>"#),
            "{text}"
        );
        assert!(text.contains(r#"viewBox="0 0 10 20""#), "{text}");
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }

    #[test]
    fn long_words_are_cut_where_it_is_seen() {
        assert_eq!(
            [
                shortened("ünï", 3),
                shortened("ünïx", 3),
                shortened("ab", 0)
            ],
            ["ünï", "ün…", "…"]
        );
    }
}
