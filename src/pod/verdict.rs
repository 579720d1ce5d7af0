//! [`verdict`]: whether a container has the threads that the environment explains, in words.
//!
//! A program has more threads than the pools that variables size. Each process has a main thread,
//! an interpreter has helpers, and a task of a TensorFlow cluster runs a server with threads of its
//! own. So there is an allowance above the expected number, which depends on the software. Most
//! surpluses beyond it have a known cause.

use std::collections::BTreeMap;

use serde::Serialize;

use super::threads::MIN_TENSORFLOW_INTER;
use super::variables::{GRPC_QUEUES, INTER};
use super::{Software, ThreadEnvironment};
use crate::cpu::CpuSet;

/// The allowance for threads of a TensorFlow server besides the pools, the queues and the main
/// thread. On two CPUs, workers and parameter servers of TensorFlow 2.21 have 30 such threads, and
/// a chief has 34. On larger machines, gRPC's event engine adds up to 12.
const SERVER_THREADS: usize = 48;

/// Queues of a TensorFlow server without a configured number. Each has a thread.
const SERVER_QUEUES: usize = 64;

/// Helper threads of a process, by software.
const TENSORFLOW_HELPERS: usize = 16;
const PYTORCH_HELPERS: usize = 8;
const HELPERS: usize = 4;

/// The ratio of runnable threads to CPUs above which a container is oversubscribed.
const OVERSUBSCRIBED: f64 = 1.25;

/// Measurements of a container's threads.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ThreadFacts<'a> {
    /// The current number of threads.
    pub threads: usize,
    /// The largest measured number of threads.
    pub most: usize,
    pub processes: usize,
    /// How many threads ran or waited for a CPU, on average since the last measurement.
    pub runnable: Option<f64>,
    /// CPUs that the container may run on.
    pub cpus: usize,
    /// CPUs of the machine.
    pub online: usize,
    /// The thread variables in the program's environment, if readable.
    pub environment: Option<&'a BTreeMap<String, String>>,
}

/// The finding about a container's threads, in a few words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadFinding {
    /// The environment explains the threads. Without the computed variables: the container has no more than it would have with
    /// them.
    AsExpected,
    /// The container has more threads than the environment explains.
    #[serde(rename = "more_than_expected")]
    More,
    /// The container has fewer threads than expected, and never had as many.
    #[serde(rename = "fewer_than_expected")]
    Fewer,
    /// More threads want to run than the container has CPUs.
    Oversubscribed,
}

// === impl ThreadFinding ===

impl ThreadFinding {
    /// The finding in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::AsExpected => "as expected",
            Self::More => "more than expected",
            Self::Fewer => "fewer than expected",
            Self::Oversubscribed => "oversubscribed",
        }
    }

    /// The finding's identifier in labels.
    pub fn label(self) -> &'static str {
        match self {
            Self::AsExpected => "as_expected",
            Self::More => "more_than_expected",
            Self::Fewer => "fewer_than_expected",
            Self::Oversubscribed => "oversubscribed",
        }
    }
}

/// A finding, a cause from a fixed list, and both in a sentence with numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ThreadVerdict {
    pub finding: ThreadFinding,
    pub cause: &'static str,
    pub sentence: String,
}

/// The threads of a running container.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ThreadStatus {
    pub threads: usize,
    /// The largest number of threads in any scrape.
    pub most: usize,
    /// Threads that ran or waited for a CPU: the average between the last two scrapes.
    pub runnable: Option<f64>,
    /// The union of the threads' affinity masks; `None` before the first sample.
    pub allowed_by_tasks: Option<CpuSet>,
    /// Threads whose mask lacks some of the container's CPUs.
    pub bound: Option<usize>,
    /// Migrations of the sampled threads between CPUs.
    pub migrations: Option<u64>,
    /// The thread variables in the initial environment of the largest process; `None` if it is
    /// unreadable.
    pub variables: Option<BTreeMap<String, String>>,
    /// Whether the environment explains the threads. `None` if no number is expected and few threads are runnable.
    pub verdict: Option<ThreadVerdict>,
}

