//! [`ResultsFolder`]: where an experiment's files are.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use nix::fcntl::{Flock, FlockArg};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::settings::Settings;
use crate::experiment::results::{EXPERIMENT_FILE, Experiment, FORM, RUNS_FOLDER, RunRecord};
use crate::text::parse_errors;

const SETTINGS: &str = "settings.json";
const LOCK: &str = "lock";

/// The folder of an experiment. Only one process has it at a time.
#[derive(Debug)]
pub struct ResultsFolder {
    path: PathBuf,
    /// The kernel drops the lock with the process.
    _lock: Flock<File>,
}

// === impl ResultsFolder ===

impl ResultsFolder {
    /// Makes a folder for a new experiment.
    ///
    /// # Errors
    /// The folder can't be made, or has an experiment.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        ensure!(
            !path.join(EXPERIMENT_FILE).exists(),
            "{} has the results of an experiment: choose another folder with --out, or continue with --resume",
            path.display()
        );
        let runs = fs::read_dir(path.join(RUNS_FOLDER));
        ensure!(
            runs.is_err() || runs.is_ok_and(|mut runs| runs.next().is_none()),
            "{} has runs of an earlier experiment: choose another folder with --out",
            path.display()
        );
        fs::create_dir_all(path.join(RUNS_FOLDER))
            .with_context(|| format!("can't make the folder {}", path.display()))?;
        Self::locked(path)
    }

    /// Opens the folder of an experiment that has begun.
    ///
    /// # Errors
    /// The folder has none, or another process has the folder.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        ensure!(
            path.join(EXPERIMENT_FILE).exists(),
            "{} has no {EXPERIMENT_FILE}: name the folder that pinfold scene run has made",
            path.display()
        );
        Self::locked(path)
    }

    fn locked(path: &Path) -> anyhow::Result<Self> {
        let file = path.join(LOCK);
        let open = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&file);
        let open = open.with_context(|| format!("can't write {}", file.display()))?;
        match Flock::lock(open, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Self {
                path: path.to_owned(),
                _lock: lock,
            }),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => anyhow::bail!(
                "another process works on {}: wait for its end, or end it",
                path.display()
            ),
            Err((_, error)) => Err(error).with_context(|| format!("can't lock {}", file.display())),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the experiment and the settings.
    ///
    /// # Errors
    /// A file can't be read, or comes from a newer version.
    pub fn read(&self) -> anyhow::Result<(Experiment, Settings)> {
        let experiment: Experiment = self.json(EXPERIMENT_FILE)?;
        ensure!(
            experiment.form == FORM,
            "{}: another version of Pinfold ({}) wrote the file: use that version",
            self.path.join(EXPERIMENT_FILE).display(),
            experiment.version
        );
        Ok((experiment, self.json(SETTINGS)?))
    }

    /// Writes the experiment and the settings, the experiment last: it makes the folder one of an experiment.
    ///
    /// # Errors
    /// A file can't be written.
    pub fn write(&self, experiment: &Experiment, settings: &Settings) -> anyhow::Result<()> {
        self.put(SETTINGS, settings)?;
        self.put(EXPERIMENT_FILE, experiment)
    }

    /// The record of a run; `None` if the run has not ended.
    ///
    /// # Errors
    /// The file can't be read.
    pub fn record(&self, number: u32) -> anyhow::Result<Option<RunRecord>> {
        let name = run_file(number);
        if !self.path.join(&name).exists() {
            return Ok(None);
        }
        self.json(&name).map(Some)
    }

    /// Writes the record of a run.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn put_record(&self, record: &RunRecord) -> anyhow::Result<()> {
        self.put(&run_file(record.planned.number), record)
    }

    fn json<T: DeserializeOwned>(&self, name: &str) -> anyhow::Result<T> {
        let file = self.path.join(name);
        let text = fs::read_to_string(&file)
            .map_err(parse_errors::reading)
            .with_context(|| format!("can't read {}", file.display()))?;
        // By way of a tree, for which the program has the code in any case.
        serde_json::from_str::<Value>(&text)
            .and_then(serde_json::from_value)
            .map_err(|error| anyhow::anyhow!("{}: {}", file.display(), parse_errors::json(&error)))
    }

    /// Replaces a file as a whole, so that a crash leaves the old or the new one.
    fn put(&self, name: &str, value: &impl Serialize) -> anyhow::Result<()> {
        let file = self.path.join(name);
        let text = serde_json::to_string_pretty(value).context("can't write JSON")?;
        let beside = file.with_extension("json.new");
        let write = || -> io::Result<()> {
            fs::write(&beside, text + "\n")?;
            File::open(&beside)?.sync_all()?;
            fs::rename(&beside, &file)
        };
        write().with_context(|| format!("can't write {}", file.display()))
    }
}

fn run_file(number: u32) -> String {
    format!("{RUNS_FOLDER}/{number:04}.json")
}
