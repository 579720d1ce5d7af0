//! [`Chart`]: curves and bars below each other.

use super::figures::{NONE, median};
use crate::text::svg::{Anchor, Svg, ceiling, shortened};

/// Colours that people with any eyes tell apart.
const COLOURS: [&str; 7] = [
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#5f5f5f",
];
const INK: &str = "#24292f";
const PALE: &str = "#d0d7de";
const WIDE: f64 = 720.0;
/// The left edge of a drawing, right of the axis labels.
const LEFT: f64 = 120.0;
const RIGHT: f64 = 20.0;
const BAR: f64 = 14.0;
/// How many lines a chart has; the rest is left out, and said to be.
const LINES: usize = 7;
/// How many letters fit left of a drawing.
const LETTERS: usize = 19;
/// How many letters fit into a title.
const TITLE: usize = 84;
/// The factor above the usual distance of points that breaks a curve.
const BREAK: f64 = 3.0;

/// A picture that grows downwards.
#[derive(Debug)]
pub(super) struct Chart {
    svg: Svg,
    down: f64,
}

/// A row of bars: the subject, and a value for each kind.
pub(super) type BarRow = (String, Vec<Option<f64>>);

// === impl Chart ===

impl Chart {
    /// A picture with a title.
    pub(super) fn new(title: &str) -> Self {
        let mut svg = Svg::default();
        svg.text(
            (12.0, 22.0),
            15.0,
            Anchor::Start,
            INK,
            &shortened(title, TITLE),
        );
        Self { svg, down: 30.0 }
    }

    fn heading(&mut self, words: &str) {
        self.down += 24.0;
        self.svg
            .text((12.0, self.down), 12.0, Anchor::Start, INK, words);
        self.down += 14.0;
    }

    /// The legend of the colours, in one row.
    fn legend<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        let mut x = LEFT;
        for (name, colour) in names.zip(COLOURS.iter().cycle()) {
            let wide = 26.0 + 6.5 * name.chars().count() as f64;
            if x + wide > WIDE - RIGHT && x > LEFT {
                (x, self.down) = (LEFT, self.down + 15.0);
            }
            self.svg.rectangle((x, self.down + 3.0), 10.0, 10.0, colour);
            self.svg
                .text((x + 14.0, self.down + 12.0), 11.0, Anchor::Start, INK, name);
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
        let sum =
            |curve: &(String, Vec<(f64, f64)>)| curve.1.iter().map(|(_, value)| value).sum::<f64>();
        let mut order: Vec<&(String, Vec<(f64, f64)>)> = curves.iter().collect();
        order.sort_by(|one, other| sum(other).total_cmp(&sum(one)));
        let left_out = order.len().saturating_sub(LINES);
        order.truncate(LINES);
        let values = order
            .iter()
            .flat_map(|(_, points)| points.iter().map(|(_, value)| *value));
        let top = ceiling(values.fold(0.0, f64::max));
        let (high, wide, begin) = (130.0, WIDE - LEFT - RIGHT, self.down);
        for tick in 0..=2 {
            let part = f64::from(tick) / 2.0;
            let y = begin + high * (1.0 - part);
            self.svg.line((LEFT, y), (LEFT + wide, y), PALE, 1.0);
            self.svg.text(
                (LEFT - 6.0, y + 4.0),
                10.0,
                Anchor::End,
                INK,
                &show(top * part),
            );
            let x = LEFT + wide * part;
            let after = super::figures::seconds(seconds * part);
            let anchor = if tick == 2 {
                Anchor::End
            } else {
                Anchor::Middle
            };
            self.svg
                .text((x, begin + high + 14.0), 10.0, anchor, INK, &after);
        }
        for ((_, points), colour) in order.iter().zip(COLOURS) {
            let place = |(at, value): &(f64, f64)| {
                (
                    LEFT + wide * at / seconds,
                    begin + high * (1.0 - value / top),
                )
            };
            for piece in unbroken(points) {
                self.svg.polyline(piece.iter().map(place), colour, 1.5);
            }
        }
        self.down = begin + high + 20.0;
        self.legend(order.iter().map(|(name, _)| name.as_str()));
        if left_out > 0 {
            let words = format!("and {left_out} more below");
            self.svg
                .text((LEFT, self.down + 4.0), 11.0, Anchor::Start, INK, &words);
            self.down += 14.0;
        }
    }