// === impl ThreadVerdict ===

impl ThreadVerdict {
    /// The cause's identifier in labels.
    pub fn cause_label(&self) -> &'static str {
        match self.cause {
            ENOUGH => "environment",
            NOT_STARTED => "pools_not_started",
            NOT_SET => "variables_not_set",
            OLD_TENSORFLOW => "tensorflow_before_1_14",
            TENSORFLOW => "config_proto_or_tensorflow_before_1_14",
            OVERRIDDEN => "config_proto",
            INTER_OP => "pytorch_inter_op",
            PYTORCH => "set_num_threads_or_data_loaders",
            PROGRAM => "program_setting",
            USER => "pod_variables",
            BUSY => "runnable_threads",
            _ => "other",
        }
    }
}

const ENOUGH: &str = "the environment explains them";
const NOT_STARTED: &str = "its pools have not started yet, or the program has none of this kind";
const NOT_SET: &str = "the computed variables are not in the program's environment";
const OLD_TENSORFLOW: &str = "TensorFlow before 1.14 ignores the variables";
const TENSORFLOW: &str =
    "a ConfigProto overrides the variables, or it is a TensorFlow before 1.14, which ignores them";
const OVERRIDDEN: &str = "a ConfigProto overrides the variables";
const INTER_OP: &str = "PyTorch's inter-op pool can't be set by the environment";
const PYTORCH: &str =
    "torch.set_num_threads() overrides the variables, or data loaders run in this container";
const PROGRAM: &str = "the program sets its own number of threads, or ignores the variables";
const USER: &str = "the pod's own variables ask for more threads than it has CPUs";
const BUSY: &str = "more of its threads want to run than it has CPUs";

pub const CAUSES: [&str; 11] = [
    ENOUGH,
    NOT_STARTED,
    NOT_SET,
    OLD_TENSORFLOW,
    TENSORFLOW,
    OVERRIDDEN,
    INTER_OP,
    PYTORCH,
    PROGRAM,
    USER,
    BUSY,
];

/// The verdict on a container's threads. `None` without an expected number and without oversubscription.
pub fn verdict(environment: &ThreadEnvironment, facts: &ThreadFacts<'_>) -> Option<ThreadVerdict> {
    // The smaller of the affinity mask and the quota limits the container.
    let cpus = facts.cpus.min(environment.cpus.unwrap_or(usize::MAX));
    let running = facts.runnable.filter(|runnable| {
        cpus > 0 && *runnable > OVERSUBSCRIBED * cpus as f64 && *runnable > cpus as f64 + 0.5
    });
    let counted = environment
        .expected_threads
        .map(|expected| compare(environment, facts, expected));
    let (finding, cause) = match (running, counted) {
        (None, None) => return None,
        (None, Some(found)) => found,
        (Some(_), Some((ThreadFinding::More, cause))) => (ThreadFinding::Oversubscribed, cause),
        (Some(_), _) => {
            let user = environment
                .kept
                .iter()
                .any(|name| asks_for_more(name, facts, cpus));
            (
                ThreadFinding::Oversubscribed,
                if user { USER } else { BUSY },
            )
        }
    };
    let threads = crate::text::counted(facts.threads, "thread");
    let count = if facts.most > facts.threads {
        format!("{threads} (at most {} so far)", facts.most)
    } else {
        threads
    };
    let expected = match environment.expected_threads {
        // Without the variables, the program chose its numbers itself.
        Some(expected)
            if facts
                .environment
                .is_some_and(|there| !is_in_place(environment, there)) =>
        {
            format!("{count}; with the computed variables, its pools would have {expected}")
        }
        Some(expected) => format!("{count}, {expected} in the pools that its environment sizes"),
        None => count,
    };
    let on = crate::text::counted(cpus, "CPU");
    let runnable = running.map(|runnable| format!("; {runnable:.1} of them want to run, on {on}"));
    let sentence = format!(
        "{}: {expected}{}; {cause}",
        finding.name(),
        runnable.unwrap_or_default()
    );
    Some(ThreadVerdict {
        finding,
        cause,
        sentence,
    })
}

