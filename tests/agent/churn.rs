//! Pods come, change and go at random, and the agent is killed at random moments.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use pinfold::cpu::CpuSet;
use pinfold::pin::AssignmentRecord;

use crate::agent::{Agent, Manifests, Settings, best_effort, patience, worker, worker_with};
use crate::kernel::{Kernel, Tree, kernel_tests};

#[path = "../placement/random.rs"]
pub(crate) mod random;

use random::Random;

/// How many events there are, and how many times the agent is killed among them.
const EVENTS: usize = 200;
const KILLS: usize = 10;

/// The seed of the events: `PINFOLD_TEST_SEED`, or a new one that is printed, so that the test can
/// be repeated.
pub(crate) fn seed(test: &str) -> u64 {
    let seed = std::env::var("PINFOLD_TEST_SEED").ok().map_or_else(
        || u64::from(std::process::id()) ^ std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() << 20,
        |seed| seed.parse().unwrap(),
    );
    say(&format!(
        "{test}: PINFOLD_TEST_SEED={seed} repeats these events"
    ));
    seed
}

/// Prints a line to stderr. The test harness hides the output of `println!` in tests that pass, but not this line.
pub(crate) fn say(line: &str) {
    std::io::stderr()
        .write_all(format!("{line}\n").as_bytes())
        .unwrap();
}

/// A pod of the test.
struct Pod {
    uid: String,
    /// The requested CPUs; `None` for a pod without requests.
    cpus: Option<usize>,
    shared: bool,
    cgroup: Option<String>,
    container: Option<String>,
    manifest: bool,
}

// === impl Pod ===

impl Pod {
    fn manifest(&self) -> String {
        match self.cpus {
            Some(cpus) if self.shared => {
                worker_with(&self.uid, &self.uid, cpus, "pinfold.io/cpus: shared", "")
            }
            Some(cpus) => worker(&self.uid, &self.uid, cpus),
            None => best_effort(&self.uid, &self.uid),
        }
    }
}

pub(crate) struct Churn<'a> {
    kernel: &'a Kernel,
    pub(crate) tree: Tree<'a>,
    pub(crate) manifests: Manifests,
    pub(crate) random: Random,
    pods: Vec<Pod>,
    made: usize,
}

// === impl Churn ===

impl<'a> Churn<'a> {
    pub(crate) fn new(kernel: &'a Kernel, seed: u64) -> Self {
        let (manifests, tree) = (Manifests::new(), kernel.tree());
        Self {
            kernel,
            tree,
            manifests,
            random: Random(seed),
            pods: Vec::new(),
            made: 0,
        }
    }

    pub(crate) fn settings(&self) -> Settings {
        let reserved = self.kernel.first();
        Settings::new(&self.tree.path, &self.manifests, &reserved)
            .with(&["--reconcile-interval", "1s"])
    }

    pub(crate) fn event(&mut self) {
        let index = self.random.below(self.pods.len().max(1));
        match self.random.below(10) {
            0..=2 if self.pods.len() < 8 => self.create(),
            3..=4 if !self.pods.is_empty() => self.remove(index),
            5 => self.annotate(index),
            6 => self.replace_container(index),
            _ => self.next_piece(index),
        }
    }

    /// Starts a pod: the manifest and the cgroups follow piece by piece, in any order.
    fn create(&mut self) {
        self.made += 1;
        let most = self.kernel.online.len() - 1;
        let cpus = (self.random.below(3) > 0).then(|| 1 + self.random.below(most));
        let uid = format!("uid{}", self.made);
        self.pods.push(Pod {
            uid,
            cpus,
            shared: false,
            cgroup: None,
            container: None,
            manifest: false,
        });
        let newest = self.pods.len() - 1;
        self.next_piece(newest);
    }

    fn next_piece(&mut self, index: usize) {
        let manifest_first = self.random.below(2) == 0;
        let Some(pod) = self.pods.get_mut(index) else {
            return;
        };
        if !pod.manifest && (manifest_first || pod.container.is_some()) {
            pod.manifest = true;
            self.manifests
                .put(&format!("{}.yaml", pod.uid), &pod.manifest());
        } else if pod.cgroup.is_none() {
            let class = if pod.cpus.is_some() { "" } else { "besteffort" };
            pod.cgroup = Some(self.tree.pod(class, &pod.uid));
        } else if let (Some(cgroup), None) = (&pod.cgroup, &pod.container) {
            self.made += 1;
            let container = self.tree.container(cgroup, &format!("c{}", self.made));
            if let Some(cpus) = pod.cpus {
                self.kernel
                    .set_quota(&container, u64::try_from(cpus).unwrap());
            }
            self.tree.start(&container);
            pod.container = Some(container);
        }
    }

