//! The speed of each condition, with every run, and the speedup over the cases.

use std::fmt::Write;

use super::html::text;
use super::plot::{PlotRow, colour, dot, interval, plot};
use super::scale::{Scale, mark};
use crate::experiment::results::{ConditionOutcome, CurvePoint, Outcome, SpeedupCurve};
use crate::experiment::statistics::Way;
use crate::text::sentence::capital;
use crate::text::{counted, units};

/// The height of the drawing of a curve, in pixels.
const CURVE: f64 = 260.0;

/// Each condition with its runs: a plot for each scene and case.
pub(super) fn conditions(outcome: &Outcome) -> String {
    let mut html = String::new();
    for group in outcome
        .conditions
        .chunk_by(|one, other| one.condition.group == other.condition.group)
    {
        if let Some(first) = group
            .first()
            .filter(|first| !first.condition.group.is_empty())
        {
            let _ = writeln!(html, "<h3>{}</h3>", text(&capital(&first.condition.group)));
        }
        let values = group
            .iter()
            .flat_map(|one| one.runs.iter().map(|run| run.value));
        let ends = group.iter().filter_map(|one| one.estimate);
        let ends = ends.flat_map(|one| [one.low, one.high]);
        let scale = Scale::of(values.chain(ends));
        let rows: Vec<PlotRow> = group
            .iter()
            .map(|one| condition(one, &scale, &outcome.measure))
            .collect();
        let unit = if scale.begins_at_zero() {
            outcome.measure.clone()
        } else {
            format!("{} (the axis doesn't begin at 0)", outcome.measure)
        };
        html += &plot(&rows, &scale, &unit, mark, None);
    }
    html
}

fn condition(one: &ConditionOutcome, scale: &Scale, measure: &str) -> PlotRow {
    let colour = colour(one.condition.way);
    let mut drawing = one
        .estimate
        .as_ref()
        .map_or_else(String::new, |estimate| interval(estimate, scale, colour));
    for (at, run) in one.runs.iter().enumerate() {
        let title = format!(
            "run {}, repeat {}: {} {measure}",
            run.number,
            run.repeat,
            units::figures(run.value)
        );
        drawing.push_str(&dot(run.value, at, scale, colour, &title));
    }
    let span = |low, high| format!("{} to {}", units::figures(low), units::figures(high));
    let value = match &one.estimate {
        None => "no run<small>that counts</small>".to_owned(),
        Some(estimate) if estimate.values == 1 => units::figures(estimate.center()),
        Some(estimate) => format!(
            "{}<small>{}</small>",
            units::figures(estimate.center()),
            span(estimate.low, estimate.high)
        ),
    };
    let lacking = if one.runs.len() < one.planned {
        format!(" · {} of {} runs", one.runs.len(), one.planned)
    } else {
        String::new()
    };
    let words = one.condition.way.map_or("", Way::words);
    PlotRow {
        name: format!(
            "{}<small>{words}{lacking}</small>",
            text(&one.condition.name)
        ),
        label: one.estimate.as_ref().map_or_else(
            || "no run that counts".to_owned(),
            |estimate| {
                format!(
                    "{} {measure}, {}, from {}",
                    units::figures(estimate.center()),
                    span(estimate.low, estimate.high),
                    counted(one.runs.len(), "run")
                )
            },
        ),
        value,
        drawing,
    }
}

/// The speedup over the cases: a drawing for each scene.
pub(super) fn scaling(outcome: &Outcome) -> String {
    let mut html = String::new();
    for curves in outcome
        .speedup
        .chunk_by(|one, other| one.condition.group == other.condition.group)
    {
        if let Some(first) = curves
            .first()
            .filter(|first| !first.condition.group.is_empty())
        {
            let _ = writeln!(html, "<h3>{}</h3>", text(&capital(&first.condition.group)));
        }
        html += &drawing(curves);
    }
    html
}

/// A drawing of curves, with the ideal, and what they say in words.
fn drawing(curves: &[SpeedupCurve]) -> String {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let across = Scale::from_zero(points().map(|point| point.workers).fold(0.0, f64::max));
    let tops = points().map(|point| {
        let high = point.speedup.map_or(0.0, |speedup| speedup.high);
        high.max(point.ideal)
    });
    let up = Scale::from_zero(tops.fold(0.0, f64::max));
    let mut svg = format!(
        "<svg height=\"{}\" role=\"img\" aria-label=\"Speedup by the number of workers; the numbers follow below\">",
        CURVE + 24.0
    );
    for value in &up.marks {
        let y = up.above(*value, CURVE) + 8.0;
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"0\" x2=\"100%\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text x=\"0\" y=\"{:.1}\">{} ×</text>",
            y - 3.0,
            mark(*value)
        );
    }
    for value in sizes(points(), &across) {
        let at = across.at(value);
        let anchor = if at > 96.0 { "end" } else { "middle" };
        let _ = write!(
            svg,
            "<text x=\"{at:.2}%\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
            CURVE + 22.0,
            mark(value)
        );
    }
    let ideal: Vec<(f64, f64)> = curves.first().map_or_else(Vec::new, |curve| {
        let points = curve.points.iter();
        points.map(|point| (point.workers, point.ideal)).collect()
    });
    let place =
        |(workers, speedup): (f64, f64)| (across.at(workers), up.above(speedup, CURVE) + 8.0);
    svg += &lines(ideal.into_iter().map(place), "ideal");
    for (at, curve) in curves.iter().enumerate() {
        svg += &drawn(curve, at, curves.len(), &place);
    }
    svg.push_str("</svg>\n<p class=\"unit soft small\">speedup over the case at 1 ×, by the number of workers; for the same number, marks \
                  stand side by side</p>\n");
    svg + &in_words(curves)
}

