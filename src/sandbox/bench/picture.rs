//! A report as a picture: every run as a dot, and the ratios with their intervals.

use super::plan::{Cpus, ThreadChoice, Way};
use super::report::{BenchReport, Comparison, Metric};
use crate::experiment::round_step;
use crate::experiment::statistics::{Estimate, Verdict};
use crate::text::svg::{Anchor, Svg, shortened};
use crate::text::{counted, units};

const WIDTH: f64 = 920.0;
const HEIGHT: f64 = 584.0;
/// The panel of runs.
const LEFT: f64 = 60.0;
const TOP: f64 = 92.0;
const BOTTOM: f64 = 272.0;
/// The panel of ratios: the ends of the scale, and the first row.
const SCALE: (f64, f64) = (250.0, 620.0);
const ROWS: f64 = 352.0;
const ROW: f64 = 26.0;

const INK: &str = "#222222";
const PALE: &str = "#8a8a8a";
const WARNING: &str = "#c4401f";
const GRID: &str = "#dddddd";

/// The marks of the scale of ratios: above 1, and below.
const MORE: [f64; 12] = [
    1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0,
];
const LESS: [f64; 12] = [
    0.98, 0.95, 0.9, 0.8, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01,
];

pub fn draw(report: &BenchReport) -> String {
    let mut svg = Svg::default();
    let step = report.step();
    let work = match &report.plan.work {
        super::plan::BenchProgram::BuiltIn => "the built-in training job".to_owned(),
        super::plan::BenchProgram::Command { line, .. } => shortened(line, 60),
    };
    svg.text(
        (20.0, 28.0),
        17.0,
        Anchor::Start,
        INK,
        &format!("Effect of pinning and sizing: {work}"),
    );
    let threads = report.plan.host_threads.map_or_else(String::new, |host| {
        format!("; threads as on a host with {}", counted(host, "CPU"))
    });
    let subtitle = format!(
        "{}, {} reserved; {} of {}, {}; {}; {}; enforcement {}{threads}",
        counted(report.plan.online.len() as u64, "CPU"),
        report.plan.reserved.len(),
        counted(report.plan.workers, "worker"),
        counted(report.plan.cpus, "CPU"),
        counted(report.plan.ps, "server"),
        counted(report.plan.neighbors.count, "neighbor"),
        counted(report.plan.rounds.len() as u64, "round"),
        report.found.enforcement,
    );
    svg.text((20.0, 46.0), 12.0, Anchor::Start, PALE, &subtitle);
    if let Some(interference) = &report.found.interference {
        let warning = if interference.reliable {
            ""
        } else {
            " The comparison is unreliable."
        };
        let words = interference.in_words() + warning;
        let ink = if interference.reliable { PALE } else { WARNING };
        svg.text((20.0, 62.0), 12.0, Anchor::Start, ink, &words);
    }
    runs(
        &mut svg,
        report,
        &Metric::StepsPerSecond.name(step),
        Metric::StepsPerSecond,
        (LEFT, 430.0),
    );
    let switches = Metric::ContextSwitchesPerStep;
    runs(
        &mut svg,
        report,
        &switches.name(step),
        switches,
        (490.0, 850.0),
    );
    ratios(&mut svg, report, step);
    svg.finish(WIDTH, HEIGHT)
}

