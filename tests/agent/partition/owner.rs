//! An owner keeps exclusive CPUs against every foreign write.

use pinfold::cpu::CpuSet;

use super::partition_tests;
use crate::agent::{
    Agent, Manifests, Settings, assigned, best_effort, container, in_force, worker_with,
};
use crate::kernel::{Kernel, Tree, allowed};

/// Two containers on a node: a worker on two CPUs, and a container without requests.
pub(crate) struct Pair<'a> {
    pub(crate) tree: Tree<'a>,
    pub(crate) pods: Manifests,
    pub(crate) settings: Settings,
    pub(crate) agent: Agent,
    pub(crate) pod: String,
    pub(crate) main: String,
    pub(crate) pid: u32,
    pub(crate) other_pid: u32,
    pub(crate) own: CpuSet,
}

impl<'a> Pair<'a> {
    pub(crate) fn new(kernel: &'a Kernel, args: &[&str]) -> Self {
        let mut tree = kernel.tree();
        let pods = Manifests::new();
        pods.put(
            "worker.yaml",
            &worker_with("worker-0", "worker-uid", 2, "", "main1"),
        );
        pods.put("web.yaml", &best_effort("web", "web-uid"));
        let settings = Settings::new(&tree.path, &pods, &kernel.first()).with(args);
        let agent = settings.start();
        let web = tree.pod("besteffort", "web-uid");
        let web = tree.container(&web, "web1");
        let other_pid = tree.start(&web);
        let pod = tree.pod("", "worker-uid");
        let main = tree.container(&pod, "main1");
        let pid = tree.start(&main);
        let status = agent.eventually("the worker is pinned", |status| {
            in_force(status, "worker-0")
        });
        let own = assigned(&status, "worker-0").unwrap();
        Self {
            tree,
            pods,
            settings,
            agent,
            pod,
            main,
            pid,
            other_pid,
            own,
        }
    }

    /// Waits until the kernel has the desired state.
    pub(crate) fn settled(&self, kernel: &Kernel, what: &str) {
        self.agent.eventually(what, |_| self.holds(kernel));
    }

    pub(crate) fn holds(&self, kernel: &Kernel) -> bool {
        kernel.partition(&self.main) == "root"
            && kernel.effective(&self.main) == self.own
            && allowed(self.pid) == self.own
            && allowed(self.other_pid) == kernel.online.difference(&self.own)
    }

    pub(crate) fn drift(&self, cause: &str) -> f64 {
        self.agent
            .metric("pinfold_drift_total", &[("cause", cause)])
            .unwrap()
    }
}

fn cpus(list: &str) -> CpuSet {
    list.parse().unwrap()
}

#[test]
fn no_further_process_runs_on_exclusive_cpus() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let pair = Pair::new(&kernel, &[]);
    assert_eq!(pair.agent.status().unwrap()["enforcement"], "partition");
    assert_eq!(pair.own.len(), 2);
    pair.settled(&kernel, "the shared container is off the CPUs");
    for path in [&pair.tree.path, &pair.pod, &pair.main] {
        assert_eq!(kernel.exclusive(path), pair.own, "{path}");
    }
    // The test program belongs to no pod, and nobody writes to its cgroup. The program is off the CPUs nevertheless; the
    // first process is too.
    let rest = kernel.online.difference(&pair.own);
    assert_eq!(allowed(std::process::id()), rest);
    assert_eq!(allowed(1), rest);
    let status = pair.agent.status().unwrap();
    assert_eq!(
        container(&status, "worker-0", "main").unwrap()["partition"],
        "root"
    );
    assert_eq!(
        container(&status, "web", "main").unwrap()["partition"],
        "member"
    );
    assert_eq!(
        status["unexplained"].as_array().unwrap().len(),
        0,
        "{status:#}"
    );
    // No further cgroup was written to.
    assert_eq!(
        kernel.written(&format!("{}/besteffort/podweb-uid/web1", pair.tree.path)),
        CpuSet::new()
    );
    pair.agent.stop();
    assert!(
        kernel.partition(&pair.main) == "root",
        "the end of the agent moves no container"
    );
    let mut release = crate::agent::pinfold();
    release.args(["release", "--pod-cgroup", &pair.tree.path]);
    let output = release.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(kernel.partition(&pair.main), "member");
    for path in [&pair.tree.path, &pair.pod, &pair.main] {
        assert_eq!(kernel.exclusive(path), CpuSet::new(), "{path}");
    }
    assert_eq!(allowed(pair.pid), kernel.online);
    assert_eq!(allowed(pair.other_pid), kernel.online);
}

#[test]
fn foreign_writes_to_a_partition_have_no_effect() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let pair = Pair::new(&kernel, &["--reconcile-interval", "1s"]);
    pair.settled(&kernel, "all is settled");
    let steps = || {
        pair.agent
            .metric("pinfold_reconcile_steps_total", &[])
            .unwrap()
    };
    let (before, timer) = (steps(), || {
        pair.agent
            .metric("pinfold_reconcile_total", &[("trigger", "timer")])
    });
    for list in ["0-7", "0", "3,5"] {
        assert!(kernel.write(&pair.main, "cpuset.cpus", list));
        assert!(pair.holds(&kernel), "after {list}");
    }
    let turns = timer().unwrap_or(0.0);
    pair.agent
        .eventually("two reconciles", |_| timer().unwrap_or(0.0) >= turns + 2.0);
    assert_eq!(steps(), before, "the agent repaired no file");
    pair.agent.stop();
}

