//! The container's cgroup: the record that the agent keeps on it, the CPUs in force, and the judgement.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::container::Enforcement;

/// The extended attribute with the assignment record, as in the library's `host::cgroup`.
const RECORD: &str = "trusted.pinfold";

/// The version of assignment records, as in the library's `pin::record`.
const VERSION: u32 = 1;

/// The name under which a record keeps idle CPUs, on which nothing runs.
const IDLE: &str = "/idle";

/// No kernel has more CPUs.
const MOST_CPUS: u32 = 1 << 16;

/// What the kernel says about a container's CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Evidence {
    /// The text of the assignment record on the container's cgroup.
    pub(crate) record: Option<Vec<u8>>,
    /// The CPUs on which the container's process may run.
    pub(crate) effective: String,
    /// `cpuset.cpus.partition` of the container's cgroup; `None` where the kernel has no such file.
    pub(crate) partition: Option<String>,
}

/// The parts of an assignment record that count here.
#[derive(Debug, Deserialize)]
struct Record {
    version: u32,
    #[serde(default)]
    claims: BTreeMap<String, String>,
}

/// Whether a container may start.
///
/// # Errors
/// The reason to refuse it.
pub(crate) fn judge(enforcement: Enforcement, evidence: &Evidence) -> Result<(), String> {
    let refused = |why: String| {
        Err(format!(
            "the container does not have the exclusive CPUs that its pod requires: {why}"
        ))
    };
    let Some(record) = &evidence.record else {
        return refused(
            "its cgroup has no assignment record of Pinfold's, as if the agent had stopped or hung before the start: see its log \
             on this node"
                .to_owned(),
        );
    };
    let assigned = match assigned(record) {
        Ok(assigned) => assigned,
        Err(why) => return refused(why),
    };
    let Some(effective) = cpus(&evidence.effective) else {
        return refused(format!(
            "the kernel gives its CPUs as {:?}, which is no list of CPUs",
            evidence.effective
        ));
    };
    if let (Enforcement::Partition, says) = (enforcement, evidence.partition.as_deref())
        && !matches!(says, Some("root" | "isolated"))
    {
        return refused(format!(
            "the kernel reports its partition as {}, so other tasks may run on its CPUs",
            says.unwrap_or("missing")
        ));
    }
    // Offline CPUs may be missing from the effective ones, as in the agent's own check.
    if effective.is_empty() || !effective.is_subset(&assigned.cpus) {
        return refused(format!(
            "Pinfold assigned {}, and the kernel lets it run on {}",
            assigned.text, evidence.effective
        ));
    }
    Ok(())
}

struct Assigned {
    cpus: BTreeSet<u32>,
    text: String,
}

/// The CPUs that a record gives to its container.
fn assigned(record: &[u8]) -> Result<Assigned, String> {
    let damaged = || "its assignment record is damaged or not from Pinfold".to_owned();
    let Record { version, claims } = serde_json::from_slice(record).map_err(|_| damaged())?;
    if version != VERSION {
        return Err(format!(
            "a later version of Pinfold wrote its assignment record (version {version}): install the pinfold-runtime of that \
             version"
        ));
    }
    let mut containers = claims.into_iter().filter(|(name, _)| name != IDLE);
    match (containers.next(), containers.next()) {
        (Some((_, text)), None) => {
            let cpus = cpus(&text).ok_or_else(damaged)?;
            Ok(Assigned { cpus, text })
        }
        (None, _) => Err("its assignment record has no CPUs for it".to_owned()),
        (Some(_), Some(_)) => Err("its assignment record is that of several containers".to_owned()),
    }
}