/// Every run of each way as a dot, and the median as a line.
fn runs(
    svg: &mut Svg,
    report: &BenchReport,
    title: &str,
    metric: Metric,
    (left, right): (f64, f64),
) {
    svg.text((left, TOP - 4.0), 13.0, Anchor::Start, INK, title);
    let top = report
        .runs
        .iter()
        .filter_map(|run| run.figures.get(&metric))
        .copied()
        .fold(0.0, f64::max);
    let top = round_step(top);
    let scale = (BOTTOM - TOP - 10.0) / top;
    for value in [0.0, top / 2.0, top] {
        let y = BOTTOM - value * scale;
        svg.line((left, y), (right, y), GRID, 1.0);
        svg.text(
            (left - 6.0, y + 4.0),
            10.0,
            Anchor::End,
            PALE,
            &value.to_string(),
        );
    }
    let column = (right - left) / 4.0;
    for (way, place) in Way::ALL.into_iter().zip([0.5, 1.5, 2.5, 3.5]) {
        let middle = left + column * place;
        let of = report.runs.iter().filter(|run| run.way == way);
        for (run, shift) in of.zip([-9.0, -3.0, 3.0, 9.0, -6.0, 0.0, 6.0].into_iter().cycle()) {
            if let Some(value) = run.figures.get(&metric) {
                svg.dot((middle + shift, BOTTOM - value * scale), 3.5, colour(way));
            }
        }
        let summary = report
            .ways
            .iter()
            .find(|one| one.way == way)
            .and_then(|one| one.figures.get(&metric));
        if let Some(summary) = summary {
            let y = BOTTOM - summary.median * scale;
            svg.line((middle - 22.0, y), (middle + 22.0, y), INK, 2.0);
            svg.text(
                (middle + 25.0, y + 4.0),
                11.0,
                Anchor::Start,
                INK,
                &units::figures(summary.median),
            );
        }
        let (cpus, threads) = way.name().split_once(", ").unwrap_or((way.name(), ""));
        svg.text((middle, BOTTOM + 15.0), 11.0, Anchor::Middle, INK, cpus);
        svg.text((middle, BOTTOM + 28.0), 11.0, Anchor::Middle, INK, threads);
    }
}

/// The comparisons in steps per second: the ratio as a dot, its interval as a line, beside the line of 1.
fn ratios(svg: &mut Svg, report: &BenchReport, step: &str) {
    let title = format!(
        "ratios of {}: mean and 95 % confidence interval over the rounds",
        Metric::StepsPerSecond.name(step)
    );
    svg.text((20.0, ROWS - 24.0), 13.0, Anchor::Start, INK, &title);
    let of = |comparison| report.effect(comparison, Metric::StepsPerSecond);
    let ratios: Vec<Estimate> = Comparison::ALL
        .into_iter()
        .filter_map(|comparison| of(comparison)?.ratio)
        .collect();
    // On a scale of logarithms, where half as fast is as far from 1 as twice as fast.
    let far = |ratio: f64| if ratio > 0.0 { ratio.ln().abs() } else { 0.0 };
    let furthest = ratios
        .iter()
        .flat_map(|one| [one.low, one.high])
        .map(far)
        .fold(0.05, f64::max)
        * 1.1;
    let middle = f64::midpoint(SCALE.0, SCALE.1);
    let at = |ratio: f64| {
        let place = if ratio > 0.0 {
            ratio.ln() / furthest
        } else {
            -1.0
        };
        middle + place.clamp(-1.0, 1.0) * (SCALE.1 - SCALE.0) / 2.0
    };
    let rows = Comparison::ALL.len() as f64;
    svg.line(
        (middle, ROWS - 12.0),
        (middle, ROWS + ROW * rows - 14.0),
        PALE,
        1.0,
    );
    for mark in marks(furthest) {
        svg.text(
            (at(mark), ROWS + ROW * rows + 2.0),
            11.0,
            Anchor::Middle,
            PALE,
            &units::change(mark),
        );
    }
    let mut y = ROWS;
    for comparison in Comparison::ALL {
        svg.text((20.0, y + 4.0), 12.0, Anchor::Start, INK, comparison.name());
        if let Some(effect) = of(comparison) {
            if let Some(ratio) = &effect.ratio {
                let is_conclusive = matches!(effect.verdict, Some(Verdict::More | Verdict::Less));
                let ink = if is_conclusive { "#1f60c4" } else { PALE };
                svg.line((at(ratio.low), y), (at(ratio.high), y), ink, 3.0);
                svg.dot((at(ratio.center()), y), 5.0, ink);
            }
            svg.text(
                (SCALE.1 + 16.0, y + 4.0),
                11.0,
                Anchor::Start,
                INK,
                &effect.words,
            );
        }
        y += ROW;
    }
}