/// Whether the first number in the variable's value is larger than the number of CPUs.
fn asks_for_more(name: &str, facts: &ThreadFacts<'_>, cpus: usize) -> bool {
    let most = if name == INTER {
        cpus.max(MIN_TENSORFLOW_INTER)
    } else {
        cpus
    };
    size_in_environment(name, facts).is_some_and(|number| number > most)
}

/// The first number in the value of a variable in the program's environment.
fn size_in_environment(name: &str, facts: &ThreadFacts<'_>) -> Option<usize> {
    leading_number(facts.environment?.get(name)?)
}

fn leading_number(value: &str) -> Option<usize> {
    value.split(',').next()?.trim().parse().ok()
}

fn compare(
    environment: &ThreadEnvironment,
    facts: &ThreadFacts<'_>,
    expected: usize,
) -> (ThreadFinding, &'static str) {
    let processes = facts.processes.max(1);
    let helpers = match environment.software {
        Software::Tensorflow { server: true, .. } => {
            let sized = environment.variables.contains_key(GRPC_QUEUES)
                || environment.kept.iter().any(|name| name == GRPC_QUEUES);
            // The queues' thread pool has a thread for each CPU that the server sees.
            let queues = if sized { 0 } else { SERVER_QUEUES + facts.cpus };
            // The server has an inter-op pool besides the program's own, of the same size.
            let computed = environment
                .variables
                .get(INTER)
                .and_then(|size| leading_number(size));
            let second_pool = computed.or_else(|| size_in_environment(INTER, facts));
            (SERVER_THREADS + queues).saturating_add(second_pool.unwrap_or(0))
        }
        Software::Tensorflow { .. } => TENSORFLOW_HELPERS,
        Software::Pytorch => PYTORCH_HELPERS,
        Software::Unknown => HELPERS,
    };
    let most = expected.saturating_add(helpers.saturating_add(1).saturating_mul(processes));
    let in_place = facts
        .environment
        .map(|there| is_in_place(environment, there));
    if facts.threads <= most {
        if in_place == Some(false) {
            // The expected number is of pools that the program does not have.
            return (ThreadFinding::AsExpected, NOT_SET);
        }
        // Threads that existed and have ended count, because then the expected number was right.
        let few = facts.most.max(facts.threads) < expected;
        return if few {
            (ThreadFinding::Fewer, NOT_STARTED)
        } else {
            (ThreadFinding::AsExpected, ENOUGH)
        };
    }
    let inter_op = most.saturating_add(facts.online.saturating_mul(processes));
    let cause = match environment.software {
        _ if in_place == Some(false) => NOT_SET,
        Software::Tensorflow {
            before_variables: Some(true),
            ..
        } => OLD_TENSORFLOW,
        Software::Tensorflow {
            before_variables: Some(false),
            ..
        } => OVERRIDDEN,
        Software::Tensorflow {
            before_variables: None,
            ..
        } => TENSORFLOW,
        Software::Pytorch if facts.threads <= inter_op => INTER_OP,
        Software::Pytorch => PYTORCH,
        Software::Unknown => PROGRAM,
    };
    (ThreadFinding::More, cause)
}