    /// A bar for each row. An unknown value has a dash instead of a bar.
    pub(super) fn bars(
        &mut self,
        title: &str,
        kinds: &[&str],
        rows: &[BarRow],
        show: impl Fn(f64) -> String,
    ) {
        self.heading(title);
        let top = rows
            .iter()
            .flat_map(|(_, values)| values.iter().flatten().copied())
            .fold(0.0, f64::max);
        let wide = WIDE - LEFT - RIGHT - 90.0;
        for (name, values) in rows {
            let middle = self.down + BAR * values.len() as f64 / 2.0 + 4.0;
            self.svg.text(
                (LEFT - 6.0, middle),
                11.0,
                Anchor::End,
                INK,
                &shortened(name, LETTERS),
            );
            for (value, colour) in values.iter().zip(COLOURS.iter().cycle()) {
                let long = value
                    .filter(|_| top > 0.0)
                    .map_or(0.0, |value| wide * value / top);
                self.svg
                    .rectangle((LEFT, self.down + 1.0), long, BAR - 2.0, colour);
                let words = value.map_or_else(|| NONE.to_owned(), &show);
                self.svg.text(
                    (LEFT + long + 5.0, self.down + BAR - 3.0),
                    10.0,
                    Anchor::Start,
                    INK,
                    &words,
                );
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
        self.svg.finish(WIDE, self.down + 12.0)
    }
}

/// The pieces of a curve between which nothing is known.
fn unbroken(points: &[(f64, f64)]) -> impl Iterator<Item = &[(f64, f64)]> {
    let apart = |two: &[(f64, f64)]| Some(two.last()?.0 - two.first()?.0);
    let usual = median(points.windows(2).filter_map(apart)).unwrap_or_default();
    points.chunk_by(move |one, other| other.0 - one.0 <= BREAK * usual)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_breaks_it_and_nothing_is_drawn_of_what_is_not_known() {
        let mut chart = Chart::new("a <b> & \u{7}c");
        let long = "a-name-that-is-longer-than-there-is-room".to_owned();
        chart.bars(
            "t",
            &["x", "y"],
            &[
                ("r".to_owned(), vec![None, Some(2.0)]),
                (long, vec![Some(f64::INFINITY)]),
            ],
            |value| format!("{value}!"),
        );
        chart.curves("c", 10.0, &[], |value| value.to_string());
        let curve = |at: u32| {
            (
                format!("p{at}"),
                vec![(0.0, f64::from(at)), (10.0, f64::from(at))],
            )
        };
        chart.curves("c", 10.0, &(0..9).map(curve).collect::<Vec<_>>(), |value| {
            value.to_string()
        });
        let text = chart.finish();
        assert!(text.contains(">a &lt;b&gt; &amp;  c</text>"), "{text}");
        assert!(
            text.contains(">–</text>") && text.contains(">2!</text>"),
            "{text}"
        );
        assert!(text.contains(">a-name-that-is-lon…</text>"), "{text}");
        assert!(
            text.contains("and 2 more below") && !text.contains(">p1</text>"),
            "{text}"
        );
        assert_eq!(text.matches("<polyline").count(), 7);
        assert!(!text.contains("NaN") && !text.contains("=\"inf"), "{text}");
    }

    #[test]
    fn nothing_is_drawn_over_a_time_of_which_nothing_is_known() {
        let points: Vec<(f64, f64)> = [0.0, 10.0, 20.0, 30.0, 300.0, 310.0, 320.0]
            .map(|at| (at, 1.0))
            .to_vec();
        let pieces: Vec<usize> = unbroken(&points).map(<[_]>::len).collect();
        assert_eq!(pieces, [4, 3]);
        assert_eq!(unbroken(&[(5.0, 1.0)]).count(), 1);
        assert_eq!(unbroken(&[]).count(), 0);
    }
}