    fn remove(&mut self, index: usize) {
        let pod = self.pods.swap_remove(index);
        let manifest_first = self.random.below(2) == 0;
        let file = format!("{}.yaml", pod.uid);
        if pod.manifest && manifest_first {
            self.manifests.remove(&file);
        }
        if let Some(cgroup) = &pod.cgroup {
            self.tree.remove(cgroup);
        }
        if pod.manifest && !manifest_first {
            self.manifests.remove(&file);
        }
    }

    fn annotate(&mut self, index: usize) {
        let Some(pod) = self.pods.get_mut(index) else {
            return;
        };
        pod.shared = !pod.shared;
        if pod.manifest {
            self.manifests
                .put(&format!("{}.yaml", pod.uid), &pod.manifest());
        }
    }

    fn replace_container(&mut self, index: usize) {
        let Some(pod) = self.pods.get_mut(index) else {
            return;
        };
        if let Some(container) = pod.container.take() {
            self.tree.remove(&container);
        }
    }

    /// The CPUs in the assignment records, by container. No two records overlap, and none has
    /// reserved CPUs. The records are those of a state that lasts for two reads.
    pub(crate) fn claims(&self, when: &str) -> BTreeMap<String, CpuSet> {
        let claims = read_until_stable(|| self.recorded());
        self.partitions(when);
        let mut all = self.kernel.first();
        for (owner, cpus) in &claims {
            assert!(
                cpus.is_disjoint(&all),
                "{when}: {owner} claims {cpus}, and {all} is others' or reserved: {claims:?}"
            );
            all = all.union(cpus);
        }
        claims
    }

    /// Reads the records pod by pod, while a running agent may change them.
    fn recorded(&self) -> BTreeMap<String, CpuSet> {
        let mut claims = BTreeMap::new();
        for pod in self.kernel.cgroups.scan(&self.tree.path).unwrap() {
            let marks = pod
                .containers
                .iter()
                .map(|container| &container.record_text)
                .chain([&pod.record_text]);
            for mark in marks.flatten() {
                for (name, cpus) in AssignmentRecord::parse(mark).unwrap().assignment.entries() {
                    let name = name.unwrap_or("(idle)");
                    claims.insert(format!("{}/{name}", pod.uid), cpus.clone());
                }
            }
        }
        claims
    }

    /// The CPUs of live partitions. At any moment no two of them share a CPU, none has a reserved
    /// CPU, and no CPU is lost.
    fn partitions(&self, when: &str) -> CpuSet {
        let partitions = read_until_stable(|| self.live_partitions());
        let mut all = CpuSet::new();
        for (path, cpus) in &partitions {
            assert!(
                cpus.is_disjoint(&all.union(&self.kernel.first())),
                "{when}: {path} has {cpus}: {partitions:?}"
            );
            all = all.union(cpus);
        }
        let lost = self
            .kernel
            .cgroups
            .missing_cpus(&self.kernel.online, &all)
            .unwrap()
            .unheld();
        assert!(lost.is_empty(), "{when}: the kernel has lost {lost}");
        all
    }

    /// Maps the cgroup path of each container with a live partition to the partition's CPUs. The
    /// containers are read one after the other.
    fn live_partitions(&self) -> BTreeMap<String, CpuSet> {
        let pods = self.kernel.cgroups.scan(&self.tree.path).unwrap();
        pods.into_iter()
            .flat_map(|pod| pod.containers)
            .filter(|container| container.cpuset.partition.is_live())
            .map(|container| (container.path, container.cpuset.exclusive))
            .collect()
    }

    /// Maps the cgroup path of each container that runs on the CPUs of its pod's record to these CPUs.
    pub(crate) fn in_force(&self) -> BTreeMap<String, CpuSet> {
        let claims = self.claims("now");
        let mut found = BTreeMap::new();
        for pod in self.kernel.cgroups.scan(&self.tree.path).unwrap() {
            let owed = self
                .pods
                .iter()
                .any(|known| known.uid == pod.uid && known.manifest && !known.shared);
            let Some(claim) = claims.get(&format!("{}/main", pod.uid)).filter(|_| owed) else {
                continue;
            };
            for container in pod
                .containers
                .iter()
                .filter(|container| container.cpuset.effective == *claim)
            {
                found.insert(container.path.clone(), claim.clone());
            }
        }
        found
    }

    /// Everybody goes.
    pub(crate) fn clear(&mut self) {
        while !self.pods.is_empty() {
            self.remove(0);
        }
    }

    /// The cgroups of the existing containers.
    pub(crate) fn containers(&self) -> Vec<String> {
        self.pods
            .iter()
            .filter_map(|pod| pod.container.clone())
            .collect()
    }

