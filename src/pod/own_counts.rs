//! [`OwnCounts`]: thread counts in a container's command line, as in `OMP_NUM_THREADS=4 python train.py` or `--nthread 8`.
//!
//! They are stronger than the container's environment, so Pinfold reports them and sets nothing that a library would prefer to
//! them.

use std::collections::BTreeMap;

use super::binding::shown;
use super::launcher::option_name;
use super::variables::THREAD_VARIABLES;

/// How many counts of a container are kept. A pod's author chooses the command line.
const MOST: usize = 4;

/// Options for a number of threads, without dashes and with `-` for `_`. XGBoost, LightGBM and scikit-learn have the first ones,
/// also as `nthread=8` without dashes, accelerate has the third last one, and TensorFlow's benchmarks the last two.
const OPTIONS: [&str; 10] = [
    "nthread",
    "nthreads",
    "num-thread",
    "num-threads",
    "n-threads",
    "n-jobs",
    "threads",
    "num-cpu-threads-per-process",
    "num-intra-threads",
    "num-inter-threads",
];

/// The thread counts that a container's command line sets itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct OwnCounts {
    /// Each count as the user wrote it, and its number; `None` if that can't be read, as in `OMP_NUM_THREADS=$N`.
    found: Vec<(String, Option<usize>)>,
    /// The variables among them; `None` for a value that can't be read, and for two different ones.
    variables: BTreeMap<&'static str, Option<usize>>,
}

// === impl OwnCounts ===

impl OwnCounts {
    /// Takes a variable that the command line sets, if it sizes a thread pool.
    pub(super) fn variable(&mut self, name: &str, value: &str) {
        let Some(known) = THREAD_VARIABLES.into_iter().find(|known| *known == name) else {
            return;
        };
        let count = count(value);
        let entry = self.variables.entry(known).or_insert(count);
        if *entry != count {
            *entry = None;
        }
        self.add(&format!("{name}={value}"), count);
    }

    /// Takes the options of a program that give a number of threads: `--nthread 8`, `--nthread=8` and `nthread=8`.
    pub(super) fn options(&mut self, words: &[String]) {
        let names_count = |word: &str| {
            let dashed = option_name(word);
            let name = dashed
                .unwrap_or_else(|| word.split('=').next().unwrap_or_default().replace('_', "-"));
            OPTIONS.contains(&name.as_str())
        };
        for (word, next) in words
            .iter()
            .zip(words.iter().skip(1).map(Some).chain([None]))
        {
            if !names_count(word) {
                continue;
            }
            match (word.split_once('='), next) {
                (Some((_, value)), _) => {
                    if let Some(count) = count(value) {
                        self.add(word, Some(count));
                    }
                }
                (None, Some(value)) if word.starts_with('-') => {
                    if let Some(count) = count(value) {
                        self.add(&format!("{word} {value}"), Some(count));
                    }
                }
                _ => {}
            }
        }
    }

    /// Takes the variables that mpirun hands to its ranks: `-x NAME=VALUE` of Open MPI, `-genv NAME VALUE` of MPICH and Intel MPI.
    pub(super) fn mpi_options(&mut self, words: &[String]) {
        for (at, word) in words.iter().enumerate() {
            let mut next = words.iter().skip(at + 1);
            if !["-x", "--x", "-genv", "-env"].contains(&word.as_str()) {
                continue;
            }
            let Some(first) = next.next() else { continue };
            match (first.split_once('='), next.next()) {
                (Some((name, value)), _) => self.variable(name, value),
                (None, Some(value)) if word.ends_with("env") => self.variable(first, value),
                _ => {}
            }
        }
    }

    fn add(&mut self, found: &str, count: Option<usize>) {
        let found = shown(found);
        if self.found.len() < MOST && !self.found.iter().any(|(known, _)| *known == found) {
            self.found.push((found, count));
        }
    }

    /// Whether the command line sets a variable.
    pub(super) fn sets(&self, name: &str) -> bool {
        self.variables.contains_key(name)
    }

    /// The number in a variable that the command line sets. The outer `None` is for one that it does not set.
    pub(super) fn value(&self, name: &str) -> Option<Option<usize>> {
        self.variables.get(name).copied()
    }

