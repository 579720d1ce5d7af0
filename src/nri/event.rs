//! [`Event`]: events of a container runtime, and [`PluginRequest`]: the runtime's requests, decoded.
//!
//! Newer runtimes have a method for each event, while older ones send most events by the method
//! `StateChange`. Both forms decode to the same request; only the method's name in logs differs.

use std::collections::BTreeSet;
use std::fmt;

use super::proto::{
    ConfigureRequest, Container, CreateContainerRequest, PLUGIN_SERVICE, PodSandbox,
    StateChangeEvent, SynchronizeRequest, positive,
};

/// An event of the container runtime, with the protocol's number.
///
/// A plugin can't subscribe to events 12 to 14, which concern pod resources and the validation of
/// adjustments, because a runtime refuses a plugin that subscribes to an event it doesn't know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Event {
    /// A pod's sandbox exists, without containers.
    RunPodSandbox = 1,
    /// A pod's sandbox was stopped.
    StopPodSandbox = 2,
    RemovePodSandbox = 3,
    /// A container is about to be created, and can be adjusted.
    CreateContainer = 4,
    /// A container was created, with the adjustments of all plugins.
    PostCreateContainer = 5,
    /// A container is about to start: its cgroup exists, but the program has not begun.
    StartContainer = 6,
    /// A container's program runs.
    PostStartContainer = 7,
    /// A container's resources are about to be changed.
    UpdateContainer = 8,
    /// A container's resources were changed.
    PostUpdateContainer = 9,
    StopContainer = 10,
    RemoveContainer = 11,
}

/// A set of events that a plugin subscribes to.
pub type EventSet = BTreeSet<Event>;

// === impl Event ===

impl Event {
    /// Every event, in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::RunPodSandbox,
        Self::StopPodSandbox,
        Self::RemovePodSandbox,
        Self::CreateContainer,
        Self::PostCreateContainer,
        Self::StartContainer,
        Self::PostStartContainer,
        Self::UpdateContainer,
        Self::PostUpdateContainer,
        Self::StopContainer,
        Self::RemoveContainer,
    ];

    /// Whether the event concerns a container, not only a pod.
    pub fn is_of_container(self) -> bool {
        self >= Self::CreateContainer
    }

    /// Whether every runtime has a separate method for the event, whose answer can change
    /// containers.
    fn has_own_method(self) -> bool {
        matches!(
            self,
            Self::CreateContainer | Self::UpdateContainer | Self::StopContainer
        )
    }
}

/// The event's name, which is also that of its method.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The event mask of the answer to Configure. Runtimes read an empty mask as all events, so the
/// mask of an empty set has a rare event.
pub(super) fn event_mask(events: &EventSet) -> i32 {
    let bit = |event: &Event| 1_i32 << (*event as i32 - 1);
    match events.iter().map(bit).sum::<i32>() {
        0 => bit(&Event::RemovePodSandbox),
        mask => mask,
    }
}

/// The pod and the container of an event.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EventRequest {
    pub pod: PodSandbox,
    /// The container; empty for an event of a pod.
    pub container: Container,
}

/// The name, the versions and the time limit of a runtime.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuntimeInfo {
    /// The runtime's name, like `containerd`.
    pub name: String,
    pub version: String,
    /// How many milliseconds the runtime waits for an answer, if sent.
    pub request_timeout_ms: Option<u64>,
}

impl fmt::Display for RuntimeInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum PluginRequest {
    /// The runtime's description, answered with the plugin's events.
    Configure(RuntimeInfo),
    /// All existing pods and containers, or a part of them.
    Synchronize {
        pods: Vec<PodSandbox>,
        containers: Vec<Container>,
        /// Whether more parts follow.
        more: bool,
    },
    /// The runtime is shutting down.
    Shutdown,
    /// An event, before or after the change.
    Event(Event, Box<EventRequest>),
    /// A request that the plugin ignores, and answers with the empty message.
    Other,
}

/// Why the plugin can't answer a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("{service}/{method} is not implemented by this plugin")]
    Unknown { service: String, method: String },
    #[error("the message of {method} can't be read: {source}")]
    InvalidRequest {
        method: String,
        /// The decoder's error.
        source: prost::DecodeError,
    },
    /// An event's message lacks the pod or the container.
    #[error("the message of {0} has no {1}")]
    Missing(Event, &'static str),
}

// === impl PluginRequest ===

impl PluginRequest {
    /// Decodes a request from the names of the service and the method, and the message.
    pub fn read(service: &str, method: &str, payload: &[u8]) -> Result<Self, RequestError> {
        let mut events = Event::ALL.into_iter();
        let event_of_method = events.find(|event| event.to_string() == method);
        match (service, method, event_of_method) {
            (PLUGIN_SERVICE, "Configure", _) => configure(payload),
            (PLUGIN_SERVICE, "Synchronize", _) => {
                let SynchronizeRequest {
                    pods,
                    containers,
                    more,
                } = decode(method, payload)?;
                Ok(Self::Synchronize {
                    pods,
                    containers,
                    more,
                })
            }
            (PLUGIN_SERVICE, "Shutdown", _) => Ok(Self::Shutdown),
            (PLUGIN_SERVICE, "StateChange", _) => state_change(payload),
            (PLUGIN_SERVICE, "UpdatePodSandbox" | "PostUpdatePodSandbox", _) => Ok(Self::Other),
            (PLUGIN_SERVICE, _, Some(event)) => {
                let CreateContainerRequest { pod, container } = decode(method, payload)?;
                // The requests of all events number their fields alike, except for
                // `UpdatePodSandbox`, which is no [`Event`].
                Self::event(event, pod, container)
            }
            _ => Err(RequestError::Unknown {
                service: service.to_owned(),
                method: method.to_owned(),
            }),
        }
    }

