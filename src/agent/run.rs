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
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::cluster::{Cluster, Running, peers};
use super::config::Config;
use super::event::{CreateAnswer, Event};
use super::folder::Folder;
use super::heartbeat::Heartbeat;
use super::http::{self, State};
use super::node::Node;
use super::reconciler::Reconciler;
use super::runtime;
use super::service;
use super::tasks::Tasks;
use crate::cluster::peers::Member;
use crate::cpu::CpuSet;
use crate::host::cgroup::PARTITION;
use crate::host::notify::Notifier;
use crate::host::pod_resources::{CallError, CpuManager, DevicesError, PodResources};
use crate::host::watch::Watch;
use crate::host::{limits, perf};
use crate::metrics::{AgentMetrics, Format, Peer, Sources, Unknown};
use crate::pin::Snapshot;
use crate::pod::Pod;

/// How long a kubelet answer stays valid while no cgroup appears or disappears. A reconcile pass within this time causes no
/// request. A later pass causes a new request.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// The time between two requests to a kubelet that has never answered.
const ASK_UNTIL_ANSWERED: Duration = Duration::from_secs(1);

/// The shortest time between two requests to the kubelet.
const ASK_AT_MOST: Duration = Duration::from_millis(200);

/// How long the shutdown waits for unwritten Events and for answers to the runtime, which take at most 1.5 s.
const GRACE: Duration = Duration::from_millis(1800);

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    address: SocketAddr,
    events: mpsc::Sender<Event>,
    snapshot: watch::Receiver<Option<Arc<Snapshot>>>,
    tasks: Tasks,
    cluster: Option<Running>,
    state: Arc<State>,
}

// === impl Agent ===

impl Agent {
    /// Starts an agent on a node, without a cluster.
    ///
    /// # Errors
    /// The errors of [`Agent::start_in`].
    pub async fn start(node: Node) -> anyhow::Result<Self> {
        Self::start_in(None, node).await
    }

    /// Starts an agent on a node. With `cluster`, the agent also uses the Kubernetes API.
    ///
    /// # Errors
    /// The address is taken, the folder of manifests is missing, or inotify is at its limit. An unreachable API server is no
    /// error.
    pub async fn start_in(cluster: Option<&Cluster>, node: Node) -> anyhow::Result<Self> {
        let listen = node.config.listen;
        let listener = TcpListener::bind(listen).await.with_context(|| {
            format!(
                "can't listen on {listen}: if another program has the port, name a free one with --listen"
            )
        })?;
        let address = listener.local_addr()?;
        let metrics = AgentMetrics::new()?;
        metrics.set_started(
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0.0, |now| now.as_secs_f64()),
        );
        let (published, snapshot) = watch::channel(None);
        let (events, inbox) = mpsc::channel(64);
        let stop = CancellationToken::new();
        let mut tasks = Tasks::new(stop.clone());

