//! [`entitlement`]: whether a container gets exclusive CPUs.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::cpu_preferences::{SINGLE_CORES, wants_single_cores};
use super::operator_labels::OPERATOR;
use super::quantity::format_cpu;
use super::{
    CONTAINER_CPUS_ANNOTATION, CPUS_ANNOTATION, Container, ContainerKind, ContainerWish, Pod,
    RecognizedPod, Selector,
};
use crate::cpu::MAX_CPU;
use crate::text::duration;

/// The CPUs that policy grants to a container, with the reason in a sentence.
///
/// As JSON: `{"kind":"exclusive","cpus":2,"reason":"…"}`, `{"kind":"shared","reason":"…"}`,
/// `{"kind":"pod","reason":"…"}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Entitlement {
    Exclusive {
        /// The number of CPUs: at least 1.
        cpus: u32,
        reason: String,
    },
    Shared {
        /// The reason, and if it helps, the remedy.
        reason: String,
        /// What a pod's author could change; `None` if the container is meant to share. Metrics show it as a label, and
        /// the reason is the sentence for people.
        #[serde(skip)]
        obstacle: Option<Obstacle>,
    },
    /// An init container's entitlement: the union of the CPUs of the pod's app containers and sidecars, exclusive
    /// or shared.
    #[serde(rename = "pod")]
    Inherit { reason: String },
}

named! {
    /// What keeps a container from exclusive CPUs, and its author could change.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Obstacle {
        /// The annotation [`CPUS_ANNOTATION`] or [`CONTAINER_CPUS_ANNOTATION`] has an unknown value.
        UnknownAnnotation => "unknown_annotation",
        /// The pod's QoS class is not Guaranteed.
        NotGuaranteed => "not_guaranteed",
        /// The container has no CPU limit, or one that is no whole number of CPUs.
        CpuLimit => "cpu_limit",
        /// The annotation [`CONTAINER_CPUS_ANNOTATION`] gives the container exclusive CPUs, and its request and limit are no
        /// equal whole numbers; or the annotation names containers that the pod lacks.
        ContainerCpus => "container_cpus",
        /// The pod asks for idle siblings, which the policy does not allow.
        SingleCores => "single_cores",
    }
}

impl Entitlement {
    /// The number of exclusive CPUs: 0 unless the entitlement is [`Entitlement::Exclusive`].
    pub fn cpus(&self) -> u32 {
        match self {
            Self::Exclusive { cpus, .. } => *cpus,
            Self::Shared { .. } | Self::Inherit { .. } => 0,
        }
    }

    pub fn reason(&self) -> &str {
        match self {
            Self::Exclusive { reason, .. }
            | Self::Shared { reason, .. }
            | Self::Inherit { reason } => reason,
        }
    }

    /// What keeps the container from exclusive CPUs, if its author could change that.
    pub fn obstacle(&self) -> Option<Obstacle> {
        match self {
            Self::Shared { obstacle, .. } => *obstacle,
            Self::Exclusive { .. } | Self::Inherit { .. } => None,
        }
    }
}

/// Which pods count as training pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Policy {
    /// Pods that count in addition to recognised pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    /// Whether only training pods get exclusive CPUs. Otherwise every pod counts, as with the
    /// kubelet's static policy.
    pub training_only: bool,
    /// Whether pods may ask for a single CPU of each core (`pinfold.io/cores: single`), which takes the siblings, too, although
    /// the scheduler may have promised them to other pods.
    pub single_cores: bool,
    /// How long a running container keeps CPUs that a resize has taken from it, so that its program can prepare: at most
    /// [`LONGEST_SHRINK_DELAY`].
    #[serde(with = "duration")]
    pub shrink_delay: Duration,
}

/// The longest delay of a shrink. Until its end, the scheduler may already count on CPUs that are not free.
pub const LONGEST_SHRINK_DELAY: Duration = Duration::from_secs(10);

impl Default for Policy {
    fn default() -> Self {
        Self {
            selector: None,
            training_only: true,
            single_cores: true,
            // A training program looks between two steps, and most steps take less.
            shrink_delay: Duration::from_secs(5),
        }
    }
}