/// Round ratios for a scale that reaches to this logarithm on both sides of 1: at most two on each side.
fn marks(furthest: f64) -> Vec<f64> {
    let within = |list: [f64; 12]| {
        let mut inside: Vec<f64> = list
            .into_iter()
            .filter(|ratio| ratio.ln().abs() <= furthest)
            .collect();
        inside.drain(..inside.len().saturating_sub(2));
        inside
    };
    [within(LESS), vec![1.0], within(MORE)].concat()
}

fn colour(way: Way) -> &'static str {
    match (way.cpus, way.threads) {
        (Cpus::Shared, ThreadChoice::Host) => "#8a8a8a",
        (Cpus::Shared, ThreadChoice::Right) => "#f2a72b",
        (Cpus::Pinned, ThreadChoice::Host) => "#56a64b",
        (Cpus::Pinned, ThreadChoice::Right) => "#3274d9",
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::BenchProgram;
    use super::super::report::MachineFacts;
    use super::super::report::tests::{plan, runs as some_runs};
    use super::*;
    use crate::sandbox::interference::MeasuredInterference;

    fn figures(round: usize, way: Way) -> Vec<(Metric, f64)> {
        let pinned = if way.cpus == Cpus::Pinned { 1.5 } else { 1.0 };
        vec![
            (Metric::StepsPerSecond, (90.0 + round as f64) * pinned),
            (Metric::ContextSwitchesPerStep, 0.0),
        ]
    }

    #[test]
    fn every_run_is_a_dot_and_every_ratio_a_line() {
        let report =
            BenchReport::new(plan(6), some_runs(6, figures), MachineFacts::default()).unwrap();
        let svg = draw(&report);
        assert_eq!(svg.matches("<circle").count(), 2 * 24 + 7);
        assert!(
            svg.contains("+50 % (+50 to +50 %)") && svg.contains("pinned vs shared, right threads")
        );
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn the_scales_have_round_marks() {
        assert_eq!(marks(0.055), [0.98, 0.95, 1.0, 1.02, 1.05]);
        assert_eq!(marks(1.0), [0.7, 0.5, 1.0, 1.5, 2.0]);
        assert_eq!(marks(9.0).len(), 5);
        assert_eq!(marks(0.0), [1.0]);
    }

    #[test]
    fn the_subtitle_names_the_simulated_host_and_what_disturbed_the_bench() {
        let draw_with = |reliable| {
            let mut plan = plan(6);
            plan.host_threads = Some(80);
            let found = MachineFacts {
                interference: Some(MeasuredInterference {
                    share: 0.2,
                    seconds: 2.0,
                    uncertainty: 0.1,
                    total: 10.0,
                    reliable,
                }),
                ..MachineFacts::default()
            };
            draw(&BenchReport::new(plan, some_runs(6, figures), found).unwrap())
        };
        let svg = draw_with(false);
        assert!(svg.contains("threads as on a host with 80 CPUs"), "{svg}");
        assert!(svg.contains("95 % confidence interval"), "{svg}");
        let share = format!("used {} of the exclusive CPUs", units::percent(0.2));
        assert!(svg.contains(&share) && svg.contains("unreliable"), "{svg}");
        assert!(!draw_with(true).contains("unreliable"));
    }

    #[test]
    fn nothing_and_odd_names_are_drawn_too() {
        let mut plan = plan(1);
        plan.work = BenchProgram::Command {
            line: "a <b> & \u{1}c".repeat(30),
            steps: None,
        };
        let svg = draw(&BenchReport::new(plan, Vec::new(), MachineFacts::default()).unwrap());
        assert!(svg.contains("a &lt;b&gt; &amp;  c") && svg.ends_with("</svg>\n"));
        assert!(
            !svg.contains('\u{1}') && !svg.contains("NaN") && !svg.contains("inf"),
            "{svg}"
        );
    }
}
