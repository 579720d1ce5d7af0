//! The recorded cgroups of real nodes: see `tests/data/cgroups/README.md`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "support/repository.rs"]
mod repository;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bzip2::read::BzDecoder;
use pinfold::host::cgroup::{CgroupVersion, Cgroups, PodCgroup};
use pinfold::pin::{Desired, Enforcement, Ledger, Observed, Scan, plan, release};
use tempfile::TempDir;

fn data() -> PathBuf {
    repository::here("tests/data/cgroups")
}

fn unpack(version: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    let archive = fs::File::open(data().join(format!("{version}.tar.bz2"))).unwrap();
    tar::Archive::new(BzDecoder::new(archive))
        .unpack(folder.path())
        .unwrap();
    folder
}

/// A pod as described by the API server.
struct RecordedPod {
    path: String,
    /// The ids of the running containers and of the ended containers.
    running: Vec<String>,
    ended: Vec<String>,
}

fn recorded_pods(version: &str) -> Vec<RecordedPod> {
    let text = fs::read_to_string(data().join(format!("{version}-pods.txt"))).unwrap();
    let mut pods: Vec<RecordedPod> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if line.starts_with(' ') {
            let pod = pods.last_mut().unwrap();
            let ids = if words[2] == "running" {
                &mut pod.running
            } else {
                &mut pod.ended
            };
            ids.push(words[4].to_owned());
        } else {
            let path = words[2].trim_start_matches('/').to_owned();
            pods.push(RecordedPod {
                path,
                running: Vec::new(),
                ended: Vec::new(),
            });
        }
    }
    pods
}

/// Every file below a folder with its content.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(contents(&path));
        } else {
            let content = fs::read(&path).unwrap();
            files.insert(path, content);
        }
    }
    files
}

/// Reads the recorded node and compares the cgroups with the API server's pods.
fn scan(root: &Path, name: &str, version: CgroupVersion) -> Vec<PodCgroup> {
    let before = contents(root);
    let cgroups = Cgroups::detect(root).unwrap();
    assert_eq!(cgroups.version, version);
    assert!(cgroups.has_cpu_controller());
    let pods = cgroups.scan("kubepods").unwrap();
    let recorded_pods = recorded_pods(name);
    assert_eq!(pods.len(), recorded_pods.len());
    for recorded in recorded_pods {
        let pod = pods
            .iter()
            .find(|pod| pod.path == recorded.path)
            .unwrap_or_else(|| panic!("no {}", recorded.path));
        let uid = recorded.path.rsplit_once("/pod").unwrap().1;
        assert_eq!(pod.uid, uid);
        let mut ids: Vec<&str> = pod
            .containers
            .iter()
            .map(|container| container.id.as_str())
            .collect();
        for id in &recorded.running {
            let at = ids
                .iter()
                .position(|other| other == id)
                .unwrap_or_else(|| panic!("{}: no {id}", pod.path));
            ids.remove(at);
        }
        assert_eq!(
            ids.len(),
            1,
            "{}: the sandbox and nothing else is left",
            pod.path
        );
        assert!(
            recorded
                .ended
                .iter()
                .all(|id| pod.containers.iter().all(|container| container.id != *id))
        );
        for container in &pod.containers {
            assert!(container.populated, "{} runs", container.path);
            assert_eq!((&container.record_text, &pod.record_text), (&None, &None));
            assert_eq!(container.path, format!("{}/{}", pod.path, container.id));
        }
    }
    assert_eq!(contents(root), before, "nothing is written");
    pods
}

/// The ledger of the recorded node, without any information about the pods.
fn ledger(root: &Path, pods: &[PodCgroup]) -> (Observed, Ledger) {
    let around = Cgroups::detect(root)
        .unwrap()
        .surroundings(&["kubepods".to_owned()])
        .unwrap();
    let (observed, ledger) = Observed::new(
        Scan {
            pods: pods.to_vec(),
            surroundings: around,
            ..Scan::default()
        },
        &[],
    );
    assert_eq!(observed.pods.len(), pods.len());
    (observed, ledger)
}

/// The written CPUs, the effective CPUs, and the quota in thousandths of a CPU, of the container whose id starts with
/// `id`.
fn container(pods: &[PodCgroup], id: &str) -> (String, String, Option<u64>) {
    let mut all = pods.iter().flat_map(|pod| &pod.containers);
    let container = all.find(|container| container.id.starts_with(id)).unwrap();
    let quota = container.quota.unwrap();
    let thousandths = quota.quota.map(|limit| limit * 1000 / quota.period);
    (
        container.cpuset.cpus.to_string(),
        container.cpuset.effective.to_string(),
        thousandths,
    )
}

fn expected(cpus: &str, effective: &str, quota: Option<u64>) -> (String, String, Option<u64>) {
    (cpus.to_owned(), effective.to_owned(), quota)
}

#[test]
fn cgroup_v1() {
    let folder = unpack("v1");
    // The recording begins at the pods' tree. The files that identify a v1 hierarchy are above the tree.
    fs::write(folder.path().join("cpuset/cpuset.cpus"), "0-1\n").unwrap();
    let pods = scan(folder.path(), "v1", CgroupVersion::V1);
    let expected_ledger = Ledger {
        offered: Some("0-1".parse().unwrap()),
        ..Ledger::default()
    };
    assert_eq!(ledger(folder.path(), &pods).1, expected_ledger);
    assert_eq!(
        container(&pods, "22e1116d"),
        expected("0-1", "0-1", Some(200))
    );
    assert_eq!(container(&pods, "529cd501"), expected("0", "0", None));
    assert_eq!(container(&pods, "146c28df"), expected("0-1", "0-1", None));
    let pod = pods
        .iter()
        .find(|pod| pod.uid.starts_with("4661fbb0"))
        .unwrap();
    assert_eq!(pod.quota.and_then(|quota| quota.quota), Some(60_000));
}

#[test]
fn cgroup_v2_with_partitions() {
    let folder = unpack("v2");
    let pods = scan(folder.path(), "v2", CgroupVersion::V2);
    // In a partition, the effective CPUs differ from the written CPUs.
    assert_eq!(
        container(&pods, "54da2aae"),
        expected("0-7", "2-3", Some(1500))
    );
    assert_eq!(container(&pods, "ca39d95f"), expected("", "6-7", Some(500)));
    assert_eq!(
        container(&pods, "2df255db"),
        expected("", "0-1,4-5", Some(300))
    );
    assert_eq!(container(&pods, "82b64f00"), expected("", "0-1,4-5", None));
    // The partitions were made by hand. The ledger reports them, their CPUs go to no container, and no plan touches
    // them.
    let (observed, ledger) = ledger(folder.path(), &pods);
    assert_eq!(ledger.excluded.to_string(), "2-3,6-7");
    assert_eq!(
        (ledger.assignments.len(), ledger.unexplained.len()),
        (0, 2),
        "{ledger:?}"
    );
    let desired = Desired {
        online: "0-7".parse().unwrap(),
        ..Desired::default()
    };
    assert_eq!(
        plan(&observed, &ledger, &desired, Enforcement::Partition),
        Vec::new()
    );
    assert_eq!(
        release(&observed, &desired.online, &desired.all_memory),
        Vec::new()
    );
}
