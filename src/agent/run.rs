//! Start and stop.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use nix::fcntl::{Flock, FlockArg};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::config::Config;
use super::devices::{CallError, DevicesError, PodResources};
use super::folder::Folder;
use super::http::{self, State};
use super::node::Node;
use super::owner::{Admission, Event, Owner};
use super::service;
use crate::cpu::CpuSet;
use crate::host::cgroup::PARTITION;
use crate::host::notify::Notifier;
use crate::host::watch::Watch;
use crate::metrics::{self, AgentMetrics, Sources};
use crate::pin::Snapshot;
use crate::pod::Pod;

/// How long the kubelet is left alone before it is asked again, if nothing happens meanwhile.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// How long it is left alone whatever happens.
const ASK_AT_MOST: Duration = Duration::from_millis(200);

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    address: SocketAddr,
    events: mpsc::Sender<Event>,
    snapshot: watch::Receiver<Option<Arc<Snapshot>>>,
    stop: CancellationToken,
    tasks: JoinSet<anyhow::Result<()>>,
    state: Arc<State>,
}

// === impl Agent ===

impl Agent {
    /// Starts an agent on a node.
    ///
    /// # Errors
    /// The address is taken, the folder of manifests is missing, inotify is at its limit.
    pub async fn start(node: Node) -> anyhow::Result<Self> {
        let listen = node.config.listen;
        let listener = TcpListener::bind(listen).await.with_context(|| {
            format!(
                "can't listen on {listen}: if another program has the port, name a free one with --listen"
            )
        })?;
        let address = listener.local_addr()?;
        let metrics = AgentMetrics::new()?;
        metrics
            .set_started(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64()));
        let (published, snapshot) = watch::channel(None);
        let (events, inbox) = mpsc::channel(64);
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();

        if let Some(pods) = &node.config.pods {
            let folder = Folder::new(pods)?;
            tasks.spawn(folder.run(events.clone()));
        }
        let (cgroups, appeared) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        for tree in &node.config.trees {
            // A class, a pod, a container: the runtime writes a container's CPUs after it has made the cgroup.
            for folder in node.cgroups.folders(tree) {
                let watch = Watch::with_file(&folder, 3, Some(PARTITION))
                    .with_context(|| format!("can't watch the pods' tree {}", folder.display()))?;
                tasks.spawn(follow(watch, [Arc::clone(&cgroups), Arc::clone(&appeared)]));
            }
        }
        // The kubelet knows a pod's devices before the runtime knows the pod: each new cgroup is a reason to ask.
        let kubelet = PodResources::new(&node.config.root);
        tasks.spawn(ask_for_devices(kubelet, Arc::clone(&appeared), events.clone()));
        let sources = Sources::new(node.cgroups.clone(), node.proc.clone(), &node.config.root);
        let state = Arc::new(State { snapshot: snapshot.clone(), sources, metrics: metrics.clone() });
        let ended = stop.clone();
        let served = Arc::clone(&state);
        tasks.spawn(async move {
            http::serve(listener, served, ended).await;
            Ok(())
        });
        let owner = Owner::new(node, metrics, published);
        let ended = stop.clone();
        tasks.spawn(async move {
            owner.run(inbox, cgroups, ended).await;
            Ok(())
        });
        Ok(Self { address, events, snapshot, stop, tasks, state })
    }

    /// Where it serves HTTP.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The latest state, once there is one.
    pub fn snapshot(&self) -> Option<Arc<Snapshot>> {
        self.snapshot.borrow().clone()
    }

    /// What `/metrics` serves.
    ///
    /// # Errors
    /// Nothing to serve before the first reconcile.
    pub fn scrape(&self) -> anyhow::Result<String> {
        let snapshot = self.snapshot().context("the first reconcile is still to come")?;
        Ok(metrics::render(&snapshot, &self.state.sources, &self.state.metrics)?)
    }

    /// Asks, as a container runtime does before it creates a container, what that container gets.
    pub async fn create(&self, pod: &Pod, container: &str) -> anyhow::Result<Admission> {
        let (reply, answer) = oneshot::channel();
        let (pod, container) = (Box::new(pod.clone()), container.to_owned());
        self.events.send(Event::Create { pod, container, reply }).await.context("the agent ended")?;
        answer.await.context("the agent has no answer")
    }

    /// Waits until a task ends, which none should do by itself, and says which way.
    pub async fn ended(&mut self) -> anyhow::Result<()> {
        let joined = self.tasks.join_next().await;
        verdict(joined)
    }

    /// An error if a task has ended by itself.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.tasks.try_join_next() {
            None => Ok(()),
            joined => verdict(joined),
        }
    }

    /// Stops: work in hand is finished, and every assignment stays as it is.
    pub async fn stop(mut self) {
        self.stop.cancel();
        drop(self.events);
        // The watchers wait for events that may never come.
        let grace = tokio::time::sleep(Duration::from_millis(200));
        tokio::pin!(grace);
        loop {
            tokio::select! {
                () = &mut grace => break,
                joined = self.tasks.join_next() => if joined.is_none() { break },
            }
        }
        self.tasks.shutdown().await;
    }
}

