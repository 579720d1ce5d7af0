//! A plugin that follows a pod's annotations and records all events, to test the library without an
//! agent.
//!
//! | annotation | effect |
//! |---|---|
//! | `test/cpus` | sets the CPU set of each container |
//! | `test/env` | sets `NAME=value`, unless the container has the variable |
//! | `test/refuse` | refuses the first creation with the given message |
//! | `test/refuse-start` | refuses the first start with the given message |
//! | `test/sleep` | delays the answer to a creation by the given milliseconds |

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pinfold::cpu::CpuSet;
use pinfold::host::cgroup::Cgroups;
use pinfold::nri::{
    self, ConnectionState, Container, ContainerAdjustment, CpuChange, Event, EventRequest,
    EventSet, HandlerTimeout, Plugin, PluginSettings, PodSandbox, Refusal, UnansweredCall,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::agent::patience;
use crate::daemon::Runtime;

/// An event with its pod and container.
#[derive(Debug, Clone)]
pub(crate) struct RecordedEvent {
    pub(crate) event: Event,
    pub(crate) pod: PodSandbox,
    pub(crate) container: Container,
    /// The effective CPUs of the container's cgroup at the event; `None` without a cgroup.
    pub(crate) effective: Option<CpuSet>,
}

/// All records of the plugin.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    pub(crate) events: Vec<RecordedEvent>,
    /// The containers of each synchronization.
    pub(crate) synchronized: Vec<Vec<Container>>,
    /// The calls without an answer.
    pub(crate) unanswered: Vec<String>,
    refused: Vec<Event>,
}

struct Scripted(Arc<Mutex<Recording>>, Cgroups);

// === impl Scripted ===

impl Scripted {
    fn record(&self, event: Event, pod: &PodSandbox, container: &Container) {
        let cgroup = self
            .1
            .cpuset(container.cgroups_path().trim_start_matches('/'));
        let effective = cgroup
            .ok()
            .filter(|_| !container.cgroups_path().is_empty())
            .map(|cpuset| cpuset.effective);
        let event = RecordedEvent {
            event,
            pod: pod.clone(),
            container: container.clone(),
            effective,
        };
        self.0.lock().unwrap().events.push(event);
    }

    /// Refuses the first event of each kind.
    fn refusal(&self, event: Event, pod: &PodSandbox, annotation: &str) -> Result<(), Refusal> {
        let mut recording = self.0.lock().unwrap();
        match pod.annotations.get(annotation) {
            Some(words) if !recording.refused.contains(&event) => {
                recording.refused.push(event);
                Err(Refusal::new(words))
            }
            _ => Ok(()),
        }
    }
}

/// The CPU change from a pod's annotation.
fn cpus(pod: &PodSandbox) -> CpuChange {
    let cpus = pod
        .annotations
        .get("test/cpus")
        .map(|list| list.parse::<CpuSet>().unwrap());
    CpuChange {
        cpus,
        ..CpuChange::default()
    }
}

impl Plugin for Scripted {
    fn events(&self) -> EventSet {
        Event::ALL.into()
    }

    fn unanswered(
        &self,
        call: &UnansweredCall<'_>,
        timeout: HandlerTimeout,
    ) -> Result<(), Refusal> {
        self.0
            .lock()
            .unwrap()
            .unanswered
            .push(format!("{call}: {timeout}"));
        Ok(())
    }

    async fn synchronize(
        &self,
        _pods: Vec<PodSandbox>,
        containers: Vec<Container>,
    ) -> Result<(), Refusal> {
        self.0.lock().unwrap().synchronized.push(containers);
        Ok(())
    }

    async fn create(
        &self,
        pod: &PodSandbox,
        container: &Container,
        _: tokio::time::Instant,
    ) -> Result<ContainerAdjustment, Refusal> {
        self.record(Event::CreateContainer, pod, container);
        if let Some(time) = pod.annotations.get("test/sleep") {
            tokio::time::sleep(Duration::from_millis(time.parse().unwrap())).await;
        }
        self.refusal(Event::CreateContainer, pod, "test/refuse")?;
        let mut adjustment = ContainerAdjustment {
            cpu: cpus(pod),
            ..ContainerAdjustment::default()
        };
        if let Some((name, value)) = pod
            .annotations
            .get("test/env")
            .and_then(|pair| pair.split_once('='))
            && container.variable(name).is_none()
        {
            adjustment.env.insert(name.to_owned(), value.to_owned());
        }
        Ok(adjustment)
    }

