//! [`pod()`]: a [`Pod`] of what a runtime tells, with no API server at hand. A pod known from there wins over this one.
//!
//! A runtime tells less than a manifest says. What is taken from what:
//!
//! | of the pod | from |
//! |---|---|
//! | name, namespace, uid, labels, annotations | the sandbox, without what the kubelet and the runtime add |
//! | QoS class | the name of the cgroup that the kubelet made for the pod |
//! | host network | the sandbox has no network namespace of its own |
//! | a container's environment and arguments | its process: what the image sets counts as set |
//! | CPU request, CPU limit | weight and quota, by the inverse of the kubelet's formulas, exact from 3 to 255,999 thousandths |
//! | memory limit | the limit |
//!
//! And what is not told:
//!
//! - *The containers that are still to come.* A pod has those that exist and the one that is being created.
//! - *Which are init containers and sidecars.* All count as app containers. An init container of a Guaranteed pod is then
//!   owed CPUs of its own like any other, until it stops: containers that have stopped are left out.
//! - *How a container has ended.* containerd 2.1 tells of one that has crashed as of one that is to be stopped, with exit code 0:
//!   what it owned is free until it comes again. Where an API server tells of the pod, it stays the pod's.
//! - *Memory requests.* In a Guaranteed pod a request equals its limit; elsewhere it stays unknown, and so the class that
//!   [`qos`](crate::pod::qos()) computes from the result is never Guaranteed unless the kubelet says so.
//! - *Resources of the pod as a whole.* The kubelet (1.32 and newer) gives a container without a limit the limit of its pod, as
//!   weight, quota and memory. Such a limit can't be told from the container's own. An older kubelet gives no limit, and the
//!   container's threads can't be counted. The API's word is therefore waited for where an API tells of pods.
//! - *What a quota was before it was lifted.* In a Guaranteed pod the request tells the limit, and the other way round.
//! - Labels of nodes that the pod asks for, and whether it has run to its end.
//!
//! A container that was created with variables of ours has them in its environment when it is told of again. That is as
//! it is meant: they are set.

use std::collections::{BTreeMap, BTreeSet};

use super::proto::{Container, ContainerState, LinuxCpu, LinuxMemory, PodSandbox};
use crate::pod::{self, ContainerIds, ContainerKind, EnvSource, Pod, PodUid, Qos, Resources};

/// The kubelet's weight for nothing asked for, and its least for anything.
const LEAST_SHARES: u64 = 2;

/// The kernel's most: a request of 256 CPUs or more.
const MOST_SHARES: u64 = 262_144;

/// The kubelet's least quota in microseconds, whatever the limit.
const LEAST_QUOTA: u64 = 1000;

/// Labels of a sandbox that are not the pod's.
const ADDED_LABELS: [&str; 4] = [
    "io.kubernetes.pod.name",
    "io.kubernetes.pod.namespace",
    "io.kubernetes.pod.uid",
    "io.cri-containerd.kind",
];

/// The annotation of a static pod with the uid of its cgroup.
const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// What annotations begin with that a runtime adds.
const ADDED_ANNOTATIONS: [&str; 2] = ["io.kubernetes.cri.", "io.kubernetes.cri-o."];

/// The annotations in which runtimes note the image of a container.
pub const IMAGES: [&str; 2] = [
    "io.kubernetes.cri.image-name",
    "io.kubernetes.cri-o.ImageName",
];

/// The pod of a sandbox and its containers, oldest first; those of other sandboxes, and those that have stopped, are left out.
/// Of several of one name the last counts.
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
    Pod {
        namespace: if sandbox.namespace.is_empty() {
            "default"
        } else {
            &sandbox.namespace
        }
        .to_owned(),
        name: sandbox.name.clone(),
        // Of a static pod's two uids, the one in its cgroup's name; nobody's annotation has a say in it.
        uid: pod_uid(sandbox.cgroup_parent())
            .or_else(|| Some(sandbox.uid.clone()).filter(|uid| !uid.is_empty()))
            .map(PodUid::from),
        api_uid: None,
        mirror: None,
        confirmed: false,
        labels: without_added(&sandbox.labels, |key| ADDED_LABELS.contains(&key)),
        annotations: without_added(&sandbox.annotations, |key| {
            key == CONFIG_HASH
                || ADDED_ANNOTATIONS
                    .iter()
                    .any(|prefix| key.starts_with(prefix))
        }),
        host_network: host_network(sandbox),
        node_keys: BTreeSet::new(),
        finished: false,
        resources: Resources::default(),
        containers: containers.collect(),
        qos_reported: class,
        ids: ContainerIds::Runtime,
    }
}