/// Whether the program was started with the computed variables.
fn is_in_place(environment: &ThreadEnvironment, there: &BTreeMap<String, String>) -> bool {
    environment
        .variables
        .iter()
        .all(|(name, value)| there.get(name) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::{
        Container, EnvSource, Pod, Policy, RecognizedPod, ThreadBasis, ThreadPolicy,
        thread_environment,
    };

    /// The environment of a worker with exclusive CPUs and variables of its own.
    fn environment(image: &str, cpus: usize, own: &[(&str, &str)]) -> ThreadEnvironment {
        let value =
            |&(name, text): &(&str, &str)| (name.to_owned(), EnvSource::Value(text.to_owned()));
        let container = Container {
            image: image.to_owned(),
            env: own.iter().map(value).collect(),
            ..Container::default()
        };
        let label = (
            "training.kubeflow.org/replica-type".to_owned(),
            "worker".to_owned(),
        );
        let pod = Pod {
            labels: [label].into(),
            containers: vec![container.clone()],
            ..Pod::default()
        };
        let basis = ThreadBasis::exclusive(cpus, cpus, 1);
        thread_environment(
            &pod.into(),
            0,
            &Policy::default(),
            &ThreadPolicy::default(),
            Some(basis),
        )
    }

    /// A number of threads of a process with all computed variables.
    fn facts(environment: &ThreadEnvironment, threads: usize) -> ThreadFacts<'_> {
        ThreadFacts {
            threads,
            most: threads,
            processes: 1,
            runnable: Some(1.0),
            cpus: 4,
            online: 64,
            environment: Some(&environment.variables),
        }
    }

    fn found(
        environment: &ThreadEnvironment,
        facts: &ThreadFacts<'_>,
    ) -> (ThreadFinding, &'static str) {
        let verdict = verdict(environment, facts).unwrap();
        assert!(CAUSES.contains(&verdict.cause));
        assert!(
            verdict.sentence.starts_with(verdict.finding.name()),
            "{}",
            verdict.sentence
        );
        assert!(
            verdict.sentence.ends_with(verdict.cause),
            "{}",
            verdict.sentence
        );
        (verdict.finding, verdict.cause)
    }

    #[test]
    fn explained_threads_are_as_expected() {
        let plain = environment("web", 4, &[]);
        assert_eq!(plain.expected_threads, Some(8));
        for threads in [8, 9, 13] {
            assert_eq!(
                found(&plain, &facts(&plain, threads)),
                (ThreadFinding::AsExpected, ENOUGH),
                "{threads}"
            );
        }
        assert_eq!(
            found(&plain, &facts(&plain, 7)),
            (ThreadFinding::Fewer, NOT_STARTED)
        );
        let ended = ThreadFacts {
            most: 9,
            ..facts(&plain, 2)
        };
        assert_eq!(
            found(&plain, &ended),
            (ThreadFinding::AsExpected, ENOUGH),
            "they have been there"
        );
        let sentence = verdict(&plain, &ended).unwrap().sentence;
        assert!(
            sentence.contains("2 threads (at most 9 so far), 8 in the pools"),
            "{sentence}"
        );
        let none = BTreeMap::new();
        let bare = ThreadFacts {
            environment: Some(&none),
            ..facts(&plain, 8)
        };
        let sentence = verdict(&plain, &bare).unwrap().sentence;
        assert!(
            sentence.contains("8 threads; with the computed variables, its pools would have 8;"),
            "{sentence}"
        );
        // TensorFlow's server has more threads. These are measured numbers of a worker and of a chief, with 8 inter-op
        // threads and 1 intra-op thread on two CPUs.
        let own = [
            ("TF_NUM_INTEROP_THREADS", "8"),
            ("TF_NUM_INTRAOP_THREADS", "1"),
        ];
        let server = environment("tensorflow:2.21", 2, &own);
        let set: BTreeMap<String, String> = own
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        // The largest number that the environment explains: 9 in the pools, 1 main thread, 48 and 8 of the server, 66 of
        // the queues.
        for (threads, finding) in [
            (114, ThreadFinding::AsExpected),
            (118, ThreadFinding::AsExpected),
            (132, ThreadFinding::AsExpected),
            (133, ThreadFinding::More),
        ] {
            let of_server = ThreadFacts {
                cpus: 2,
                environment: Some(&set),
                ..facts(&server, threads)
            };
            assert_eq!(found(&server, &of_server).0, finding, "{threads}");
        }
        // Four processes have helpers each.
        let four = ThreadFacts {
            processes: 4,
            ..facts(&plain, 28)
        };
        assert_eq!(found(&plain, &four), (ThreadFinding::AsExpected, ENOUGH));
    }

    #[test]
    fn pools_without_their_variables_are_not_expected() {
        let plain = environment("web", 4, &[]);
        let none = BTreeMap::new();
        for threads in [1, 8] {
            let bare = ThreadFacts {
                environment: Some(&none),
                ..facts(&plain, threads)
            };
            let finding = (ThreadFinding::AsExpected, NOT_SET);
            assert_eq!(found(&plain, &bare), finding, "{threads}");
        }
    }

    #[test]
    fn surplus_threads_have_a_cause() {
        for (image, threads, cause) in [
            ("hub/tensorflow1.3.0", 240, OLD_TENSORFLOW),
            ("tensorflow:2.21", 240, OVERRIDDEN),
            ("tensorflow:latest", 240, TENSORFLOW),
            ("pytorch:2.9", 70, INTER_OP),
            ("pytorch:2.9", 300, PYTORCH),
            ("web", 14, PROGRAM),
        ] {
            let environment = environment(image, 4, &[]);
            let facts_now = facts(&environment, threads);
            assert_eq!(
                found(&environment, &facts_now),
                (ThreadFinding::More, cause),
                "{image}"
            );
            let none = BTreeMap::new();
            let bare = ThreadFacts {
                environment: Some(&none),
                ..facts_now.clone()
            };
            assert_eq!(
                found(&environment, &bare),
                (ThreadFinding::More, NOT_SET),
                "{image}"
            );
            let unread = ThreadFacts {
                environment: None,
                ..facts_now
            };
            assert_eq!(
                found(&environment, &unread),
                (ThreadFinding::More, cause),
                "{image}"
            );
        }
    }

    #[test]
    fn threads_that_want_to_run_count_against_cpus() {
        let plain = environment("web", 2, &[]);
        let busy = |runnable| ThreadFacts {
            runnable: Some(runnable),
            ..facts(&plain, 6)
        };
        assert_eq!(
            found(&plain, &busy(2.4)),
            (ThreadFinding::AsExpected, ENOUGH),
            "a little more is noise"
        );
        assert_eq!(
            found(&plain, &busy(3.0)),
            (ThreadFinding::Oversubscribed, BUSY),
            "two by its limit, four by its cpuset"
        );
        let sentence = verdict(&plain, &busy(3.0)).unwrap().sentence;
        assert!(
            sentence.contains("3.0 of them want to run, on 2 CPUs"),
            "{sentence}"
        );
        let many = ThreadFacts {
            threads: 40,
            ..busy(9.0)
        };
        assert_eq!(
            found(&plain, &many),
            (ThreadFinding::Oversubscribed, PROGRAM),
            "and why there are so many"
        );
        // The owner's own number.
        let own = environment("web", 2, &[("OMP_NUM_THREADS", "8")]);
        let set = [("OMP_NUM_THREADS".to_owned(), "8,2".to_owned())].into();
        let there = ThreadFacts {
            environment: Some(&set),
            ..busy(7.5)
        };
        assert_eq!(found(&own, &there), (ThreadFinding::Oversubscribed, USER));
    }

    #[test]
    fn without_an_expected_number_only_oversubscription_counts() {
        let none = thread_environment(
            &RecognizedPod::default(),
            0,
            &Policy::default(),
            &ThreadPolicy::default(),
            None,
        );
        assert_eq!(verdict(&none, &facts(&none, 500)), None);
        let busy = ThreadFacts {
            runnable: Some(6.0),
            ..facts(&none, 500)
        };
        assert_eq!(found(&none, &busy), (ThreadFinding::Oversubscribed, BUSY));
        assert_eq!(
            verdict(&none, &ThreadFacts { cpus: 0, ..busy }),
            None,
            "its CPUs are not known"
        );
    }
}