/// The numbers of workers that there are, without those whose words would touch the next ones.
fn sizes<'a>(points: impl Iterator<Item = &'a CurvePoint>, across: &Scale) -> Vec<f64> {
    const ROOM: f64 = 5.0;
    let mut all: Vec<f64> = points.map(|point| point.workers).collect();
    all.sort_by(f64::total_cmp);
    let mut kept: Vec<f64> = Vec::new();
    for size in all.into_iter().rev() {
        let is_free = kept
            .last()
            .is_none_or(|next| across.at(*next) - across.at(size) >= ROOM);
        if is_free {
            kept.push(size);
        }
    }
    kept
}

/// A curve: lines between the middles, and each point with its interval. Curves stand a little beside each other.
fn drawn(
    curve: &SpeedupCurve,
    at: usize,
    curves: usize,
    place: &impl Fn((f64, f64)) -> (f64, f64),
) -> String {
    let colour = colour(curve.condition.way);
    let known = curve.points.iter().filter_map(|point| {
        let speedup = point.speedup?;
        Some((point, speedup))
    });
    let known: Vec<_> = known.collect();
    let middles = known
        .iter()
        .map(|(point, speedup)| place((point.workers, speedup.center())));
    let mut svg = lines(middles, &format!("curve {colour}"));
    let shift = (at as f64 - (curves as f64 - 1.0) / 2.0) * 7.0;
    for (point, speedup) in known {
        let (x, y) = place((point.workers, speedup.center()));
        let (low, high) = (
            place((point.workers, speedup.low)).1,
            place((point.workers, speedup.high)).1,
        );
        let title = format!(
            "{}, {} workers: {} times ({} to {})",
            curve.condition.name,
            point.workers,
            units::figures(speedup.center()),
            units::figures(speedup.low),
            units::figures(speedup.high)
        );
        let _ = write!(
            svg,
            "<svg x=\"{x:.2}%\" y=\"0\" width=\"1\" height=\"1\"><line class=\"iv {colour}\" x1=\"{shift}\" x2=\"{shift}\" y1=\"{low:.1}\" \
             y2=\"{high:.1}\"/>{}</svg>",
            shape(curve.condition.way, (shift, y), &title)
        );
    }
    svg
}

/// A mark whose form tells the way, too, for those to whom the colours look alike.
fn shape(way: Option<Way>, (x, y): (f64, f64), title: &str) -> String {
    let (form, colour) = (way.map(|way| (way.exclusive, way.sized)), colour(way));
    let title = format!("<title>{}</title>", text(title));
    let polygon = |points: String| {
        format!("<polygon class=\"dot {colour}\" points=\"{points}\">{title}</polygon>")
    };
    match form {
        Some((false, false)) => polygon(format!(
            "{},{} {},{} {},{} {},{}",
            x - 5.0,
            y - 5.0,
            x + 5.0,
            y - 5.0,
            x + 5.0,
            y + 5.0,
            x - 5.0,
            y + 5.0
        )),
        Some((false, true)) => polygon(format!(
            "{x},{} {},{} {},{}",
            y - 6.5,
            x + 6.0,
            y + 5.0,
            x - 6.0,
            y + 5.0
        )),
        Some((true, false)) => polygon(format!(
            "{x},{} {},{y} {x},{} {},{y}",
            y - 6.5,
            x + 6.5,
            y + 6.5,
            x - 6.5
        )),
        Some((true, true)) | None => format!(
            "<circle class=\"dot {colour}\" cx=\"{x}\" cy=\"{y:.1}\" r=\"5\">{title}</circle>"
        ),
    }
}

/// Lines from point to point, in percent and pixels.
fn lines(points: impl Iterator<Item = (f64, f64)>, class: &str) -> String {
    let points: Vec<(f64, f64)> = points.collect();
    let mut svg = String::new();
    for two in points.windows(2) {
        if let [(x1, y1), (x2, y2)] = two {
            let _ = write!(
                svg,
                "<line class=\"{class}\" x1=\"{x1:.2}%\" y1=\"{y1:.1}\" x2=\"{x2:.2}%\" y2=\"{y2:.1}\"/>"
            );
        }
    }
    svg
}

/// The legend of the curves, with the efficiency of the largest case.
fn in_words(curves: &[SpeedupCurve]) -> String {
    let mut html = "<ul class=\"key\">\n".to_owned();
    for curve in curves {
        let last = curve.points.last();
        let reached = last.and_then(|point| Some((point, point.speedup?, point.efficiency?)));
        let words = reached.map_or_else(
            || "no speedup known".to_owned(),
            |(point, speedup, efficiency)| {
                format!(
                    "{} workers are {} times as fast ({} to {}), {} of the ideal",
                    point.workers,
                    units::figures(speedup.center()),
                    units::figures(speedup.low),
                    units::figures(speedup.high),
                    units::percent(efficiency)
                )
            },
        );
        let _ = writeln!(
            html,
            "<li><svg height=\"16\" aria-hidden=\"true\"><line class=\"curve {0}\" x1=\"0\" x2=\"34\" y1=\"8\" y2=\"8\"/>{1}</svg>{2}: {words}</li>",
            colour(curve.condition.way),
            shape(curve.condition.way, (17.0, 8.0), &curve.condition.name),
            text(&curve.condition.name)
        );
    }
    html + "<li><svg height=\"16\" aria-hidden=\"true\"><line class=\"ideal\" x1=\"0\" x2=\"34\" y1=\"8\" y2=\"8\"/></svg>ideal: n times as many workers \
            are n times as fast</li>\n</ul>\n"
}
