//! [`Pod::from_k8s`]: an API object as a [`Pod`], with the defaults that the API server would fill in.
//!
//! An in-place resize changes the spec at once, but the kubelet may defer or refuse it. The CPUs of
//! a container are therefore those that the kubelet has allocated: `allocatedResources` in the
//! container's status. Without this field, the limit in force counts while a resize is pending, and
//! otherwise the spec.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::object::{self, PodObject, ResourceAmounts};
use super::quantity::{self, QuantityError};
use super::{
    ApiUid, Container, ContainerIds, ContainerKind, EnvSource, Mirror, Pod, PodUid, Qos, Resources,
};

/// Why an API object is not a valid pod. Every variant names the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PodError {
    /// Neither `metadata.name` nor `metadata.generateName`.
    #[error("metadata.name is missing: give the pod a name")]
    NoName,
    /// An empty list of containers.
    #[error("spec.containers is empty: a pod needs at least one container")]
    NoContainers,
    #[error("{path}.name is missing: give the container a name that is unique in the pod")]
    NoContainerName {
        /// The container's path, like `spec.containers[0]`.
        path: String,
    },
    /// Two containers with the same name.
    #[error(
        "{path}.name repeats {name:?}: names of containers, init containers included, are unique in a pod"
    )]
    DuplicateContainer {
        /// The path of the second container.
        path: String,
        name: String,
    },
    /// A restart policy that Kubernetes does not have.
    #[error("{path}.restartPolicy is {word:?}: write Always, OnFailure or Never")]
    RestartPolicy {
        /// The path of the pod's spec or of the container.
        path: String,
        word: String,
    },
    #[error("{path} is not a quantity")]
    Quantity {
        /// The field, like `spec.containers[0].resources.limits.cpu`.
        path: String,
        /// The parser's reason.
        #[source]
        source: QuantityError,
    },
    #[error(
        "{path}.requests.{resource} is {request}, more than the limit {limit}: lower it, or raise the limit"
    )]
    RequestOverLimit {
        /// The path of the resources, like `spec.containers[0].resources`.
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
    /// Ephemeral containers are left out, because debug containers have no resources. A pod without
    /// a name is called by `generateName`. An object without containers, as a watch may deliver, is
    /// accepted.
    pub fn from_k8s(pod: PodObject) -> Result<Self, PodError> {
        let mut metadata = pod.metadata.unwrap_or_default();
        let node_keys = pod.spec.as_ref().map(node_keys).unwrap_or_default();
        let spec = pod.spec.unwrap_or_default();
        let status = pod.status.unwrap_or_default();
        let pending = resize_is_pending(&status, metadata.generation);
        let non_empty = |text: Option<String>| text.filter(|text| !text.is_empty());
        let name =
            non_empty(metadata.name.take()).or_else(|| non_empty(metadata.generate_name.take()));
        let name = name.ok_or(PodError::NoName)?;

        let (uid, mirror) = (non_empty(metadata.uid.take()), mirror(&metadata));
        let allocated = cpu(status.allocated, "status.allocatedResources")?;
        let init = reported_by(
            "initContainerStatuses",
            status.init_container_statuses,
            pending,
        )?;
        let app = reported_by("containerStatuses", status.container_statuses, pending)?;
        let mut reported: BTreeMap<String, ContainerInStatus> =
            init.into_iter().chain(app).collect();
        let (mut containers, restarts) = containers_of(
            spec.init_containers,
            spec.containers,
            spec.restart_policy.as_deref(),
        )?;

        let mut whole = resources(spec.resources, "spec.resources")?;
        default_pod_requests(&mut whole, &containers);
        within_limit(&whole, "spec.resources")?;
        AllocatedCpu {
            request: allocated,
            limit: None,
        }
        .replace(&mut whole);
        for (container, restart) in containers.iter_mut().zip(restarts) {
            let Some(reported) = reported.remove(&container.name) else {
                continue;
            };
            container.runtime_id = reported.runtime_id;
            container.ended = reported.exit.is_some_and(|code| restart.is_final(code));
            reported.granted.replace(&mut container.resources);
        }

        let mut pod = Self {
            namespace: non_empty(metadata.namespace).unwrap_or_else(|| "default".to_owned()),
            name,
            uid: uid.clone().map(PodUid::from),
            api_uid: uid.map(ApiUid::from),
            mirror,
            confirmed: false,
            labels: metadata.labels.unwrap_or_default().into(),
            annotations: metadata.annotations.unwrap_or_default().into(),
            host_network: spec.host_network.unwrap_or_default(),
            node_keys,
            finished: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
            resources: whole,
            containers,
            qos_reported: status.qos_class.as_deref().and_then(qos_class),
            ids: ContainerIds::NoSource,
            is_of_runtime: false,
        };
        pod.reduce();
        Ok(pod)
    }
}

