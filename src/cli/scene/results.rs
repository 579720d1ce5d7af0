//! Reads the folder of an experiment's results for `pinfold scene report`.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail, ensure};

use crate::experiment::results::{EXPERIMENT_FILE, Outcome, RUNS_FOLDER, Results, analyze};

/// The largest file of a results folder, in bytes. A run of 1,000 tasks has about 30 MB, if all of them talk to each other.
const LARGEST: u64 = 256 << 20;

/// What the experiment in a folder found, and how many of its runs count.
pub(super) fn read(folder: &Path) -> anyhow::Result<(Outcome, usize)> {
    let shown = folder.display();
    let experiment = folder.join(EXPERIMENT_FILE);
    if !folder.is_dir() {
        bail!("{shown} is not a folder: name the one that pinfold scene run made");
    }
    ensure!(
        experiment.exists(),
        "{shown} has no {EXPERIMENT_FILE}, so it holds no experiment: name the folder that pinfold scene run made"
    );
    let experiment = text(&experiment)?;
    let mut names = Vec::new();
    let path = folder.join(RUNS_FOLDER);
    if path.exists() {
        let cannot = || format!("can't read the folder {}", path.display());
        for entry in fs::read_dir(&path).with_context(cannot)? {
            let entry = entry.with_context(cannot)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // A file that is being written has another end.
            if name.ends_with(".json") && !name.starts_with('.') {
                names.push(name);
            }
        }
    }
    names.sort();
    let runs = names.into_iter().map(|name| {
        let text = text(&path.join(&name))?;
        Ok((name, text))
    });
    let runs = runs.collect::<anyhow::Result<Vec<(String, String)>>>()?;
    let results = Results::read(&experiment, runs).with_context(|| format!("{shown}"))?;
    let outcome = analyze(&results).with_context(|| format!("{shown}"))?;
    Ok((outcome, results.counting().count()))
}

fn text(path: &Path) -> anyhow::Result<String> {
    let cannot = || format!("can't read {}", path.display());
    let bytes = fs::metadata(path).with_context(cannot)?.len();
    ensure!(
        bytes <= LARGEST,
        "{} has {bytes} bytes, more than the {LARGEST} of any run: it is no file of an experiment",
        path.display()
    );
    fs::read_to_string(path)
        .map_err(crate::text::parse_errors::reading)
        .with_context(cannot)
}