/// The CPUs of a list in the kernel's form.
fn cpus(list: &str) -> Option<BTreeSet<u32>> {
    let mut cpus = BTreeSet::new();
    for part in list.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= MOST_CPUS {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// Where the controller cpuset is, and a process's cgroup in it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// The folder of the process's own cgroup.
    own: PathBuf,
    is_v1: bool,
}

/// Reads the cgroup of a container's first process. `proc` is the folder `/proc`.
///
/// # Errors
/// The process has ended, or its cgroup is not visible here.
pub(crate) fn evidence(proc: &Path, pid: u32, id: &str) -> Result<Evidence, String> {
    let read = |path: PathBuf| {
        let text = fs::read(&path);
        text.map(|text| String::from_utf8_lossy(&text).into_owned())
            .map_err(|error| format!("can't read {}: {error}", path.display()))
    };
    let cgroups = read(proc.join(pid.to_string()).join("cgroup"))?;
    let mounts = read(proc.join("self/mountinfo"))?;
    let place = place(&cgroups, &mounts).ok_or(
        "the container's cgroup with the controller cpuset is not visible to pinfold-runtime",
    )?;
    let container = container_folder(&place.own, id);
    let record = xattr::get(container, RECORD).map_err(|error| {
        format!(
            "can't read the assignment record on {}: {error}",
            container.display()
        )
    })?;
    let line = |path: PathBuf| Some(fs::read_to_string(path).ok()?.trim().to_owned());
    let name = if place.is_v1 {
        "cpuset.effective_cpus"
    } else {
        "cpuset.cpus.effective"
    };
    // crun's process is in a cgroup below the container's own, which may lack the controller.
    let folders = place
        .own
        .ancestors()
        .take_while(|folder| folder.starts_with(container));
    let mut effective = folders.filter_map(|folder| line(folder.join(name)));
    let effective = effective
        .next()
        .ok_or_else(|| format!("{} has no {name}", container.display()))?;
    Ok(Evidence {
        record,
        effective,
        partition: line(container.join("cpuset.cpus.partition")),
    })
}

/// The container's cgroup: the process's own or one above, with the container's id in its name.
fn container_folder<'a>(own: &'a Path, id: &str) -> &'a Path {
    let is_named = |folder: &&Path| {
        folder
            .file_name()
            .is_some_and(|name| name.to_string_lossy().contains(id))
    };
    own.ancestors().find(is_named).unwrap_or(own)
}

/// The place of the process whose `/proc/PID/cgroup` is given, among the mounts in `/proc/self/mountinfo`.
fn place(cgroups: &str, mounts: &str) -> Option<Place> {
    let hierarchies: Vec<_> = mounts.lines().filter_map(hierarchy).collect();
    // The controller is in one hierarchy only: in that of cgroup v1 if there is one.
    let is_v1 = hierarchies.iter().any(|hierarchy| hierarchy.is_v1);
    let of_process = cgroups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let holds = if is_v1 {
            controllers.split(',').any(|name| name == "cpuset")
        } else {
            controllers.is_empty()
        };
        holds.then_some(path)
    })?;
    // A path outside of the reader's cgroup namespace begins with `/..`.
    if of_process.split('/').any(|name| name == "..") {
        return None;
    }
    let mut fitting = hierarchies
        .iter()
        .filter(|hierarchy| hierarchy.is_v1 == is_v1);
    fitting.find_map(|hierarchy| {
        let below = Path::new(of_process).strip_prefix(hierarchy.root).ok()?;
        Some(Place {
            own: Path::new(hierarchy.mount).join(below),
            is_v1,
        })
    })
}

/// A mount of a hierarchy with the controller cpuset: cgroup v2's, or that one of cgroup v1's.
struct Hierarchy<'a> {
    /// The cgroup that is mounted.
    root: &'a str,
    mount: &'a str,
    is_v1: bool,
}

