//! [`qos`]: the QoS class, computed as the API server does it.

use super::quantity::format_cpu;
use super::{Container, Pod, Qos, Resources};

/// The pod's QoS class.
///
/// Pod-level resources decide alone. If there are none, all containers count, including init
/// containers and sidecars. Only CPU and memory matter, and zero counts as unset. If a pod's only
/// pod-level resource is huge pages, the containers decide the class (the API server calls the pod
/// BestEffort).
pub fn qos(pod: &Pod) -> Qos {
    let nothing = pod.resources.is_empty() && pod.containers.iter().all(|c| unset(&c.resources))
        || !pod.resources.is_empty() && unset(&pod.resources);
    if nothing {
        Qos::BestEffort
    } else if guaranteed_obstacle(pod).is_none() {
        Qos::Guaranteed
    } else {
        Qos::Burstable
    }
}

/// Why the pod's QoS class is not Guaranteed, as the end of a sentence that names the first thing to change:
/// `container data has no memory limit`. `None` for a Guaranteed pod.
pub fn guaranteed_obstacle(pod: &Pod) -> Option<String> {
    if !pod.resources.is_empty() {
        return obstacle(&pod.resources).map(|what| format!("the pod's own resources have {what}"));
    }
    if pod.containers.is_empty() {
        return Some("the pod has no containers".to_owned());
    }
    let of_container = |c: &Container| {
        Some(format!(
            "container {} has {}",
            c.name,
            obstacle(&c.resources)?
        ))
    };
    pod.containers.iter().find_map(of_container)
}

/// What keeps requests and limits from being Guaranteed.
fn obstacle(resources: &Resources) -> Option<String> {
    let Resources {
        cpu_request,
        cpu_limit,
        memory_request,
        memory_limit,
    } = *resources;
    match (some(cpu_limit), some(memory_limit)) {
        (None, None) => Some("no CPU limit and no memory limit".to_owned()),
        (None, Some(_)) => Some("no CPU limit".to_owned()),
        (Some(_), None) => Some("no memory limit".to_owned()),
        (Some(cpu), Some(_)) if some(cpu_request) != Some(cpu) => Some(format!(
            "CPU request {} and limit {}, which differ",
            format_cpu(cpu_request.unwrap_or_default()),
            format_cpu(cpu)
        )),
        (Some(_), Some(memory)) if some(memory_request) != Some(memory) => {
            Some("a memory request that differs from its limit".to_owned())
        }
        (Some(_), Some(_)) => None,
    }
}

/// Whether no request and no limit is set.
fn unset(resources: &Resources) -> bool {
    let Resources {
        cpu_request,
        cpu_limit,
        memory_request,
        memory_limit,
    } = *resources;
    [cpu_request, cpu_limit, memory_request, memory_limit]
        .into_iter()
        .all(|amount| some(amount).is_none())
}

/// An amount; none for zero.
fn some(amount: Option<u64>) -> Option<u64> {
    amount.filter(|&amount| amount > 0)
}
