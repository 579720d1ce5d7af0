//! What the real runtime says about a container, and whether the container has to be checked.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::real;

/// The annotation that the agent adds at CreateContainer: how the container's CPUs are enforced, and its id.
///
/// The id is what makes the value evidence: CRI-O copies a pod's annotations to its containers, and containerd does so where
/// it is configured to, but no author of a pod or an image knows the random id of a container that is yet to be created.
pub(crate) const CHECK: &str = "pinfold.io/start-check";

/// The annotations with the kind of a container and with the id of its sandbox: containerd's, CRI-O's.
const KINDS: [[&str; 2]; 2] = [
    [
        "io.kubernetes.cri.container-type",
        "io.kubernetes.cri.sandbox-id",
    ],
    [
        "io.kubernetes.cri-o.ContainerType",
        "io.kubernetes.cri-o.SandboxID",
    ],
];

pub(crate) type Annotations<'a> = BTreeMap<Cow<'a, str>, Cow<'a, str>>;

/// The state of a container, as the OCI runtime specification defines it.
#[derive(Debug, Deserialize)]
pub(crate) struct State {
    #[serde(default)]
    pub(crate) status: String,
    /// The process in the host's numbering.
    #[serde(default)]
    pub(crate) pid: u32,
    annotations: Option<BTreeMap<String, String>>,
}

// === impl State ===

impl State {
    pub(crate) fn annotations(&self) -> Annotations<'_> {
        let all = self.annotations.iter().flatten();
        all.map(|(key, value)| (Cow::from(key), Cow::from(value)))
            .collect()
    }
}

/// How the agent enforces the CPUs of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Enforcement {
    Partition,
    Cpuset,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// A sandbox, or a container that is meant to run on shared CPUs.
    Free,
    /// A container with exclusive CPUs.
    Checked(Enforcement),
}

/// The state of a container. The call is part of the specification, so it means the same with each runtime.
///
/// # Errors
/// The runtime does not know the container, or its answer is no state.
pub(crate) fn state(real: &Path, globals: &[OsString], id: &str) -> Result<State, String> {
    let output = Command::new(real)
        .args(globals)
        .args(["state", id])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| real::cannot_run(real, &error))?;
    if !output.status.success() {
        return Err(format!(
            "can't learn the container's state, because `{} state` failed: {}",
            real.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| {
        format!(
            "can't learn the container's state from the answer of `{} state`: {error}",
            real.display()
        )
    })
}

/// Whether a container has to be checked, from its annotations.
///
/// # Errors
/// The agent has not said so for this container.
pub(crate) fn admission(id: &str, annotations: &Annotations<'_>) -> Result<Admission, String> {
    let get = |key: &str| annotations.get(key).map(Cow::as_ref);
    // The sandbox's id is its own, which no author can foretell.
    let is_sandbox = |[kind, of]: &[&str; 2]| get(kind) == Some("sandbox") && get(of) == Some(id);
    if KINDS.iter().any(is_sandbox) {
        return Ok(Admission::Free);
    }
    let Some(value) = get(CHECK) else {
        return Err(
            "Pinfold's agent did not answer when the container was created, so nobody has given it exclusive CPUs: see whether \
             the agent runs on this node and is connected to the container runtime (pinfold doctor)"
                .to_owned(),
        );
    };
    let check = value
        .split_once(' ')
        .and_then(|(check, of)| (of == id).then_some(check));
    match check {
        Some("shared") => Ok(Admission::Free),
        Some("partition") => Ok(Admission::Checked(Enforcement::Partition)),
        Some("cpuset") => Ok(Admission::Checked(Enforcement::Cpuset)),
        Some("observe") => Err(
            "Pinfold only observes on this node (enforcement observe), so no container gets exclusive CPUs"
                .to_owned(),
        ),
        Some(_) => Err(format!(
            "the annotation {CHECK} is {value:?}, which this version doesn't know: install the pinfold-runtime of the agent's \
             version"
        )),
        None => Err(format!(
            "the annotation {CHECK} is {value:?}, which Pinfold did not write for this container: remove it from the pod"
        )),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn admitted(pairs: &[(&'static str, &'static str)]) -> Result<Admission, String> {
        let annotations = pairs.iter().copied();
        admission(
            "id1",
            &annotations
                .map(|(key, value)| (Cow::from(key), Cow::from(value)))
                .collect(),
        )
    }

    #[test]
    fn a_sandbox_is_free_by_the_runtimes_word_about_it() {
        for [kind, sandbox] in KINDS {
            let own = [(kind, "sandbox"), (sandbox, "id1")];
            assert_eq!(admitted(&own), Ok(Admission::Free));
            // A container's sandbox has another id, and an author can't know that of the container.
            admitted(&[(kind, "sandbox"), (sandbox, "id0")]).unwrap_err();
            admitted(&[(kind, "sandbox")]).unwrap_err();
            admitted(&[(kind, "container"), (sandbox, "id1")]).unwrap_err();
        }
        // The keys of the other runtime, as an author can write them on a node with CRI-O.
        let forged = [
            (KINDS[0][0], "sandbox"),
            (KINDS[0][1], "id0"),
            (KINDS[1][0], "container"),
            (KINDS[1][1], "id0"),
        ];
        admitted(&forged).unwrap_err();
    }

    #[test]
    fn a_container_needs_the_agents_word_about_it() {
        let check = |value| admitted(&[(CHECK, value)]);
        assert_eq!(check("shared id1"), Ok(Admission::Free));
        let checked = |enforcement| Ok(Admission::Checked(enforcement));
        assert_eq!(check("partition id1"), checked(Enforcement::Partition));
        assert_eq!(check("cpuset id1"), checked(Enforcement::Cpuset));
        assert!(admitted(&[]).unwrap_err().contains("did not answer"));
        for forged in [
            "shared",
            "shared id2",
            "",
            "shared id1 ",
            " id1",
            "shared  id1",
        ] {
            check(forged).unwrap_err();
        }
        assert!(check("observe id1").unwrap_err().contains("observes"));
        assert!(check("later id1").unwrap_err().contains("version"));
    }

    #[test]
    fn a_state_may_lack_annotations() {
        let state = |text| serde_json::from_str::<State>(text).unwrap();
        assert!(
            state(r#"{"status":"created","pid":7}"#)
                .annotations()
                .is_empty()
        );
        assert!(
            state(r#"{"annotations":null,"owner":""}"#)
                .annotations()
                .is_empty()
        );
        let of_crun = state(
            r#"{"ociVersion":"1.0.0","status":"created","pid":7,"annotations":{"a":"b\u0022"}}"#,
        );
        assert_eq!(of_crun.annotations()["a"], "b\"");
    }
}
