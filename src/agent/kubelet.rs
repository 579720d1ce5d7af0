//! [`AskKubelet`]: the task that asks the kubelet for the devices and the exclusive CPUs of pods and
//! for its CPU Manager's policy. [`KubeletLink`] lets a runtime request wait for a new answer.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;

use super::agent_node::{AgentNode, placement_source};
use super::config::SourceChoice;
use super::event::{AgentEvent, AnsweredCpus};
use crate::cpu::CpuSet;
use crate::host::pod_resources::{
    CallError, ContainerDevices, CpuManager, DevicesError, PodResources,
};
use crate::pin::{PlacementSource, Snapshot};
use crate::pod::ObjectName;

/// How long an answer of the kubelet stays valid while no cgroup appears or disappears. Only a turn
/// after this time causes a new request.
const ANSWER_VALID_FOR: Duration = Duration::from_millis(500);

/// The time between two requests to a kubelet that has never answered.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The shortest time between two requests to the kubelet for which no runtime request waits.
const MIN_REQUEST_INTERVAL: Duration = Duration::from_millis(200);

/// The mean time between two requests for which a runtime request waits, and how many may follow
/// each other at once. The kubelet answers 100 calls a second and 10 at once, to all its clients
/// together, and a request may need two calls.
const PACE: (Duration, u32) = (Duration::from_millis(25), 3);

/// How long a runtime request waits for the kubelet at most, and which part of the time until its
/// deadline: one third. The decision and the writes need the rest.
const LONGEST_WAIT: (Duration, u32) = (Duration::from_millis(600), 3);

/// How often a refused request is tried again, and the first pause, which doubles each time.
const RETRIES: (u32, Duration) = (5, Duration::from_millis(20));

/// Which socket a kubelet listens on: the file's device, its number and its time. A kubelet that
/// restarts makes a new one.
type SocketId = (u64, u64, i64, i64);

/// What the task and the waiting requests share.
#[derive(Debug)]
struct Shared {
    socket: PathBuf,
    /// Whether the kubelet chooses the CPUs.
    chooses: AtomicBool,
    /// Whether a request waited in vain. Others do not wait until the kubelet answers again.
    is_silent: AtomicBool,
    /// The socket on which a kubelet has last answered a question that a runtime request waited for. A kubelet creates
    /// containers only once its CPU Manager has started, so such an answer tells the policy.
    settled: Mutex<Option<SocketId>>,
    /// Notified when another kubelet answers than before.
    restarted: Arc<Notify>,
}

/// Asks the kubelet for a runtime request.
#[derive(Debug, Clone)]
pub(super) struct KubeletLink {
    requests: mpsc::UnboundedSender<oneshot::Sender<()>>,
    shared: Arc<Shared>,
}

/// Asks the kubelet for the devices and the exclusive CPUs of pods and for its CPU Manager's policy.
///
/// Cgroup changes, turns and runtime requests trigger the questions, one at a time: a question
/// answers all requests that waited when it began. A timer runs only while the kubelet has not
/// answered.
pub(super) struct AskKubelet {
    kubelet: PodResources,
    /// The last known state of the CPU Manager. `None` where no kubelet manages the node's cgroups.
    cpu_manager: Option<CpuManager>,
    choice: SourceChoice,
    events: mpsc::Sender<AgentEvent>,
    requests: mpsc::UnboundedReceiver<oneshot::Sender<()>>,
    waiting: Vec<oneshot::Sender<()>>,
    shared: Arc<Shared>,
    known: Known,
    pace: Pace,
}

/// What the kubelet has said so far.
#[derive(Default)]
struct Known {
    devices: BTreeMap<ObjectName, CpuSet>,
    has_cpus: bool,
    last_error: String,
    /// The socket on which the last list was answered; `None` before the first.
    socket: Option<SocketId>,
}

/// Limits how fast questions follow each other.
#[derive(Debug)]
struct Pace {
    /// When the questions so far would be over at the mean pace.
    until: Instant,
}

// === impl Shared ===

impl Shared {
    fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            chooses: AtomicBool::new(false),
            is_silent: AtomicBool::new(false),
            settled: Mutex::new(None),
            restarted: Arc::default(),
        }
    }

    fn socket_id(&self) -> Option<SocketId> {
        let socket = self.socket.symlink_metadata().ok()?;
        Some((
            socket.dev(),
            socket.ino(),
            socket.ctime(),
            socket.ctime_nsec(),
        ))
    }

    /// Whether the policy of the kubelet that listens now is certain. Each kubelet makes its own socket.
    fn is_settled(&self) -> bool {
        let settled = *self.settled.lock().unwrap_or_else(PoisonError::into_inner);
        settled == self.socket_id()
    }
}

// === impl KubeletLink ===

