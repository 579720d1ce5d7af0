//! [`pod()`]: a [`Pod`] from a runtime's description, without an API server. If the API server
//! describes the pod, that has priority.
//!
//! A runtime's description has less than a manifest. Each property of the pod has this source:
//!
//! | of the pod | from |
//! |---|---|
//! | name, namespace, uid, labels, annotations | the sandbox, without additions of the kubelet and the runtime |
//! | QoS class | the name of the cgroup that the kubelet made for the pod |
//! | host network | the sandbox has no network namespace of its own |
//! | a container's environment and arguments | the container's process: variables of the image count as set |
//! | CPU request, CPU limit | weight and quota, by the inverse of the kubelet's formulas, exact from 3 to 255,999 thousandths |
//! | memory limit | the limit |
//!
//! The description lacks:
//!
//! - *Containers that are still to come.* A pod has the existing containers and the one that is
//!   being created.
//! - *The kinds of containers.* Init containers and sidecars count as app containers. An init
//!   container of a Guaranteed pod is then entitled to CPUs until it stops. Stopped containers are
//!   left out.
//! - *The end of a container.* containerd 2.1 reports a crashed container like a stopping one, with
//!   exit code 0. Its CPUs are free until it starts again. If an API server describes the pod, the
//!   CPUs stay with the pod.
//! - *Memory requests.* In a Guaranteed pod, a request equals the limit. In all other pods it is
//!   unknown. The result of [`qos`](crate::pod::qos()) is therefore Guaranteed only if the
//!   kubelet's cgroup says Guaranteed.
//! - *Resources of the pod as a whole.* The kubelet (1.32 and newer) gives the pod's limit to a
//!   container without one, as weight, quota and memory, so it looks like the container's own. An
//!   older kubelet gives no limit, and the container's threads can't be counted. The agent
//!   therefore waits for the API server's description, if a cluster is configured.
//! - *An earlier quota, after the quota was removed.* In a Guaranteed pod, the request gives the
//!   limit, and the limit gives the request.
//! - Node labels that the pod selects, and whether the pod has finished.
//!
//! A container that was created with Pinfold's variables lists them in later events. They then
//! count as set, as intended.

use std::collections::BTreeMap;

use super::proto::{Container, ContainerState, LinuxCpu, LinuxMemory, PodSandbox};
use crate::pod::{self, ContainerIds, ContainerKind, EnvSource, Pod, PodUid, Qos, Resources};

/// The kubelet's weight without a request, and the smallest weight of any request.
const LEAST_SHARES: u64 = 2;

/// The kernel's largest weight: a request of 256 CPUs or more.
const MOST_SHARES: u64 = 262_144;

/// The kubelet's smallest quota in microseconds.
const LEAST_QUOTA: u64 = 1000;

/// Labels of a sandbox that the pod does not have.
const ADDED_LABELS: [&str; 4] = [
    "io.kubernetes.pod.name",
    "io.kubernetes.pod.namespace",
    "io.kubernetes.pod.uid",
    "io.cri-containerd.kind",
];

/// The annotation of a static pod with the uid of its cgroup.
const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// Prefixes of annotations that a runtime adds.
const ADDED_ANNOTATIONS: [&str; 2] = ["io.kubernetes.cri.", "io.kubernetes.cri-o."];

/// The annotations with the name of a container's image.
pub const IMAGE_ANNOTATIONS: [&str; 2] = [
    "io.kubernetes.cri.image-name",
    "io.kubernetes.cri-o.ImageName",
];

/// The runtime's annotation with the CPUs that Pinfold gave a container at CreateContainer. The
/// runtime remembers them and writes them again later, even if the container no longer owns them.
pub const GIVEN_CPUS_ANNOTATION: &str = "pinfold.io/assigned-cpus";