/// The containers of a pod, each with its restart policy.
fn containers_of(
    init: Option<Vec<object::ContainerObject>>,
    app: Option<Vec<object::ContainerObject>>,
    restart_policy: Option<&str>,
) -> Result<(Vec<Container>, Vec<RestartPolicy>), PodError> {
    let init = init.unwrap_or_default().into_iter().zip(0..);
    let init = init.map(|(c, i)| (format!("spec.initContainers[{i}]"), init_kind(&c), c));
    let app = app.unwrap_or_default().into_iter().zip(0..);
    let app = app.map(|(c, i)| (format!("spec.containers[{i}]"), ContainerKind::App, c));
    let mut containers: Vec<Container> = Vec::new();
    let mut restarts = Vec::new();
    let mut names = BTreeSet::new();
    for (path, kind, mut container) in init.chain(app) {
        let name = container.name.take().filter(|name| !name.is_empty());
        let Some(name) = name else {
            return Err(PodError::NoContainerName { path });
        };
        if !names.insert(name.clone()) {
            return Err(PodError::DuplicateContainer { path, name });
        }
        restarts.push(RestartPolicy::of(&container, restart_policy));
        containers.push(convert(name, container, kind, &path)?);
    }
    Ok((containers, restarts))
}

/// The annotation of a static pod, and of its mirror pod, with the uid in the name of the static pod's cgroup.
const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// The annotation by which the API server recognises a mirror pod. The kubelet repeats the uid of
/// [`CONFIG_HASH`] in it.
const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

/// The static pod that a mirror pod names. Both annotations must agree, and a Node must own the pod.
fn mirror(metadata: &object::ObjectMeta) -> Option<Mirror> {
    let annotation = |key| {
        metadata
            .annotations
            .as_ref()?
            .get(key)
            .filter(|uid| !uid.is_empty())
    };
    let uid = annotation(CONFIG_HASH).filter(|uid| annotation(CONFIG_MIRROR) == Some(*uid))?;
    let is_node = |owner: &&object::OwnerReference| {
        owner.kind.as_deref() == Some("Node") && owner.api_version.as_deref() == Some("v1")
    };
    let node = metadata
        .owners
        .iter()
        .flatten()
        .find(is_node)?
        .uid
        .as_deref()?;
    Some(Mirror {
        uid: uid.as_str().into(),
        node: node.into(),
    })
}

/// The label keys by which a pod selects a node.
fn node_keys(spec: &object::PodSpec) -> BTreeSet<String> {
    let selector = spec
        .node_selector
        .iter()
        .flat_map(|selector| selector.keys());
    let affinity = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node.as_ref()?.required.as_ref());
    let terms = affinity
        .and_then(|required| required.terms.as_ref())
        .into_iter()
        .flatten();
    let expressions = terms.filter_map(|term| term.expressions.as_ref()).flatten();
    selector
        .chain(expressions.filter_map(|requirement| requirement.key.as_ref()))
        .cloned()
        .collect()
}

struct ContainerInStatus {
    /// The runtime's id, without the prefix that names the runtime.
    runtime_id: Option<String>,
    granted: AllocatedCpu,
    /// The exit code of a container that has ended. A missing code counts as a failure.
    exit: Option<i32>,
}

/// Whether a container that has ended is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

// === impl RestartPolicy ===

impl RestartPolicy {
    /// The policy of a container, or else of its pod. A container with rules of its own counts as
    /// always restarted, because nothing may be taken from a container that comes back.
    fn of(container: &object::ContainerObject, pod: Option<&str>) -> Self {
        let has_rules = container.restart_policy_rules.as_ref();
        if has_rules.is_some_and(|rules| !rules.is_empty()) {
            return Self::Always;
        }
        match container.restart_policy.as_deref().or(pod) {
            Some("Never") => Self::Never,
            Some("OnFailure") => Self::OnFailure,
            _ => Self::Always,
        }
    }

