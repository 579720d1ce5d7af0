//! The answers, the findings, and what makes them doubtful.

use std::fmt::Write;

use super::html::{Cell, table, text};
use super::plot::{PlotRow, dot, interval, plot};
use super::scale::Scale;
use crate::experiment::results::{Answer, Finding, Outcome, change_of_margin, percent};
use crate::experiment::statistics::{Estimate, FEWEST_BLOCKS, Verdict};
use crate::text::{counted, units};

/// A table with more rows is folded.
const MANY_ROWS: usize = 12;

/// More comparisons without verdicts are folded.
const FEW_COMPARISONS: usize = 8;

/// The verdicts, first as sentences, then drawn on a common axis.
pub(super) fn answers(outcome: &Outcome) -> String {
    let mut html = String::new();
    if outcome.answers.is_empty() {
        html.push_str("<p>There is no verdict: it needs several runs of what is compared.</p>\n");
        for other in &outcome.others {
            let _ = writeln!(html, "<p>{}</p>", text(&other.sentence));
        }
    }
    for answer in &outcome.answers {
        let (badge, class) = badge(answer, outcome);
        let void = if outcome.caution.is_some() {
            " void"
        } else {
            ""
        };
        let _ = writeln!(
            html,
            "<article class=\"answer{void}\"><h3><span class=\"badge {class}\">{badge}</span>{}</h3><p class=\"say\">{}</p>\
             <p class=\"soft\">{}</p></article>",
            text(&answer.title),
            text(&answer.sentence),
            text(&answer.certainty)
        );
    }
    html + &forest(&outcome.answers, outcome)
}

/// What to do next.
pub(super) fn next(outcome: &Outcome) -> String {
    if outcome.next.is_empty() {
        return String::new();
    }
    let steps = outcome.next.iter();
    let steps: String = steps
        .map(|step| format!("<li>{}</li>\n", text(step)))
        .collect();
    format!("<ol>\n{steps}</ol>\n")
}

/// The comparisons without verdicts.
pub(super) fn others(outcome: &Outcome) -> String {
    let all = forest(&outcome.others, outcome);
    if outcome.others.len() <= FEW_COMPARISONS {
        return all;
    }
    let comparisons = counted(outcome.others.len(), "comparison");
    format!("<details><summary>Show {comparisons}</summary>\n{all}</details>\n")
}

/// The verdict in a word, with its class. Times that mean nothing have none.
fn badge(answer: &Answer, outcome: &Outcome) -> (&'static str, &'static str) {
    if outcome.caution.is_some() {
        return ("Not a result", "unsure");
    }
    match answer.verdict {
        Some(Verdict::More) => ("Faster", "more"),
        Some(Verdict::Less) => ("Slower", "less"),
        Some(Verdict::NoEffect) => ("No effect", "same"),
        Some(Verdict::NotDistinguishable) => ("Can't tell", "unsure"),
        Some(Verdict::TooFew) => ("Too few repeats", "unsure"),
        None => ("No verdict", "unsure"),
    }
}

/// Ratios as changes, each with its interval, and a dot for each repeat.
fn forest(answers: &[Answer], outcome: &Outcome) -> String {
    if answers.iter().all(|answer| answer.estimate.is_none()) {
        return String::new();
    }
    let margin = outcome.margin;
    let ends = answers.iter().filter_map(|answer| answer.estimate);
    let ends = ends.flat_map(|one| [one.low, one.high]);
    let dots = answers
        .iter()
        .flat_map(|answer| answer.ratios.iter().copied());
    let scale = Scale::of_ratios(ends.chain(dots).chain([1.0 / margin, margin]));
    let rows: Vec<PlotRow> = answers.iter().map(|answer| row(answer, &scale)).collect();
    let unit = format!("change of {}", outcome.measure);
    plot(
        &rows,
        &scale,
        &unit,
        units::change,
        // Nobody fixed a margin for comparisons of single runs.
        (!outcome.answers.is_empty()).then_some((1.0 / margin, margin)),
    )
}

fn row(answer: &Answer, scale: &Scale) -> PlotRow {
    let part = match answer.part.as_str() {
        "" => String::new(),
        part => format!("<small>{}</small>", text(part)),
    };
    let name = format!("{}{part}", text(&answer.title));
    let Some(estimate) = &answer.estimate else {
        return PlotRow {
            name,
            value: "no ratio".to_owned(),
            label: "no ratio".to_owned(),
            ..PlotRow::default()
        };
    };
    let colour = "w3";
    let mut drawing = interval(estimate, scale, colour);
    for (at, ratio) in answer.ratios.iter().enumerate() {
        let title = format!("a repeat: {}", units::change(*ratio));
        drawing.push_str(&dot(*ratio, at, scale, colour, &title));
    }
    let (center, span) = (
        units::change(estimate.center()),
        units::change_span(estimate.low, estimate.high),
    );
    let value = match estimate.values {
        1 => center.clone(),
        _ => format!("{center}<small>{span}</small>"),
    };
    PlotRow {
        name,
        value,
        drawing,
        label: format!("{center}, {span}"),
    }
}

