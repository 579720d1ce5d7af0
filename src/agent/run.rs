//! How the agent starts and stops.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::access::AccessRules;
use super::agent_node::AgentNode;
use super::api::{ApiTasks, ClusterContext, peers};
use super::changes::{ChangedCgroups, WatchedTree};
use super::config::Config;
use super::event::{AgentEvent, CreateAnswer, RuntimePod, RuntimeUpdate};
use super::event_queue::{EventQueue, EventSenders};
use super::exporter::Exporter;
use super::folder::ManifestFolder;
use super::heartbeat::Heartbeat;
use super::http::HttpState;
use super::in_step::{self, StepSources};
use super::kubelet::AskKubelet;
use super::node_capacity::NodeCapacity;
use super::reconciler::Reconciler;
use super::runtime;
use super::server;
use super::service;
use super::tasks::Tasks;
use crate::cluster::Api;
use crate::cluster::peers::JobMember;
use crate::host::cgroup::PARTITION;
use crate::host::container_files::ContainerFolders;
use crate::host::notify;
use crate::host::watch::Watch;
use crate::host::{counters::perf, limits};
use crate::metrics::{AgentMetrics, Peer, Sources, UnknownPeers};
use crate::pin::Snapshot;
use crate::pod::{ObjectName, Pod};

/// How long the shutdown waits for unwritten Events and for answers to the runtime, which take at most 1.5 s.
const GRACE: Duration = Duration::from_millis(1800);

#[derive(Debug)]
pub struct Agent {
    address: SocketAddr,
    events: EventSenders,
    snapshot: watch::Receiver<Option<Arc<Snapshot>>>,
    tasks: Tasks,
    cluster: Option<ApiTasks>,
    state: Arc<HttpState>,
}

// === impl Agent ===

impl Agent {
    /// Starts an agent on a node without a cluster.
    ///
    /// # Errors
    /// The errors of [`Agent::start_in`].
    pub async fn start(node: AgentNode) -> anyhow::Result<Self> {
        Self::start_in(None, node).await
    }