    /// Whether a container with the exit code is not started again.
    fn is_final(self, exit_code: i32) -> bool {
        match self {
            Self::Always => false,
            Self::OnFailure => exit_code == 0,
            Self::Never => true,
        }
    }
}

/// Allocated CPUs in thousandths, if the status has the fields.
struct AllocatedCpu {
    request: Option<u64>,
    /// The limit in force; none unless a resize is pending.
    limit: Option<u64>,
}

// === impl AllocatedCpu ===

impl AllocatedCpu {
    /// Replaces the amounts of the spec. A limit equal to the request is allocated together with
    /// it.
    fn replace(self, spec: &mut Resources) {
        let Some(request) = spec.cpu_request else {
            return;
        };
        let equal = spec.cpu_limit == Some(request);
        match self.request {
            Some(granted) if equal => spec.cpu_limit = Some(granted),
            _ => spec.cpu_limit = spec.cpu_limit.and(self.limit).or(spec.cpu_limit),
        }
        let with_limit = spec.cpu_limit.filter(|_| equal);
        spec.cpu_request = self.request.or(with_limit).or(spec.cpu_request);
    }
}

/// Whether the kubelet has deferred or refused a resize, or has not observed the latest spec yet.
fn resize_is_pending(status: &object::PodStatus, generation: Option<i64>) -> bool {
    let conditions = status.conditions.iter().flatten();
    let mut pending =
        conditions.filter(|condition| condition.kind.as_deref() == Some("PodResizePending"));
    let unseen = status
        .observed_generation
        .zip(generation)
        .is_some_and(|(observed, latest)| observed < latest);
    pending.any(|condition| condition.status.as_deref() == Some("True"))
        || status
            .resize
            .as_ref()
            .is_some_and(|resize| !resize.is_empty())
        || unseen
}

/// The containers of a list in the status, by name.
fn reported_by(
    list: &str,
    statuses: Option<Vec<object::ContainerStatus>>,
    pending: bool,
) -> Result<BTreeMap<String, ContainerInStatus>, PodError> {
    let statuses = statuses.unwrap_or_default().into_iter().zip(0..);
    statuses
        .map(|(status, index)| {
            let path = format!("status.{list}[{index}]");
            let limits = status.resources.and_then(|resources| resources.limits);
            let limit = cpu(limits, &format!("{path}.resources.limits"))?.filter(|_| pending);
            let request = cpu(status.allocated, &format!("{path}.allocatedResources"))?;
            let id = status.container_id.unwrap_or_default();
            let id = id.split_once("://").map_or(id.as_str(), |(_, id)| id);
            let runtime_id = Some(id.to_owned()).filter(|id| !id.is_empty());
            let terminated = status.state.and_then(|state| state.terminated);
            let reported = ContainerInStatus {
                runtime_id,
                granted: AllocatedCpu { request, limit },
                exit: terminated.map(|ended| ended.exit_code.unwrap_or(1)),
            };
            Ok((status.name.unwrap_or_default(), reported))
        })
        .collect()
}

fn init_kind(container: &object::ContainerObject) -> ContainerKind {
    match container.restart_policy.as_deref() {
        Some("Always") => ContainerKind::Sidecar,
        _ => ContainerKind::Init,
    }
}

fn convert(
    name: String,
    container: object::ContainerObject,
    kind: ContainerKind,
    path: &str,
) -> Result<Container, PodError> {
    let path = format!("{path}.resources");
    let mut own = resources(container.resources, &path)?;
    own.cpu_request = own.cpu_request.or(own.cpu_limit);
    own.memory_request = own.memory_request.or(own.memory_limit);
    within_limit(&own, &path)?;

    let variable = |var: object::EnvVar| {
        let source = match (var.value, var.value_from) {
            (None, Some(_)) => EnvSource::Reference,
            (value, _) => EnvSource::Value(value.unwrap_or_default()),
        };
        (var.name.unwrap_or_default(), source)
    };
    let words = [container.command, container.args]
        .into_iter()
        .flatten()
        .flatten();
    Ok(Container {
        name,
        kind,
        resources: own,
        env: container
            .env
            .unwrap_or_default()
            .into_iter()
            .map(variable)
            .collect(),
        env_from: container
            .env_from
            .is_some_and(|sources| !sources.is_empty()),
        image: container.image.unwrap_or_default(),
        args: words.collect(),
        runtime_id: None,
        given_cpus: None,
        ended: false,
    })
}

