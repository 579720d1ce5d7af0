//! [`plot`]: rows of a drawing that share an axis. Each row has its name and its value beside it, as words.
//!
//! The drawings are SVG whose places from left to right are percentages: so they fill any width, while words and dots keep their
//! size. [`crate::text::svg::Svg`] draws pictures of one size and one set of colours, which suits files for README and slides, but
//! neither a phone nor the dark. The chart crates don't suit either: plotters 0.3 is small (0.12 MB in the binary for a curve with
//! points, as SVG), but has the same limits as `Svg`, and charming needs ECharts, a megabyte of JavaScript in each page, or V8.

use std::fmt::Write;

use super::html::text;
use super::scale::Scale;
use crate::experiment::statistics::{Estimate, Way};

/// A row of a plot.
#[derive(Debug, Default)]
pub(super) struct PlotRow {
    /// HTML.
    pub(super) name: String,
    /// HTML.
    pub(super) value: String,
    /// SVG around a height of 0.
    pub(super) drawing: String,
    /// What the drawing shows, for people who don't see it.
    pub(super) label: String,
}

/// Rows above their axis. `band` is a range of values to be marked in each row, and `unit` what the axis shows.
pub(super) fn plot(
    rows: &[PlotRow],
    scale: &Scale,
    unit: &str,
    mark: impl Fn(f64) -> String,
    band: Option<(f64, f64)>,
) -> String {
    let mut html = "<div class=\"plot\">\n".to_owned();
    for row in rows {
        let _ = write!(
            html,
            "<div class=\"name\">{}</div><div class=\"value\">{}</div><svg class=\"draw\" role=\"img\" aria-label=\"{}\">",
            row.name,
            row.value,
            text(&row.label)
        );
        if let Some((low, high)) = band {
            let (from, to) = (scale.at(low), scale.at(high));
            let _ = write!(
                html,
                "<rect class=\"band\" x=\"{from:.2}%\" y=\"0\" width=\"{:.2}%\" height=\"100%\"/>",
                to - from
            );
        }
        for value in &scale.marks {
            let class = if band.is_some() && (value - 1.0).abs() < 1e-9 {
                "zero"
            } else {
                "grid"
            };
            let at = scale.at(*value);
            let _ = write!(
                html,
                "<line class=\"{class}\" x1=\"{at:.2}%\" x2=\"{at:.2}%\" y1=\"0\" y2=\"100%\"/>"
            );
        }
        let _ = writeln!(
            html,
            "<svg y=\"50%\" height=\"1\">{}</svg></svg>",
            row.drawing
        );
    }
    html.push_str("<svg class=\"axis\" height=\"20\" aria-hidden=\"true\">");
    for value in &scale.marks {
        let at = scale.at(*value);
        let words = text(&mark(*value));
        // Long words at the right edge would reach over it.
        let anchor = if at > 96.0 && words.len() > 4 {
            "end"
        } else {
            "middle"
        };
        let _ = write!(
            html,
            "<text x=\"{at:.2}%\" y=\"14\" text-anchor=\"{anchor}\">{words}</text>"
        );
    }
    let _ = writeln!(html, "</svg><div class=\"unit\">{}</div></div>", text(unit));
    html
}

/// The class of a way's colour.
pub(super) fn colour(way: Option<Way>) -> &'static str {
    match way.map(|way| (way.exclusive, way.sized)) {
        Some((false, false)) => "w0",
        Some((false, true)) => "w1",
        Some((true, false)) => "w2",
        Some((true, true)) | None => "w3",
    }
}

/// An upright line at a place in percent.
pub(super) fn upright(at: f64, (from, to): (f64, f64), class: &str) -> String {
    format!("<line class=\"{class}\" x1=\"{at:.2}%\" x2=\"{at:.2}%\" y1=\"{from}\" y2=\"{to}\"/>")
}

/// An interval with its middle; a range without a probability is a thin line, and has no middle.
pub(super) fn interval(estimate: &Estimate, scale: &Scale, colour: &str) -> String {
    let (low, high) = (scale.at(estimate.low), scale.at(estimate.high));
    let class = if estimate.confidence.is_some() {
        "iv"
    } else {
        "range"
    };
    let bar = format!(
        "<line class=\"{class} {colour}\" x1=\"{low:.2}%\" x2=\"{high:.2}%\" y1=\"0\" y2=\"0\"/>"
    );
    match estimate.confidence {
        Some(_) => {
            bar + &upright(
                scale.at(estimate.center()),
                (-14.0, 14.0),
                &format!("mean {colour}"),
            )
        }
        None => bar,
    }
}

/// The dot of a value, the n-th of a row, with words that appear beside the pointer.
pub(super) fn dot(value: f64, at: usize, scale: &Scale, colour: &str, title: &str) -> String {
    // A little above and below each other, so that equal values remain visible.
    let shift = [0.0, -7.0, 7.0, -3.5, 3.5, -10.0, 10.0];
    let y = shift.get(at % shift.len()).copied().unwrap_or_default();
    format!(
        "<circle class=\"dot {colour}\" cx=\"{:.2}%\" cy=\"{y}\" r=\"4\"><title>{}</title></circle>",
        scale.at(value),
        text(title)
    )
}

/// A bar from the left end of the axis.
pub(super) fn bar(value: f64, scale: &Scale, class: &str, high: f64) -> String {
    let (from, to) = (scale.at(0.0), scale.at(value));
    format!(
        "<rect class=\"{class}\" x=\"{from:.2}%\" y=\"{}\" width=\"{:.2}%\" height=\"{high}\"/>",
        high / -2.0,
        (to - from).max(0.0)
    )
}