impl KubeletLink {
    /// A link to nobody, for tests: nothing waits.
    #[cfg(test)]
    pub(super) fn none() -> Self {
        Self {
            requests: mpsc::unbounded_channel().0,
            shared: Arc::new(Shared::new(PathBuf::new())),
        }
    }

    /// Whether the kubelet chooses the CPUs, as far as is known.
    pub(super) fn chooses(&self) -> bool {
        self.shared.chooses.load(Ordering::Relaxed)
    }

    /// Notified when the kubelet has restarted. A kubelet that finds no Node of its name makes a new one.
    pub(super) fn restarted(&self) -> Arc<Notify> {
        Arc::clone(&self.shared.restarted)
    }

    /// Waits for an answer of the kubelet that is newer than the call, if the kubelet chooses the
    /// CPUs, or may have begun to. The reconciler has the answer before what the caller sends to it
    /// afterwards. Without an answer in time, the last one stays valid.
    pub(super) async fn wait(&self, deadline: Instant) {
        let is_silent = &self.shared.is_silent;
        if !self.chooses() && self.shared.is_settled() {
            return;
        }
        let (reply, answered) = oneshot::channel();
        // After the end of the task, the agent ends as well.
        if self.requests.send(reply).is_err() || is_silent.load(Ordering::Relaxed) {
            return;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = LONGEST_WAIT.0.min(left / LONGEST_WAIT.1);
        if tokio::time::timeout(limit, answered).await.is_err() {
            tracing::warn!(
                "the kubelet has not answered within {} ms: the container goes on with the kubelet's last answer",
                limit.as_millis()
            );
            is_silent.store(true, Ordering::Relaxed);
        }
    }
}

// === impl Pace ===

impl Pace {
    /// When the next question may begin. It counts from then on.
    fn next(&mut self, now: Instant) -> Instant {
        let (mean, at_once) = PACE;
        let at = now.max(self.until.checked_sub(mean * at_once).unwrap_or(now));
        self.until = self.until.max(at) + mean;
        at
    }
}

// === impl AskKubelet ===

impl AskKubelet {
    pub(super) fn new(node: &AgentNode, events: mpsc::Sender<AgentEvent>) -> (Self, KubeletLink) {
        let kubelet = PodResources::new(&node.config.root_dir);
        let shared = Arc::new(Shared::new(kubelet.socket().to_owned()));
        let (sender, requests) = mpsc::unbounded_channel();
        let link = KubeletLink {
            requests: sender,
            shared: Arc::clone(&shared),
        };
        let asking = Self {
            kubelet,
            cpu_manager: node.cpu_manager(),
            choice: node.config.placement.source,
            events,
            requests,
            waiting: Vec::new(),
            shared,
            known: Known::default(),
            pace: Pace {
                until: Instant::now(),
            },
        };
        asking.note_source();
        (asking, link)
    }

    pub(super) async fn run(
        mut self,
        cgroups: Arc<Notify>,
        mut reconciled: watch::Receiver<Option<Arc<Snapshot>>>,
    ) -> anyhow::Result<()> {
        loop {
            let at = self.pace.next(Instant::now());
            // Even a timer that is already due takes one to two milliseconds, and a container waits.
            if at > Instant::now() {
                tokio::time::sleep_until(at).await;
            }
            let requested_at = Instant::now();
            self.ask_with_retries().await;
            if self.events.is_closed() {
                return Ok(());
            }
            if !self
                .next_question(requested_at, &cgroups, &mut reconciled)
                .await
            {
                return Ok(());
            }
        }
    }

    /// Waits until the next question. Returns false if the agent ends.
    async fn next_question(
        &mut self,
        requested_at: Instant,
        cgroups: &Notify,
        reconciled: &mut watch::Receiver<Option<Arc<Snapshot>>>,
    ) -> bool {
        let unanswered = self.cpu_manager == Some(CpuManager::Unanswered);
        loop {
            tokio::select! {
                biased;
                // Without a container runtime, nobody sends requests.
                Some(request) = self.requests.recv() => {
                    self.waiting.push(request);
                    return true;
                }
                () = cgroups.notified() => break,
                () = tokio::time::sleep(RETRY_INTERVAL), if unanswered => break,
                reconciled = reconciled.changed() => match reconciled {
                    Ok(()) if requested_at.elapsed() < ANSWER_VALID_FOR => {}
                    Ok(()) => break,
                    Err(_) => return false,
                }
            }
        }
        tokio::select! {
            biased;
            Some(request) = self.requests.recv() => self.waiting.push(request),
            () = tokio::time::sleep_until(requested_at + MIN_REQUEST_INTERVAL) => {}
        }
        true
    }