fn verdict(joined: Option<Result<anyhow::Result<()>, tokio::task::JoinError>>) -> anyhow::Result<()> {
    match joined {
        Some(Ok(Ok(()))) => anyhow::bail!("a task of the agent ended by itself"),
        Some(Ok(Err(error))) => Err(error),
        Some(Err(error)) => Err(error).context("a task of the agent broke"),
        None => anyhow::bail!("the agent has no tasks"),
    }
}

/// Tells the owner of changes below a tree; several before it looks are one.
async fn follow(mut watch: Watch, listeners: [Arc<Notify>; 2]) -> anyhow::Result<()> {
    loop {
        watch.changed().await.context("can't watch the pods' tree any longer")?;
        for listener in &listeners {
            listener.notify_one();
        }
    }
}

/// Asks the kubelet again and again which devices pods were given, and tells the owner of what is new.
async fn ask_for_devices(
    kubelet: PodResources,
    cgroups: Arc<Notify>,
    events: mpsc::Sender<Event>,
) -> anyhow::Result<()> {
    let mut told = BTreeMap::new();
    let mut complaint = String::new();
    loop {
        match kubelet.list().await {
            Ok(containers) => {
                let mut devices: BTreeMap<(String, String), CpuSet> = BTreeMap::new();
                for container in containers {
                    let near = devices.entry((container.namespace, container.pod)).or_default();
                    *near =
                        container.devices.iter().fold(near.clone(), |all, device| all.union(&device.numa));
                }
                devices.retain(|_, near| !near.is_empty());
                complaint.clear();
                if devices != told {
                    told.clone_from(&devices);
                    if events.send(Event::Devices(devices)).await.is_err() {
                        return Ok(());
                    }
                }
            }
            // Off a cluster there is none to ask.
            Err(DevicesError::Call { source: CallError::NoSocket { .. }, .. }) => {}
            Err(error) => {
                let said = format!("{:#}", anyhow::Error::new(error));
                if said != complaint {
                    tracing::warn!("which devices pods have is not known: {said}");
                    complaint = said;
                }
            }
        }
        tokio::time::sleep(ASK_AT_MOST).await;
        tokio::select! {
            () = tokio::time::sleep(ASK_AGAIN) => {}
            () = cgroups.notified() => {}
        }
    }
}

/// Takes the lock that lets one Pinfold at a time own a node's cgroups; the kernel drops it when the process ends.
///
/// # Errors
/// Another one has it.
pub fn lock(folder: &Path) -> anyhow::Result<Flock<File>> {
    let file = File::open(folder).with_context(|| format!("can't open {}", folder.display()))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| {
        anyhow::anyhow!(
            "another pinfold owns the cgroups below {} ({error}): stop it first, or talk to it over HTTP",
            folder.display()
        )
    })
}

/// Runs the agent until it is told to stop: `pinfold run`.
///
/// # Errors
/// What [`Agent::start`] says, or a task that ended by itself.
pub async fn run(config: Config) -> anyhow::Result<()> {
    // First of all: until it is set, the first process of a container hears no SIGTERM at all.
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let node = Node::new(config)?;
    let _lock = lock(node.cgroups.root())?;
    tracing::info!("effective configuration:\n{}", node.config.to_yaml()?);
    tracing::info!("enforcement {}: {}", node.enforcement.name(), node.enforcement_reason);
    let reconcile = Duration::from_secs(node.config.reconcile_seconds);
    let mut agent = Agent::start(node).await?;
    let told = service::tell(agent.snapshot.clone(), reconcile);
    agent.tasks.spawn(async move {
        told.await;
        Ok(())
    });
    tracing::info!("serving http://{}/metrics", agent.address());
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: stopping; every assignment stays as it is"),
        _ = tokio::signal::ctrl_c() => tracing::info!("interrupted: stopping; every assignment stays as it is"),
        ended = agent.ended() => return ended,
    }
    if let Err(error) = Notifier.stopping() {
        tracing::warn!("can't tell the service manager: {error}");
    }
    agent.stop().await;
    Ok(())
}