/// What stands out.
pub(super) fn findings(findings: &[Finding]) -> String {
    let mut html = String::new();
    for finding in findings {
        let _ = write!(
            html,
            "<article class=\"finding\"><h3>{}</h3>",
            text(&finding.sentence)
        );
        let seen = finding.frequency();
        if !seen.is_empty() {
            let _ = write!(html, "<p>{}</p>", text(&seen));
        }
        if !finding.remedy.is_empty() {
            let _ = write!(
                html,
                "<p class=\"todo\"><strong>What to do:</strong> {}.</p>",
                text(&finding.remedy)
            );
        }
        let mut facts = String::new();
        let mut fact = |name: &str, value: &str| {
            if !value.is_empty() {
                let _ = write!(facts, "<dt>{}</dt><dd>{}</dd>", text(name), text(value));
            }
        };
        for figure in &finding.figures {
            fact(&figure.name, &figure.words);
        }
        let nodes: Vec<&str> = finding.nodes.iter().map(String::as_str).collect();
        fact("nodes", &nodes.join(", "));
        let seen = finding.seen.iter().filter(|one| !one.group.is_empty());
        let seen = seen.filter(|one| !one.way.is_empty());
        let seen: Vec<String> = seen
            .map(|one| format!("{}, {}: {} of {}", one.group, one.way, one.seen, one.runs))
            .collect();
        fact("runs", &seen.join("; "));
        fact("named when", &finding.rule);
        if !facts.is_empty() {
            let _ = write!(
                html,
                "<details><summary>The numbers behind it</summary><dl class=\"facts\">{facts}</dl></details>"
            );
        }
        html.push_str("</article>\n");
    }
    html
}

/// The runs that don't count, and the warnings.
pub(super) fn doubts(outcome: &Outcome) -> String {
    let mut html = String::new();
    if !outcome.lost.is_empty() {
        html.push_str("<h3>Runs that don't count</h3>\n");
        let rows: Vec<Vec<Cell>> = outcome
            .lost
            .iter()
            .map(|run| {
                vec![
                    Cell::number(run.number.to_string()),
                    Cell::number(run.repeat.to_string()),
                    Cell::words(&run.condition),
                    Cell::words(&run.reason),
                ]
            })
            .collect();
        let table = table(
            "Runs that don't count",
            "",
            &["run", "repeat", "condition", "reason"],
            &rows,
        );
        if rows.len() > MANY_ROWS {
            let runs = counted(rows.len(), "run");
            let _ = writeln!(
                html,
                "<details><summary>Show {runs}</summary>{table}</details>"
            );
        } else {
            html += &table;
        }
    }
    if !outcome.warnings.is_empty() {
        html.push_str("<ul>\n");
        for warning in &outcome.warnings {
            let _ = writeln!(html, "<li>{}</li>", text(warning));
        }
        html.push_str("</ul>\n");
    }
    html
}

/// What dots, bars and the band are.
pub(super) fn legend(outcome: &Outcome) -> String {
    let confidence = percent(outcome.confidence);
    let margin = change_of_margin(outcome.margin);
    let key = |drawing: &str, words: &str| {
        format!("<li><svg height=\"20\" aria-hidden=\"true\">{drawing}</svg>{words}</li>\n")
    };
    let dot = "<circle class=\"dot w3\" cx=\"17\" cy=\"10\" r=\"4\"/>";
    let bar = "<line class=\"iv w3\" x1=\"2\" x2=\"32\" y1=\"10\" y2=\"10\"/><line class=\"mean w3\" x1=\"17\" x2=\"17\" y1=\"2\" y2=\"18\"/>";
    let range = "<line class=\"range w3\" x1=\"2\" x2=\"32\" y1=\"10\" y2=\"10\"/>";
    let band = "<rect class=\"band\" x=\"2\" y=\"1\" width=\"30\" height=\"18\"/><line class=\"zero\" x1=\"17\" x2=\"17\" y1=\"1\" y2=\"19\"/>";
    let compared = outcome.answers.iter().chain(&outcome.others);
    let estimates = outcome.conditions.iter().map(|one| one.estimate);
    let estimates = compared.map(|one| one.estimate).chain(estimates);
    let estimates: Vec<Estimate> = estimates.flatten().collect();
    let has_interval = estimates.iter().any(|one| one.confidence.is_some());
    let has_range = estimates
        .iter()
        .any(|one| one.confidence.is_none() && one.values > 1);
    let when = |shown: bool, key: String| if shown { key } else { String::new() };
    [
        "<ul class=\"key\" id=\"legend\">\n".to_owned(),
        key(dot, "a run; in comparisons, a repeat"),
        when(has_interval, key(
            bar,
            &format!(
                "typical value with its {confidence} interval, in which the true value lies in {confidence} of such experiments"
            ),
        )),
        when(has_range, key(
            range,
            &format!("fewer than {FEWEST_BLOCKS} repeats: only the range of the runs"),
        )),
        when(!outcome.answers.is_empty(), key(
            band,
            &format!(
                "no change, and around it the band ({margin}) that was fixed beforehand as too small to matter: what its left side takes \
                 away, its right side gives back"
            ),
        )),
        "</ul>\n".to_owned(),
    ]
    .concat()
}