/// The pod of a sandbox, with its containers from oldest to newest. Stopped containers and those of
/// other sandboxes are left out. Of several containers with the same name, the last counts.
pub fn pod<'a>(sandbox: &PodSandbox, containers: impl IntoIterator<Item = &'a Container>) -> Pod {
    let class = qos_class(sandbox.cgroup_parent());
    let stopped = ContainerState::Stopped as i32;
    let belongs_to_sandbox = |container: &&Container| {
        container.pod_sandbox_id == sandbox.id && container.state != stopped
    };
    let named = containers
        .into_iter()
        .filter(belongs_to_sandbox)
        .filter(|container| !container.name.is_empty());
    let by_name: BTreeMap<&str, &Container> = named
        .map(|container| (container.name.as_str(), container))
        .collect();
    let containers = by_name
        .into_values()
        .filter_map(|container| pod_container(container, class));
    // CRI-O copies the pod's annotations to its containers, so it may be the pod's author who
    // speaks in such an annotation.
    let is_forged = sandbox.annotations.contains_key(GIVEN_CPUS_ANNOTATION);
    let containers = containers.map(|mut container| {
        container.given_cpus = container.given_cpus.filter(|_| !is_forged);
        container
    });
    let mut pod = Pod {
        namespace: if sandbox.namespace.is_empty() {
            "default"
        } else {
            &sandbox.namespace
        }
        .to_owned(),
        name: sandbox.name.clone(),
        // A static pod has two uids. The one in the cgroup's name counts, since no annotation can
        // change that name.
        uid: pod_uid(sandbox.cgroup_parent())
            .or_else(|| Some(sandbox.uid.clone()).filter(|uid| !uid.is_empty()))
            .map(PodUid::from),
        labels: without_added(&sandbox.labels, |key| ADDED_LABELS.contains(&key)).into(),
        annotations: without_added(&sandbox.annotations, |key| {
            key == CONFIG_HASH
                || ADDED_ANNOTATIONS
                    .iter()
                    .any(|prefix| key.starts_with(prefix))
        })
        .into(),
        host_network: host_network(sandbox),
        containers: containers.collect(),
        qos_reported: class,
        ids: ContainerIds::Runtime,
        is_of_runtime: true,
        ..Pod::default()
    };
    pod.share_limits();
    pod
}

/// The QoS class in the name of a pod's cgroup, with either kubelet driver; `None` for a name that is not the
/// kubelet's.
pub fn qos_class(cgroup_parent: &str) -> Option<Qos> {
    let (group, _) = split_cgroup_parent(cgroup_parent)?;
    // The kubelet's tree may be below another cgroup.
    let mut names = group.rsplit(['/', '-']);
    match names.next().unwrap_or_default() {
        "kubepods" => Some(Qos::Guaranteed),
        // The group of the system pods has the same classes as the tree itself.
        "system" if names.next() == Some("kubepods") => Some(Qos::Guaranteed),
        "burstable" => Some(Qos::Burstable),
        "besteffort" => Some(Qos::BestEffort),
        _ => None,
    }
}

/// The uid in the name of a pod's cgroup, with either kubelet driver.
pub fn pod_uid(cgroup_parent: &str) -> Option<String> {
    let (_, uid) = split_cgroup_parent(cgroup_parent)?;
    Some(if cgroup_parent.ends_with(SLICE) {
        uid.replace('_', "-")
    } else {
        uid.to_owned()
    })
}

const SLICE: &str = ".slice";

/// The cgroup of the QoS class, and the part that names the pod.
fn split_cgroup_parent(cgroup_parent: &str) -> Option<(&str, &str)> {
    let path = cgroup_parent.trim_end_matches('/');
    let (group, uid) = match path.strip_suffix(SLICE) {
        Some(slice) => slice.rsplit('/').next()?.rsplit_once("-pod")?,
        None => path.rsplit_once("/pod")?,
    };
    let is_uid = !uid.is_empty() && !uid.contains('/');
    is_uid.then_some((group, uid))
}

