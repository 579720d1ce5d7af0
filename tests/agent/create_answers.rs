//! The answers to CreateContainer, compared with recorded ones.
//!
//! `tests/data/nri-answers.txt` names CPUs, variables and refusals. `PINFOLD_RECORD=1` writes the file anew.

use std::fmt::Write as _;

use pinfold::nri::{OptionalInt64, OptionalUInt64};
use prost::Message;

use crate::agent::Settings;
use crate::kernel::kernel_tests;
use crate::runtime::EventMessage;
use crate::runtime_requests::{Runtime, event_message, path};

/// A container's CPU request and limit in thousandths.
fn set_cpus(description: &mut EventMessage, milli: u64) {
    let container = description.container.as_mut().unwrap();
    let resources = container.linux.as_mut().unwrap().resources.as_mut();
    let cpu = resources.unwrap().cpu.as_mut().unwrap();
    cpu.shares = Some(OptionalUInt64 {
        value: milli * 1024 / 1000,
    });
    cpu.quota = Some(OptionalInt64 {
        value: i64::try_from(milli * 100).unwrap(),
    });
}

fn annotate(description: &mut EventMessage, key: &str, value: &str) {
    let annotations = &mut description.pod.as_mut().unwrap().annotations;
    annotations.insert(key.to_owned(), value.to_owned());
}

fn label(description: &mut EventMessage, key: &str, value: &str) {
    let labels = &mut description.pod.as_mut().unwrap().labels;
    labels.insert(key.to_owned(), value.to_owned());
}

fn set_env(description: &mut EventMessage, lines: &[&str]) {
    let env = &mut description.container.as_mut().unwrap().env;
    env.extend(lines.iter().map(|&line| line.to_owned()));
}

/// A pod's name, the CPUs of the container, and a change of the description.
type Case = (&'static str, i64, fn(&mut EventMessage));

const ROLE: &str = "training.kubeflow.org/replica-type";

const CASES: [Case; 18] = [
    ("worker", 1, |_| {}),
    ("parameter-server", 1, |description| {
        label(description, ROLE, "ps");
    }),
    ("chief", 1, |description| label(description, ROLE, "chief")),
    ("evaluator", 1, |description| {
        label(description, ROLE, "evaluator");
    }),
    ("launcher", 1, |description| {
        label(description, ROLE, "launcher");
    }),
    ("no-training", 1, |description| {
        description.pod.as_mut().unwrap().labels.clear();
    }),
    ("no-training-but-exclusive", 1, |description| {
        description.pod.as_mut().unwrap().labels.clear();
        annotate(description, "pinfold.io/cpus", "exclusive");
    }),
    ("shared-by-annotation", 1, |description| {
        annotate(description, "pinfold.io/cpus", "shared");
    }),
    ("required", 1, |description| {
        annotate(description, "pinfold.io/cpus", "required");
    }),
    ("required-and-too-large", 2, |description| {
        annotate(description, "pinfold.io/cpus", "required");
    }),
    ("too-large", 2, |_| {}),
    ("half-a-cpu", 1, |description| set_cpus(description, 500)),
    ("one-and-a-half", 1, |description| {
        set_cpus(description, 1500);
    }),
    ("best-effort", 0, |_| {}),
    ("best-effort-worker", 0, |description| {
        label(description, ROLE, "worker");
    }),
    ("threads-by-the-user", 1, |description| {
        set_env(
            description,
            &["OMP_NUM_THREADS=7", "TF_NUM_INTEROP_THREADS=2"],
        );
    }),
    ("cpus-by-the-user", 1, |description| {
        set_env(description, &["PINFOLD_CPUS=none", "PATH=/bin"]);
    }),
    ("services", 1, |description| {
        set_env(
            description,
            &["WEB_SERVICE_HOST=10.0.0.1", "WEB_SERVICE_PORT=80"],
        );
    }),
];

#[test]
fn answers_to_creations_are_as_recorded() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let mut runtime = Runtime::new();
    // Every machine has exactly one CPU that is not reserved.
    let settings = Settings::without_manifests(&tree.path, &kernel.all_but_one())
        .with(&["--api=never", "--reconcile-interval=3600s"]);
    let agent = runtime.settings(&settings).start();
    runtime.connect(&agent);
    let mut text = String::new();
    for (name, cpus, change) in CASES {
        let mut description = event_message(&tree, name, cpus);
        change(&mut description);
        runtime.change(1, &description);
        writeln!(text, "{name}").unwrap();
        match runtime.try_create(&description) {
            Err(refusal) => writeln!(text, "    refused: {refusal}").unwrap(),
            Ok(given) => {
                if let Some(cpus) = given.cpus {
                    assert_eq!(cpus, kernel.last(), "{name}");
                    writeln!(text, "    cpuset: the only CPU that is not reserved").unwrap();
                }
                for (key, value) in given.env {
                    let value = if key == "PINFOLD_CPUS" {
                        "the same".to_owned()
                    } else {
                        value
                    };
                    writeln!(text, "    {key}={value}").unwrap();
                }
            }
        }
        runtime
            .call("StopContainer", description.encode_to_vec())
            .unwrap();
        [11, 2, 3]
            .into_iter()
            .for_each(|event| runtime.change(event, &description));
        let container = path(&description);
        tree.remove(container.rsplit_once('/').unwrap().0);
        agent.eventually("no CPU is owned any more", |status| {
            status["exclusive"] == ""
        });
    }
    agent.stop();
    let file = crate::repository::here("tests/data/nri-answers.txt");
    if std::env::var_os("PINFOLD_RECORD").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
}