    /// Asks once, and again while the kubelet refuses because others have asked too much and a
    /// request waits. Then all requests that waited at the beginning go on.
    async fn ask_with_retries(&mut self) {
        while let Ok(request) = self.requests.try_recv() {
            self.waiting.push(request);
        }
        let (retries, mut pause) = RETRIES;
        for retry in 0..=retries {
            let error = match self.ask().await {
                Ok(()) => {
                    self.known.last_error.clear();
                    self.shared.is_silent.store(false, Ordering::Relaxed);
                    break;
                }
                Err(error) => error,
            };
            let waits = self.waiting.iter().any(|request| !request.is_closed());
            let is_refused = error
                .downcast_ref::<DevicesError>()
                .is_some_and(DevicesError::is_rate_limit);
            if is_refused && waits && retry < retries {
                tokio::time::sleep(pause).await;
                pause *= 2;
                continue;
            }
            let error = format!("{error:#}");
            if error != self.known.last_error {
                tracing::warn!("the kubelet's last answer stays valid: {error}");
                self.known.last_error = error;
            }
            break;
        }
        for request in self.waiting.drain(..) {
            // A request may have stopped waiting.
            let _ = request.send(());
        }
    }

    async fn ask(&mut self) -> anyhow::Result<()> {
        let socket = self.shared.socket_id();
        let is_for_request = !self.waiting.is_empty();
        let listed = self.kubelet.list().await;
        let answered = match &listed {
            Ok(containers) if self.cpu_manager.is_some() => {
                self.kubelet.cpu_manager(containers).await.map(Some)
            }
            _ => Ok(None),
        };
        if is_for_request && listed.is_ok() && answered.is_ok() {
            let settled = self.shared.settled.lock();
            *settled.unwrap_or_else(PoisonError::into_inner) = socket;
        }
        if let Some(before) = self.cpu_manager {
            let answer = answered.as_ref().ok().copied().flatten().filter(|answer| {
                is_for_request || *answer != CpuManager::Disabled || !self.kubelet.may_be_starting()
            });
            let now = answer.unwrap_or_else(|| self.kubelet.unanswered(Some(before)));
            if now != before {
                self.cpu_manager = Some(now);
                self.note_source();
                self.send(AgentEvent::CpuManager(now)).await?;
            }
        }
        let containers = match listed {
            Ok(containers) => {
                let before = std::mem::replace(&mut self.known.socket, socket);
                if before.is_some() && before != socket {
                    self.shared.restarted.notify_one();
                }
                containers
            }
            // A machine outside a cluster has no kubelet.
            Err(DevicesError::Call {
                source: CallError::NoSocket { .. },
                ..
            }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        self.send_cpus(&containers).await?;
        self.send_devices(containers).await?;
        answered.map(|_| ()).map_err(Into::into)
    }

    fn note_source(&self) {
        let chooses = self.cpu_manager.is_some_and(|cpu_manager| {
            placement_source(self.choice, cpu_manager) == PlacementSource::Kubelet
        });
        self.shared.chooses.store(chooses, Ordering::Relaxed);
    }

    /// Sends the exclusive CPUs of all containers. An answer that repeats the last one counts, too:
    /// a new pod may have the name and the CPUs of an ended one.
    async fn send_cpus(&mut self, containers: &[ContainerDevices]) -> anyhow::Result<()> {
        let mut cpus = AnsweredCpus::new();
        for container in containers.iter().filter(|one| !one.cpus.is_empty()) {
            let pod = ObjectName::new(container.namespace.clone(), container.pod.clone());
            let of_pod = cpus.entry(pod).or_default();
            of_pod.insert(container.container.clone(), container.cpus.clone());
        }
        let had_cpus = std::mem::replace(&mut self.known.has_cpus, !cpus.is_empty());
        if had_cpus || !cpus.is_empty() {
            self.send(AgentEvent::KubeletCpus(cpus)).await?;
        }
        Ok(())
    }

    async fn send_devices(&mut self, containers: Vec<ContainerDevices>) -> anyhow::Result<()> {
        let mut devices: BTreeMap<ObjectName, CpuSet> = BTreeMap::new();
        for container in containers {
            let near = devices
                .entry(ObjectName::new(container.namespace, container.pod))
                .or_default();
            *near = container
                .devices
                .iter()
                .fold(near.clone(), |all, device| all.union(&device.numa));
        }
        devices.retain(|_, near| !near.is_empty());
        if devices != self.known.devices {
            self.known.devices.clone_from(&devices);
            self.send(AgentEvent::Devices(devices)).await?;
        }
        Ok(())
    }

    async fn send(&self, event: AgentEvent) -> anyhow::Result<()> {
        self.events.send(event).await.context("the agent ended")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn some_questions_follow_at_once_and_then_at_the_pace() {
        let begun = Instant::now();
        let mut pace = Pace { until: begun };
        let waits: Vec<u128> = (0..8)
            .map(|_| pace.next(begun).duration_since(begun).as_millis())
            .collect();
        assert_eq!(waits, [0, 0, 0, 0, 25, 50, 75, 100]);
    }
}
