//! Foreign partitions, CPUs that go offline and come back, and obstacles for a partition.

use std::fs;

use pinfold::cpu::CpuSet;

use super::owner::Pair;
use super::partition_tests;
use crate::agent::{Manifests, Settings, container, in_force, worker};
use crate::kernel::{Kernel, allowed};

/// A cgroup at the top that is not a pod's; removed at the drop.
struct Stranger<'a>(&'a Kernel, String);

impl<'a> Stranger<'a> {
    fn new(kernel: &'a Kernel) -> Self {
        let path = format!("pinfold-test-stranger-{}", std::process::id());
        kernel.cgroups.create(&path).unwrap();
        Self(kernel, path)
    }

    fn write(&self, file: &str, text: &str) {
        assert!(self.0.write(&self.1, file, text), "{file}: {text}");
    }
}

impl Drop for Stranger<'_> {
    fn drop(&mut self) {
        let _ = self.0.cgroups.remove(&self.1);
    }
}

#[test]
fn a_foreign_partition_is_reported_and_left_alone() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let stranger = Stranger::new(&kernel);
    // All but the reserved CPU, two CPUs for the worker, and one shared CPU.
    let theirs: CpuSet = kernel
        .online
        .iter()
        .skip(1)
        .take(kernel.online.len() - 4)
        .collect();
    stranger.write("cpuset.cpus.exclusive", &theirs.to_string());
    stranger.write("cpuset.cpus.partition", "root");
    let pair = Pair::new(&kernel, &[]);
    assert!(pair.own.is_disjoint(&theirs));
    let status = pair.agent.status().unwrap();
    let said = status["unexplained"].to_string();
    assert!(
        said.contains(&stranger.1) && said.contains(&theirs.to_string()),
        "{said}"
    );
    assert_eq!(status["lost"], "");
    assert_eq!(
        (kernel.partition(&stranger.1), kernel.exclusive(&stranger.1)),
        ("root".to_owned(), theirs)
    );
    drop(stranger);
    pair.agent.stop();
}

#[test]
fn a_blocking_cpuset_is_named_and_further_pods_are_pinned() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let stranger = Stranger::new(&kernel);
    // Every possible choice contains this CPU, and the foreign cgroup would have no CPU left.
    let size = kernel.online.len() - 1;
    stranger.write("cpuset.cpus", &kernel.last().to_string());
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    pods.put("worker.yaml", &worker("worker-0", "worker-uid", size));
    let agent = Settings::new(&tree.path, &pods, &kernel.first())
        .with(&["--reconcile-interval", "1s"])
        .start();
    let pod = tree.pod("", "worker-uid");
    let main = tree.container(&pod, "main1");
    let pid = tree.start(&main);
    agent.eventually("the partition is refused with a reason", |status| {
        status["errors"].to_string().contains(&stranger.1)
            && container(status, "worker-0", "main")
                .is_some_and(|container| container["note"].is_string())
    });
    assert_eq!(
        (allowed(pid), kernel.partition(&main)),
        (kernel.online.clone(), "member".to_owned())
    );
    drop(stranger);
    agent.eventually("the worker gets CPUs", |status| {
        in_force(status, "worker-0")
    });
    agent.stop();
}

/// A CPU that is offline until the drop.
struct Offline(u32);

impl Offline {
    /// `None` if the kernel refuses, as Linux 6.12 does for the last CPU of a partition.
    fn new(cpu: u32) -> Option<Self> {
        fs::write(format!("/sys/devices/system/cpu/cpu{cpu}/online"), "0")
            .is_ok()
            .then_some(Self(cpu))
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        fs::write(format!("/sys/devices/system/cpu/cpu{}/online", self.0), "1").unwrap();
    }
}

#[test]
fn cpus_that_go_offline_come_back_to_their_owner() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let pair = Pair::new(&kernel, &["--reconcile-interval", "1s"]);
    let cpus: Vec<u32> = pair.own.iter().collect();
    let first = Offline::new(cpus[0]).unwrap();
    pair.agent.eventually("the worker has one CPU left", |_| {
        allowed(pair.pid).len() == 1 && kernel.partition(&pair.main) == "root"
    });
    pair.agent
        .eventually("the drift is counted", |_| pair.drift("offline") >= 1.0);
    // The last CPU too: the kernel makes the partition invalid, and the container must run somewhere.
    if let Some(second) = Offline::new(cpus[1]) {
        pair.agent
            .eventually("the worker runs on the shared CPUs", |status| {
                kernel.effective(&pair.main).is_disjoint(&pair.own)
                    && kernel.partition(&pair.main) == "member"
                    && status["lost"] == ""
            });
        drop(second);
    } else {
        assert_eq!(kernel.partition(&pair.main), "root");
    }
    pair.agent
        .eventually("the worker has the last CPU again", |_| {
            allowed(pair.pid) == [cpus[1]].into_iter().collect()
                && kernel.partition(&pair.main) == "root"
        });
    drop(first);
    pair.settled(&kernel, "the worker has both CPUs");
    let status = pair.agent.status().unwrap();
    assert_eq!(
        (&status["lost"], status["errors"].as_array().unwrap().len()),
        (&"".into(), 0),
        "{status:#}"
    );
    pair.agent.stop();
}