#[test]
fn an_undone_partition_is_made_again_at_once() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    // With this interval no timer turn can help.
    let pair = Pair::new(&kernel, &["--reconcile-interval", "3600s"]);
    pair.settled(&kernel, "all is settled");
    let before = pair.drift("partition");
    assert!(kernel.write(&pair.main, "cpuset.cpus.partition", "member"));
    pair.settled(&kernel, "the container is a partition again");
    pair.agent.eventually("the drift is counted", |_| {
        pair.drift("partition") == before + 1.0
    });

    // The exclusive CPUs are set to other CPUs.
    let other = kernel
        .online
        .difference(&pair.own)
        .difference(&kernel.first());
    let other: CpuSet = other.iter().take(2).collect();
    let counted = || pair.agent.metric("pinfold_drift_total", &[]).unwrap();
    let drift_before = counted();
    for path in [&pair.tree.path, &pair.pod] {
        assert!(kernel.write(
            path,
            "cpuset.cpus.exclusive",
            &pair.own.union(&other).to_string()
        ));
    }
    // The cgroups above may be trimmed already; then this write makes the partition invalid.
    kernel.write(&pair.main, "cpuset.cpus.exclusive", &other.to_string());
    pair.agent.eventually(
        "the exclusive CPUs are back, and the drift is counted",
        |_| pair.holds(&kernel) && counted() > drift_before,
    );
    pair.agent.stop();
}

#[test]
fn a_cleared_ancestor_is_repaired_and_no_cpu_is_lost() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let pair = Pair::new(&kernel, &["--reconcile-interval", "1s"]);
    pair.settled(&kernel, "all is settled");
    for path in [&pair.tree.path, &pair.pod, &pair.tree.path] {
        assert!(kernel.write(path, "cpuset.cpus.exclusive", "\n"));
        pair.settled(&kernel, "the container is a partition again");
    }
    let status = pair.agent.status().unwrap();
    assert_eq!(status["lost"], "", "{status:#}");
    pair.agent.stop();
}

#[test]
fn another_container_on_exclusive_cpus_is_moved_off() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let mut pair = Pair::new(&kernel, &["--reconcile-interval", "1s"]);
    pair.settled(&kernel, "all is settled");
    let other = pair.tree.container(&pair.pod, "mate1");
    let other_pid = pair.tree.start(&other);
    // On Linux 6.12 the write makes the live partition invalid. Without a repair, the CPUs would be lost with the cgroup.
    for list in ["0-7".to_owned(), pair.own.to_string()] {
        assert!(kernel.write(&other, "cpuset.cpus", &list));
        pair.settled(&kernel, "the container is a partition again");
        pair.agent
            .eventually("the other container is off the CPU", |_| {
                kernel.written(&other).is_disjoint(&pair.own)
            });
        assert!(allowed(other_pid).is_disjoint(&pair.own));
    }
    pair.pods.remove("worker.yaml");
    pair.tree.remove(&pair.pod);
    let status = pair
        .agent
        .eventually("the pod is gone", |status| status["exclusive"] == "");
    assert_eq!(status["lost"], "", "{status:#}");
    pair.agent.eventually("all CPUs are everybody's", |_| {
        allowed(pair.other_pid) == kernel.online
    });
    assert_eq!(
        kernel.exclusive(&pair.tree.path),
        CpuSet::new(),
        "the tree is trimmed"
    );
    pair.agent.stop();
}

#[test]
fn another_container_gets_its_earlier_cpus_back() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    pods.put(
        "worker.yaml",
        &worker_with("worker-0", "worker-uid", 2, "", "main1"),
    );
    let pod = tree.pod("", "worker-uid");
    let other = tree.container(&pod, "mate1");
    tree.start(&other);
    assert!(kernel.write(&other, "cpuset.cpus", "0-7"));
    let main = tree.container(&pod, "main1");
    let pid = tree.start(&main);
    let agent = Settings::new(&tree.path, &pods, &kernel.first()).start();
    let status = agent.eventually("the worker is pinned", |status| {
        in_force(status, "worker-0")
    });
    let own = assigned(&status, "worker-0").unwrap();
    assert_eq!(
        (allowed(pid), kernel.partition(&main)),
        (own.clone(), "root".to_owned())
    );
    assert_eq!(kernel.written(&other), kernel.online.difference(&own));
    pods.put(
        "worker.yaml",
        &worker_with(
            "worker-0",
            "worker-uid",
            2,
            "pinfold.io/cpus: shared",
            "main1",
        ),
    );
    agent.eventually("the other container has the earlier CPUs", |_| {
        kernel.written(&other) == cpus("0-7")
    });
    assert_eq!(kernel.partition(&main), "member");
    agent.eventually("the record is gone", |_| {
        kernel.cgroups.assignment_record(&other).unwrap().is_none()
    });
    agent.stop();
}