        if let Some(pods) = &node.config.pods {
            let folder = Folder::new(pods)?;
            tasks.spawn(folder.run(events.clone()));
        }
        let (cgroups, appeared) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        for tree in &node.config.trees {
            // The watch covers three levels: QoS class, pod and container. The runtime writes a container's CPUs after the
            // cgroup's creation.
            for folder in node.cgroups.watch_folders(tree) {
                let watch = Watch::with_file(&folder, 3, Some(PARTITION))
                    .with_context(|| format!("can't watch the pods' tree {}", folder.display()))?;
                tasks.spawn(follow(watch, [Arc::clone(&cgroups), Arc::clone(&appeared)]));
            }
        }
        // The kubelet knows a pod's devices before the runtime knows the pod. Each new cgroup therefore triggers a request.
        let kubelet = PodResources::new(&node.config.root);
        let asking = AskKubelet {
            kubelet,
            cpu_manager: node.cpu_manager(),
            again: ASK_AGAIN,
            events: events.clone(),
        };
        tasks.spawn(asking.run(Arc::clone(&appeared), snapshot.clone()));
        let mut sources = Sources::new(node.cgroups.clone(), node.proc.clone(), &node.config.root);
        if node.config.metrics.shared_counters > 0 {
            let events = perf::hardware_events(&node.config.root);
            // `Sources::new` has raised the limit on open files. The counters must leave files for the rest of the agent.
            let (asked, room) = (
                node.config.metrics.shared_counters,
                limits::shared_counter_limit(),
            );
            if asked > room {
                tracing::warn!(
                    "metrics.sharedCounters is {asked}, and the limit on open files leaves room for {room}: raise it \
                     (LimitNOFILE) or ask for less; {room} are used"
                );
            }
            sources = sources.counting_shared(events, asked.min(room));
        }
        if node.config.metrics.sockets {
            sources = sources.with_sockets(&node.config.cgroup_root, &node.config.trees);
        }
        let most = usize::try_from(node.config.metrics.peers)?;
        let between = Duration::from_secs(node.config.metrics.connections);
        if !between.is_zero() {
            sources = sources.with_connections(&node.config.cgroup_root, most);
        }
        let api = cluster
            .filter(|_| most > 0)
            .map(|cluster| cluster.api.clone());
        let cluster = cluster.map(|cluster| {
            cluster.start(
                &node.cgroups,
                &mut tasks,
                events.clone(),
                snapshot.clone(),
                &stop,
            )
        });
        let link = cluster.as_ref().map(|cluster| cluster.link.clone());
        let runtime = node.config.runtime.wanted();
        // The reconciler ends after the connection to the runtime. Each request that was read therefore gets an answer.
        let answered = if runtime {
            CancellationToken::new()
        } else {
            stop.clone()
        };
        let runtime = runtime.then(|| {
            let stop = runtime::Stop {
                asked: stop.clone(),
                answered: answered.clone(),
            };
            let (events, cluster) = (events.clone(), cluster.as_ref());
            runtime::start(
                &node,
                &mut tasks,
                events,
                cluster,
                snapshot.clone(),
                &metrics,
                stop,
            )
        });
        let runtime = runtime.transpose()?;
        let heartbeat = Heartbeat::new(Duration::from_secs(node.config.reconcile_seconds));
        let state = Arc::new(State {
            snapshot: snapshot.clone(),
            heartbeat: heartbeat.clone(),
            sources,
            metrics: metrics.clone(),
            link,
            runtime,
        });
        if !between.is_zero() {
            let (unknown, asked) = mpsc::channel(1);
            tasks.spawn(look_at_connections(Arc::clone(&state), between, unknown));
            if let (Some(api), Some(cluster)) = (api, &cluster) {
                let told = Arc::clone(&state);
                let tell = move |job, members| know(&told.sources, job, members);
                tasks.spawn(peers::resolve(api, cluster.pods.clone(), asked, tell));
            }
        }
        let ended = stop.clone();
        let served = Arc::clone(&state);
        tasks.spawn_to_its_end(async move {
            http::serve(listener, served, ended).await;
            Ok(())
        });
        let reconciler = Reconciler::new(node, cluster.is_some(), metrics, published, heartbeat);
        tasks.spawn_to_its_end(reconciler.run_on_thread(inbox, cgroups, answered));
        Ok(Self {
            address,
            events,
            snapshot,
            tasks,
            cluster,
            state,
        })
    }

    /// The address of the HTTP server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The latest snapshot; `None` before the first reconcile pass.
    pub fn snapshot(&self) -> Option<Arc<Snapshot>> {
        self.snapshot.borrow().clone()
    }

    /// The page that `/metrics` serves.
    ///
    /// # Errors
    /// No snapshot exists before the first reconcile pass.
    pub fn scrape(&self) -> anyhow::Result<String> {
        let snapshot = self
            .snapshot()
            .context("the first reconcile is still to come")?;
        let page = self.state.page(self.state.sources.collect(&snapshot));
        Ok(page.text(Format::Text))
    }

    /// Sends a CreateContainer request, as a container runtime does, and returns the reconciler's answer.
    pub async fn create(&self, pod: &Pod, container: &str) -> anyhow::Result<CreateAnswer> {
        let (reply, answer) = oneshot::channel();
        let (pod, container) = (Box::new(pod.clone()), container.to_owned());
        self.events
            .send(Event::Create {
                pod,
                container,
                reply,
            })
            .await
            .context("the agent ended")?;
        answer.await.context("the agent has no answer")
    }

    /// Waits until a task ends, and returns an error: no task should end on its own.
    pub async fn ended(&mut self) -> anyhow::Result<()> {
        self.tasks.ended().await
    }

    /// Returns an error if a task has ended on its own.
    pub fn check(&mut self) -> anyhow::Result<()> {
        self.tasks.check()
    }

    /// Stops the agent. Work in hand is finished, and every assignment stays.
    pub async fn stop(mut self) {
        let until = tokio::time::Instant::now() + GRACE;
        drop(self.events);
        self.tasks.stop(GRACE).await;
        if let Some(cluster) = self.cluster {
            cluster.finish(until).await;
        }
    }
}

