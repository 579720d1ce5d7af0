//! A plugin that records the events of the runtime, and a running instance of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pinfold::nri::{
    self, ConnectionState, Container, ContainerAdjustment, CpuChange, Disconnect, Event,
    EventRequest, EventSet, HandlerTimeout, Plugin, PluginSettings, PodSandbox, QuotaChange,
    Refusal, UnansweredCall,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::runtime::{Socket, WAIT, soon};

/// The plugin's behavior during a creation or start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Behavior {
    /// Like the recorded plugin: the pod's annotations decide.
    #[default]
    AsRecorded,
    /// The handler never ends.
    Hang,
    Refuse,
    /// The handler takes 300 ms.
    Slow,
}

/// A plugin that records the events of the runtime.
#[derive(Default)]
pub(crate) struct RecordingPlugin {
    pub(crate) events: EventSet,
    pub(crate) behavior: Behavior,
    /// Whether an unanswered call is refused.
    pub(crate) strict: bool,
    pub(crate) refuse_synchronize: bool,
    /// Whether the plugin drops the environments in Synchronize.
    pub(crate) drop_environments: bool,
    pub(crate) event_log: Mutex<Vec<String>>,
    pub(crate) timeouts: Mutex<Vec<(String, HandlerTimeout)>>,
    pub(crate) cancelled: Arc<Mutex<usize>>,
    pub(crate) existing: Mutex<(Vec<PodSandbox>, Vec<Container>)>,
    /// Pods and containers of the calls to `create`.
    pub(crate) created: Mutex<Vec<(PodSandbox, Container)>>,
}

/// Counts a cancelled handler: a dropped guard that is still armed.
struct CancelGuard {
    count: Arc<Mutex<usize>>,
    armed: bool,
}

impl Drop for CancelGuard {
    fn drop(&mut self) {
        if self.armed {
            *self.count.lock().unwrap() += 1;
        }
    }
}

impl RecordingPlugin {
    pub(crate) fn subscribed_to(events: impl Into<EventSet>) -> Self {
        Self {
            events: events.into(),
            ..Self::default()
        }
    }

    pub(crate) fn event_log(&self) -> Vec<String> {
        self.event_log.lock().unwrap().clone()
    }

    fn record(&self, event: Event, pod: &PodSandbox, container: Option<&Container>) {
        let line = match (event, container) {
            (_, None) if event == Event::RunPodSandbox => {
                let path = pod
                    .linux
                    .as_ref()
                    .map(|linux| linux.cgroups_path.as_str())
                    .unwrap_or_default();
                format!(
                    "{event} {} parent={:?} path={path:?} pid={}",
                    pod.name,
                    pod.cgroup_parent(),
                    pod.pid
                )
            }
            (_, None) => format!("{event} {}", pod.name),
            (Event::RemoveContainer, Some(container)) => {
                format!(
                    "{event} {}/{} {:.12}",
                    pod.name, container.name, container.id
                )
            }
            (_, Some(container)) => {
                let state = format!("{:?}", container.state()).to_uppercase();
                format!(
                    "{event} {}/{} id={:.12} pid={} state=CONTAINER_{state} cgroupsPath={:?}",
                    pod.name,
                    container.name,
                    container.id,
                    container.pid,
                    container.cgroups_path()
                )
            }
        };
        self.event_log.lock().unwrap().push(line);
    }

    async fn behave(&self) -> Result<(), Refusal> {
        let mut guard = CancelGuard {
            count: Arc::clone(&self.cancelled),
            armed: true,
        };
        match self.behavior {
            Behavior::AsRecorded => {}
            Behavior::Hang => std::future::pending().await,
            Behavior::Slow => tokio::time::sleep(Duration::from_millis(300)).await,
            Behavior::Refuse => return Err(Refusal::new("no CPUs left on n-1: scale ps down")),
        }
        guard.armed = false;
        Ok(())
    }
}

impl Plugin for RecordingPlugin {
    fn events(&self) -> EventSet {
        self.events.clone()
    }

    fn unanswered(
        &self,
        call: &UnansweredCall<'_>,
        timeout: HandlerTimeout,
    ) -> Result<(), Refusal> {
        self.timeouts
            .lock()
            .unwrap()
            .push((call.to_string(), timeout));
        if self.strict {
            Err(Refusal::new(format!("{call}: {timeout}")))
        } else {
            Ok(())
        }
    }

    fn reduce(&self, container: Container) -> Container {
        if self.drop_environments {
            Container {
                env: Vec::new(),
                ..container
            }
        } else {
            container
        }
    }