    /// Starts an agent on a node. With `cluster`, it also uses the Kubernetes API.
    ///
    /// # Errors
    /// The address is taken, the folder of manifests is missing, inotify is at its limit, or
    /// `metrics.auth` needs an API that is missing. An unreachable API server is no error.
    pub async fn start_in(
        cluster: Option<&ClusterContext>,
        mut node: AgentNode,
    ) -> anyhow::Result<Self> {
        let api = cluster.map(|cluster| cluster.api.clone());
        let access = AccessRules::new(&node.config.metrics, api.as_ref())?;
        let listener = listen(node.config.listen).await?;
        let address = listener.local_addr()?;
        let metrics = started_metrics()?;
        let (published, snapshot) = watch::channel(None);
        let (senders, queue) = EventQueue::new();
        let events = senders.others.clone();
        let stop = CancellationToken::new();
        let mut tasks = Tasks::new(stop.clone());
        follow_manifests(&node, &mut tasks, &events)?;
        node.changes = Arc::new(watch_cgroups(&node)?);
        for number in 0..node.changes.trees().len() {
            let changes = Arc::clone(&node.changes);
            tasks.spawn(follow(changes, number, events.clone()));
        }
        // The kubelet knows a pod's devices before the runtime knows the pod, so it is asked after
        // each new cgroup.
        let (asking, kubelet) = AskKubelet::new(&node, events.clone());
        tasks.spawn(asking.run(node.changes.appeared(), snapshot.clone()));
        let sources = sources(&node)?;
        let cluster = cluster.map(|cluster| {
            cluster.start(
                &node.cgroups,
                &mut tasks,
                events.clone(),
                snapshot.clone(),
                kubelet.restarted(),
                &stop,
            )
        });
        let answered = end_of_answers(&node, &stop);
        let runtime = runtime::start(
            &node,
            &mut tasks,
            senders.runtime.clone(),
            (cluster.as_ref(), kubelet),
            snapshot.clone(),
            &metrics,
            runtime::ShutdownSignals {
                requested: stop.clone(),
                all_answered: answered.clone(),
            },
        );
        let heartbeat = Heartbeat::new(node.config.reconcile_interval);
        let cluster_tasks = cluster.as_ref();
        let step_sources = StepSources::new(&snapshot, &heartbeat, runtime.as_ref());
        in_step::start(step_sources, cluster_tasks, &mut tasks);
        let capacity = NodeCapacity::new(&node, cluster_tasks);
        let state = Arc::new(HttpState {
            snapshot: snapshot.clone(),
            heartbeat: heartbeat.clone(),
            exporter: Exporter::new(sources, metrics.clone(), cluster_tasks, runtime, capacity),
            access,
        });
        watch_connections(&node, &mut tasks, &state, api, cluster.as_ref());
        serve_http(&mut tasks, listener, &state, stop);
        let reconciler = Reconciler::new(node, cluster.is_some(), metrics, published, heartbeat);
        tasks.spawn_to_its_end(reconciler.run_on_thread(queue, answered));
        Ok(Self {
            address,
            events: senders,
            snapshot,
            tasks,
            cluster,
            state,
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The latest snapshot; `None` before the first turn.
    pub fn snapshot(&self) -> Option<Arc<Snapshot>> {
        self.snapshot.borrow().clone()
    }

    /// The page that `/metrics` serves.
    ///
    /// # Errors
    /// There is no snapshot before the first turn.
    pub fn scrape(&self) -> anyhow::Result<String> {
        let snapshot = self
            .snapshot()
            .context("the first turn of the reconciler has not ended")?;
        Ok(self.state.exporter.text(&snapshot))
    }

    /// Sends a CreateContainer request about a pod's only container, as a container runtime does, and returns the reconciler's
    /// answer. `id` is the name of the container's cgroup.
    pub async fn create(&self, pod: &Pod, id: &str) -> anyhow::Result<CreateAnswer> {
        let (reply, answer) = oneshot::channel();
        let mut pod = pod.clone();
        let container = pod.containers.first_mut();
        let container = container.context("the pod has no container")?;
        container.runtime_id = Some(id.to_owned());
        let request = AgentEvent::Create {
            container: container.name.clone(),
            pod: Box::new(RuntimePod::new(pod)),
            can_mount_files: true,
            reply,
        };
        self.events
            .runtime
            .send(request)
            .context("the agent ended")?;
        answer.await.context("the agent did not answer")
    }

    /// Reports a pod as removed, as a container runtime does.
    pub fn remove(&self, pod: &Pod) -> anyhow::Result<()> {
        let uid = pod.cgroup_uid().unwrap_or_default().to_owned();
        let update = AgentEvent::Runtime(RuntimeUpdate::Gone(uid));
        self.events.runtime.send(update).context("the agent ended")
    }

    /// Waits until a task ends, and returns an error, because none should end on its own.
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

/// The signal that ends the reconciler. It comes after the end of the connection to the runtime, so
/// that each request that was read gets an answer.
fn end_of_answers(node: &AgentNode, stop: &CancellationToken) -> CancellationToken {
    if node.config.runtime.wanted() {
        CancellationToken::new()
    } else {
        stop.clone()
    }
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        anyhow::anyhow!(
            "can't listen on {address}: {error}; if another program has the port, name a free one with --listen"
        )
    })
}

/// The agent's own metrics, with the start time.
fn started_metrics() -> anyhow::Result<AgentMetrics> {
    let metrics = AgentMetrics::new()?;
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    metrics.set_started(since_epoch.map_or(0.0, |time| time.as_secs_f64()));
    Ok(metrics)
}

fn serve_http(
    tasks: &mut Tasks,
    listener: TcpListener,
    state: &Arc<HttpState>,
    stop: CancellationToken,
) {
    let state = Arc::clone(state);
    tasks.spawn_to_its_end(async move {
        server::serve(listener, state, stop).await;
        Ok(())
    });
}

fn follow_manifests(
    node: &AgentNode,
    tasks: &mut Tasks,
    events: &mpsc::Sender<AgentEvent>,
) -> anyhow::Result<()> {
    if let Some(folder) = &node.config.manifest_dir {
        let folder = ManifestFolder::new(folder)?;
        tasks.spawn(folder.run(events.clone()));
    }
    Ok(())
}

/// Watches the pods' trees.
///
/// # Errors
/// A tree can't be watched.
fn watch_cgroups(node: &AgentNode) -> anyhow::Result<ChangedCgroups> {
    let mut trees = Vec::new();
    for cgroup in &node.config.pod_cgroups {
        // The watch covers four levels: the group of system pods, QoS class, pod and container. The
        // runtime writes a container's CPUs only after it has made the cgroup.
        for folder in node.cgroups.watch_folders(cgroup) {
            let watch = Watch::with_file(&folder, 4, Some(PARTITION))
                .with_context(|| format!("can't watch the pods' tree {}", folder.display()))?;
            trees.push(WatchedTree::new(cgroup.clone(), folder, watch));
        }
    }
    Ok(ChangedCgroups::of(trees))
}

/// The sources of the metrics that the configuration asks for.
fn sources(node: &AgentNode) -> anyhow::Result<Sources> {
    let Config {
        root_dir,
        cgroup_dir,
        pod_cgroups,
        metrics,
        ..
    } = &node.config;
    let mut sources = Sources::new(node.cgroups.clone(), node.proc.clone(), root_dir)
        .without(metrics.disabled_collectors().map(str::to_owned))
        .in_namespaces(metrics.namespaces.clone());
    if metrics.max_shared_counters > 0 {
        let events = perf::hardware_events(root_dir);
        // `Sources::new` has raised the limit on open files, and the counters must leave some for
        // the rest of the agent.
        let (wanted, limit) = (metrics.max_shared_counters, limits::shared_counter_limit());
        if wanted > limit {
            tracing::warn!(
                "metrics.maxSharedCounters is {wanted}, but the limit on open files allows {limit}: raise LimitNOFILE, or \
                 lower metrics.maxSharedCounters; the agent uses {limit}"
            );
        }
        sources = sources.counting_shared(events, wanted.min(limit));
    }
    if metrics.sockets {
        sources = sources.with_sockets(cgroup_dir, pod_cgroups);
    }
    if !metrics.connection_interval.is_zero() {
        sources = sources.with_connections(cgroup_dir, usize::try_from(metrics.max_peers)?);
    }
    Ok(sources)
}

/// Starts to read the pods' TCP connections, if configured. With the API, unknown addresses are looked up.
fn watch_connections(
    node: &AgentNode,
    tasks: &mut Tasks,
    state: &Arc<HttpState>,
    api: Option<Api>,
    cluster: Option<&ApiTasks>,
) {
    let settings = &node.config.metrics;
    let interval = settings.connection_interval;
    if interval.is_zero() || !settings.is_enabled("connections") {
        return;
    }
    let (unknown, wanted) = mpsc::channel(1);
    tasks.spawn(sample_connections(Arc::clone(state), interval, unknown));
    if let (Some(api), Some(cluster)) = (api.filter(|_| settings.max_peers > 0), cluster) {
        let state = Arc::clone(state);
        let set_peers = move |job, members| set_known_peers(&state.exporter.sources, job, members);
        tasks.spawn(peers::resolve(api, cluster.pods.clone(), wanted, set_peers));
    }
}

/// Wakes the reconciler after changes below the watched tree with the index `number`, and tells it
/// which directories can't be watched.
async fn follow(
    changes: Arc<ChangedCgroups>,
    number: usize,
    events: mpsc::Sender<AgentEvent>,
) -> anyhow::Result<()> {
    let tree = changes
        .trees()
        .get(number)
        .context("there is no watched tree with this index")?;
    let mut reported = None;
    loop {
        let problem = tree.problem();
        if problem != reported {
            reported.clone_from(&problem);
            let tree = tree.folder.clone();
            // A closed queue means that the agent stops.
            let _ = events.send(AgentEvent::Watch { tree, problem }).await;
        }
        tree.wait()
            .await
            .and_then(|()| changes.read(tree))
            .context("can't watch the pods' tree any longer")?;
    }
}

async fn sample_connections(
    state: Arc<HttpState>,
    between: Duration,
    unknown: mpsc::Sender<UnknownPeers>,
) -> anyhow::Result<()> {
    let mut snapshots = state.snapshot.clone();
    let mut timer = tokio::time::interval(between);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        let latest = snapshots.wait_for(Option::is_some).await;
        let Some(snapshot) = latest.ok().and_then(|snapshot| snapshot.clone()) else {
            // The snapshot's channel is closed, so the reconciler has ended and the agent stops.
            return std::future::pending().await;
        };
        let sampled_state = Arc::clone(&state);
        let sample = move || sampled_state.exporter.sources.sample_connections(&snapshot);
        tokio::task::spawn_blocking(sample)
            .await
            .context("a sample of TCP connections failed")?;
        // `peers::resolve` may be busy or absent. The unknown addresses of this read are then
        // dropped.
        let _ = unknown.try_send(state.exporter.sources.unknown_peers());
    }
}

/// Hands a training job's pods, as the API server lists them, to the sources of the metrics.
fn set_known_peers(sources: &Sources, job: ObjectName, members: Vec<JobMember>) {
    let peers = members.into_iter().flat_map(
        |JobMember {
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
    sources.set_peers(job, peers);
}

/// Takes the lock that lets only one Pinfold process manage a node's cgroups. The kernel drops it
/// when the process ends.
///
/// # Errors
/// The folder can't be opened, or another process holds the lock.
pub fn lock(folder: &Path) -> anyhow::Result<Flock<File>> {
    let file = File::open(folder).with_context(|| format!("can't open {}", folder.display()))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| {
        let folder = folder.display();
        if error == Errno::EWOULDBLOCK {
            anyhow::anyhow!(
                "another pinfold owns the cgroups below {folder}: stop it first, or talk to it over HTTP"
            )
        } else {
            anyhow::anyhow!("can't lock {folder}: {}", error.desc())
        }
    })
}

/// Removes the live files that an earlier agent wrote, if this one writes none, because nobody would keep them true. In a pod that
/// only observes, the agent has no mount of them, and they stay.
fn end_live_files(node: &AgentNode) {
    let runtime = &node.config.runtime;
    if runtime.live_folder().is_none()
        && let Err(error) = ContainerFolders::new(&runtime.live_dir).remove_all()
    {
        tracing::warn!("{error}: an earlier agent's live files are no longer true");
    }
}

/// Runs the agent until SIGTERM or an interrupt: `pinfold run`.
///
/// # Errors
/// A setting or the node can't be used, [`Agent::start_in`] fails, or a task ends on its own.
pub async fn run(config: Config) -> anyhow::Result<()> {
    // The handler comes first, because the first process of a container ignores SIGTERM without
    // one.
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let cluster = ClusterContext::open(&config, |name| std::env::var(name).ok()).await?;
    let node = AgentNode::new(config)?;
    let _lock = lock(node.cgroups.root())?;
    if let Some(problem) = node.offline_reserved() {
        tracing::warn!("{problem}");
    }
    // A log entry is one line, so the document that `pinfold config` prints becomes several entries.
    for line in node.config.to_yaml()?.lines() {
        tracing::info!("configuration: {line}");
    }
    tracing::info!(
        "enforcement {}: {}",
        node.enforcement.name(),
        node.enforcement_reason
    );
    if let Some(cluster) = &cluster {
        let ClusterContext {
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
    end_live_files(&node);
    let mut agent = Agent::start_in(cluster.as_ref(), node).await?;
    let service_messages = service::notify(agent.snapshot.clone(), agent.state.heartbeat.clone());
    agent.tasks.spawn(async move {
        service_messages.await;
        Ok(())
    });
    tracing::info!("serving http://{}/metrics", agent.address());
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: stopping; every assignment stays as it is"),
        _ = tokio::signal::ctrl_c() => tracing::info!("interrupted: stopping; every assignment stays as it is"),
        ended = agent.ended() => return ended,
    }
    if let Err(error) = notify::stopping() {
        tracing::warn!("can't send a message to the service manager: {error}");
    }
    agent.stop().await;
    Ok(())
}