    fn event(
        event: Event,
        pod: Option<PodSandbox>,
        container: Option<Container>,
    ) -> Result<Self, RequestError> {
        let pod = pod.ok_or(RequestError::Missing(event, "pod"))?;
        if container.is_none() && event.is_of_container() {
            return Err(RequestError::Missing(event, "container"));
        }
        let request = EventRequest {
            pod,
            container: container.unwrap_or_default(),
        };
        Ok(Self::Event(event, Box::new(request)))
    }
}

fn decode<M: prost::Message + Default>(method: &str, payload: &[u8]) -> Result<M, RequestError> {
    M::decode(payload).map_err(|source| RequestError::InvalidRequest {
        method: method.to_owned(),
        source,
    })
}

fn configure(payload: &[u8]) -> Result<PluginRequest, RequestError> {
    let message: ConfigureRequest = decode("Configure", payload)?;
    Ok(PluginRequest::Configure(RuntimeInfo {
        name: message.runtime_name,
        version: message.runtime_version,
        request_timeout_ms: positive(message.request_timeout_ms),
    }))
}

fn state_change(payload: &[u8]) -> Result<PluginRequest, RequestError> {
    let StateChangeEvent {
        event,
        pod,
        container,
    } = decode("StateChange", payload)?;
    // Unknown event numbers come from newer runtimes. Events with a separate method never use
    // `StateChange`.
    let mut events = Event::ALL.into_iter();
    match events.find(|known| *known as i32 == event) {
        Some(event) if !event.has_own_method() => PluginRequest::event(event, pod, container),
        _ => Ok(PluginRequest::Other),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    fn read(method: &str, payload: &[u8]) -> Result<PluginRequest, RequestError> {
        PluginRequest::read(PLUGIN_SERVICE, method, payload)
    }

    fn event_request() -> EventRequest {
        EventRequest {
            pod: PodSandbox {
                name: "ps-0".to_owned(),
                ..PodSandbox::default()
            },
            container: Container {
                name: "ps".to_owned(),
                ..Container::default()
            },
        }
    }

    fn message(with_container: bool) -> CreateContainerRequest {
        let EventRequest { pod, container, .. } = event_request();
        CreateContainerRequest {
            pod: Some(pod),
            container: Some(container).filter(|_| with_container),
        }
    }

    #[test]
    fn an_event_is_read_from_its_own_method_and_from_the_older_one() {
        for event in Event::ALL {
            let container = event.is_of_container();
            let alone = EventRequest {
                container: Container::default(),
                ..event_request()
            };
            let expected = PluginRequest::Event(
                event,
                Box::new(if container { event_request() } else { alone }),
            );
            let event_of_method = message(container);
            assert_eq!(
                read(&event.to_string(), &event_of_method.encode_to_vec()),
                Ok(expected.clone())
            );
            let older = StateChangeEvent {
                event: event as i32,
                pod: event_of_method.pod,
                container: event_of_method.container,
            };
            let expected = if event.has_own_method() {
                PluginRequest::Other
            } else {
                expected
            };
            assert_eq!(
                read("StateChange", &older.encode_to_vec()),
                Ok(expected),
                "{event}"
            );
        }
    }

    #[test]
    fn unknown_events_and_fields_are_ignored() {
        for event in [-1, 0, 12, 13, 14, 15, 1 << 20] {
            let older = StateChangeEvent {
                event,
                pod: None,
                container: None,
            };
            assert_eq!(
                read("StateChange", &older.encode_to_vec()),
                Ok(PluginRequest::Other)
            );
        }
        assert_eq!(
            read("UpdatePodSandbox", b"\xff\xff"),
            Ok(PluginRequest::Other)
        );
        let newer = [message(true).encode_to_vec(), vec![0xfa, 0x7f, 1, b'x']].concat();
        assert!(matches!(
            read("StartContainer", &newer),
            Ok(PluginRequest::Event(Event::StartContainer, _))
        ));
    }

    #[test]
    fn invalid_requests_give_errors_with_reasons() {
        let errors = [
            (read("ValidateContainerAdjustment", b""), "not implemented"),
            (
                PluginRequest::read("Elsewhere", "Configure", b""),
                "Elsewhere/Configure is not implemented",
            ),
            (
                read("CreateContainer", b"\x0a\xff"),
                "CreateContainer can't be read",
            ),
            (read("Configure", b"\x0a"), "Configure can't be read"),
            (
                read("Synchronize", b"\x0a\x05"),
                "Synchronize can't be read",
            ),
            (read("StateChange", b"\x08"), "StateChange can't be read"),
            (
                read("CreateContainer", b""),
                "the message of CreateContainer has no pod",
            ),
            (
                read("StartContainer", &message(false).encode_to_vec()),
                "the message of StartContainer has no container",
            ),
        ];
        for (result, says) in errors {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn a_mask_has_a_bit_for_each_event_and_is_never_empty() {
        assert_eq!(event_mask(&Event::ALL.into()), 0x7ff);
        assert_eq!(
            event_mask(&[Event::RunPodSandbox, Event::CreateContainer].into()),
            0b1001
        );
        assert_eq!(event_mask(&EventSet::default()), 0b100);
    }
}