/// Whether a pod counts as a training pod, and the evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Training {
    pub counts: bool,
    /// The evidence, as the middle of a sentence.
    pub evidence: String,
}

/// Whether the pod counts as a training pod: by an annotation, by recognition, by the selector, or because every pod
/// counts.
pub fn training(pod: &RecognizedPod, policy: &Policy) -> Training {
    let recognition = pod.recognition();
    let counts = |evidence: String| Training {
        counts: true,
        evidence,
    };
    if let Some(CpusAnnotation::Exclusive(value)) = cpus_annotation(pod) {
        return counts(format!("annotation {CPUS_ANNOTATION}={value}"));
    }
    if let Some(name) = pod.container_cpus().exclusive().next() {
        return counts(format!(
            "annotation {CONTAINER_CPUS_ANNOTATION} with {name}=exclusive"
        ));
    }
    if recognition.training {
        return counts(recognition.evidence.clone());
    }
    match &policy.selector {
        Some(selector) if selector.matches(&pod.labels) => counts(format!("selector {selector}")),
        _ if !policy.training_only => counts("every pod counts, by configuration".to_owned()),
        _ => Training {
            counts: false,
            evidence: recognition.evidence.clone(),
        },
    }
}

/// The entitlement of a container.
///
/// Exclusive CPUs need a training pod of QoS class Guaranteed and a CPU limit that is a whole
/// number, at least 1; and if the policy forbids idle siblings, a pod that does not ask for them. A container that
/// [`CONTAINER_CPUS_ANNOTATION`] names needs no Guaranteed pod, only a request of its own that equals its limit. The annotation
/// `shared` always wins. An unknown value counts as `shared`, since unwanted exclusive CPUs are the worse mistake. An init
/// container inherits the CPUs of the pod's containers, and sidecars count like app containers.
pub fn entitlement(pod: &RecognizedPod, container: &Container, policy: &Policy) -> Entitlement {
    match decide(pod, container, policy) {
        Ok((cpus, reason)) => Entitlement::Exclusive { cpus, reason },
        Err(NotExclusive::Shared(obstacle, reason)) => Entitlement::Shared { reason, obstacle },
        Err(NotExclusive::Inherit(reason)) => Entitlement::Inherit { reason },
    }
}

/// Whether a container of a training pod is refused exclusive CPUs, although the pod's owner has not asked for
/// shared CPUs. A denied container needs a warning.
pub fn is_denied(pod: &RecognizedPod, container: &Container, policy: &Policy) -> bool {
    let shared = matches!(
        entitlement(pod, container, policy),
        Entitlement::Shared { .. }
    );
    // If every pod counts, most containers are without exclusive CPUs on purpose, so the setting is
    // ignored here.
    let policy = Policy {
        training_only: true,
        ..policy.clone()
    };
    let training = matches!(cpus_annotation(pod), Some(CpusAnnotation::Unknown(_)))
        || pod.container_cpus().error().is_some()
        || training(pod, &policy).counts;
    let is_on_purpose = match cpus_annotation(pod) {
        Some(CpusAnnotation::Shared) => true,
        Some(CpusAnnotation::Unknown(_)) => false,
        Some(CpusAnnotation::Exclusive(_)) | None => {
            matches!(meant_to_share(pod, container), Some(Ok(_)))
        }
    };
    shared && training && !pod.finished && !container.ended && !is_on_purpose
}

enum NotExclusive {
    Shared(Option<Obstacle>, String),
    Inherit(String),
}