fn without_added(
    map: &BTreeMap<String, String>,
    added: impl Fn(&str) -> bool,
) -> BTreeMap<String, String> {
    map.iter()
        .filter(|(key, _)| !added(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Whether the pod uses the host's network. A sandbox lists its own namespaces, so an empty list
/// proves nothing.
fn host_network(sandbox: &PodSandbox) -> bool {
    sandbox.linux.as_ref().is_some_and(|linux| {
        let own = &linux.namespaces;
        !own.is_empty() && own.iter().all(|namespace| namespace.kind != "network")
    })
}

/// The pod's container. In a Guaranteed pod, one without any resources is a debug container and
/// gives `None`, because no manifest of a Guaranteed pod has such a container.
fn pod_container(container: &Container, class: Option<Qos>) -> Option<pod::Container> {
    let linux = container.resources();
    let cpu = linux.and_then(|linux| linux.cpu.as_ref());
    let memory = linux.and_then(|linux| linux.memory.as_ref());
    let resources = resources(cpu, memory, class);
    if class == Some(Qos::Guaranteed) && resources.is_empty() {
        return None;
    }
    let image = IMAGE_ANNOTATIONS
        .iter()
        .find_map(|key| container.annotations.get(*key));
    // Of a variable that is too long, only the name is left.
    let variable = |line: &String| match line.split_once('=') {
        Some((name, value)) => Some((name.to_owned(), EnvSource::Value(value.to_owned()))),
        None => pod::variable_counts(line).then(|| (line.clone(), EnvSource::Reference)),
    };
    Some(pod::Container {
        name: container.name.clone(),
        kind: ContainerKind::App,
        resources,
        env: container.env.iter().filter_map(variable).collect(),
        env_from: false,
        image: image.cloned().unwrap_or_default(),
        args: container.args.clone().into(),
        runtime_id: Some(container.id.clone()).filter(|id| !id.is_empty()),
        given_cpus: container
            .annotations
            .get(GIVEN_CPUS_ANNOTATION)
            .and_then(|cpus| cpus.parse().ok()),
        ended: false,
    })
}

fn resources(
    cpu: Option<&LinuxCpu>,
    memory: Option<&LinuxMemory>,
    class: Option<Qos>,
) -> Resources {
    let request = cpu.and_then(LinuxCpu::shares).and_then(request_of_shares);
    let limit = cpu.and_then(|cpu| limit_of_quota(cpu.quota()?, cpu.period()));
    let memory_limit = memory.and_then(LinuxMemory::limit);
    let is_guaranteed = class == Some(Qos::Guaranteed);
    // In a Guaranteed pod, request and limit are equal, so each gives the other. If they differ,
    // they come from another plugin, or from resources of the pod as a whole, and both stay as they
    // are.
    let quota = cpu.and_then(LinuxCpu::quota);
    let (cpu_request, cpu_limit) = match (request, limit) {
        own if !is_guaranteed => own,
        (Some(request), Some(_))
            if quota == cpu.and_then(|cpu| quota_of_limit(request, cpu.period())) =>
        {
            (Some(request), Some(request))
        }
        (Some(request), None) => (Some(request), Some(request)),
        (None, limit) => (limit, limit),
        different => different,
    };
    Resources {
        cpu_request,
        cpu_limit,
        memory_request: memory_limit.filter(|_| is_guaranteed),
        memory_limit,
    }
}

/// The request in thousandths of a CPU, from a weight; `None` if the weight does not determine it.
///
/// The kubelet rounds 1024 / 1000 of the request down. The inverse rounds up, which gives the only
/// request with this weight.
fn request_of_shares(shares: u64) -> Option<u64> {
    (LEAST_SHARES < shares && shares < MOST_SHARES).then(|| (shares * 1000).div_ceil(1024))
}

/// The limit in thousandths of a CPU, from a quota.
fn limit_of_quota(quota: u64, period: u64) -> Option<u64> {
    let millis = (u128::from(quota) * 1000).div_ceil(u128::from(period.max(1)));
    u64::try_from(millis).ok()
}

/// The kubelet's quota for a limit.
fn quota_of_limit(millis: u64, period: u64) -> Option<u64> {
    let quota = u64::try_from(u128::from(millis) * u128::from(period) / 1000).ok()?;
    Some(quota.max(LEAST_QUOTA))
}

#[cfg(test)]
mod tests;