fn resources(from: Option<object::ResourceObject>, path: &str) -> Result<Resources, PodError> {
    let object::ResourceObject { requests, limits } = from.unwrap_or_default();
    let requests = amounts(requests, path, "requests")?;
    let limits = amounts(limits, path, "limits")?;
    Ok(Resources {
        cpu_request: requests.0,
        cpu_limit: limits.0,
        memory_request: requests.1,
        memory_limit: limits.1,
    })
}

/// CPUs in thousandths and memory in bytes.
fn amounts(
    from: Option<ResourceAmounts>,
    path: &str,
    field: &str,
) -> Result<(Option<u64>, Option<u64>), PodError> {
    let ResourceAmounts { cpu, memory } = from.unwrap_or_default();
    let path = |resource: &str| format!("{path}.{field}.{resource}");
    Ok((
        amount(cpu, quantity::cpu_millis, || path("cpu"))?,
        amount(memory, quantity::bytes, || path("memory"))?,
    ))
}

/// Thousandths of CPUs.
fn cpu(from: Option<ResourceAmounts>, path: &str) -> Result<Option<u64>, PodError> {
    amount(
        from.and_then(|amounts| amounts.cpu),
        quantity::cpu_millis,
        || format!("{path}.cpu"),
    )
}

fn amount(
    quantity: Option<Quantity>,
    read: fn(&str) -> Result<u64, QuantityError>,
    path: impl FnOnce() -> String,
) -> Result<Option<u64>, PodError> {
    let amount = quantity.map(|Quantity(text)| read(&text)).transpose();
    amount.map_err(|source| PodError::Quantity {
        path: path(),
        source,
    })
}