    /// The counts as texts, each with a remark if it is more than the CPUs of a process.
    pub(super) fn described(&self, cpus: usize) -> Vec<String> {
        let described = self.found.iter().map(|(found, count)| match count {
            Some(count) if *count > cpus => {
                format!("{found} (more than {})", crate::text::counted(cpus, "CPU"))
            }
            _ => found.clone(),
        });
        described.collect()
    }
}

/// A positive number of threads. Zero and -1 stand for a default of the program.
fn count(value: &str) -> Option<usize> {
    value.trim().parse().ok().filter(|&count| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::{Container, Pod, RecognizedPod};

    fn counts(args: &[&str]) -> Vec<String> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let container = Container {
            args: args.into(),
            ..Container::default()
        };
        let pod = RecognizedPod::from(Pod {
            containers: vec![container],
            ..Pod::default()
        });
        let counts = pod
            .program(0)
            .map(|program| program.own_counts.described(4));
        counts.unwrap_or_default()
    }

    #[test]
    fn counts_of_the_command_line_are_found() {
        for (args, found) in [
            (
                &["sh", "-c", "OMP_NUM_THREADS=4 python t.py"][..],
                "OMP_NUM_THREADS=4",
            ),
            (
                &["sh", "-c", "export OMP_NUM_THREADS=8 && exec python t.py"],
                "OMP_NUM_THREADS=8 (more than 4 CPUs)",
            ),
            (
                &["env", "MKL_NUM_THREADS=2", "python", "t.py"],
                "MKL_NUM_THREADS=2",
            ),
            (
                &["sh", "-c", "OMP_NUM_THREADS=$N python t.py"],
                "OMP_NUM_THREADS=$N",
            ),
            (
                &["python", "t.py", "--nthread", "8"],
                "--nthread 8 (more than 4 CPUs)",
            ),
            (&["python", "t.py", "--nthread=2"], "--nthread=2"),
            (
                &["python3", "-m", "bench.train", "--num_threads", "4"],
                "--num_threads 4",
            ),
            (
                &["xgboost", "train.conf", "nthread=8"],
                "nthread=8 (more than 4 CPUs)",
            ),
            (
                &["lightgbm", "config=t.conf", "num_threads=3"],
                "num_threads=3",
            ),
            (
                &["torchrun", "--nproc-per-node", "2", "t.py", "--n_jobs", "2"],
                "--n_jobs 2",
            ),
            (
                &[
                    "accelerate",
                    "launch",
                    "--num_cpu_threads_per_process=4",
                    "--num_processes=2",
                    "t.py",
                ],
                "--num_cpu_threads_per_process=4",
            ),
        ] {
            assert_eq!(counts(args), [found], "{args:?}");
        }
    }

    #[test]
    fn counts_that_mpirun_hands_to_its_ranks_are_found() {
        for (args, found) in [
            (
                &["mpirun", "-x", "OMP_NUM_THREADS=2", "python", "t.py"][..],
                "OMP_NUM_THREADS=2",
            ),
            (
                &["mpiexec", "-genv", "OMP_NUM_THREADS", "2", "-n", "2", "./t"],
                "OMP_NUM_THREADS=2",
            ),
            (
                &["mpirun", "-np", "2", "python", "t.py", "--nthread", "1"],
                "--nthread 1",
            ),
        ] {
            assert_eq!(counts(args), [found], "{args:?}");
        }
    }

    #[test]
    fn words_that_only_look_like_counts_are_none() {
        for args in [
            &["python", "t.py"][..],
            &["python", "t.py", "--nthread", "-1"],
            &["python", "t.py", "nthread"],
            &["python", "t.py", "--nthread"],
            &["sh", "-c", "echo OMP_NUM_THREADS=4"],
            &["sh", "-c", "# OMP_NUM_THREADS=4\npython t.py"],
            &["mpirun", "-x"],
            &["mpirun", "-x", "PATH", "-np", "2", "./t"],
        ] {
            assert_eq!(counts(args), [""; 0], "{args:?}");
        }
    }

    /// A pod's author chooses the command line.
    #[test]
    fn many_and_long_counts_are_limited() {
        let script = format!("export OMP_NUM_THREADS={};", "9".repeat(5000)).repeat(3);
        let many: String = (1..50)
            .map(|count| format!("OMP_NUM_THREADS={count} ./t;"))
            .collect();
        let found = counts(&["sh", "-c", &(script + &many)]);
        assert_eq!(found.len(), MOST);
        assert!(found.iter().all(|found| found.len() < 100), "{found:?}");
    }
}