    async fn start(
        &self,
        pod: &PodSandbox,
        container: &Container,
        _deadline: tokio::time::Instant,
    ) -> Result<(), Refusal> {
        self.record(Event::StartContainer, pod, container);
        self.refusal(Event::StartContainer, pod, "test/refuse-start")
    }

    async fn update(
        &self,
        pod: &PodSandbox,
        container: &Container,
        _deadline: tokio::time::Instant,
    ) -> Result<CpuChange, Refusal> {
        self.record(Event::UpdateContainer, pod, container);
        // A change of resources keeps the CPUs.
        Ok(cpus(pod))
    }

    async fn notify(&self, event: Event, request: &EventRequest) {
        self.record(event, &request.pod, &request.container);
    }
}

/// A running plugin, which the drop stops.
pub(crate) struct Serving {
    pub(crate) recording: Arc<Mutex<Recording>>,
    pub(crate) state: watch::Receiver<ConnectionState>,
    stop: CancellationToken,
    server: Option<tokio::runtime::Runtime>,
    serving: Option<JoinHandle<()>>,
}

// === impl Serving ===

impl Serving {
    /// Starts a plugin with a name and an index, and waits for the synchronization.
    pub(crate) fn start(runtime: &Runtime, name: &str, index: u8) -> Self {
        let mut settings = PluginSettings::new(name, index);
        settings.socket = runtime.nri();
        // An older runtime does not tell its limit.
        settings.request_timeout = runtime.time_limit;
        let recording = Arc::<Mutex<Recording>>::default();
        let (sender, state) = watch::channel(ConnectionState::default());
        let stop = CancellationToken::new();
        let server = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let plugin = Arc::new(Scripted(
            Arc::clone(&recording),
            Cgroups::detect(Path::new("/sys/fs/cgroup")).unwrap(),
        ));
        let serving = Some(server.spawn(nri::serve(settings, plugin, sender, stop.clone())));
        let serving = Self {
            recording,
            state,
            stop,
            server: Some(server),
            serving,
        };
        serving.synchronized(runtime);
        serving
    }

    /// Waits for the synchronization.
    pub(crate) fn synchronized(&self, runtime: &Runtime) {
        self.reaches(runtime, "synchronized");
    }

    /// Waits for a connection state.
    pub(crate) fn reaches(&self, runtime: &Runtime, name: &str) {
        let description = format!("the plugin is {name}");
        runtime.eventually(&description, || self.state.borrow().name() == name);
    }

    /// The events of a container in order. An empty name selects the events of the pod.
    pub(crate) fn events(&self, container: &str) -> Vec<Event> {
        let recording = self.recording.lock().unwrap();
        recording
            .events
            .iter()
            .filter(|recorded| recorded.container.name == container)
            .map(|recorded| recorded.event)
            .collect()
    }

    /// The last record of an event of a container.
    pub(crate) fn last(&self, event: Event, container: &str) -> RecordedEvent {
        let recording = self.recording.lock().unwrap();
        let events = recording.events.iter().rev();
        events
            .clone()
            .find(|recorded| recorded.event == event && recorded.container.name == container)
            .unwrap_or_else(|| panic!("no {event} of {container} was recorded"))
            .clone()
    }

    /// Stops the plugin and waits until it has ended.
    pub(crate) fn stop(mut self) {
        self.stop.cancel();
        let (server, serving) = (self.server.take().unwrap(), self.serving.take().unwrap());
        server
            .block_on(async { tokio::time::timeout(patience(), serving).await })
            .unwrap()
            .unwrap();
        assert_eq!(
            *self.state.borrow(),
            ConnectionState::Away(nri::Disconnect::Stopped)
        );
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(server) = self.server.take() {
            server.shutdown_timeout(Duration::from_secs(1));
        }
    }
}
