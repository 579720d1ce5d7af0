//! [`Pod::from_k8s`]: an API object as a [`Pod`], with the defaults that the API server would fill in.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

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
    pub fn from_k8s(pod: &api::Pod) -> Result<Self, PodError> {
        let metadata = &pod.metadata;
        let name = [&metadata.name, &metadata.generate_name]
            .into_iter()
            .flatten()
            .find(|name| !name.is_empty())
            .ok_or(PodError::NoName)?;
        let spec = pod.spec.as_ref();
        let status = pod.status.as_ref();

        let ids = runtime_ids(status);
        let init = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
        let app = spec.map_or(&[][..], |spec| &spec.containers);
        let placed =
            init.iter().enumerate().map(|(i, c)| (format!("spec.initContainers[{i}]"), init_kind(c), c));
        let placed = placed.chain(
            app.iter().enumerate().map(|(i, c)| (format!("spec.containers[{i}]"), ContainerKind::App, c)),
        );
        let mut containers: Vec<Container> = Vec::with_capacity(init.len() + app.len());
        let mut names = std::collections::BTreeSet::new();
        for (path, kind, container) in placed {
            if container.name.is_empty() {
                return Err(PodError::NoContainerName { path });
            }
            if !names.insert(container.name.as_str()) {
                return Err(PodError::DuplicateContainer { path, name: container.name.clone() });
            }
            containers.push(convert(container, kind, &path, ids.get(container.name.as_str()).copied())?);
        }

        let mut whole = resources(spec.and_then(|spec| spec.resources.as_ref()), "spec.resources")?;
        default_pod_requests(&mut whole, &containers);
        within_limit(&whole, "spec.resources")?;

        let phase = status.and_then(|status| status.phase.as_deref());
        let non_empty = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        Ok(Self {
            namespace: non_empty(&metadata.namespace).unwrap_or_else(|| "default".to_owned()),
            name: name.clone(),
            uid: non_empty(&metadata.uid),
            labels: metadata.labels.clone().unwrap_or_default(),
            annotations: metadata.annotations.clone().unwrap_or_default(),
            host_network: spec.and_then(|spec| spec.host_network).unwrap_or_default(),
            finished: matches!(phase, Some("Succeeded" | "Failed")),
            resources: whole,
            containers,
            qos_reported: status.and_then(|status| status.qos_class.as_deref()).and_then(reported),
        })
    }
}

/// The runtime's id of each container that has run, without the runtime's name in front.
fn runtime_ids(status: Option<&api::PodStatus>) -> BTreeMap<&str, &str> {
    let Some(status) = status else { return BTreeMap::new() };
    let statuses =
        [&status.init_container_statuses, &status.container_statuses].into_iter().flatten().flatten();
    statuses
        .filter_map(|status| {
            let id = status.container_id.as_deref()?;
            let id = id.split_once("://").map_or(id, |(_, id)| id);
            (!id.is_empty()).then_some((status.name.as_str(), id))
        })
        .collect()
}

fn init_kind(container: &api::Container) -> ContainerKind {
    match container.restart_policy.as_deref() {
        Some("Always") => ContainerKind::Sidecar,
        _ => ContainerKind::Init,
    }
}

fn convert(
    container: &api::Container,
    kind: ContainerKind,
    path: &str,
    runtime_id: Option<&str>,
) -> Result<Container, PodError> {
    let path = format!("{path}.resources");
    let mut own = resources(container.resources.as_ref(), &path)?;
    own.cpu_request = own.cpu_request.or(own.cpu_limit);
    own.memory_request = own.memory_request.or(own.memory_limit);
    within_limit(&own, &path)?;

    let variable = |var: &api::EnvVar| {
        let source = match (&var.value, &var.value_from) {
            (None, Some(_)) => EnvSource::Reference,
            (value, _) => EnvSource::Value(value.clone().unwrap_or_default()),
        };
        (var.name.clone(), source)
    };
    let words = [&container.command, &container.args].into_iter().flatten().flatten();
    Ok(Container {
        name: container.name.clone(),
        kind,
        resources: own,
        env: container.env.iter().flatten().map(variable).collect(),
        env_from: container.env_from.as_ref().is_some_and(|sources| !sources.is_empty()),
        image: container.image.clone().unwrap_or_default(),
        args: words.cloned().collect(),
        runtime_id: runtime_id.map(str::to_owned),
    })
}

fn resources(from: Option<&api::ResourceRequirements>, path: &str) -> Result<Resources, PodError> {
    let Some(from) = from else { return Ok(Resources::default()) };
    let read = |list: &Option<BTreeMap<String, Quantity>>, field: &str, resource: &str| {
        let Some(Quantity(text)) = list.as_ref().and_then(|list| list.get(resource)) else { return Ok(None) };
        let amount = if resource == "cpu" { quantity::cpu_millis(text) } else { quantity::bytes(text) };
        amount
            .map(Some)
            .map_err(|source| PodError::Quantity { path: format!("{path}.{field}.{resource}"), source })
    };
    Ok(Resources {
        cpu_request: read(&from.requests, "requests", "cpu")?,
        cpu_limit: read(&from.limits, "limits", "cpu")?,
        memory_request: read(&from.requests, "requests", "memory")?,
        memory_limit: read(&from.limits, "limits", "memory")?,
    })
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