fn hierarchy(line: &str) -> Option<Hierarchy<'_>> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(3);
    let mut after = after.split(' ');
    let (root, mount) = (before.next()?, before.next()?);
    let (kind, options) = (after.next()?, after.nth(1)?);
    let is_v1 = kind == "cgroup" && options.split(',').any(|option| option == "cpuset");
    (is_v1 || kind == "cgroup2").then_some(Hierarchy { root, mount, is_v1 })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use pinfold::pin::{AssignmentRecord, EarlierSettings};

    use super::*;

    const V2: &str = "35 24 0:30 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "36 33 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup rw\n\
                      37 33 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      38 33 0:33 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n";

    /// The record that the agent writes on a container's cgroup.
    fn record(cpus: &str) -> Option<Vec<u8>> {
        let mut record = AssignmentRecord::new(EarlierSettings::default());
        let assignment = &mut record.assignment;
        assignment
            .containers
            .insert("main".to_owned(), cpus.parse().unwrap());
        Some(record.text().into_bytes())
    }

    fn partition(cpus: &str, effective: &str, partition: &str) -> Evidence {
        Evidence {
            record: record(cpus),
            effective: effective.to_owned(),
            partition: Some(partition.to_owned()),
        }
    }

    fn why(enforcement: Enforcement, evidence: &Evidence) -> String {
        judge(enforcement, evidence).unwrap_err()
    }

    #[test]
    fn a_partition_in_force_starts() {
        for kind in ["root", "isolated"] {
            let in_force = partition("2-3", "2-3", kind);
            judge(Enforcement::Partition, &in_force).unwrap();
        }
        // CPU 3 is offline.
        judge(Enforcement::Partition, &partition("2-3", "2", "root")).unwrap();
        for says in ["member", "root invalid (Cpu list)", "isolated invalid", ""] {
            let refused = why(Enforcement::Partition, &partition("2-3", "2-3", says));
            assert!(refused.contains("partition as"), "{refused}");
        }
        let old_kernel = Evidence {
            partition: None,
            ..partition("2-3", "2-3", "root")
        };
        assert!(why(Enforcement::Partition, &old_kernel).contains("missing"));
        // Without partitions, the sets alone count.
        judge(Enforcement::Cpuset, &old_kernel).unwrap();
        judge(Enforcement::Cpuset, &partition("2-3", "2-3", "member")).unwrap();
    }

    #[test]
    fn the_effective_cpus_must_be_the_recorded_ones() {
        for enforcement in [Enforcement::Partition, Enforcement::Cpuset] {
            for effective in ["0-3", "2-4", "1", ""] {
                let refused = why(enforcement, &partition("2-3", effective, "root"));
                assert!(refused.contains("assigned 2-3"), "{refused}");
            }
            let odd = why(enforcement, &partition("2-3", "all", "root"));
            assert!(odd.contains("no list of CPUs"), "{odd}");
        }
    }

    #[test]
    fn a_record_that_is_missing_damaged_or_later_refuses() {
        let with = |record: Option<&str>| Evidence {
            record: record.map(|text| text.as_bytes().to_owned()),
            ..partition("2-3", "2-3", "root")
        };
        let long = "[".repeat(65_536);
        let huge = r#"{"version":1,"claims":{"main":"0-4294967295"}}"#;
        for (record, says) in [
            (None, "no assignment record"),
            (Some(""), "damaged"),
            (Some("\0"), "damaged"),
            (Some(long.as_str()), "damaged"),
            (Some(huge), "damaged"),
            (Some(r#"{"version":2}"#), "later version"),
            (Some(r#"{"version":1}"#), "no CPUs"),
            (Some(r#"{"version":1,"claims":{"/idle":"2-3"}}"#), "no CPUs"),
            (
                Some(r#"{"version":1,"claims":{"a":"2","b":"3"}}"#),
                "several",
            ),
        ] {
            let refused = why(Enforcement::Partition, &with(record));
            assert!(refused.contains(says), "{refused}");
        }
    }

    #[test]
    fn idle_cpus_are_no_cpus_of_the_container() {
        let mut record = AssignmentRecord::new(EarlierSettings::default());
        let assignment = &mut record.assignment;
        assignment
            .containers
            .insert("main".to_owned(), "2".parse().unwrap());
        assignment.idle = "3".parse().unwrap();
        let with = |effective: &str| Evidence {
            record: Some(record.text().into_bytes()),
            effective: effective.to_owned(),
            partition: Some("root".to_owned()),
        };
        judge(Enforcement::Partition, &with("2")).unwrap();
        why(Enforcement::Partition, &with("2-3"));
    }

    #[test]
    fn the_process_is_found_in_each_layout() {
        let own = |cgroups: &str, mounts: &str| {
            place(cgroups, mounts).map(|place| (place.own.display().to_string(), place.is_v1))
        };
        let expected = |path: &str, is_v1| Some((path.to_owned(), is_v1));
        assert_eq!(
            own("0::/kubepods/podu/id1\n", V2),
            expected("/sys/fs/cgroup/kubepods/podu/id1", false)
        );
        let hybrid = "9:name=systemd:/s\n3:cpuset,cpu:/kubepods/podu/id1\n0::/x\n";
        assert_eq!(
            own(hybrid, V1),
            expected("/sys/fs/cgroup/cpuset/kubepods/podu/id1", true)
        );
        // A node that is itself a container shows its own cgroup as the mount's root.
        let nested = "35 24 0:30 /docker/node /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(
            own("0::/docker/node/kubepods/id1\n", nested),
            expected("/sys/fs/cgroup/kubepods/id1", false)
        );
        for (cgroups, mounts) in [
            ("0::/../kubepods/id1\n", V2),
            ("0::/other/id1\n", nested),
            ("0::/kubepods/id1\n", V1),
            ("0::/kubepods/id1\n", "x - cgroup2\n"),
            ("", V2),
        ] {
            assert_eq!(own(cgroups, mounts), None, "{cgroups}");
        }
    }

    #[test]
    fn the_containers_cgroup_has_its_id() {
        for (own, container) in [
            ("/c/kubepods/podu/id1", "/c/kubepods/podu/id1"),
            (
                "/c/p.slice/crio-id1.scope/container",
                "/c/p.slice/crio-id1.scope",
            ),
            (
                "/c/p.slice/cri-containerd-id1.scope",
                "/c/p.slice/cri-containerd-id1.scope",
            ),
            ("/c/elsewhere", "/c/elsewhere"),
        ] {
            assert_eq!(
                container_folder(Path::new(own), "id1"),
                Path::new(container)
            );
        }
    }

    #[test]
    fn an_ended_process_is_no_evidence() {
        let folder = tempfile::tempdir().unwrap();
        assert!(
            evidence(folder.path(), 7, "id1")
                .unwrap_err()
                .contains("can't read")
        );
    }
}
