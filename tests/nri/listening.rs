//! A plugin that records the events of the runtime, and a running instance of the plugin.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pinfold::nri::{
    self, ConnectionState, Container, ContainerAdjustment, ContainerUpdate, CpuChange, Creation,
    Disconnect, Event, Events, HandlerTimeout, LinuxResources, Plugin, PluginSettings, PodSandbox,
    Quota, Refusal, UnansweredCall,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::runtime::{Socket, WAIT, soon};

/// How a plugin carries on when a container is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Conduct {
    /// Like the plugin that was recorded: it does what annotations say.
    #[default]
    AsRecorded,
    /// It never comes to an end.
    Hang,
    Refuse,
    /// It takes a moment.
    Slow,
}

/// A plugin that records the events of the runtime.
#[derive(Default)]
pub(crate) struct Listening {
    pub(crate) events: Events,
    pub(crate) conduct: Conduct,
    /// Whether what went unanswered is refused.
    pub(crate) strict: bool,
    pub(crate) refuse_synchronize: bool,
    /// Whether environments of Synchronize are dropped.
    pub(crate) drop_environments: bool,
    pub(crate) heard: Mutex<Vec<String>>,
    pub(crate) timeouts: Mutex<Vec<(String, HandlerTimeout)>>,
    pub(crate) cancelled: Arc<Mutex<usize>>,
    pub(crate) existing: Mutex<(Vec<PodSandbox>, Vec<Container>)>,
    /// What was about to be created.
    pub(crate) created: Mutex<Vec<(PodSandbox, Container)>>,
}

/// Counts, when it goes away without having been defused, that a handler was cancelled.
struct Cancelled(Arc<Mutex<usize>>, bool);

impl Drop for Cancelled {
    fn drop(&mut self) {
        if self.1 {
            *self.0.lock().unwrap() += 1;
        }
    }
}

impl Listening {
    pub(crate) fn to(events: impl Into<Events>) -> Self {
        Self {
            events: events.into(),
            ..Self::default()
        }
    }

    pub(crate) fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }

    fn note(&self, event: Event, pod: &PodSandbox, container: Option<&Container>) {
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
        self.heard.lock().unwrap().push(line);
    }

    async fn carry_on(&self) -> Result<(), Refusal> {
        let mut cancelled = Cancelled(Arc::clone(&self.cancelled), true);
        match self.conduct {
            Conduct::AsRecorded => {}
            Conduct::Hang => std::future::pending().await,
            Conduct::Slow => tokio::time::sleep(Duration::from_millis(300)).await,
            Conduct::Refuse => return Err(Refusal::new("no CPUs left on n-1: scale ps down")),
        }
        cancelled.1 = false;
        Ok(())
    }
}