/// Wakes the reconciler and the kubelet client after changes below a tree. Several changes may cause a single wake-up.
async fn follow(mut watch: Watch, listeners: [Arc<Notify>; 2]) -> anyhow::Result<()> {
    loop {
        watch
            .changed()
            .await
            .context("can't watch the pods' tree any longer")?;
        for listener in &listeners {
            listener.notify_one();
        }
    }
}

/// Reads the pods' TCP connections periodically, on a blocking thread.
async fn look_at_connections(
    state: Arc<State>,
    between: Duration,
    unknown: mpsc::Sender<Unknown>,
) -> anyhow::Result<()> {
    let mut snapshots = state.snapshot.clone();
    let mut timer = tokio::time::interval(between);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        let latest = snapshots.wait_for(Option::is_some).await;
        let Some(snapshot) = latest.ok().and_then(|snapshot| snapshot.clone()) else {
            // The snapshot channel is closed: the reconciler has ended, and the agent stops.
            return std::future::pending().await;
        };
        let looking = Arc::clone(&state);
        let look = move || looking.sources.look_at_connections(&snapshot);
        tokio::task::spawn_blocking(look)
            .await
            .context("a look at TCP connections broke")?;
        // `peers::resolve` may be busy or absent. The unknown addresses of this read are then dropped.
        let _ = unknown.try_send(state.sources.unknown_peers());
    }
}

/// Hands a training job's pods, as the API server lists them, to the metrics sources.
fn know(sources: &Sources, job: (String, String), members: Vec<Member>) {
    let peers = members.into_iter().flat_map(
        |Member {
             pod,
             role,
             addresses,
         }| {
            addresses.into_iter().map(move |address| {
                (
                    address,
                    Peer {
                        pod: pod.clone(),
                        role,
                    },
                )
            })
        },
    );
    sources.know_peers(job, peers);
}

/// Asks the kubelet for the devices of pods and for its CPU Manager's policy.
///
/// Cgroup changes and reconcile passes trigger the requests. A timer runs only while the kubelet has not answered.
struct AskKubelet {
    kubelet: PodResources,
    /// The last known state of the CPU Manager. `None` where no kubelet manages the node's cgroups.
    cpu_manager: Option<CpuManager>,
    /// How long an answer stays valid while no cgroup appears or disappears.
    again: Duration,
    events: mpsc::Sender<Event>,
}

// === impl AskKubelet ===

