//! [`Pod::from_k8s`]: an API object as a [`Pod`], with the defaults that the API server would fill in.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::object::{self, Amounts, Object};
use super::quantity::{self, QuantityError};
use super::{Container, ContainerKind, EnvSource, Pod, Qos, Resources};

/// Why an API object is not a pod that could run. Every variant names the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PodError {
    /// Neither `metadata.name` nor `metadata.generateName`.
    #[error("metadata.name is missing: give the pod a name")]
    NoName,
    /// No containers at all.
    #[error("spec.containers is empty: a pod needs at least one container")]
    NoContainers,
    /// A container without a name.
    #[error("{path}.name is missing: give the container a name that is unique in the pod")]
    NoContainerName {
        /// The container's place, like `spec.containers[0]`.
        path: String,
    },
    /// Two containers of one name.
    #[error(
        "{path}.name repeats {name:?}: names of containers, init containers included, are unique in a pod"
    )]
    DuplicateContainer {
        /// The second one's place.
        path: String,
        /// The name.
        name: String,
    },
    /// A quantity that can't be read.
    #[error("{path} is not a quantity")]
    Quantity {
        /// The field, like `spec.containers[0].resources.limits.cpu`.
        path: String,
        /// Why not.
        #[source]
        source: QuantityError,
    },
    /// A request above its limit.
    #[error(
        "{path}.requests.{resource} is {request}, more than the limit {limit}: lower it, or raise the limit"
    )]
    RequestOverLimit {
        /// The resources' place, like `spec.containers[0].resources`.
        path: String,
        /// `cpu` or `memory`.
        resource: &'static str,
        /// The request, as Kubernetes writes it.
        request: String,
        /// The limit, as Kubernetes writes it.
        limit: String,
    },
}

// === impl Pod ===

impl Pod {
    /// The pod that an API object describes.
    ///
    /// Ephemeral containers are left out: they have no resources and appear only while somebody debugs. A pod that has
    /// no name yet is called by its `generateName`. An object without containers, as a watch may deliver, is taken.
    pub fn from_k8s(pod: Object) -> Result<Self, PodError> {
        let metadata = pod.metadata.unwrap_or_default();
        let node_keys = pod.spec.as_ref().map(node_keys).unwrap_or_default();
        let spec = pod.spec.unwrap_or_default();
        let status = pod.status.unwrap_or_default();
        let non_empty = |text: Option<String>| text.filter(|text| !text.is_empty());
        let name = non_empty(metadata.name).or_else(|| non_empty(metadata.generate_name));
        let name = name.ok_or(PodError::NoName)?;

        let mut ids = runtime_ids(&status);
        let init = spec.init_containers.unwrap_or_default().into_iter().zip(0..);
        let init = init.map(|(c, i)| (format!("spec.initContainers[{i}]"), init_kind(&c), c));
        let app = spec.containers.unwrap_or_default().into_iter().zip(0..);
        let app = app.map(|(c, i)| (format!("spec.containers[{i}]"), ContainerKind::App, c));
        let mut containers: Vec<Container> = Vec::new();
        let mut names = BTreeSet::new();
        for (path, kind, mut container) in init.chain(app) {
            let Some(name) = non_empty(container.name.take()) else {
                return Err(PodError::NoContainerName { path });
            };
            if !names.insert(name.clone()) {
                return Err(PodError::DuplicateContainer { path, name });
            }
            let runtime_id = ids.remove(&name);
            containers.push(convert(name, container, kind, &path, runtime_id)?);
        }

        let mut whole = resources(spec.resources, "spec.resources")?;
        default_pod_requests(&mut whole, &containers);
        within_limit(&whole, "spec.resources")?;

        Ok(Self {
            namespace: non_empty(metadata.namespace).unwrap_or_else(|| "default".to_owned()),
            name,
            uid: non_empty(metadata.uid),
            labels: metadata.labels.unwrap_or_default(),
            annotations: metadata.annotations.unwrap_or_default(),
            host_network: spec.host_network.unwrap_or_default(),
            node_keys,
            finished: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
            resources: whole,
            containers,
            qos_reported: status.qos_class.as_deref().and_then(reported),
            of_runtime: false,
        })
    }
}

/// The label keys by which a pod chooses its node.
fn node_keys(spec: &object::Spec) -> BTreeSet<String> {
    let selector = spec.node_selector.iter().flat_map(|selector| selector.keys());
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node.as_ref()?.required.as_ref());
    let terms = affinity.and_then(|required| required.terms.as_ref()).into_iter().flatten();
    let expressions = terms.filter_map(|term| term.expressions.as_ref()).flatten();
    selector.chain(expressions.filter_map(|requirement| requirement.key.as_ref())).cloned().collect()
}

/// The runtime's id of each container that has run, by name, without the runtime's name in front.
fn runtime_ids(status: &object::Status) -> BTreeMap<String, String> {
    let statuses =
        [&status.init_container_statuses, &status.container_statuses].into_iter().flatten().flatten();
    statuses
        .filter_map(|status| {
            let id = status.container_id.as_deref()?;
            let id = id.split_once("://").map_or(id, |(_, id)| id);
            (!id.is_empty()).then(|| (status.name.clone().unwrap_or_default(), id.to_owned()))
        })
        .collect()
}