/// The QoS class in the name of the cgroup that the kubelet makes for a pod, with either driver; `None` for a name that
/// the kubelet did not give.
pub fn qos_class(cgroup_parent: &str) -> Option<Qos> {
    let (group, _) = split_cgroup_parent(cgroup_parent)?;
    // A node's configuration may put the kubelet's tree below another.
    let last = group.rsplit(['/', '-']).next().unwrap_or_default();
    match last {
        "kubepods" => Some(Qos::Guaranteed),
        "burstable" => Some(Qos::Burstable),
        "besteffort" => Some(Qos::BestEffort),
        _ => None,
    }
}

/// The uid in the name of the cgroup that the kubelet makes for a pod, with either driver.
pub fn pod_uid(cgroup_parent: &str) -> Option<String> {
    let (_, uid) = split_cgroup_parent(cgroup_parent)?;
    Some(if cgroup_parent.ends_with(SLICE) {
        uid.replace('_', "-")
    } else {
        uid.to_owned()
    })
}

const SLICE: &str = ".slice";

/// The group of pods that the cgroup is in, and what names the pod.
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

/// A sandbox lists the namespaces that it has of its own; one that lists none tells nothing.
fn host_network(sandbox: &PodSandbox) -> bool {
    let own = sandbox
        .linux
        .as_ref()
        .map(|linux| linux.namespaces.as_slice())
        .unwrap_or_default();
    !own.is_empty() && !own.iter().any(|namespace| namespace.kind == "network")
}

/// A container; `None` for one that can't be of the pod's manifest: nothing at all is given to it in a pod of class
/// Guaranteed. It is there to debug.
fn pod_container(container: &Container, class: Option<Qos>) -> Option<pod::Container> {
    let linux_resources = container.resources();
    let cpu = linux_resources.and_then(|linux_resources| linux_resources.cpu.as_ref());
    let memory = linux_resources.and_then(|linux_resources| linux_resources.memory.as_ref());
    let resources = resources(cpu, memory, class);
    if class == Some(Qos::Guaranteed) && resources.is_empty() {
        return None;
    }
    let image = IMAGES
        .iter()
        .find_map(|key| container.annotations.get(*key));
    let variable = |line: &String| {
        let (name, value) = line.split_once('=')?;
        Some((name.to_owned(), EnvSource::Value(value.to_owned())))
    };
    Some(pod::Container {
        name: container.name.clone(),
        kind: ContainerKind::App,
        resources,
        env: container.env.iter().filter_map(variable).collect(),
        env_from: false,
        image: image.cloned().unwrap_or_default(),
        args: container.args.clone(),
        runtime_id: Some(container.id.clone()).filter(|id| !id.is_empty()),
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
    if class != Some(Qos::Guaranteed) {
        return Resources {
            cpu_request: request,
            cpu_limit: limit,
            memory_request: None,
            memory_limit,
        };
    }
    // Request and limit are one number there: each tells the other. Where they differ, somebody else had a hand in it,
    // or the class comes from resources of the pod as a whole; neither is then taken for the other.
    let quota = cpu.and_then(LinuxCpu::quota);
    let (cpu_request, cpu_limit) = match (request, limit) {
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
        memory_request: memory_limit,
        memory_limit,
    }
}

/// Thousandths of a CPU of a weight; `None` where the kubelet's formula has lost them.
///
/// The kubelet takes 1024 / 1000 of the request and drops what is left of a whole number. Rounded up, the inverse finds the
/// one request that comes out so.
fn request_of_shares(shares: u64) -> Option<u64> {
    (LEAST_SHARES < shares && shares < MOST_SHARES).then(|| (shares * 1000).div_ceil(1024))
}

/// Thousandths of a CPU of a quota.
fn limit_of_quota(quota: u64, period: u64) -> Option<u64> {
    let millis = (u128::from(quota) * 1000).div_ceil(u128::from(period.max(1)));
    u64::try_from(millis).ok()
}

/// The quota that the kubelet gives for a limit.
fn quota_of_limit(millis: u64, period: u64) -> Option<u64> {
    let quota = u64::try_from(u128::from(millis) * u128::from(period) / 1000).ok()?;
    Some(quota.max(LEAST_QUOTA))
}

#[cfg(test)]
mod tests;