    /// The invariants once the agent has caught up, read from the kernel alone; an error where one
    /// does not hold.
    fn invariants(&self, enforcement: &str) -> Result<(), String> {
        let claims = self.claims("at the end");
        let partition = enforcement == "partition";
        // The CPUs of a pod without a running container are open to shared containers while the kernel has no partition for
        // the pod.
        let owned = if partition {
            self.partitions("at the end")
        } else {
            claims
                .values()
                .fold(CpuSet::new(), |all, cpus| all.union(cpus))
        };
        // The count treats every pod as if the pod had a cgroup. If the CPUs suffice for all pods, the CPUs suffice for the
        // pods with cgroups.
        let wanting = self.pods.iter().filter(|pod| pod.manifest && !pod.shared);
        let enough = wanting.filter_map(|pod| pod.cpus).sum::<usize>() < self.kernel.online.len();
        for pod in self.kernel.cgroups.scan(&self.tree.path).unwrap() {
            let known = self.pods.iter().find(|known| known.uid == pod.uid).unwrap();
            let owed = known.manifest && !known.shared && known.cpus.is_some();
            let claim = claims.get(&format!("{}/main", pod.uid));
            // A pod without a manifest may have any entitlement: Pinfold takes nothing from the pod and gives nothing.
            if !owed && claim.is_some() {
                return Err(format!("{} owns {claim:?} and is owed nothing", pod.path));
            }
            if owed && claim.is_none() && enough {
                return Err(format!(
                    "{} owns no CPU, and the CPUs suffice for all pods",
                    pod.path
                ));
            }
            if claim.is_none() && pod.record_text.is_some() {
                return Err(format!(
                    "{} has a record and owns no CPU: {:?}",
                    pod.path, pod.record_text
                ));
            }
            for container in &pod.containers {
                let now = &container.cpuset.effective;
                let good = match claim {
                    Some(_) if partition && !container.cpuset.partition.is_live() => false,
                    None if partition && container.cpuset.partition.is_live() => false,
                    Some(claim) => {
                        now == claim && container.quota.is_none_or(|quota| quota.quota.is_none())
                    }
                    None if partition => {
                        *now == shared_part(&container.cpuset.cpus, &self.kernel.online, &owned)
                    }
                    // A container that Pinfold never wrote to keeps its own set as long as the set has no owned CPU.
                    None => {
                        now.is_disjoint(&owned)
                            && (container.record_text.is_none()
                                || self.kernel.first().is_subset(now))
                    }
                };
                if !good {
                    return Err(format!(
                        "{}: {claim:?} is claimed, {container:?}",
                        container.path
                    ));
                }
                let limit = known
                    .cpus
                    .filter(|_| claim.is_none())
                    .map(|cpus| cpus as u64 * 100_000);
                if limit.is_some() && self.kernel.quota(&container.path) != limit {
                    return Err(format!(
                        "{}: the quota should be {limit:?}, {container:?}",
                        container.path
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Reads until two reads in a row are equal. A single read can mix values from before and after a change.
fn read_until_stable<T: PartialEq + std::fmt::Debug>(read: impl Fn() -> T) -> T {
    let deadline = std::time::Instant::now() + patience();
    let mut last = read();
    loop {
        let next = read();
        if next == last {
            return next;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "two reads in a row still differ: {last:?}, {next:?}"
        );
        last = next;
    }
}

/// The CPUs that the kernel leaves beside partitions to a container with the written set; Pinfold needs no write.
fn shared_part(written: &CpuSet, online: &CpuSet, owned: &CpuSet) -> CpuSet {
    let shared = online.difference(owned);
    let part = written.intersection(&shared);
    if part.is_empty() { shared } else { part }
}

pub(crate) fn settled(churn: &Churn<'_>, agent: &Agent) {
    let mut wrong = Ok(());
    let deadline = std::time::Instant::now() + patience();
    let enforcement = agent
        .status()
        .map(|status| status["enforcement"].as_str().unwrap().to_owned());
    while std::time::Instant::now() < deadline {
        wrong = churn.invariants(enforcement.as_deref().unwrap_or_default());
        if wrong.is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{wrong:?}\n{}", agent.log());
}

#[test]
fn invariants_hold_during_churn() {
    let Some(kernel) = kernel_tests() else { return };
    let seed = seed("churn");
    let mut churn = Churn::new(&kernel, seed);
    let settings = churn.settings();
    let mut agent = settings.start();
    for number in 0..EVENTS {
        churn.event();
        std::thread::sleep(Duration::from_millis(churn.random.below(15) as u64));
        if number % (EVENTS / KILLS) == EVENTS / KILLS - 1 {
            agent.kill();
            churn.claims(&format!("seed {seed}, event {number}"));
            agent = settings.start();
            if number % (2 * EVENTS / KILLS) == EVENTS / KILLS - 1 {
                settled(&churn, &agent);
            }
        }
    }
    settled(&churn, &agent);
    let status = agent.status().unwrap();
    assert_eq!(
        status["unexplained"].as_array().unwrap().len(),
        0,
        "{status:#}"
    );
    assert_eq!(status["errors"].as_array().unwrap().len(), 0, "{status:#}");
    // Nothing is owned, and nothing is left.
    churn.clear();
    agent.eventually("all CPUs are shared", |status| status["exclusive"] == "");
    agent.stop();
}