impl AskKubelet {
    async fn run(
        mut self,
        cgroups: Arc<Notify>,
        mut reconciled: watch::Receiver<Option<Arc<Snapshot>>>,
    ) -> anyhow::Result<()> {
        let (mut devices, mut complaint) = (BTreeMap::new(), String::new());
        loop {
            let asked = tokio::time::Instant::now();
            match self.ask(&mut devices).await {
                Ok(()) => complaint.clear(),
                Err(error) => {
                    let error = format!("{error:#}");
                    if error != complaint {
                        tracing::warn!("the kubelet's last answer stands: {error}");
                        complaint = error;
                    }
                }
            }
            if self.events.is_closed() {
                return Ok(());
            }
            let unanswered = self.cpu_manager == Some(CpuManager::Unanswered);
            loop {
                tokio::select! {
                    () = cgroups.notified() => break,
                    () = tokio::time::sleep(ASK_UNTIL_ANSWERED), if unanswered => break,
                    reconciled = reconciled.changed() => match reconciled {
                        Ok(()) if asked.elapsed() < self.again => {}
                        Ok(()) => break,
                        Err(_) => return Ok(()),
                    }
                }
            }
            tokio::time::sleep_until(asked + ASK_AT_MOST).await;
        }
    }

    /// Queries the kubelet once, and reports changes to the reconciler.
    async fn ask(&mut self, known: &mut BTreeMap<(String, String), CpuSet>) -> anyhow::Result<()> {
        let listed = self.kubelet.list().await;
        let answered = match &listed {
            Ok(containers) if self.cpu_manager.is_some() => {
                self.kubelet.cpu_manager(containers).await.map(Some)
            }
            _ => Ok(None),
        };
        if let Some(before) = self.cpu_manager {
            let answer = answered.as_ref().ok().copied().flatten();
            let now = answer.unwrap_or_else(|| self.kubelet.unanswered(Some(before)));
            if now != before {
                self.cpu_manager = Some(now);
                self.events
                    .send(Event::CpuManager(now))
                    .await
                    .context("the agent ended")?;
            }
        }
        let containers = match listed {
            Ok(containers) => containers,
            // A machine outside a cluster has no kubelet.
            Err(DevicesError::Call {
                source: CallError::NoSocket { .. },
                ..
            }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let mut devices: BTreeMap<(String, String), CpuSet> = BTreeMap::new();
        for container in containers {
            let near = devices
                .entry((container.namespace, container.pod))
                .or_default();
            *near = container
                .devices
                .iter()
                .fold(near.clone(), |all, device| all.union(&device.numa));
        }
        devices.retain(|_, near| !near.is_empty());
        if devices != *known {
            known.clone_from(&devices);
            self.events
                .send(Event::Devices(devices))
                .await
                .context("the agent ended")?;
        }
        answered.map(|_| ()).map_err(Into::into)
    }
}

/// Takes the lock that lets a single Pinfold process manage a node's cgroups. The kernel drops the lock when the process ends.
///
/// # Errors
/// The folder can't be opened, or another process holds the lock.
pub fn lock(folder: &Path) -> anyhow::Result<Flock<File>> {
    let file = File::open(folder).with_context(|| format!("can't open {}", folder.display()))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| {
        anyhow::anyhow!(
            "another pinfold owns the cgroups below {} ({error}): stop it first, or talk to it over HTTP",
            folder.display()
        )
    })
}

/// Runs the agent until SIGTERM or an interrupt: `pinfold run`.
///
/// # Errors
/// A setting or the node can't be used, [`Agent::start_in`] fails, or a task ends on its own.
pub async fn run(config: Config) -> anyhow::Result<()> {
    // The signal handler comes first: the first process of a container ignores SIGTERM without a handler.
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let cluster = Cluster::open(&config, |name| std::env::var(name).ok()).await?;
    let node = Node::new(config)?;
    let _lock = lock(node.cgroups.root())?;
    tracing::info!("effective configuration:\n{}", node.config.to_yaml()?);
    tracing::info!(
        "enforcement {}: {}",
        node.enforcement.name(),
        node.enforcement_reason
    );
    if let Some(cluster) = &cluster {
        let Cluster {
            server,
            origin,
            node,
            namespace,
            ..
        } = cluster;
        tracing::info!(
            "node {node}, namespace {namespace}; pods from the API server {server} ({origin})"
        );
    }
    let mut agent = Agent::start_in(cluster.as_ref(), node).await?;
    let told = service::tell(agent.snapshot.clone(), agent.state.heartbeat.clone());
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
