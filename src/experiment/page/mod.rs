//! [`page()`]: an [`Outcome`] as one HTML file without anything beside it.
//!
//! The page has no script and loads nothing, and its content security policy forbids both, so that not even a mistake in escaping
//! would let a pod's name act. The numbers also stand in it as JSON.

mod answers;
mod html;
mod plot;
mod scale;
mod speeds;
mod tasks;
mod usage;

#[cfg(feature = "bench")]
pub(crate) use scale::round_step;

use std::fmt::Write;

use super::results::Outcome;
use crate::text::sentence::capital;
use html::{Cell, table, text};

/// The size of the screen, and what the page may not do: anything but styles of its own.
const HEAD: &str = include_str!("head.html");

/// Colours, widths, and what changes in the dark, on a phone and on paper.
const STYLE: &str = include_str!("style.css");

/// A part of the page: its anchor, its heading, what the heading needs to be understood, and the HTML below.
struct Section {
    id: &'static str,
    title: String,
    about: &'static str,
    body: String,
}

/// An outcome as a page.
pub fn page(outcome: &Outcome) -> String {
    let title = text(&outcome.title);
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n\
         {HEAD}<style>\n{STYLE}</style></head>\n<body><a class=\"skip\" href=\"#answers\">To the answers</a>\n<header><h1>{title}</h1>\n"
    );
    if let Some(caution) = &outcome.caution {
        let _ = writeln!(
            html,
            "<p class=\"caution\" role=\"note\">{}</p>",
            text(caution)
        );
    }
    if !outcome.summary.is_empty() {
        let _ = writeln!(html, "<p class=\"soft\">{}</p>", text(&outcome.summary));
    }
    html.push_str("</header>\n");
    let mut sections = sections(outcome);
    sections.retain(|section| !section.body.is_empty());
    // Text, numbers and lists always have a JSON; a value that hasn't is shown as missing.
    let json = serde_json::to_value(outcome).unwrap_or_default();
    html.push_str("<nav aria-label=\"Parts of this page\">");
    for Section { id, title, .. } in &sections {
        let _ = write!(html, "<a href=\"#{id}\">{}</a> ", text(title));
    }
    html.push_str("</nav>\n<main>\n");
    for Section {
        id,
        title,
        about,
        body,
    } in &sections
    {
        let _ = writeln!(html, "<section id=\"{id}\"><h2>{}</h2>", text(title));
        if !about.is_empty() {
            let _ = writeln!(html, "<p class=\"soft\">{about}</p>");
        }
        let _ = writeln!(html, "{body}</section>");
    }
    let _ = write!(
        html,
        "</main>\n<footer>Made by Pinfold. – means that nobody measured it. Programs find all numbers of this page in its element \
         <code>outcome</code>, as JSON.</footer>\n<script type=\"application/json\" id=\"outcome\">{}</script>\n\
         </body></html>\n",
        html::json(&json)
    );
    html
}

fn section(id: &'static str, title: &str, about: &'static str, body: String) -> Section {
    Section {
        id,
        title: title.to_owned(),
        about,
        body,
    }
}

fn sections(outcome: &Outcome) -> Vec<Section> {
    let mut all = compared(outcome);
    all.extend(measured(outcome));
    all
}

/// What the experiment found, and the values that say so.
fn compared(outcome: &Outcome) -> Vec<Section> {
    let measure = capital(&outcome.measure);
    vec![
        section(
            "answers",
            "Answers",
            "",
            answers::answers(outcome) + &answers::legend(outcome),
        ),
        section("next", "What to do next", "", answers::next(outcome)),
        section(
            "findings",
            "What stands out",
            "",
            answers::findings(&outcome.findings),
        ),
        section("warnings", "Warnings", "", answers::doubts(outcome)),
        section(
            "speed",
            &measure,
            "<a href=\"#legend\">What dots and bars mean</a>",
            speeds::conditions(outcome),
        ),
        section(
            "figures",
            "Further figures",
            "The median of the runs, with the least and the greatest. They have no verdict.",
            usage::figures_of(&outcome.figures),
        ),
        section("scaling", "Scaling", "", speeds::scaling(outcome)),
        section(
            "others",
            "Further comparisons",
            "They have no verdict: among many comparisons, some differ by chance.",
            answers::others(outcome),
        ),
    ]
}

/// What the tasks did meanwhile, and what the experiment was.
fn measured(outcome: &Outcome) -> Vec<Section> {
    vec![
        section(
            "traffic",
            "Traffic between parameter servers and the other tasks",
            "",
            usage::traffic(outcome),
        ),
        section(
            "servers",
            "Load of the parameter servers",
            "A parameter server (ps) holds a part of the model, which the workers read and write in each step. A bar is its share of \
             the bytes of all servers, and the line an equal share. All numbers are medians over the runs of the scene and case.",
            tasks::servers(outcome),
        ),
        section(
            "cpus",
            "CPU use by role",
            "A bar is how many CPUs a task of the role kept busy, as the mean of its tasks: that of the run in the middle, with lines \
             at the runs with the least and the most. The pale bar behind it is what a task was given. A CPU limit is a quota in each \
             of the kernel's periods, which have 100 ms as a rule.",
            usage::roles(outcome),
        ),
        section(
            "tasks",
            "Each task",
            "The medians over all runs of the scene and case, in all ways.",
            tasks::tasks(&outcome.tasks),
        ),
        section(
            "evidence",
            "Pinned and sized",
            "What the agents on the nodes saw. A task counts once in every run of the condition. A program with helper threads has more \
             threads than its pools.",
            usage::evidence(&outcome.evidence),
        ),
        section("setup", "What ran on what", "", setup(outcome)),
        section("runs", "All runs", "", runs(outcome)),
    ]
}

/// The facts of the experiment.
fn setup(outcome: &Outcome) -> String {
    if outcome.subject.is_empty() {
        return String::new();
    }
    let mut html = "<dl class=\"facts\">\n".to_owned();
    for fact in &outcome.subject {
        let _ = writeln!(
            html,
            "<dt>{}</dt><dd>{}</dd>",
            text(&fact.name),
            text(&fact.value)
        );
    }
    html + "</dl>\n"
}

/// Every run with its value, for those who want to compute themselves.
fn runs(outcome: &Outcome) -> String {
    let rows: Vec<Vec<Cell>> = outcome
        .conditions
        .iter()
        .flat_map(|condition| {
            let name = condition.condition.words();
            condition.runs.iter().map(move |run| {
                vec![
                    Cell::words(&name),
                    Cell::number(run.number.to_string()),
                    Cell::number(run.repeat.to_string()),
                    Cell::number(crate::text::units::figures(run.value)),
                ]
            })
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let table = table(
        "All runs",
        "",
        &["condition", "run", "repeat", &outcome.measure],
        &rows,
    );
    format!("<details><summary>Show every run</summary>\n{table}</details>\n")
}
