//! [`Results`]: the files of a results folder as values. The caller reads the files.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::model::{Experiment, FORM, PlannedRun, RunRecord};
use crate::text::parse_errors;

/// The file of a results folder that says what was planned.
pub const EXPERIMENT_FILE: &str = "experiment.json";

/// The folder in a results folder with a file for each run that has ended.
pub const RUNS_FOLDER: &str = "runs";

/// The most repeats of an experiment. A file that names more is damaged, and would take hours to analyze.
const MOST_REPEATS: usize = 10_000;

/// What is in a results folder.
#[derive(Debug, Clone, PartialEq)]
pub struct Results {
    pub experiment: Experiment,
    /// The runs that have ended, in the order of their numbers.
    pub runs: Vec<RunRecord>,
}

/// Why a file of a results folder can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The JSON ends too early.
    #[error(
        "{file} ends in the middle, so it was not written to its end: copy the folder again, or remove the file if it is that of \
         a run, which then counts as missing"
    )]
    HalfWritten { file: String },
    /// Another version of Pinfold wrote the file.
    #[error(
        "{file} has form {found}, and this version of Pinfold reads form {FORM}: use the version that wrote it"
    )]
    Form { file: String, found: u32 },
    /// The file is something else.
    #[error("{file}{line}: {message}", line = line.map_or_else(String::new, |line| format!(", line {line}")))]
    Mistake {
        file: String,
        /// The line, from 1, if known.
        line: Option<usize>,
        /// What stands there.
        message: String,
    },
}

/// What all files have in common.
#[derive(Deserialize)]
#[serde(expecting = "a file of an experiment's results")]
struct Head {
    form: Option<u32>,
}

// === impl Results ===

impl Results {
    /// Reads the text of [`EXPERIMENT_FILE`], and the names and texts of the files in [`RUNS_FOLDER`].
    ///
    /// # Errors
    /// A file that is damaged, half written, of another version, or of another experiment.
    pub fn read(
        experiment: &str,
        runs: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ReadError> {
        let experiment: Experiment = parse(EXPERIMENT_FILE, experiment)?;
        check(&experiment).map_err(|message| mistake(EXPERIMENT_FILE, message))?;
        let mut read: Vec<RunRecord> = Vec::new();
        for (name, text) in runs {
            let file = format!("{RUNS_FOLDER}/{name}");
            let run: RunRecord = parse(&file, &text)?;
            let number = run.planned.number;
            if !experiment.order.contains(&run.planned) {
                let message = format!(
                    "{EXPERIMENT_FILE} has no such run {number}: the file belongs to another experiment, so remove it"
                );
                return Err(mistake(&file, message));
            }
            if run
                .measured
                .steps_per_second
                .is_some_and(|value| value < 0.0)
            {
                return Err(mistake(&file, "stepsPerSecond is below 0".to_owned()));
            }
            match read.binary_search_by_key(&number, |run| run.planned.number) {
                Ok(_) => {
                    let message = format!(
                        "another file has run {number}, too: remove the one that doesn't count"
                    );
                    return Err(mistake(&file, message));
                }
                Err(at) => read.insert(at, run),
            }
        }
        Ok(Self {
            experiment,
            runs: read,
        })
    }

    /// The planned runs that no file tells of, without the warm-up.
    pub fn missing(&self) -> impl Iterator<Item = &PlannedRun> {
        self.experiment
            .order
            .iter()
            .filter(|planned| planned.block.is_some() && !self.has(planned.number))
    }

    fn has(&self, number: u32) -> bool {
        self.runs
            .binary_search_by_key(&number, |run| run.planned.number)
            .is_ok()
    }

    /// The runs that count.
    pub fn counting(&self) -> impl Iterator<Item = &RunRecord> {
        self.runs.iter().filter(|run| run.counts())
    }
}

/// What is wrong with an experiment whose form is right.
fn check(experiment: &Experiment) -> Result<(), String> {
    let Experiment { design, order, .. } = experiment;
    if !(1..=MOST_REPEATS).contains(&design.repeats()) {
        return Err(format!(
            "{} repeats are not between 1 and {MOST_REPEATS}",
            design.repeats()
        ));
    }
    let margin = design.margin();
    if !margin.is_finite() || margin <= 1.0 {
        return Err(format!("the margin {margin} is no ratio above 1"));
    }
    let mut all = design
        .conditions()
        .chain(order.iter().map(|run| run.condition));
    if let Some(condition) = all.find(|one| experiment.names(*one).is_none()) {
        return Err(format!(
            "the file has no scene {} with a case {} (numbered from 0)",
            condition.scene, condition.case
        ));
    }
    let mut numbers: Vec<u32> = order.iter().map(|run| run.number).collect();
    numbers.sort_unstable();
    match numbers.windows(2).find(|two| two.first() == two.last()) {
        Some(two) => Err(format!(
            "the order has run {} twice",
            two.first().unwrap_or(&0)
        )),
        None => Ok(()),
    }
}

/// A file's value.
fn parse<T: DeserializeOwned>(file: &str, text: &str) -> Result<T, ReadError> {
    let wrong = |error: serde_json::Error| {
        if error.is_eof() {
            return ReadError::HalfWritten {
                file: file.to_owned(),
            };
        }
        ReadError::Mistake {
            file: file.to_owned(),
            line: (error.line() > 0).then_some(error.line()),
            message: parse_errors::json(&error),
        }
    };
    let head: Head = serde_json::from_str(text).map_err(wrong)?;
    match head.form {
        Some(FORM) => serde_json::from_str(text).map_err(wrong),
        Some(found) => Err(ReadError::Form {
            file: file.to_owned(),
            found,
        }),
        None => Err(mistake(
            file,
            "the field form is missing: this is no file of an experiment's results".to_owned(),
        )),
    }
}

fn mistake(file: &str, message: String) -> ReadError {
    ReadError::Mistake {
        file: file.to_owned(),
        line: None,
        message,
    }
}