impl Plugin for Listening {
    fn events(&self) -> Events {
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
        let dropped = self.drop_environments;
        if dropped {
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
    ) -> Result<Vec<ContainerUpdate>, Refusal> {
        if self.refuse_synchronize {
            return Err(Refusal::new("not ready"));
        }
        let mut heard = self.heard.lock().unwrap();
        heard.push(format!(
            "synchronize: {} pods, {} containers",
            pods.len(),
            containers.len()
        ));
        for container in &containers {
            let (name, pid, path) = (&container.name, container.pid, container.cgroups_path());
            heard.push(format!("sync container {name} pid {pid} cgroup {path}"));
        }
        *self.existing.lock().unwrap() = (pods, containers);
        Ok(Vec::new())
    }

    async fn create(&self, pod: &PodSandbox, container: &Container) -> Result<Creation, Refusal> {
        self.note(Event::CreateContainer, pod, Some(container));
        self.created
            .lock()
            .unwrap()
            .push((pod.clone(), container.clone()));
        self.carry_on().await?;
        let annotation = |key: &str| pod.annotations.get(key).map(String::as_str);
        let set = |key: &str| annotation(key).map(|list| list.parse().unwrap());
        let quota = annotation("pf/quota").map(|quota| quota.parse().unwrap());
        let pair = annotation("pf/env").and_then(|pair| pair.split_once('='));
        let adjustment = ContainerAdjustment {
            env: pair
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
            annotations: BTreeMap::new(),
            cpu: CpuChange {
                cpus: set("pf/cpus"),
                mems: set("pf/mems"),
                quota: quota.map(|quota| Quota::Limited {
                    quota,
                    period: 100_000,
                }),
                shares: None,
            },
        };
        Ok(Creation {
            adjustment,
            updates: Vec::new(),
        })
    }

    async fn created(&self, pod: &PodSandbox, container: &Container) {
        self.note(Event::PostCreateContainer, pod, Some(container));
    }

    async fn start(&self, pod: &PodSandbox, container: &Container) -> Result<(), Refusal> {
        self.note(Event::StartContainer, pod, Some(container));
        self.carry_on().await
    }

    async fn started(&self, pod: &PodSandbox, container: &Container) {
        self.note(Event::PostStartContainer, pod, Some(container));
    }

    async fn update(
        &self,
        pod: &PodSandbox,
        container: &Container,
        resources: &LinuxResources,
    ) -> Result<Vec<ContainerUpdate>, Refusal> {
        assert!(
            resources
                .cpu
                .as_ref()
                .is_none_or(|cpu| cpu.shares().is_some())
        );
        self.note(Event::UpdateContainer, pod, Some(container));
        Ok(Vec::new())
    }

    async fn updated(&self, pod: &PodSandbox, container: &Container) {
        self.note(Event::PostUpdateContainer, pod, Some(container));
    }

    async fn stopped(&self, pod: &PodSandbox, container: &Container) -> Vec<ContainerUpdate> {
        self.note(Event::StopContainer, pod, Some(container));
        Vec::new()
    }

    async fn removed(&self, pod: &PodSandbox, container: &Container) {
        self.note(Event::RemoveContainer, pod, Some(container));
    }

    async fn pod_run(&self, pod: &PodSandbox) -> Result<(), Refusal> {
        self.note(Event::RunPodSandbox, pod, None);
        Ok(())
    }

    async fn pod_stopped(&self, pod: &PodSandbox) {
        self.note(Event::StopPodSandbox, pod, None);
    }

    async fn pod_removed(&self, pod: &PodSandbox) {
        self.note(Event::RemovePodSandbox, pod, None);
    }
}

/// A plugin that is served.
pub(crate) struct Serving {
    pub(crate) socket: Socket,
    pub(crate) plugin: Arc<Listening>,
    pub(crate) state: watch::Receiver<ConnectionState>,
    pub(crate) stop: CancellationToken,
    pub(crate) task: JoinHandle<()>,
}

impl Serving {
    pub(crate) fn new(plugin: Listening) -> Self {
        Self::with(plugin, |_| {})
    }

    pub(crate) fn with(plugin: Listening, change: impl FnOnce(&mut PluginSettings)) -> Self {
        let socket = Socket::new();
        let plugin = Arc::new(plugin);
        let mut settings = PluginSettings::new("pf", 20).unwrap();
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

    /// Waits for a state.
    pub(crate) async fn until(
        &mut self,
        what: &str,
        is: impl FnMut(&ConnectionState) -> bool,
    ) -> ConnectionState {
        soon(what, self.state.wait_for(is)).await.unwrap().clone()
    }

    /// Waits until there is no runtime; for what reason.
    pub(crate) async fn away(&mut self, is: impl Fn(&Disconnect) -> bool) {
        self.until(
            "the loss",
            |state| matches!(state, ConnectionState::Away(disconnect) if is(disconnect)),
        )
        .await;
    }

    /// Stops it, which must come to an end.
    pub(crate) async fn end(self) {
        self.stop.cancel();
        soon("the end", self.task).await.unwrap();
        assert_eq!(
            *self.state.borrow(),
            ConnectionState::Away(Disconnect::Stopped)
        );
    }
}