fn init_kind(container: &object::Container) -> ContainerKind {
    match container.restart_policy.as_deref() {
        Some("Always") => ContainerKind::Sidecar,
        _ => ContainerKind::Init,
    }
}

fn convert(
    name: String,
    container: object::Container,
    kind: ContainerKind,
    path: &str,
    runtime_id: Option<String>,
) -> Result<Container, PodError> {
    let path = format!("{path}.resources");
    let mut own = resources(container.resources, &path)?;
    own.cpu_request = own.cpu_request.or(own.cpu_limit);
    own.memory_request = own.memory_request.or(own.memory_limit);
    within_limit(&own, &path)?;

    let variable = |var: object::Variable| {
        let source = match (var.value, var.value_from) {
            (None, Some(_)) => EnvSource::Reference,
            (value, _) => EnvSource::Value(value.unwrap_or_default()),
        };
        (var.name.unwrap_or_default(), source)
    };
    let words = [container.command, container.args].into_iter().flatten().flatten();
    Ok(Container {
        name,
        kind,
        resources: own,
        env: container.env.unwrap_or_default().into_iter().map(variable).collect(),
        env_from: container.env_from.is_some_and(|sources| !sources.is_empty()),
        image: container.image.unwrap_or_default(),
        args: words.collect(),
        runtime_id,
    })
}

fn resources(from: Option<object::Resources>, path: &str) -> Result<Resources, PodError> {
    let object::Resources { requests, limits } = from.unwrap_or_default();
    let requests = amounts(requests, path, "requests")?;
    let limits = amounts(limits, path, "limits")?;
    Ok(Resources {
        cpu_request: requests.0,
        cpu_limit: limits.0,
        memory_request: requests.1,
        memory_limit: limits.1,
    })
}

/// Thousandths of CPUs, and bytes.
fn amounts(from: Option<Amounts>, path: &str, field: &str) -> Result<(Option<u64>, Option<u64>), PodError> {
    let Amounts { cpu, memory } = from.unwrap_or_default();
    let read = |resource: &str, amount: Option<Quantity>, read: fn(&str) -> Result<u64, QuantityError>| {
        let amount = amount.map(|Quantity(text)| read(&text)).transpose();
        amount.map_err(|source| PodError::Quantity { path: format!("{path}.{field}.{resource}"), source })
    };
    Ok((read("cpu", cpu, quantity::cpu_millis)?, read("memory", memory, quantity::bytes)?))
}

fn within_limit(resources: &Resources, path: &str) -> Result<(), PodError> {
    let Resources { cpu_request, cpu_limit, memory_request, memory_limit } = *resources;
    let check = |resource, request: Option<u64>, limit: Option<u64>, format: fn(u64) -> String| match (
        request, limit,
    ) {
        (Some(request), Some(limit)) if request > limit => Err(PodError::RequestOverLimit {
            path: path.to_owned(),
            resource,
            request: format(request),
            limit: format(limit),
        }),
        _ => Ok(()),
    };
    check("cpu", cpu_request, cpu_limit, quantity::format_cpu)?;
    check("memory", memory_request, memory_limit, quantity::format_bytes)
}

/// Where limits are set for the pod as a whole, its requests default to what its containers ask for together, else to
/// the limits.
fn default_pod_requests(pod: &mut Resources, containers: &[Container]) {
    if pod.cpu_limit.is_none() && pod.memory_limit.is_none() {
        return;
    }
    let together = |amount: fn(&Resources) -> Option<u64>| asked_together(containers, amount);
    pod.cpu_request = pod.cpu_request.or_else(|| together(|r| r.cpu_request)).or(pod.cpu_limit);
    pod.memory_request = pod.memory_request.or_else(|| together(|r| r.memory_request)).or(pod.memory_limit);
}

/// The most that a pod's containers ask for at one time; `None` if none asks.
///
/// App containers run beside all sidecars; an init container runs beside the sidecars that come before it.
fn asked_together(containers: &[Container], amount: fn(&Resources) -> Option<u64>) -> Option<u64> {
    let asked = |c: &Container| amount(&c.resources);
    containers.iter().find_map(asked)?;
    let mut sidecars = 0u64;
    let mut apps = 0u64;
    let mut most = 0u64;
    for container in containers {
        let own = asked(container).unwrap_or_default();
        match container.kind {
            ContainerKind::App => apps = apps.saturating_add(own),
            ContainerKind::Sidecar => {
                sidecars = sidecars.saturating_add(own);
                most = most.max(sidecars);
            }
            ContainerKind::Init => most = most.max(sidecars.saturating_add(own)),
        }
    }
    Some(most.max(sidecars.saturating_add(apps)))
}

fn reported(class: &str) -> Option<Qos> {
    [Qos::Guaranteed, Qos::Burstable, Qos::BestEffort].into_iter().find(|qos| qos.to_string() == class)
}
