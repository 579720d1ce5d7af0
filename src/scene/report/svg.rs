//! Lines and bars as SVG: a text, for files and pages.

use std::fmt::Write;

use super::figures::NONE;

/// Colours that people with any eyes tell apart.
const COLOURS: [&str; 7] = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#5f5f5f"];
const INK: &str = "#24292f";
const PALE: &str = "#d0d7de";
const WIDE: f64 = 720.0;
/// Where a drawing begins, right of what its values are called.
const LEFT: f64 = 110.0;
const RIGHT: f64 = 20.0;
const BAR: f64 = 14.0;
/// How many lines a chart has; the rest is left out, and said to be.
const LINES: usize = 7;

/// A picture that grows downwards.
#[derive(Debug, Default)]
pub(super) struct Svg {
    body: String,
    down: f64,
}

/// A line of bars: what it is of, and a value for each kind.
pub(super) type Row = (String, Vec<Option<f64>>);

// === impl Svg ===

impl Svg {
    /// A picture with a title.
    pub(super) fn new(title: &str) -> Self {
        let mut svg = Self { body: String::new(), down: 30.0 };
        svg.text((12.0, 22.0), 15, "start", INK, title);
        svg
    }

    fn text(&mut self, (x, y): (f64, f64), size: u32, anchor: &str, colour: &str, words: &str) {
        let words = escaped(words);
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{words}</text>"#
        );
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64)) {
        let _ = writeln!(
            self.body,
            r#"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" stroke="{PALE}"/>"#,
            from.0, from.1, to.0, to.1
        );
    }

    fn heading(&mut self, words: &str) {
        self.down += 24.0;
        self.text((12.0, self.down), 12, "start", INK, words);
        self.down += 14.0;
    }

    /// What the colours mean, one below the other.
    fn legend<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        let mut x = LEFT;
        for (name, colour) in names.zip(COLOURS.iter().cycle()) {
            let wide = 26.0 + 6.5 * name.chars().count() as f64;
            if x + wide > WIDE - RIGHT && x > LEFT {
                (x, self.down) = (LEFT, self.down + 15.0);
            }
            let _ = writeln!(
                self.body,
                r#"<rect x="{x:.1}" y="{:.1}" width="10" height="10" fill="{colour}"/>"#,
                self.down + 3.0
            );
            self.text((x + 14.0, self.down + 12.0), 11, "start", INK, name);
            x += wide;
        }
        self.down += 20.0;
    }

    /// Values over seconds; the curves with the highest sums are drawn.
    pub(super) fn curves(
        &mut self,
        title: &str,
        seconds: f64,
        curves: &[(String, Vec<(f64, f64)>)],
        show: impl Fn(f64) -> String,
    ) {
        self.heading(title);
        let sum = |curve: &(String, Vec<(f64, f64)>)| curve.1.iter().map(|(_, value)| value).sum::<f64>();
        let mut order: Vec<&(String, Vec<(f64, f64)>)> = curves.iter().collect();
        order.sort_by(|one, other| sum(other).total_cmp(&sum(one)));
        let left_out = order.len().saturating_sub(LINES);
        order.truncate(LINES);
        let values = order.iter().flat_map(|(_, points)| points.iter().map(|(_, value)| *value));
        let top = ceiling(values.fold(0.0, f64::max));
        let (high, wide, begin) = (130.0, WIDE - LEFT - RIGHT, self.down);
        for tick in 0..=2 {
            let part = f64::from(tick) / 2.0;
            let y = begin + high * (1.0 - part);
            self.line((LEFT, y), (LEFT + wide, y));
            self.text((LEFT - 6.0, y + 4.0), 10, "end", INK, &show(top * part));
            let x = LEFT + wide * part;
            let after = super::figures::seconds(seconds * part);
            self.text((x, begin + high + 14.0), 10, if tick == 2 { "end" } else { "middle" }, INK, &after);
        }
        for ((_, points), colour) in order.iter().zip(COLOURS) {
            let place = |(at, value): &(f64, f64)| {
                format!("{:.1},{:.1}", LEFT + wide * at / seconds, begin + high * (1.0 - value / top))
            };
            let drawn: Vec<String> = points.iter().map(place).collect();
            let _ = writeln!(
                self.body,
                r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="1.5"/>"#,
                drawn.join(" ")
            );
        }
        self.down = begin + high + 20.0;
        self.legend(order.iter().map(|(name, _)| name.as_str()));
        if left_out > 0 {
            self.text((LEFT, self.down + 4.0), 11, "start", INK, &format!("and {left_out} below them"));
            self.down += 14.0;
        }
    }

    /// Bars beside each other for each row; a value that is not known has none, and a dash.
    pub(super) fn bars(&mut self, title: &str, kinds: &[&str], rows: &[Row], show: impl Fn(f64) -> String) {
        self.heading(title);
        let top = rows.iter().flat_map(|(_, values)| values.iter().flatten().copied()).fold(0.0, f64::max);
        let wide = WIDE - LEFT - RIGHT - 90.0;
        for (name, values) in rows {
            let middle = self.down + BAR * values.len() as f64 / 2.0 + 4.0;
            let words: String = name.chars().take(17).collect();
            self.text((LEFT - 6.0, middle), 11, "end", INK, &words);
            for (value, colour) in values.iter().zip(COLOURS.iter().cycle()) {
                let long = value.filter(|_| top > 0.0).map_or(0.0, |value| wide * value / top);
                let _ = writeln!(
                    self.body,
                    r#"<rect x="{LEFT:.1}" y="{:.1}" width="{long:.1}" height="{:.1}" fill="{colour}"/>"#,
                    self.down + 1.0,
                    BAR - 2.0
                );
                let words = value.map_or_else(|| NONE.to_owned(), &show);
                self.text((LEFT + long + 5.0, self.down + BAR - 3.0), 10, "start", INK, &words);
                self.down += BAR;
            }
            self.down += 4.0;
        }
        if kinds.len() > 1 {
            self.legend(kinds.iter().copied());
        }
    }

    /// The whole picture.
    pub(super) fn finish(self) -> String {
        let high = self.down + 12.0;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDE}\" height=\"{high:.0}\" viewBox=\"0 0 {WIDE} {high:.0}\" \
             font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{}</svg>\n",
            self.body
        )
    }
}