fn within_limit(resources: &Resources, path: &str) -> Result<(), PodError> {
    let Resources {
        cpu_request,
        cpu_limit,
        memory_request,
        memory_limit,
    } = *resources;
    let check =
        |resource, request: Option<u64>, limit: Option<u64>, format: fn(u64) -> String| match (
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
    check(
        "memory",
        memory_request,
        memory_limit,
        quantity::format_bytes,
    )
}

/// Fills in pod-level requests: the sum that the containers request at the same time, otherwise the
/// pod-level limits. A pod without pod-level limits gets no defaults.
fn default_pod_requests(pod: &mut Resources, containers: &[Container]) {
    if pod.cpu_limit.is_none() && pod.memory_limit.is_none() {
        return;
    }
    let together = |amount: fn(&Resources) -> Option<u64>| requested_together(containers, amount);
    pod.cpu_request = pod
        .cpu_request
        .or_else(|| together(|r| r.cpu_request))
        .or(pod.cpu_limit);
    pod.memory_request = pod
        .memory_request
        .or_else(|| together(|r| r.memory_request))
        .or(pod.memory_limit);
}

/// The most that a pod's containers request at the same time; `None` without any request.
///
/// App containers run beside all sidecars, an init container only beside those that start earlier.
fn requested_together(
    containers: &[Container],
    amount: fn(&Resources) -> Option<u64>,
) -> Option<u64> {
    let requested = |c: &Container| amount(&c.resources);
    containers.iter().find_map(requested)?;
    let mut sidecars = 0u64;
    let mut apps = 0u64;
    let mut most = 0u64;
    for container in containers {
        let own = requested(container).unwrap_or_default();
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

fn qos_class(class: &str) -> Option<Qos> {
    [Qos::Guaranteed, Qos::Burstable, Qos::BestEffort]
        .into_iter()
        .find(|qos| qos.to_string() == class)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(object: &Value) -> Pod {
        Pod::from_k8s(serde_json::from_value(object.clone()).unwrap()).unwrap()
    }

    /// Requests and limits of all containers, in thousandths of a CPU.
    fn cpus(pod: &Pod) -> Vec<(Option<u64>, Option<u64>)> {
        pod.containers
            .iter()
            .map(|one| (one.resources.cpu_request, one.resources.cpu_limit))
            .collect()
    }

    #[test]
    fn a_recorded_resize_counts_when_the_kubelet_allocates_it() {
        let recorded = include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/data/apiserver/03-watch-pods-lifecycle.http"
        ));
        let (_, answer) = recorded.split_once("### response").unwrap();
        let events = answer.lines().filter(|line| line.starts_with('{'));
        let objects =
            events.map(|line| serde_json::from_str::<Value>(line).unwrap()["object"].take());
        let limits: Vec<(String, Option<u64>)> = objects
            .filter(|object| object["metadata"]["name"] == "fx-guaranteed")
            .map(|object| {
                let version = object["metadata"]["resourceVersion"]
                    .as_str()
                    .unwrap()
                    .to_owned();
                (version, read(&object).containers[0].resources.cpu_limit)
            })
            .collect();
        let resize: Vec<(&str, Option<u64>)> = limits
            .iter()
            .map(|(version, limit)| (version.as_str(), *limit))
            .filter(|(version, _)| ["719", "744", "746", "748", "762"].contains(version))
            .collect();
        // The spec says 200m from 744 on; the kubelet allocates at 746, and a crash follows at 759.
        let expected = [
            ("719", 100),
            ("744", 100),
            ("746", 200),
            ("748", 200),
            ("762", 200),
        ]
        .map(|(v, l)| (v, Some(l)));
        assert_eq!(resize, expected);
    }

    /// A Guaranteed pod with containers resized from 2 CPUs to 4, and the status of each container.
    fn resized(of_container: &Value, status: &Value) -> Pod {
        let resources = json!({"limits": {"cpu": "4", "memory": "1Gi"}, "requests": {"cpu": "4", "memory": "1Gi"}});
        let container = |name: &str| json!({"name": name, "resources": resources});
        let mut sidecar = container("sidecar");
        sidecar["restartPolicy"] = json!("Always");
        let reported = |name: &str| {
            let mut reported = of_container.clone();
            reported["name"] = json!(name);
            reported
        };
        let mut status = status.clone();
        status["initContainerStatuses"] = json!([reported("init"), reported("sidecar")]);
        status["containerStatuses"] = json!([reported("main")]);
        read(&json!({
            "metadata": {"name": "p", "generation": 2},
            "spec": {"initContainers": [container("init"), sidecar], "containers": [container("main")]},
            "status": status,
        }))
    }

    #[test]
    fn a_resize_that_is_not_allocated_changes_no_container() {
        let amounts = |cpu: &str| json!({"cpu": cpu, "memory": "1Gi"});
        let in_force = json!({"limits": amounts("2"), "requests": amounts("2")});
        let allocated = json!({"allocatedResources": amounts("2"), "resources": in_force});
        let actual = json!({"resources": in_force});
        let condition =
            |kind: &str, status: &str| json!({"conditions": [{"type": kind, "status": status}]});
        let deferred = condition("PodResizePending", "True");
        let cases = [
            (&allocated, deferred.clone(), 2),
            (&allocated, json!({}), 2),
            // Allocated and not in force yet: no other pod can have the CPUs any more.
            (
                &json!({"allocatedResources": amounts("4"), "resources": in_force}),
                json!({}),
                4,
            ),
            (&actual, deferred.clone(), 2),
            (&actual, json!({"resize": "Infeasible"}), 2),
            (&actual, json!({"observedGeneration": 1}), 2),
            (&actual, json!({"observedGeneration": 2}), 4),
            (&actual, condition("PodResizePending", "False"), 4),
            (&actual, condition("PodResizeInProgress", "True"), 4),
            // A container that has not run yet has only its spec.
            (&json!({}), deferred, 4),
        ];
        for (of_container, status, expected) in cases {
            let pod = resized(of_container, &status);
            let limit = Some(expected * 1000);
            assert_eq!(cpus(&pod), [(limit, limit); 3], "{of_container} {status}");
            assert_eq!(
                super::super::qos(&pod),
                Qos::Guaranteed,
                "{of_container} {status}"
            );
        }
    }

    #[test]
    fn a_container_that_ended_for_good_is_entitled_to_nothing() {
        let amounts = json!({"cpu": "2", "memory": "1Gi"});
        let ended = |policy: &Value, own: &Value, state: &Value| {
            let mut main = json!({"name": "main", "resources": {"limits": amounts}});
            for (key, value) in own.as_object().unwrap() {
                main[key] = value.clone();
            }
            let pod = read(&json!({
                "metadata": {"name": "p", "annotations": {"pinfold.io/cpus": "exclusive"}},
                "spec": {"restartPolicy": policy, "containers": [main]},
                "status": {"phase": "Running", "containerStatuses": [{"name": "main", "state": state}]},
            }));
            let policy = super::super::Policy::default();
            let pod = super::super::RecognizedPod::from(pod);
            let main = pod.containers.first().unwrap();
            assert!(!super::super::is_denied(&pod, main, &policy));
            super::super::entitlement(&pod, main, &policy).cpus() == 0
        };
        let exit = |code: i32| json!({"terminated": {"exitCode": code, "reason": "x"}});
        let rules =
            json!({"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart"}]});
        for (policy, own, state, expected) in [
            (json!("Never"), json!({}), exit(0), true),
            (json!("Never"), json!({}), exit(137), true),
            (json!("OnFailure"), json!({}), exit(0), true),
            (json!("OnFailure"), json!({}), exit(1), false),
            (
                json!("OnFailure"),
                json!({}),
                json!({"terminated": {}}),
                false,
            ),
            (json!("Always"), json!({}), exit(0), false),
            (Value::Null, json!({}), exit(0), false),
            (json!("Never"), json!({}), json!({"running": {}}), false),
            (
                json!("Never"),
                json!({}),
                json!({"waiting": {"reason": "CrashLoopBackOff"}}),
                false,
            ),
            // A container's own policy comes before the pod's.
            (
                json!("Always"),
                json!({"restartPolicy": "Never"}),
                exit(1),
                true,
            ),
            (
                json!("Never"),
                json!({"restartPolicy": "Always"}),
                exit(1),
                false,
            ),
            (json!("Never"), rules, exit(1), false),
        ] {
            assert_eq!(
                ended(&policy, &own, &state),
                expected,
                "{policy} {own} {state}"
            );
        }
    }

    #[test]
    fn an_allocated_request_is_no_limit() {
        let pod = |limits: &Value, status: &Value| {
            read(&json!({
                "metadata": {"name": "p"},
                "spec": {"containers": [{"name": "main", "resources": {"limits": limits, "requests": {"cpu": "2"}}}]},
                "status": status,
            }))
        };
        let status = json!({
            "conditions": [{"type": "PodResizePending", "status": "True"}],
            "containerStatuses": [{
                "name": "main", "allocatedResources": {"cpu": "1"},
                "resources": {"limits": {"cpu": "3"}, "requests": {"cpu": "1"}},
            }],
        });
        assert_eq!(
            cpus(&pod(&json!({"cpu": "4"}), &status)),
            [(Some(1000), Some(3000))]
        );
        assert_eq!(
            cpus(&pod(&json!({}), &status)),
            [(Some(1000), None)],
            "a limit that nobody set"
        );
        // A pending smaller limit does not make the current request invalid.
        let smaller =
            json!({"containerStatuses": [{"name": "main", "allocatedResources": {"cpu": "8"}}]});
        assert_eq!(
            cpus(&pod(&json!({"cpu": "2"}), &smaller)),
            [(Some(8000), Some(8000))]
        );
    }

    #[test]
    fn a_pod_level_resize_counts_when_it_is_allocated() {
        let amounts = |cpu: &str| json!({"cpu": cpu, "memory": "1Gi"});
        let pod = read(&json!({
            "metadata": {"name": "p"},
            "spec": {"resources": {"limits": amounts("4"), "requests": amounts("4")}, "containers": [{"name": "main"}]},
            "status": {"allocatedResources": amounts("2"), "containerStatuses": [{"name": "main"}]},
        }));
        assert_eq!(
            (pod.resources.cpu_request, pod.resources.cpu_limit),
            (Some(2000), Some(2000))
        );
        assert_eq!(super::super::qos(&pod), Qos::Guaranteed);
    }

    #[test]
    fn an_invalid_amount_in_a_status_is_named() {
        let object = json!({
            "metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]},
            "status": {"containerStatuses": [{"name": "main", "allocatedResources": {"cpu": "much"}}]},
        });
        let error = Pod::from_k8s(serde_json::from_value(object).unwrap()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "status.containerStatuses[0].allocatedResources.cpu is not a quantity"
        );
    }
}