    async fn synchronize(
        &self,
        pods: Vec<PodSandbox>,
        containers: Vec<Container>,
    ) -> Result<(), Refusal> {
        if self.refuse_synchronize {
            return Err(Refusal::new("not ready"));
        }
        let mut event_log = self.event_log.lock().unwrap();
        event_log.push(format!(
            "synchronize: {} pods, {} containers",
            pods.len(),
            containers.len()
        ));
        for container in &containers {
            let (name, pid, path) = (&container.name, container.pid, container.cgroups_path());
            event_log.push(format!("sync container {name} pid {pid} cgroup {path}"));
        }
        *self.existing.lock().unwrap() = (pods, containers);
        Ok(())
    }

    async fn create(
        &self,
        pod: &PodSandbox,
        container: &Container,
        _: tokio::time::Instant,
    ) -> Result<ContainerAdjustment, Refusal> {
        self.record(Event::CreateContainer, pod, Some(container));
        self.created
            .lock()
            .unwrap()
            .push((pod.clone(), container.clone()));
        self.behave().await?;
        let annotation = |key: &str| pod.annotations.get(key).map(String::as_str);
        let cpu_set = |key: &str| annotation(key).map(|list| list.parse().unwrap());
        let quota = annotation("pf/quota").map(|quota| quota.parse().unwrap());
        let pair = annotation("pf/env").and_then(|pair| pair.split_once('='));
        Ok(ContainerAdjustment {
            env: pair
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
            annotations: BTreeMap::new(),
            mounts: Vec::new(),
            cpu: CpuChange {
                cpus: cpu_set("pf/cpus"),
                mems: cpu_set("pf/mems"),
                quota: quota.map(|quota| QuotaChange {
                    quota,
                    period: 100_000,
                }),
            },
        })
    }

    async fn start(
        &self,
        pod: &PodSandbox,
        container: &Container,
        _deadline: tokio::time::Instant,
    ) -> Result<(), Refusal> {
        self.record(Event::StartContainer, pod, Some(container));
        self.behave().await
    }

    async fn update(
        &self,
        pod: &PodSandbox,
        container: &Container,
        _deadline: tokio::time::Instant,
    ) -> Result<CpuChange, Refusal> {
        self.record(Event::UpdateContainer, pod, Some(container));
        Ok(CpuChange::default())
    }

    async fn notify(&self, event: Event, request: &EventRequest) {
        let container = Some(&request.container).filter(|_| event.is_of_container());
        self.record(event, &request.pod, container);
    }
}

/// A running plugin with the runtime's socket.
pub(crate) struct Serving {
    pub(crate) socket: Socket,
    pub(crate) plugin: Arc<RecordingPlugin>,
    pub(crate) state: watch::Receiver<ConnectionState>,
    pub(crate) stop: CancellationToken,
    pub(crate) task: JoinHandle<()>,
}

impl Serving {
    pub(crate) fn new(plugin: RecordingPlugin) -> Self {
        Self::with(plugin, |_| {})
    }

    pub(crate) fn with(plugin: RecordingPlugin, change: impl FnOnce(&mut PluginSettings)) -> Self {
        let socket = Socket::new();
        let plugin = Arc::new(plugin);
        let mut settings = PluginSettings::new("pf", 20);
        settings.socket = socket.path();
        settings.registration_timeout = WAIT;
        settings.backoff = (Duration::from_millis(1), Duration::from_millis(2));
        change(&mut settings);
        let (sender, state) = watch::channel(ConnectionState::default());
        let stop = CancellationToken::new();
        let task = tokio::spawn(nri::serve(
            settings,
            Arc::clone(&plugin),
            sender,
            stop.clone(),
        ));
        Self {
            socket,
            plugin,
            state,
            stop,
            task,
        }
    }

    /// Waits for a connection state.
    pub(crate) async fn until(
        &mut self,
        what: &str,
        wanted: impl FnMut(&ConnectionState) -> bool,
    ) -> ConnectionState {
        soon(what, self.state.wait_for(wanted))
            .await
            .unwrap()
            .clone()
    }

    /// Waits until the plugin is disconnected for a wanted reason.
    pub(crate) async fn away(&mut self, wanted: impl Fn(&Disconnect) -> bool) {
        self.until(
            "the disconnection",
            |state| matches!(state, ConnectionState::Away(disconnect) if wanted(disconnect)),
        )
        .await;
    }

    /// Stops the plugin and waits until its task has ended.
    pub(crate) async fn end(self) {
        self.stop.cancel();
        soon("the end", self.task).await.unwrap();
        assert_eq!(
            *self.state.borrow(),
            ConnectionState::Away(Disconnect::Stopped)
        );
    }
}
