//! [`AskKubelet`]: the task that asks the kubelet for the devices of pods and for its CPU Manager's
//! policy.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::{Notify, mpsc, watch};

use super::agent_node::AgentNode;
use super::event::AgentEvent;
use crate::cpu::CpuSet;
use crate::host::pod_resources::{CallError, CpuManager, DevicesError, PodResources};
use crate::pin::Snapshot;
use crate::pod::ObjectName;

/// How long an answer of the kubelet stays valid while no cgroup appears or disappears. Only a turn
/// after this time causes a new request.
const ANSWER_VALID_FOR: Duration = Duration::from_millis(500);

/// The time between two requests to a kubelet that has never answered.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The shortest time between two requests to the kubelet.
const MIN_REQUEST_INTERVAL: Duration = Duration::from_millis(200);

/// Asks the kubelet for the devices of pods and for its CPU Manager's policy.
///
/// Cgroup changes and turns trigger the requests. A timer runs only while the kubelet has not answered.
pub(super) struct AskKubelet {
    kubelet: PodResources,
    /// The last known state of the CPU Manager. `None` where no kubelet manages the node's cgroups.
    cpu_manager: Option<CpuManager>,
    events: mpsc::Sender<AgentEvent>,
}

// === impl AskKubelet ===

impl AskKubelet {
    pub(super) fn new(node: &AgentNode, events: mpsc::Sender<AgentEvent>) -> Self {
        Self {
            kubelet: PodResources::new(&node.config.root_dir),
            cpu_manager: node.cpu_manager(),
            events,
        }
    }

    pub(super) async fn run(
        mut self,
        cgroups: Arc<Notify>,
        mut reconciled: watch::Receiver<Option<Arc<Snapshot>>>,
    ) -> anyhow::Result<()> {
        let (mut devices, mut last_error) = (BTreeMap::new(), String::new());
        loop {
            let requested_at = tokio::time::Instant::now();
            match self.ask(&mut devices).await {
                Ok(()) => last_error.clear(),
                Err(error) => {
                    let error = format!("{error:#}");
                    if error != last_error {
                        tracing::warn!("the kubelet's last answer stays valid: {error}");
                        last_error = error;
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
                    () = tokio::time::sleep(RETRY_INTERVAL), if unanswered => break,
                    reconciled = reconciled.changed() => match reconciled {
                        Ok(()) if requested_at.elapsed() < ANSWER_VALID_FOR => {}
                        Ok(()) => break,
                        Err(_) => return Ok(()),
                    }
                }
            }
            tokio::time::sleep_until(requested_at + MIN_REQUEST_INTERVAL).await;
        }
    }

    async fn ask(&mut self, known: &mut BTreeMap<ObjectName, CpuSet>) -> anyhow::Result<()> {
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
                    .send(AgentEvent::CpuManager(now))
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
        if devices != *known {
            known.clone_from(&devices);
            self.events
                .send(AgentEvent::Devices(devices))
                .await
                .context("the agent ended")?;
        }
        answered.map(|_| ()).map_err(Into::into)
    }
}