fn decide(
    pod: &RecognizedPod,
    container: &Container,
    policy: &Policy,
) -> Result<(u32, String), NotExclusive> {
    let shared = |reason: String| Err(NotExclusive::Shared(None, reason));
    let obstructed =
        |obstacle: Obstacle, reason: String| Err(NotExclusive::Shared(Some(obstacle), reason));
    if pod.finished {
        return shared("the pod has run to its end".to_owned());
    }
    if container.ended {
        return shared("the container has ended and is not started again".to_owned());
    }
    by_annotation(pod, container)?;
    if container.kind == ContainerKind::Init {
        let reason = "an init container runs on the CPUs of the pod's other containers";
        return Err(NotExclusive::Inherit(reason.to_owned()));
    }
    let training = training(pod, policy);
    if !training.counts {
        return shared(format!(
            "not a training pod: {}; if the pod trains a model, annotate it with {CPUS_ANNOTATION}=exclusive",
            training.evidence
        ));
    }
    let is_named = pod.container_cpus().wish(&container.name).is_some();
    if let Some(obstacle) = pod.guaranteed_obstacle().filter(|_| !is_named) {
        let remedy = guaranteed_remedy(pod);
        let reason = format!(
            "QoS class {}, not Guaranteed: {obstacle}; {remedy}",
            pod.qos()
        );
        return obstructed(Obstacle::NotGuaranteed, reason);
    }
    let obstacle = if is_named {
        Obstacle::ContainerCpus
    } else {
        Obstacle::CpuLimit
    };
    let cpus = whole_cpus(pod, container)
        .map_err(|reason| NotExclusive::Shared(Some(obstacle), reason))?;
    if !policy.single_cores && wants_single_cores(pod) {
        let (annotation, value) = SINGLE_CORES;
        let reason = format!(
            "annotation {annotation}={value} is not allowed on this node (policy.singleCores is false): remove it, or ask for whole \
             cores ({annotation}=whole)"
        );
        return obstructed(Obstacle::SingleCores, reason);
    }
    let reason = if is_named {
        format!("CPU request and limit {cpus}, and {}", training.evidence)
    } else {
        format!(
            "Guaranteed, CPU limit {cpus}, and a training pod ({})",
            training.evidence
        )
    };
    Ok((cpus, reason))
}

/// What the annotations about CPUs decide alone.
fn by_annotation(pod: &RecognizedPod, container: &Container) -> Result<(), NotExclusive> {
    let shared = |obstacle, reason| Err(NotExclusive::Shared(obstacle, reason));
    match cpus_annotation(pod) {
        Some(CpusAnnotation::Shared) => {
            return shared(None, format!("annotation {CPUS_ANNOTATION}=shared"));
        }
        Some(CpusAnnotation::Unknown(value)) => {
            let reason = format!(
                "annotation {CPUS_ANNOTATION} is {value:?}, which is unknown: write exclusive, required or shared"
            );
            return shared(Some(Obstacle::UnknownAnnotation), reason);
        }
        Some(CpusAnnotation::Exclusive(_)) | None => {}
    }
    if let Some(error) = pod.container_cpus().error() {
        return shared(Some(Obstacle::UnknownAnnotation), error.to_owned());
    }
    match meant_to_share(pod, container) {
        Some(Ok(reason)) => shared(None, reason),
        Some(Err(reason)) => shared(Some(Obstacle::ContainerCpus), reason),
        None => Ok(()),
    }
}

/// Why [`CONTAINER_CPUS_ANNOTATION`] leaves the container on the shared CPUs: on purpose, or by mistake (`Err`) if it gives
/// CPUs only to containers that the pod lacks. `None` if the other rules decide.
fn meant_to_share(pod: &RecognizedPod, container: &Container) -> Option<Result<String, String>> {
    let wishes = pod.container_cpus();
    match wishes.wish(&container.name) {
        Some(ContainerWish::Exclusive) => return None,
        Some(ContainerWish::Shared) => {
            return Some(Ok(format!(
                "annotation {CONTAINER_CPUS_ANNOTATION} with {}=shared",
                container.name
            )));
        }
        None => {}
    }
    // Init containers run on the CPUs of those that the annotation names.
    wishes.exclusive().next()?;
    if container.kind == ContainerKind::Init {
        return None;
    }
    let lacks = |name: &&str| {
        let named = pod.container(name);
        named.is_none_or(|named| named.kind == ContainerKind::Init)
    };
    // The runtime describes only the containers that exist, and all as app containers.
    let lacking = wishes.exclusive().find(lacks);
    match lacking.filter(|_| !pod.is_of_runtime) {
        Some(name) => Some(Err(format!(
            "annotation {CONTAINER_CPUS_ANNOTATION} names {name}, which is none of the pod's containers besides init containers; \
             write the name of one of them"
        ))),
        None => Some(Ok(format!(
            "annotation {CONTAINER_CPUS_ANNOTATION} gives exclusive CPUs to other containers of the pod"
        ))),
    }
}