/// The least of 1, 2 and 5 times a power of ten that is not below.
fn ceiling(value: f64) -> f64 {
    if !(value > 0.0 && value.is_finite()) {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let step = [1.0, 2.0, 5.0].into_iter().find(|step| step * power >= value);
    step.unwrap_or(10.0) * power
}

fn escaped(words: &str) -> String {
    let mut text = String::with_capacity(words.len());
    for letter in words.chars() {
        match letter {
            '&' => text.push_str("&amp;"),
            '<' => text.push_str("&lt;"),
            '>' => text.push_str("&gt;"),
            // No letter of XML.
            letter if letter.is_control() => text.push(' '),
            letter => text.push(letter),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_end_at_a_round_number() {
        for (value, top) in
            [(0.0, 1.0), (f64::NAN, 1.0), (0.7, 1.0), (1.0, 1.0), (1.1, 2.0), (34.0, 50.0), (9e6, 1e7)]
        {
            assert!((ceiling(value) - top).abs() < 1e-9 * top, "{value}: {}", ceiling(value));
        }
    }

    #[test]
    fn no_name_breaks_it_and_nothing_is_drawn_of_what_is_not_known() {
        let mut svg = Svg::new("a <b> & \u{7}c");
        svg.bars("t", &["x", "y"], &[("r".to_owned(), vec![None, Some(2.0)])], |value| format!("{value}!"));
        svg.curves("c", 10.0, &[], |value| value.to_string());
        let curve = |at: u32| (format!("p{at}"), vec![(0.0, f64::from(at)), (10.0, f64::from(at))]);
        svg.curves("c", 10.0, &(0..9).map(curve).collect::<Vec<_>>(), |value| value.to_string());
        let text = svg.finish();
        assert!(text.contains(">a &lt;b&gt; &amp;  c</text>"), "{text}");
        assert!(text.contains(">–</text>") && text.contains(">2!</text>"), "{text}");
        assert!(text.contains("and 2 below them") && !text.contains(">p1</text>"), "{text}");
        assert_eq!(text.matches("<polyline").count(), 7);
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }
}
