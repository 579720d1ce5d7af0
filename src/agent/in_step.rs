//! [`tell`]: whether the agent is in step with the container runtime and the node's pods, on which the startup taint depends.

use std::sync::Arc;

use tokio::sync::watch;

use super::api::ApiTasks;
use super::heartbeat::Heartbeat;
use super::runtime::RuntimeLink;
use super::tasks::Tasks;
use crate::cluster::node_reader::InStep;
use crate::nri::ConnectionState;
use crate::pin::Snapshot;

/// What the agent has to wait for before pods may come to a new node.
pub(super) struct StepSources {
    snapshot: watch::Receiver<Option<Arc<Snapshot>>>,
    heartbeat: Heartbeat,
    /// Present where the configuration permits NRI.
    runtime: Option<RuntimeLink>,
}

// === impl StepSources ===

impl StepSources {
    pub(super) fn new(
        snapshot: &watch::Receiver<Option<Arc<Snapshot>>>,
        heartbeat: &Heartbeat,
        runtime: Option<&RuntimeLink>,
    ) -> Self {
        Self {
            snapshot: snapshot.clone(),
            heartbeat: heartbeat.clone(),
            runtime: runtime.cloned(),
        }
    }

    fn in_step(&self) -> InStep {
        if let Some(failing) = self.heartbeat.failing() {
            return Err(failing);
        }
        match self.snapshot.borrow().as_deref() {
            None => return Err("the first turn of the reconciler has not ended".to_owned()),
            Some(snapshot) if !snapshot.pods_listed => {
                return Err(
                    "no turn of the reconciler has known the first list of this node's pods"
                        .to_owned(),
                );
            }
            Some(_) => {}
        }
        let awaited = self.runtime.as_ref().and_then(RuntimeLink::awaited);
        awaited.map_or(Ok(()), Err)
    }
}

/// Starts the task that tells the cluster's tasks, if there are any.
pub(super) fn start(sources: StepSources, cluster: Option<&ApiTasks>, tasks: &mut Tasks) {
    if let Some(cluster) = cluster {
        tasks.spawn(tell(sources, cluster.in_step.clone()));
    }
}

/// Keeps `in_step` up to date until the agent stops.
async fn tell(mut sources: StepSources, in_step: watch::Sender<InStep>) -> anyhow::Result<()> {
    let mut connection = sources.runtime.as_ref().and_then(RuntimeLink::used);
    loop {
        let new = sources.in_step();
        in_step.send_if_modified(|known| {
            let changed = *known != new;
            *known = new;
            changed
        });
        // Every turn publishes a snapshot, so a socket that comes or goes is noticed, too.
        tokio::select! {
            changed = sources.snapshot.changed() => if changed.is_err() {
                return Ok(());
            },
            () = changed(&mut connection) => {}
        }
    }
}

/// Waits for a change of the connection to the runtime. Without one, or after its end, there is none.
async fn changed(connection: &mut Option<watch::Receiver<ConnectionState>>) {
    if let Some(state) = connection
        && state.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cpu::CpuSet;
    use crate::nri::{Disconnect, RuntimeInfo};
    use crate::pin::{Enforcement, EnforcementCause, PlacementSource};

    fn snapshot(pods_listed: bool) -> Option<Arc<Snapshot>> {
        Some(Arc::new(Snapshot {
            enforcement: Enforcement::Cpuset,
            enforcement_cause: EnforcementCause::Configuration,
            enforcement_reason: String::new(),
            placement_source: PlacementSource::Pinfold,
            online: CpuSet::new(),
            reserved: CpuSet::new(),
            shared: CpuSet::new(),
            exclusive: CpuSet::new(),
            withheld: CpuSet::new(),
            held_by_others: CpuSet::new(),
            lost: CpuSet::new(),
            layout: Arc::default(),
            cpu_isolation: None,
            containers: Vec::new(),
            unknown_owners: Vec::new(),
            drift: Vec::new(),
            unexplained: Vec::new(),
            errors: Vec::new(),
            pods_listed,
        }))
    }

    struct Told {
        snapshot: watch::Sender<Option<Arc<Snapshot>>>,
        connection: watch::Sender<ConnectionState>,
        heartbeat: Heartbeat,
        in_step: watch::Receiver<InStep>,
    }

    impl Told {
        /// The task of an agent whose configuration permits NRI, or requires it.
        fn start(socket: &std::path::Path, expected: bool) -> Self {
            let (snapshot, snapshots) = watch::channel(None);
            let (connection, state) = watch::channel(ConnectionState::default());
            let heartbeat = Heartbeat::new(Duration::from_secs(10));
            let runtime = RuntimeLink::new(state, socket, expected);
            let sources = StepSources::new(&snapshots, &heartbeat, Some(&runtime));
            let (sender, in_step) = watch::channel(Ok(()));
            tokio::spawn(tell(sources, sender));
            Self {
                snapshot,
                connection,
                heartbeat,
                in_step,
            }
        }

        /// What the task says after all that happened; empty if the agent is in step.
        async fn says(&self) -> String {
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.in_step.borrow().clone().err().unwrap_or_default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_is_in_step_with_its_pods_and_the_runtime() {
        let socket = tempfile::NamedTempFile::new().unwrap();
        let told = Told::start(socket.path(), false);
        assert!(told.says().await.contains("the first turn"));
        told.snapshot.send_replace(snapshot(false));
        assert!(told.says().await.contains("the first list"));
        told.snapshot.send_replace(snapshot(true));
        assert!(
            told.says()
                .await
                .contains("no container runtime is synchronized")
        );
        let runtime = RuntimeInfo::default();
        let registered = ConnectionState::Registered(runtime.clone());
        told.connection.send_replace(registered);
        assert!(
            told.says()
                .await
                .contains("has not reported its containers")
        );
        told.connection
            .send_replace(ConnectionState::Synchronized(runtime));
        assert_eq!(told.says().await, "");
        // What was true once must be true again when a Node comes back.
        told.connection
            .send_replace(ConnectionState::Away(Disconnect::Closed));
        assert!(told.says().await.contains("closed the connection"));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_runtime_without_nri_unless_the_configuration_does() {
        let missing = std::path::Path::new("/nowhere/nri.sock");
        for (expected, waits) in [(false, false), (true, true)] {
            let told = Told::start(missing, expected);
            told.snapshot.send_replace(snapshot(true));
            assert_eq!(!told.says().await.is_empty(), waits, "{expected}");
        }
        let (sender, snapshots) = watch::channel(snapshot(true));
        let heartbeat = Heartbeat::new(Duration::from_secs(10));
        let unused = RuntimeLink::unused(missing);
        let sources = StepSources::new(&snapshots, &heartbeat, Some(&unused));
        assert_eq!(sources.in_step(), Ok(()));
        drop(sender);
    }

    #[tokio::test(start_paused = true)]
    async fn turns_that_fail_are_not_in_step() {
        let told = Told::start(std::path::Path::new("/nowhere/nri.sock"), false);
        for _ in 0..3 {
            told.heartbeat.failed("no cgroups".to_owned());
        }
        told.snapshot.send_replace(snapshot(true));
        assert!(told.says().await.contains("no cgroups"));
    }
}