/// What to change so that the pod becomes Guaranteed.
fn guaranteed_remedy(pod: &Pod) -> &'static str {
    // The training operator adds this container, with a request of half its limit, to the workers of a PyTorchJob with a master.
    let is_operators = |container: &Container| {
        let own = &container.resources;
        container.name == "init-pytorch" && own.cpu_request != own.cpu_limit
    };
    if pod.labels.contains_key(OPERATOR) && pod.containers.iter().any(is_operators) {
        "the training operator adds init-pytorch, so give it equal requests and limits in the operator's \
         --pytorch-init-container-template-file"
    } else {
        "set equal CPU and memory requests and limits everywhere"
    }
}

/// The most CPUs that Linux can have.
pub const MOST_CPUS: u32 = MAX_CPU + 1;

/// The container's CPU limit in whole CPUs; otherwise the obstacle and the remedy.
fn whole_cpus(pod: &Pod, container: &Container) -> Result<u32, String> {
    let Some(limit) = container.resources.cpu_limit.filter(|&limit| limit > 0) else {
        return Err(if pod.resources.is_empty() {
            "the container has no CPU limit; set its requests and limits to 1 CPU or more"
                .to_owned()
        } else {
            "the container has no CPU limit of its own, only the pod has; set the container's requests and limits to \
             1 CPU or more"
                .to_owned()
        });
    };
    let below = limit / 1000;
    // Kubernetes takes amounts of any size, and turns the largest ones into 2⁶³−1 thousandths.
    let known = u32::try_from(below).ok();
    let Some(cpus) = known.filter(|&cpus| cpus <= MOST_CPUS) else {
        let limit = known.map_or_else(String::new, |limit| format!(" {limit}"));
        return Err(format!(
            "CPU limit{limit} is more than the {MOST_CPUS} CPUs that Linux can have; set the CPUs that the container needs"
        ));
    };
    if !limit.is_multiple_of(1000) {
        let choice = if below == 0 {
            "1 CPU".to_owned()
        } else {
            format!("{below} or {} CPUs", below + 1)
        };
        return Err(format!(
            "CPU limit {} is not a whole number; set requests and limits to {choice}",
            format_cpu(limit)
        ));
    }
    // In a Guaranteed pod, a container's request can differ from the limit only if the pod's own resources decide the class.
    let request = container.resources.cpu_request.unwrap_or(limit);
    if request != limit {
        return Err(format!(
            "CPU request {} differs from the limit {below}; set both to {below}",
            format_cpu(request)
        ));
    }
    Ok(cpus)
}

enum CpusAnnotation<'a> {
    /// Exclusive CPUs, with the annotation's value.
    Exclusive(&'a str),
    Shared,
    Unknown(&'a str),
}

/// Whether the pod must not run without exclusive CPUs.
pub fn is_required(pod: &Pod) -> bool {
    matches!(
        cpus_annotation(pod),
        Some(CpusAnnotation::Exclusive("required"))
    )
}

/// Whether the pod's author wants no exclusive CPUs for the container. An unknown value of an annotation counts as
/// `shared`.
pub fn wants_shared(pod: &RecognizedPod, container: &Container) -> bool {
    let annotation = cpus_annotation(pod);
    let is_of_pod = matches!(
        annotation,
        Some(CpusAnnotation::Shared | CpusAnnotation::Unknown(_))
    );
    is_of_pod || pod.container_cpus().error().is_some() || meant_to_share(pod, container).is_some()
}

/// The annotation, if set. `exclusive` and `required` both mean exclusive CPUs; [`is_required`]
/// tells them apart.
fn cpus_annotation(pod: &Pod) -> Option<CpusAnnotation<'_>> {
    Some(match pod.annotations.get(CPUS_ANNOTATION)?.as_str() {
        value @ ("exclusive" | "required") => CpusAnnotation::Exclusive(value),
        "shared" => CpusAnnotation::Shared,
        value => CpusAnnotation::Unknown(value),
    })
}
