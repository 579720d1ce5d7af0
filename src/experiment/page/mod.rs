//! [`page()`]: an [`Outcome`] as one HTML file without anything beside it.
//!
//! The page has no script and loads nothing, and its content security policy forbids both, so that not even a mistake in escaping
//! would let a pod's name act. The numbers also stand in it as JSON.

mod answers;
mod html;
mod plot;
mod scale;
mod speeds;
mod usage;

use std::fmt::Write;

use super::results::Outcome;
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
        "</main>\n<footer>Made by Pinfold. – means that nobody measured it. The numbers of this page are also in it as JSON, in \
         the element with the id <code>outcome</code>.</footer>\n<script type=\"application/json\" id=\"outcome\">{}</script>\n\
         </body></html>\n",
        html::json(&json)
    );
    html
}

fn sections(outcome: &Outcome) -> Vec<Section> {
    let section = |id, title: &str, about, body| Section {
        id,
        title: title.to_owned(),
        about,
        body,
    };
    let measure = speeds::capital(&outcome.measure);
    let mut all = vec![
        section(
            "answers",
            "Answers",
            "",
            answers::answers(outcome) + &answers::legend(outcome),
        ),
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
        section(
            "traffic",
            "Traffic between parameter servers and the other tasks",
            "",
            usage::traffic(outcome),
        ),
        section(
            "cpus",
            "CPU use by role",
            "A bar is the mean of a role's tasks in the median run, the two lines beside it are the least and the greatest run, and the \
             pale bar behind it is what a task was given.",
            usage::roles(outcome),
        ),
        section(
            "evidence",
            "Pinned and sized",
            "What the agents saw of the tasks of all runs that count.",
            usage::evidence(&outcome.evidence),
        ),
        section("setup", "What ran on what", "", setup(outcome)),
    ];
    all.push(section("runs", "All runs", "", runs(outcome)));
    all
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
            let name = match condition.group.as_str() {
                "" => condition.name.clone(),
                group => format!("{group}, {}", condition.name),
            };
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
